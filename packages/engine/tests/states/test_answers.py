"""An answer of storage goes into memory under what was written since it was asked."""

from __future__ import annotations

import pytest

from forebay_engine.states.answers import put_cell_under, put_entry_under, put_list_under
from forebay_engine.states.sorted_map import SortedMapChange
from forebay_state_api.contract.changes import ABSENT, ListChange, MapChange
from forebay_state_api.contract.key_range import KeyRange


@pytest.mark.parametrize(
    ("cells", "after"),
    [({}, 1), ({"k": 2}, 2), ({"k": ABSENT}, ABSENT), ({"other": 2}, 1)],
)
def test_a_cell_stays_as_it_was_written(cells, after):
    assert put_cell_under(cells, {}, "k", 1) == after
    assert cells["k"] == after


@pytest.mark.parametrize(
    ("cells", "change", "after"),
    [
        ({}, None, [1]),
        ({}, ListChange(0, elements=[2]), [1, 2]),
        ({"k": [2]}, ListChange(0, replaced=True, elements=[2]), [2]),
        ({"k": []}, ListChange(0, replaced=True), []),
    ],
)
def test_a_list_has_what_was_appended_after_what_is_stored(cells, change, after):
    dirty = {} if change is None else {"k": change}
    assert put_list_under(cells, dirty, "k", [1]) == after
    assert cells["k"] == after


def test_a_list_in_memory_is_not_the_list_of_its_changes():
    cells, dirty = {}, {"k": ListChange(0, elements=[2])}
    put_list_under(cells, dirty, "k", [1]).append(3)
    assert dirty["k"].elements == [2]


REMOVED = SortedMapChange(0, removed=(KeyRange(low="w", rank=None),))


@pytest.mark.parametrize(
    ("cells", "change", "after"),
    [
        ({}, None, 1),
        ({"k": {"x": 2}}, MapChange(0, entries={"x": 2}), 2),
        ({"k": {"x": ABSENT}}, MapChange(0, entries={"x": ABSENT}), ABSENT),
        ({"k": {"y": 2}}, MapChange(0, entries={"y": 2}), 1),
        ({"k": {}}, MapChange(0, cleared=True), ABSENT),
        ({"k": {"x": 2}}, MapChange(0, cleared=True, entries={"x": 2}), 2),
        ({}, REMOVED, ABSENT),
    ],
)
def test_an_entry_stays_as_it_was_written_or_removed(cells, change, after):
    dirty = {} if change is None else {"k": change}
    assert put_entry_under(cells, dirty, "k", "x", 1) == after
    assert cells.get("k", {}).get("x", ABSENT) == after
