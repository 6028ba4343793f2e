"""Slots of keys: hashes that collide, tables that grow, deleted cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_heap.key_slots import KeySlots
from forebay_backend_heap.slots import Slots
from forebay_state_api.codecs.columns import Texts
from forebay_state_api.contract import columns
from forebay_state_api.contract.columns import EncodedKeys

HASHES = st.lists(st.integers(1, (1 << 64) - 1) | st.integers(1, 9), unique=True, max_size=60)


@given(st.lists(HASHES, max_size=4))
def test_hashes_are_found_after_each_growth(parts):
    slots, model = Slots(), {}
    for part in parts:
        new = [one for one in part if one not in model]
        numbers = range(len(model), len(model) + len(new))
        assert not len(slots.add(np.array(new, np.uint64), np.array(numbers, np.int64)))
        model.update(zip(new, numbers, strict=True))
        asked = [*model, *(one ^ 1 << 40 for one in model)]
        found = slots.get(np.array(asked, np.uint64)).tolist()
        assert found == [model.get(one, -1) for one in asked]


def test_hashes_for_one_place_follow_each_other():
    slots = Slots()
    hashes = np.arange(1, 600, dtype=np.uint64) << np.uint64(32)
    slots.add(hashes, np.arange(599))
    assert slots.get(hashes).tolist() == [*range(599)]
    assert slots.get(hashes + np.uint64(1)).tolist() == [-1] * 599


def test_of_equal_hashes_one_is_added_and_the_others_are_returned():
    slots = Slots()
    slots.add(np.array([7], np.uint64), np.array([0]))
    taken = slots.add(np.array([5, 7, 5, 6, 5], np.uint64), np.array([1, 2, 3, 4, 5]))
    kept = slots.get(np.array([5, 6, 7], np.uint64)).tolist()
    assert kept[1:] == [4, 0]
    assert sorted([*taken.tolist(), kept[0] - 1]) == [0, 1, 2, 4]


def keys_of(*parts: bytes) -> EncodedKeys:
    return EncodedKeys(Texts.of(parts, binary=True), np.arange(len(parts), dtype=np.uint16))


@pytest.fixture(params=["good", "three", "one"])
def hashes(request, monkeypatch):
    """Hashes as they are, of three values, and of one value."""
    if request.param != "good":
        values = 3 if request.param == "three" else 1
        monkeypatch.setattr(
            columns,
            "hashes_of",
            lambda texts: np.array([len(part) % values + 1 for part in texts.parts()], np.uint64),
        )


@pytest.mark.usefixtures("hashes")
def test_keys_with_equal_hashes_have_slots_of_their_own():
    keys, model = KeySlots(), {}
    drawn = np.random.default_rng(1)
    for _ in range(20):
        asked = [*{bytes([65 + n % 26]) * int(n % 7) for n in drawn.integers(0, 200, 30)}]
        found = keys.find(keys_of(*asked), "find")
        assert found.tolist() == [model.get(key, -1) for key in asked]
        added = keys.find_or_add(keys_of(*asked), "add").tolist()
        for key, slot in zip(asked, added, strict=True):
            assert model.setdefault(key, slot) == slot
    assert len({*model.values()}) == len(model) == keys.count
    slots = np.array([*model.values()])
    assert keys.take(slots).encoded.parts() == [*model]


@pytest.mark.usefixtures("hashes")
def test_what_was_noted_is_looked_up_again_where_it_was_unknown():
    keys = KeySlots()
    asked = keys_of(b"a", b"bb", b"c")
    assert keys.find(asked, "me").tolist() == [-1, -1, -1]
    keys.find_or_add(keys_of(b"c", b"a"), "me")
    assert keys.find(asked, "me").tolist() == [1, -1, 0]
    assert keys.find_or_add(asked, "me").tolist() == [1, 2, 0]
    assert asked.noted["me"].tolist() == [1, 2, 0]
