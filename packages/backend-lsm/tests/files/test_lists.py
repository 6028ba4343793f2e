"""Times within list values: read for whole columns, and dropped element by element."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_backend_lsm.files.arrow import binary_array
from forebay_backend_lsm.files.lists import Stamps, chunks_of, without_expired

CHUNKS = st.lists(st.lists(st.tuples(st.integers(-9, 9), st.binary(max_size=3)), max_size=4))


@settings(deadline=None)
@given(st.lists(CHUNKS), st.integers(-10, 10))
def test_stamps_are_those_of_all_elements(model, values, until):
    packed = binary_array([b"".join(model.elements(*c) for c in chunks) for chunks in values])
    stamps = Stamps.of(packed)
    expected = [(i, t) for i, chunks in enumerate(values) for chunk in chunks for t, _ in chunk]
    assert sorted(zip(stamps.cells.tolist(), stamps.times.tolist(), strict=True)) == sorted(
        expected
    )
    assert stamps.expired(np.full(len(values), until)).tolist() == [
        any(t <= until for chunk in chunks for t, _ in chunk) for chunks in values
    ]


@settings(deadline=None)
@given(CHUNKS, st.integers(-10, 10))
def test_expired_elements_go_and_the_others_stay_in_order(model, chunks, until):
    value = b"".join(model.elements(*chunk) for chunk in chunks)
    left = [
        pair
        for times, elements in chunks_of(without_expired(value, until))
        for pair in zip(times, elements, strict=True)
    ]
    assert left == [(t, e) for chunk in chunks for t, e in chunk if t > until]


def test_a_list_of_which_all_is_expired_is_empty(model):
    assert without_expired(model.elements((1, b"a")) + struct.pack("<I", 0), 1) == b""
