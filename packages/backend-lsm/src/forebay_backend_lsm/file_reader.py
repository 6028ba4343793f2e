"""Opens files and reads their blocks: coalesced, with many requests in flight.

The first reads of a process start its threads. A process that was forked from one with threads
starts its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any, Final, Self, TypeVar

import attrs
import numpy as np

from forebay_backend_lsm.addressing import I64
from forebay_backend_lsm.cache import CACHE, CachedBlocks, NewBlocks, OpenFile
from forebay_backend_lsm.disk_cache import CachedRanges
from forebay_backend_lsm.files import FileBytes, FileTable, SortedFile
from forebay_backend_lsm.files.reading import check_present
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError
from forebay_state_api.threads import ReadThreads

RANGES_PER_CALL: Final = 8
"""Ranges of one file that one thread requests at once; storage fetches them concurrently."""
RANGES_AT_HAND: Final = 64
"""The limit of `RANGES_PER_CALL` for storage that does not wait: a call has a cost, but its data
should fit
caches."""
GAP_BYTES: Final = 4 * 1024
"""Blocks that are no further apart than this are read together with the gap."""
SPAN_BYTES: Final = 512 * 1024
"""Neighbouring blocks are read together up to this size."""
_REQUESTS: Final = 64
"""Concurrent read requests of a process."""
_CALLS_AHEAD: Final = 64
_BLOCKS_AT_ONCE: Final = 64

_ALL_GROUPS: Final = KeyGroupRange(0, (1 << 16) - 1)
"""An open file is shared by all its readers, each for its own key groups."""

T = TypeVar("T")
RawBlock = tuple[int, Any]
"""The number of a block and its raw bytes."""


class FileSource:
    """An open file, and the storage it is read from."""

    def __init__(self, opened: OpenFile, storage: OperatorStorage) -> None:
        """``storage`` is the storage it was opened on."""
        self.file: Final[SortedFile] = opened.file
        self.residences: Final[Mapping[str, CachedBlocks]] = opened.residences
        self._opened: Final = opened
        self._opened_on: Final = storage

    @property
    def where(self) -> str:
        """Names the operator's directory, operator and version, for messages."""
        return self._opened_on.where

    @property
    def waits(self) -> bool:
        """Whether concurrent requests are faster; see `ObjectStorage.waits`."""
        return self._opened_on.storage.waits

    def holds_few(self, name: str) -> bool:
        """Return whether the block of a table with few cells is in memory."""
        return name in self._opened.few

    def few(self, name: str) -> bytes:
        """Return the decompressed block of a table with few cells (`StoredSection.has_few`).

        If it has to be read, the blocks of neighbouring tables are read as well, so that a file
        with many small tables takes few reads.
        """
        if name not in self._opened.few:
            self._opened.few.update(self._read_few(name))
        return self._opened.few[name]

    def _read_few(self, name: str) -> dict[str, bytes]:
        def read_from(storage: ObjectStorage) -> dict[str, bytes]:
            return self.file.read_few(
                name, lambda start, length: self._ranges(storage, [(start, length)])[0]
            )

        return self._opened_on.verified(read_from)

    def read(self, table: FileTable, call: _Call) -> list[RawBlock]:
        """Read blocks, verify and decompress them."""
        held = self._opened.few.get(table.name)
        if held is not None:
            return [(0, held)]

        def read_from(storage: ObjectStorage) -> list[RawBlock]:
            found = [memoryview(data) for data in self._ranges(storage, call.ranges)]
            data = [found[i][start : start + length] for i, start, length in call.places]
            return [*zip(call.blocks, table.raws(call.blocks, data), strict=True)]

        return self._opened_on.verified(read_from)

    def _ranges(self, storage: ObjectStorage, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        file = self.file.file
        try:
            return storage.get_ranges(file.name, ranges)
        except StorageError as fault:
            check_present(storage, file, f"file {file.name!r}", fault)
            raise


@attrs.frozen(eq=False)
class OperatorStorage:
    """The operator's storage, as one opening reads its files from it."""

    storage: ObjectStorage
    """The storage, behind the disk cache if there is one."""
    origin: ObjectStorage
    """The storage itself, never behind the disk cache."""
    path: str
    where: str
    """Names directory, operator and version, for messages."""

    @classmethod
    def of(cls, opening: Opening, options: LsmOptions) -> Self:
        """Return the storage of an opening's files."""
        origin = storage = opening.storage
        if options.disk_cache_dir is not None:
            storage = CachedRanges(origin, options.disk_cache_dir, options.disk_cache_bytes)
        where = f"in {opening.path}, operator {opening.uid!r}, version {opening.version}"
        return cls(storage, origin, opening.path, where)

    def open(self, file: StateFile) -> FileSource:
        """Open a file unless this process has it open."""
        opened = CACHE.file(
            (self.path, file.name),
            lambda: self.verified(lambda storage: SortedFile.open(storage, file, _ALL_GROUPS)),
        )
        return FileSource(opened, self)

    def measured(self) -> Mapping[str, float]:
        """Return the hits and misses of the disk cache; empty without one."""
        if not isinstance(self.storage, CachedRanges):
            return {}
        return {"cache_hits_disk": self.storage.hits, "cache_misses_disk": self.storage.misses}

    def keep(self, file: StateFile, content: FileBytes) -> FileSource:
        """Open a file that this process has just written, and cache its content."""
        written = SortedFile(file, content.tail, _ALL_GROUPS)
        few = {**content.few}
        for name, section in written.sections.items():
            if section.has_few and name not in few:
                few[name] = written.raw_of(section, content.data[section.offset : section.end])
        opened = CACHE.keep((self.path, file.name), OpenFile(written, few))
        for name in written.sections:
            if name not in few:
                for blocks in _blocks(opened.file.tables[name], content.data):
                    CACHE.insert(NewBlocks.of([(opened.residences[name], blocks)]))
        return FileSource(opened, self)

    def verified(self, read: Callable[[ObjectStorage], T]) -> T:
        """Return the result of ``read``; on damage, repeat it without the disk cache."""

        def read_again() -> T:
            try:
                return read(self.storage)
            except CorruptStateError:
                if self.storage is self.origin:
                    raise
                return read(self.origin)

        return self.blamed(read_again)

    def blamed(self, act: Callable[[], T]) -> T:
        """Call ``act``; add operator and version to a `CorruptStateError` that it raises."""
        try:
            return act()
        except CorruptStateError as fault:
            raise CorruptStateError(f"{fault}; {self.where}") from fault


@attrs.frozen
class _Call:
    """Ranges of one file that are read at once, and the blocks within them."""

    ranges: Sequence[tuple[int, int]]
    """Offset and length of each."""
    blocks: Sequence[int]
    places: Sequence[tuple[int, int, int]]
    """For each block the index of its range, its start within the range, and its length."""


@attrs.frozen(eq=False)
class BlockRequest:
    """Blocks to read of one table in one file."""

    source: FileSource
    table: FileTable
    blocks: Sequence[int] | I64
    """Numbers of the blocks, ascending and distinct; at least one."""

    def calls(self) -> Iterator[_Call]:
        """Yield the calls that read the blocks, in which ranges join neighbouring blocks."""
        most = RANGES_PER_CALL if self.source.waits else RANGES_AT_HAND
        blocks = np.asarray(self.blocks, np.int64)
        starts = self.table.offsets[blocks]
        ends = starts + self.table.sizes[blocks]
        begins = np.concatenate(([True], starts[1:] - ends[:-1] > GAP_BYTES))
        # Runs of close blocks are cut into pieces of about equal length.
        into = starts - np.maximum.accumulate(np.where(begins, starts, 0))
        piece = into // SPAN_BYTES
        begins[1:] |= piece[1:] != piece[:-1]
        firsts = np.flatnonzero(begins)
        offsets = starts[firsts]
        lengths = ends[np.append(firsts[1:], len(blocks)) - 1] - offsets
        ranges = [*zip(offsets.tolist(), lengths.tolist(), strict=True)]
        which = np.cumsum(begins) - 1
        numbers = blocks.tolist()
        places = [
            *zip(
                (which % most).tolist(),
                (starts - offsets[which]).tolist(),
                (ends - starts).tolist(),
                strict=True,
            )
        ]
        cuts = [*firsts[::most].tolist(), len(blocks)]
        for number, (first, stop) in enumerate(pairwise(cuts)):
            begin = number * most
            yield _Call(ranges[begin : begin + most], numbers[first:stop], places[first:stop])


def fetch(wanted: Sequence[BlockRequest]) -> Iterator[tuple[int, list[RawBlock]]]:
    """Read all blocks; yield the position in ``wanted`` and some of its blocks, in order.

    At most about `_REQUESTS` requests of the process are in flight. Raises the first error and
    cancels calls that have not begun. Storage that does not wait is read by the calling thread:
    several threads would only take turns.
    """
    calls = [(i, each, call) for i, each in enumerate(wanted) for call in each.calls()]
    if len(calls) == 1 or not any(each.source.waits for each in wanted):
        for i, each, call in calls:
            yield i, each.source.read(each.table, call)
        return
    pool = _pool()
    under_way: deque[tuple[int, Future[list[RawBlock]]]] = deque()
    try:
        for i, each, call in calls:
            under_way.append((i, pool.submit(each.source.read, each.table, call)))
            if len(under_way) > _CALLS_AHEAD:
                first, future = under_way.popleft()
                yield first, future.result()
        while under_way:
            first, future = under_way.popleft()
            yield first, future.result()
    finally:
        for _, future in under_way:
            future.cancel()


def read_few(sources: Sequence[FileSource], name: str) -> None:
    """Read a table's blocks with few cells of several files into memory, concurrently.

    Raises the first error.
    """
    if len(sources) == 1:
        sources[0].few(name)
        return
    for _ in _pool().map(lambda source: source.few(name), sources):
        pass


def _blocks(table: FileTable, content: bytes) -> Iterator[list[RawBlock]]:
    """Yield all blocks of a table, some at a time."""
    data, count = memoryview(content), len(table.first_addresses)
    for first in range(0, count, _BLOCKS_AT_ONCE):
        blocks = range(first, min(first + _BLOCKS_AT_ONCE, count))
        places = [table.location(block) for block in blocks]
        raws = table.raws(blocks, [data[start : start + length] for start, length in places])
        yield [*zip(blocks, raws, strict=True)]


def open_sources(storage: OperatorStorage, files: Sequence[StateFile]) -> dict[str, FileSource]:
    """Open files concurrently, unless this process has them open.

    Raises `CorruptStateError`, naming file, operator and version, for a damaged file.
    """
    unique = {file.name: file for file in files}
    if len(unique) < 2:  # noqa: PLR2004 - threads pay off from two on
        return {name: storage.open(file) for name, file in unique.items()}
    found = _pool().map(storage.open, unique.values())
    return dict(zip(unique, found, strict=True))


class _Threads:
    """The reading threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._pool: ReadThreads | None = None

    def __call__(self) -> ReadThreads:
        with self._lock:
            if self._pool is None or self._process != os.getpid():
                self._process = os.getpid()
                self._pool = ReadThreads(_REQUESTS // RANGES_PER_CALL, "forebay-lsm-read")
            return self._pool


_pool: Final = _Threads()
