"""Passes over skewed content: every key is in one of them, and dividing comes to an end."""

from __future__ import annotations

import pytest

from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.bounded_passes import held_in_passes

HOT = KeyGroupRange(5, 5)


def passes(sizes, limit, groups=HOT):
    """Return the keys of each pass over a key group whose keys have these sizes."""

    def hold(chosen, budget):
        if 5 not in chosen.groups:
            return []
        rows = [*chosen.of(iter(sizes.items()), lambda row: row[0])]
        for key, size in rows:
            budget.spend([key], ["x" * size])
        return [key for key, _ in rows]

    return [keys for _, keys in held_in_passes([groups], limit, hold) if keys]


@pytest.mark.parametrize("groups", [HOT, KeyGroupRange(0, 63)])
def test_a_hot_key_group_is_divided_into_parts_of_its_keys(groups):
    found = passes(dict.fromkeys(range(1_000), 10_000), 1_000_000, groups)
    assert sorted(key for keys in found for key in keys) == [*range(1_000)]
    assert max(map(len, found)) <= 100


def test_one_large_row_is_no_reason_to_read_again():
    sizes = {key: 1_000_000 if key == 7 else 10 for key in range(100)}
    assert passes(sizes, 100_000) == [[*range(100)]]


def test_keys_of_the_same_hash_are_held_together():
    assert hash(-1) == hash(-2)
    sizes = {-1: 10_000, -2: 10_000, 3: 10_000}
    found = passes(sizes, 100)
    assert sorted(map(sorted, found)) == [[-2, -1], [3]]
