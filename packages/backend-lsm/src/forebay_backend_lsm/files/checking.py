"""Reads a whole file and reports its damage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import xxhash

from forebay_backend_lsm.files.cells import Positions
from forebay_backend_lsm.files.filter import Probes
from forebay_backend_lsm.files.layout import MAGIC
from forebay_backend_lsm.files.reading import FileTable, SortedFile
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StateMigrationError, StorageError

_READ_BYTES: Final = 4 * 1024 * 1024


def damage_of(storage: ObjectStorage, file: StateFile) -> list[str]:
    """Describe each fault of a file in a sentence; return an empty list for an intact file.

    Reads every byte, some megabytes at a time. A file that storage fails to return is damaged too.
    """
    try:
        opened = SortedFile.open(storage, file)
        return list(_faults(storage, opened))
    except (CorruptStateError, StateMigrationError, StorageError) as fault:
        return [str(fault)]


def _faults(storage: ObjectStorage, opened: SortedFile) -> Iterator[str]:
    file = opened.file
    head = storage.get_ranges(file.name, [(0, len(MAGIC))])[0]
    checksum = xxhash.xxh3_64(head)
    if head != MAGIC:
        yield f"file {file.name!r}: it does not begin with {MAGIC!r}"
    found = False
    for table in opened.tables.values():
        counts = np.zeros(4, np.int64)
        for block, data in _blocks(storage, file, table):
            checksum.update(data)
            try:
                yield from _faults_of_block(file, table, block, data, counts)
            except CorruptStateError as fault:
                found = True
                yield str(fault)
        if not found and tuple(counts.tolist()) != table.counts:
            yield f"file {file.name!r}, state {table.name!r}: its counts are wrong"
    if not found and checksum.intdigest() != opened.tail.body_checksum:
        yield f"file {file.name!r}: the checksum of its blocks does not fit them"


def _blocks(
    storage: ObjectStorage, file: StateFile, table: FileTable
) -> Iterator[tuple[int, memoryview]]:
    """Yield all blocks of a table, as stored."""
    count, at = len(table.first_addresses), 0
    while at < count:
        begin, length = table.location(at)
        stop = at + 1
        while stop < count and length + table.location(stop)[1] <= _READ_BYTES:
            length += table.location(stop)[1]
            stop += 1
        data = memoryview(storage.get_ranges(file.name, [(begin, length)])[0])
        for block in range(at, stop):
            offset, size = table.location(block)
            yield block, data[offset - begin : offset - begin + size]
        at = stop


def _faults_of_block(
    file: StateFile, table: FileTable, number: int, data: memoryview, counts: Positions
) -> Iterator[str]:
    block = table.decode(number, data)
    counts += np.bincount(block.kinds, minlength=len(counts))
    where = f"file {file.name!r}, state {table.name!r}, block {number}"
    if (block.addresses[1:] < block.addresses[:-1]).any():
        yield f"{where}: its cells are not sorted"
    if table.first_keys:
        keys = [*map(block.key, range(block.count))]
        cells = [*zip(block.addresses.tolist(), keys, strict=True)]
        if any(one >= after for one, after in pairwise(cells)):
            yield f"{where}: its keys are not in order"
        if keys[0] != table.first_keys[number]:
            yield f"{where}: it does not begin with the key in the index"
    if block.addresses[0] != table.first_addresses[number]:
        yield f"{where}: it does not begin where the index says"
    if not table.filter.passes(Probes.of(block.addresses)).all():
        yield f"{where}: the filter does not know all of its cells"
