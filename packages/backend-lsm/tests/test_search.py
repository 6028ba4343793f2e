"""Searching a batch in many blocks at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_backend_lsm.addressing import AddressedKeys
from forebay_backend_lsm.files import CellKind, Cells
from forebay_backend_lsm.files.blocks import Cutter
from forebay_backend_lsm.search import Arena, CandidateBlocks, search

CONTENT = st.dictionaries(
    st.binary(min_size=1, max_size=4),
    st.tuples(
        st.sampled_from([CellKind.PUT, CellKind.DELETE]), st.binary(max_size=90), st.integers()
    ),
    min_size=1,
    max_size=30,
)


def address(key):
    """Return one of so few addresses that most are shared."""
    return 1 + key[0] % 5


def block_of(content, *, times):
    keys = [*content]
    cells = Cells.of(
        np.array([address(key) for key in keys], np.uint64),
        np.array([content[key][0] for key in keys], np.uint8),
        keys,
        [content[key][1] for key in keys],
        [content[key][2] % 1000 for key in keys] if times else None,
    ).sorted()
    return Cutter(cells).raw(0, len(cells))


@pytest.mark.long
@settings(deadline=None)
@given(
    st.lists(CONTENT, min_size=1, max_size=4),
    st.lists(st.binary(min_size=1, max_size=4), max_size=10),
    st.booleans(),
)
def test_a_search_finds_what_a_dictionary_does(contents, others, times):
    arena, bases = Arena.of([block_of(content, times=times) for content in contents])
    keys = [*others, *(key for content in contents for key in content)]
    asked = [(block, key) for block in range(len(contents)) for key in keys]
    batch = AddressedKeys(
        np.array([address(k) for _, k in asked], np.uint64), [k for _, k in asked]
    )
    blocks = np.array([block for block, _ in asked])
    counts = np.array([len(content) for content in contents])
    places = CandidateBlocks(bases[blocks], counts[blocks], times)
    hits = search(arena, places, batch, np.arange(len(asked)))
    expected = [(i, contents[b][k]) for i, (b, k) in enumerate(asked) if k in contents[b]]
    assert hits.which.tolist() == [i for i, _ in expected]
    assert hits.kinds.tolist() == [kind for _, (kind, _, _) in expected]
    assert hits.split() == [value for _, (_, value, _) in expected]
    if times:
        assert hits.times == [time % 1000 for _, (_, _, time) in expected]
    puts = hits.only(CellKind.PUT)
    assert puts.split() == [value for _, (kind, value, _) in expected if kind == CellKind.PUT]


@pytest.mark.parametrize("size", [0, 1, 7, 100])
def test_values_of_any_size_come_out_whole(size):
    content = {b"k%d" % n: (CellKind.PUT, bytes([n]) * size, 0) for n in range(20)}
    arena, bases = Arena.of([block_of(content, times=False)])
    batch = AddressedKeys(np.array([address(k) for k in content], np.uint64), [*content])
    places = CandidateBlocks(np.repeat(bases[:1], 20), np.full(20, 20), has_times=False)
    hits = search(arena, places, batch, np.arange(20))
    assert hits.split() == [value for _, value, _ in content.values()]


def test_nothing_is_found_of_nothing():
    arena, bases = Arena.of([block_of({b"k": (CellKind.PUT, b"v", 0)}, times=False)])
    none = np.zeros(0, np.int64)
    batch = AddressedKeys(np.zeros(0, np.uint64), [])
    hits = search(arena, CandidateBlocks(bases[none], none, has_times=False), batch, none)
    assert (hits.which.tolist(), hits.values) == ([], b"")
