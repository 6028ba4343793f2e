"""Several writes to one cell combine into their net effect, however they are split."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_heap.table import _replay
from forebay_backend_heap.write_buffer import WriteBuffer, changes_of
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)

CELLS = st.sampled_from([(None, 1), (None, 2), ("w", 1)])
POINTS = st.integers(0, 5) | st.just(ABSENT)
LISTS = st.builds(ListChange, st.just(1), st.booleans(), st.lists(st.integers(0, 5), max_size=2))
MAPS = st.builds(
    MapChange, st.just(1), st.booleans(), st.dictionaries(st.integers(0, 2), POINTS, max_size=3)
)
PARTS = {Shape.POINT: POINTS, Shape.LIST: LISTS, Shape.MAP: MAPS}
OLD = {Shape.POINT: 9, Shape.LIST: [8, 9], Shape.MAP: {0: 9, 1: 9}}


def as_changes(shape, part):
    nested = {}
    for (namespace, key), change in part.items():
        nested.setdefault(namespace, {})[key] = change
    if shape is Shape.LIST:
        return Changes(lists=nested)
    if shape is Shape.MAP:
        return Changes(maps=nested)
    points = {n: PointChanges(list(c), [1] * len(c), list(c.values())) for n, c in nested.items()}
    return Changes(points=points)


def expect(shape, old, change):
    """Return the content of a cell after one change; ``None`` if it does not exist."""
    if shape is Shape.POINT:
        return None if change is ABSENT else change
    if shape is Shape.LIST:
        return [*([] if change.replaced else old or []), *change.elements] or None
    entries = {**({} if change.cleared else old or {}), **change.entries}
    return {k: v for k, v in entries.items() if v is not ABSENT} or None


@pytest.mark.parametrize("shape", PARTS)
@given(data=st.data())
def test_blocks_amount_to_the_changes(shape, data):
    parts = data.draw(st.lists(st.dictionaries(CELLS, PARTS[shape], max_size=3), max_size=4))
    pending, again = WriteBuffer(), WriteBuffer()
    expected = {cell: copy.deepcopy(OLD[shape]) for cell in [(None, 1), ("w", 1)]}
    for part in parts:
        pending.add(as_changes(shape, part))
        for cell, change in part.items():
            expected[cell] = expect(shape, expected.get(cell), change)
    for op, block in pending.blocks():
        again.add(changes_of(shape, op, block))
    spaces = {None: {1: copy.deepcopy(OLD[shape])}, "w": {1: copy.deepcopy(OLD[shape])}}
    for op, block in again.blocks():
        for namespace, keys, _, contents in block.by_namespace():
            _replay(shape, spaces[namespace], op, keys, copy.deepcopy(contents))
    content = {(n, k): c for n, cells in spaces.items() for k, c in cells.items()}
    assert content == {cell: c for cell, c in expected.items() if c is not None}


def test_nothing_written_is_no_block():
    pending = WriteBuffer()
    assert list(pending.blocks()) == []
    pending.add(Changes(lists={None: {1: ListChange(1)}}))
    pending.add(Changes(points={None: PointChanges([], [], [])}))
    assert list(pending.blocks()) == []
