"""Keys become cell keys and addresses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_lsm.addressing import (
    ENTRY_BITS,
    Addressing,
    namespace_of,
    read_varint,
    varint,
)
from forebay_state_api.contract.changes import Shape


@given(st.integers(0, 1 << 40))
def test_varints_come_back(number):
    assert read_varint(b"x" + varint(number) + b"y", 1) == (number, 1 + len(varint(number)))


def test_prefixes_of_keys_and_namespaces_never_begin_with_one_another(kit):
    addressing = Addressing(kit.spec(key=bytes))
    keys = [b"", b"\0", b"a", b"ab", b"x" * 127, b"x" * 128, b"x" * 20_000]
    namespaces = [None, 1, "w", ("w", 2), "w" * 300]
    found = [p for n in namespaces for p in addressing.prefixes(n, keys)]
    assert not [1 for a, b in itertools.permutations(found, 2) if b.startswith(a)]


@pytest.mark.parametrize("namespace", [None, 1, "w", ("w", 2), b"x" * 500])
def test_a_cell_key_tells_its_namespace(kit, namespace):
    (prefix,) = Addressing(kit.spec()).prefixes(namespace, ["k"])
    assert namespace_of(prefix + b"user key") == namespace


def test_an_address_begins_with_the_key_group(kit):
    batch = Addressing(kit.spec()).asked(None, [(3, "a"), (15, "b")])
    assert (batch.addresses >> np.uint64(48)).tolist() == [3, 15]


def test_entries_lie_together_by_map(kit):
    addressing = Addressing(kit.spec(shape=Shape.MAP))
    entries = addressing.entries(None, [(3, "a", str(n)) for n in range(50)])
    first = addressing.one_map(None, 3, "a")
    assert set(entries.prefixes.addresses.tolist()) == {int(first.addresses[0])}
    above = entries.cells.addresses - first.addresses[0]
    assert len(set(above.tolist())) == 50
    assert int(above.max()) < 1 << ENTRY_BITS
    assert all(key.startswith(first.keys[0]) for key in entries.cells.keys)


def test_a_batch_joins_its_keys(kit):
    batch = Addressing(kit.spec(key=bytes)).asked(None, [(1, b"a"), (1, b""), (1, b"xyz")])
    parts = [
        bytes(batch.data[start : start + length])
        for start, length in zip(batch.starts, batch.lengths, strict=True)
    ]
    assert parts == batch.keys
