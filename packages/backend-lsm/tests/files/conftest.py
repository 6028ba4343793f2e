"""Shared by the tests of files and merging: makes cells, and reads them back."""

from __future__ import annotations

import itertools
import struct
from types import SimpleNamespace

import numpy as np
import pytest

from forebay_backend_lsm.files import CellKind, Cells, SortedFile, TableHeader, write_file
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

GROUPS = KeyGroupRange(0, 15)
PUT, DELETE, APPEND, CLEAR = CellKind


def header(name="t", kind="value", *, ttl=False, value="bytes", user_key=None):
    description = {
        "name": name,
        "kind": kind,
        "key": "bytes",
        "value": value,
        "user_key": user_key,
        "ttl": ttl,
    }
    return TableHeader(name, description, ttl)


def address(key, bits=48):
    """Distinguish keys by ``bits`` bits, so that few bits make collisions; the group is first."""
    group, rest = key[0] % 16, sum(key[1:]) // 2 & ((1 << bits) - 1)
    return group << 48 | rest


def map_address(key):
    """Return the address of a map's cell, whose prefix is the first two bytes of the key."""
    group, prefix = key[0] % 16, key[1] // 2
    return group << 48 | prefix << 24 | sum(key[2:]) // 2


def cells_of(found, *, times=False, address=address):
    """Make cells of ``found``: key → (kind, value, time)."""
    keys = list(found)
    return Cells.of(
        np.array([address(key) for key in keys], np.uint64),
        np.array([kind for kind, _, _ in found.values()], np.uint8),
        keys,
        [value for _, value, _ in found.values()],
        [time for _, _, time in found.values()] if times else None,
    ).sorted()


def rows(cells):
    """Return the rows of cells, in order: the inverse of `cells_of`."""
    times = [0] * len(cells) if cells.times is None else cells.times.tolist()
    values = zip(cells.kinds.tolist(), cells.values.to_pylist(), times, strict=True)
    return dict(zip(cells.keys.to_pylist(), values, strict=True))


def blocks_of(storage, table, name):
    for number in range(len(table.first_addresses)):
        data = storage.get_ranges(name, [table.location(number)])[0]
        yield table.decode(number, data)


def read_all(storage, file):
    """Return table name → key → (kind, value, time) for all cells of a file."""
    opened = SortedFile.open(storage, file)
    return {
        name: {
            key: row
            for block in blocks_of(storage, table, file.name)
            for key, row in rows(block.cells).items()
        }
        for name, table in opened.tables.items()
    }


def write(storage, name, tables, **options):
    """Write ``tables``: [(header, key → (kind, value, time))]."""
    parts = [
        (h, [cells_of(found, times=h.has_times, address=place_of(h))] if found else [])
        for h, found in tables
    ]
    return write_file(storage, name, parts, range=GROUPS, **options)


def place_of(h):
    return map_address if h.description["kind"] == "map" else address


def job_of(inputs, *, bottom=True, prefix="out/", now_us=0, target_bytes=1 << 20, **options):
    return CompactionJob(
        id=prefix,
        operator="op",
        format="lsm-1",
        inputs=inputs,
        output_prefix=prefix,
        range=options.pop("range", GROUPS),
        now_us=now_us,
        target_bytes=target_bytes,
        options={"bottom": bottom, **options},
    )


def clipped(file, start, end):
    return StateFile(
        name=file.name, size=file.size, range=KeyGroupRange(start, end), meta=file.meta
    )


def elements(*items):
    """Return the value of a list with TTL: one chunk of (time, element) pairs."""
    times = b"".join(struct.pack("<q", time) for time, _ in items)
    lengths = b"".join(struct.pack("<I", len(element)) for _, element in items)
    return struct.pack("<I", len(items)) + times + lengths + b"".join(e for _, e in items)


_numbers = itertools.count()


def new_storage():
    return open_storage(f"memory://lsm-files-{next(_numbers)}")


@pytest.fixture
def storage():
    return new_storage()


class Model(SimpleNamespace):
    def __repr__(self):
        return "model"


@pytest.fixture(scope="session")
def model():
    """The helpers by name, for tests that cannot import a conftest."""
    return Model(**globals())
