"""Cells in columns: order, equality where addresses collide, conversions."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files import CellKind, Cells, address_of, addresses_of
from forebay_backend_lsm.files.arrow import binary_array, flag_array, flags_of, taken
from forebay_backend_lsm.files.cells import order_of


def test_an_address_is_the_key_group_and_bits_of_the_hash():
    assert address_of(5, b"key") == 5 << 48 | xxh3_64_intdigest(b"key") >> 16
    prefixes = [b"a", b"", b"key"]
    found = addresses_of(np.array([0, 32767, 5]), prefixes)
    assert found.tolist() == [
        address_of(g, p) for g, p in zip([0, 32767, 5], prefixes, strict=True)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=2))))
def test_cells_sort_by_address_then_key_and_equal_ones_stay_in_their_order(pairs):
    addresses = np.array([a for a, _ in pairs], np.uint64)
    keys = [k for _, k in pairs]
    order, same = order_of(addresses, binary_array(keys))
    expected = sorted(range(len(pairs)), key=pairs.__getitem__)
    assert order.tolist() == expected
    ahead = [pairs[i] for i in expected]
    assert same.tolist() == [a == b for a, b in itertools.pairwise(ahead)]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9)), st.data())
def test_arrays_without_pandas_say_the_same(items, data):
    array = binary_array(items)
    assert array.to_pylist() == items
    flags = data.draw(st.lists(st.booleans(), min_size=1))
    assert flags_of(flag_array(np.array(flags))).tolist() == flags
    cut = data.draw(st.integers(0, len(flags)))
    assert flags_of(pa.array(flags).slice(cut)).tolist() == flags[cut:]
    if items:
        at = data.draw(st.lists(st.integers(0, len(items) - 1)))
        assert taken(array, np.array(at, np.int64)).to_pylist() == [items[i] for i in at]


@pytest.mark.long
def test_writing_and_merging_do_not_import_pandas():
    code = (
        "import sys; import numpy as np;"
        "from forebay_backend_lsm.files import Cells, CellKind;"
        "a = np.array([3, 3, 1], np.uint64);"
        "c = Cells.of(a, CellKind.PUT, [b'b', b'a', b'c'], [b'1', b'2', b'3']).sorted();"
        "assert c.keys.to_pylist() == [b'c', b'a', b'b'];"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cells_are_cut_and_joined():
    times = [7, 8, 9]
    addresses = np.array([1, 2, 3], np.uint64)
    cells = Cells.of(addresses, CellKind.PUT, [b"a", b"b", b"c"], [b"", b"x", b"yy"], times)
    again = Cells.concat([cells.slice(0, 1), cells.slice(1, 3)])
    assert again.keys.to_pylist() == [b"a", b"b", b"c"]
    assert again.values.to_pylist() == [b"", b"x", b"yy"]
    assert (again.times.tolist(), again.addresses.tolist()) == (times, [1, 2, 3])
    assert cells.take(np.array([2, 0])).times.tolist() == [9, 7]
