"""Redistribution when the parallelism changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.operator_state.redistribution import broadcast_source, even_share


@given(st.lists(st.integers()), st.integers(1, 40))
def test_every_element_goes_to_one_subtask_in_order(elements, parallelism):
    shares = [even_share(elements, subtask, parallelism) for subtask in range(parallelism)]
    assert [one for share in shares for one in share] == elements
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("elements", "shares"),
    [
        ("ab", ["a", "b"]),
        ("abcde", ["ab", "cd", "e"]),
        ("abcdefg", ["ab", "cd", "ef", "g"]),
        ("a", ["a", "", ""]),
        ("", ["", ""]),
    ],
)
def test_the_first_ones_get_one_more(elements, shares):
    assert [even_share(elements, n, len(shares)) for n in range(len(shares))] == shares


def test_broadcast_copies_go_round():
    assert [broadcast_source(subtask, 2) for subtask in range(5)] == [0, 1, 0, 1, 0]
