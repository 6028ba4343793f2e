"""Caches files in a worker process: decoded blocks in one arena, and open files.

All operators and partitions of the process share one budget, in real bytes. Correctness does not
depend on the cache: files never change, so cached content is always valid.

The arena is filled segment by segment. When there is no room, the oldest segment is evicted. Blocks
that were used since they were added move to the new segment; the others are dropped. This keeps
blocks that are in use, like evicting the least recently used block, without a list of all blocks.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from forebay_backend_lsm.addressing import I64, AddressedKeys
from forebay_backend_lsm.files import SortedFile
from forebay_backend_lsm.files.made_once import MadeOnce
from forebay_backend_lsm.search import SLACK_BYTES, Arena, CandidateBlocks, Hits, search_pairs

_MOST_SEGMENT_BYTES: Final = 4 << 20
_SEGMENTS: Final = 16
_PAGE: Final = mmap.PAGESIZE
_RESIDENCE_BYTES: Final = 17
"""Memory of a block's items in a `CachedBlocks`."""
_ABSENT: Final = -1
_NOTHING: Final = -1
_ANONYMOUS: Final = -1
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class CachedBlocks:
    """The blocks of one table in one file that are in the arena, and their offsets."""

    __slots__ = ("bases", "counts", "has_times", "used")

    def __init__(self, counts: npt.NDArray[Any], *, has_times: bool) -> None:
        """``counts`` holds the number of cells of each block."""
        self.counts: Final[I64] = counts.astype(np.int64)
        self.has_times: Final = has_times
        self.bases: Final = np.full(len(counts), _ABSENT, np.int64)
        self.used: Final = np.zeros(len(counts), np.bool_)


class OpenFile:
    """A file with its index and filters in memory, and its contents that are.

    Those are blocks in the arena, which have a `CachedBlocks`, and blocks of tables with few cells,
    which belong to the open file and count from the beginning (`Section.memory_bytes`).
    """

    def __init__(self, file: SortedFile, few: Mapping[str, bytes] | None = None) -> None:
        """``few`` are blocks of tables with few cells; begins without any others."""
        self.file: Final = file
        self.residences: Final = MadeOnce(file.sections, partial(_residence, file))
        self.memory_bytes: Final = file.memory_bytes + sum(
            _RESIDENCE_BYTES * section.block_count for section in file.sections.values()
        )
        self.few: Final[dict[str, bytes]] = {**(few or {})}
        """Table with few cells → its block, decompressed; others are read when asked for."""


def _residence(file: SortedFile, name: str) -> CachedBlocks:
    table = file.tables[name]
    return CachedBlocks(table.cells, has_times=table.has_times)


@attrs.frozen(eq=False)
class NewBlocks:
    """Raw blocks of one table in one file, in a separate arena."""

    residence: CachedBlocks
    blocks: I64
    arena: Arena
    bases: I64
    """Offset of each block in ``arena``, ascending, and the end of the last one."""

    @classmethod
    def of(cls, found: Sequence[tuple[CachedBlocks, Sequence[tuple[int, Any]]]]) -> list[Self]:
        """Copy blocks, given by number and raw bytes for each file, into one arena."""
        arena, bases = Arena.of([raw for _, blocks in found for _, raw in blocks])
        answers, start = [], 0
        for residence, blocks in found:
            stop = start + len(blocks)
            numbers = np.array([number for number, _ in blocks], np.int64)
            answers.append(cls(residence, numbers, arena, bases[start : stop + 1]))
            start = stop
        return answers

    @property
    def sizes(self) -> I64:
        """Bytes that each block takes up."""
        return self.bases[1:] - self.bases[:-1]


@attrs.define
class _ArenaSegment:
    start: int
    used: int = 0
    chunks: list[tuple[CachedBlocks, I64, I64]] = attrs.field(factory=list)
    """CachedBlocks, blocks, and the size of each."""


class _Blocks:
    """The arena of one budget: segments in a ring. Not thread-safe."""

    def __init__(self, budget: int) -> None:
        size = min(_MOST_SEGMENT_BYTES, budget // _SEGMENTS)
        self._segment_bytes: Final = size // _PAGE * _PAGE or size // 8 * 8
        count = budget // self._segment_bytes if self._segment_bytes else 0
        self._length: Final = count * self._segment_bytes
        # Pages that were never written, or were released, take no memory.
        self._memory: Final = mmap.mmap(
            _ANONYMOUS, self._length + _PAGE + SLACK_BYTES, flags=_PRIVATE
        )
        self.arena: Final = Arena(self._memory)
        self._view: Final = memoryview(self._memory)
        self._free: Final = deque(range(0, self._length, self._segment_bytes or 1))
        self._segments: Final[deque[_ArenaSegment]] = deque()

    @property
    def held_bytes(self) -> int:
        """Memory of the segments in use."""
        return len(self._segments) * self._segment_bytes

    def insert(self, new: NewBlocks, allowed: int) -> None:
        """Copy blocks into the arena, which may hold ``allowed`` bytes; skip huge blocks."""
        sizes, residence = new.sizes, new.residence
        absent = residence.bases[new.blocks] == _ABSENT
        left = np.flatnonzero(absent & (sizes <= self._segment_bytes))
        while len(left):
            segment = self._segments[-1] if self._segments else None
            if segment is None or segment.used + sizes[left[0]] > self._segment_bytes:
                segment = self._new_segment(allowed, int(sizes[left[0]]))
                if segment is None:
                    return
            room = self._segment_bytes - segment.used
            fits = int(np.searchsorted(np.cumsum(sizes[left]), room, "right"))
            part, left = left[:fits], left[fits:]
            self._copy(segment, new.arena.buffer, new.bases[part], sizes[part])
            self._settle(segment, residence, new.blocks[part], sizes[part])

    def _copy(self, segment: _ArenaSegment, source: memoryview, bases: I64, sizes: I64) -> None:
        """Append the data at offsets ``bases`` of ``source``."""
        to = segment.start + segment.used
        first, end = int(bases[0]), int(bases[-1] + sizes[-1])
        if end - first == int(sizes.sum()):
            self._view[to : to + end - first] = source[first:end]
            return
        for base, size in zip(bases.tolist(), sizes.tolist(), strict=True):
            self._view[to : to + size] = source[base : base + size]
            to += size

    def shrink(self, allowed: int) -> None:
        """Release memory until no more than ``allowed`` bytes are held."""
        while self._segments and self.held_bytes > allowed:
            segment = self._segments.popleft()
            _empty(segment)
            self._free.append(segment.start)
            if self._segment_bytes % _PAGE == 0:
                self._memory.madvise(mmap.MADV_DONTNEED, segment.start, self._segment_bytes)

    def _new_segment(self, allowed: int, size: int) -> _ArenaSegment | None:
        """Return an empty segment, or the oldest one reduced to its used blocks."""
        if self._free and self.held_bytes + self._segment_bytes <= allowed:
            segment = _ArenaSegment(self._free.popleft())
            self._segments.append(segment)
            return segment
        if not self._segments:
            return None
        oldest = self._segments.popleft()
        kept = []
        for residence, blocks, sizes in oldest.chunks:
            if (used := residence.used[blocks]).any():
                sources = residence.bases[blocks[used]]
                kept.append((residence, blocks[used], sizes[used], sources))
        _empty(oldest)
        segment = _ArenaSegment(oldest.start)
        self._segments.append(segment)
        room = min(self._segment_bytes // 2, self._segment_bytes - size)
        for residence, blocks, sizes, sources in kept:
            fits = int(np.searchsorted(np.cumsum(sizes), room - segment.used, "right"))
            if fits:
                # Blocks only move down within the segment, in order.
                self._copy(segment, self._view, sources[:fits], sizes[:fits])
                self._settle(segment, residence, blocks[:fits], sizes[:fits])
        return segment

    def _settle(
        self, segment: _ArenaSegment, residence: CachedBlocks, blocks: I64, sizes: I64
    ) -> None:
        ends = np.cumsum(sizes)
        residence.bases[blocks] = segment.start + segment.used + ends - sizes
        residence.used[blocks] = False
        segment.chunks.append((residence, blocks, sizes))
        segment.used += int(ends[-1])


def _empty(segment: _ArenaSegment) -> None:
    for residence, blocks, _ in segment.chunks:
        residence.bases[blocks] = _ABSENT
    segment.chunks.clear()


def _open_files(budget: int) -> LRUCache[tuple[str, str], OpenFile]:
    return LRUCache(budget, getsizeof=attrgetter("memory_bytes"))


class ProcessCache:
    """Open files and blocks within one budget. Thread-safe."""

    def __init__(self) -> None:
        """Keep nothing until `resize` gives a budget."""
        self._lock: Final = threading.Lock()
        self._budget = 0
        self._blocks = _Blocks(0)
        self._files = _open_files(0)
        self.hits = 0
        """Cells that were looked for in blocks of the cache, and whole blocks taken from it."""
        self.misses = 0
        """The same, of blocks that were not cached."""

    def resize(self, budget: int) -> None:
        """Set the budget, in bytes; a change drops everything."""
        with self._lock:
            if budget != self._budget:
                self._reset(budget)

    def clear(self) -> None:
        """Drop everything, and keep the budget."""
        with self._lock:
            self._reset(self._budget)

    def _reset(self, budget: int) -> None:
        self._blocks.shrink(_NOTHING)
        self._files = _open_files(budget)
        self._budget = budget
        self._blocks = _Blocks(budget)

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that are in use."""
        return self._blocks.held_bytes + self._file_bytes

    @property
    def _file_bytes(self) -> int:
        return int(self._files.currsize)

    # -- files --------------------------------------------------------------------------------

    def file(self, key: tuple[str, str], opened: Callable[[], SortedFile]) -> OpenFile:
        """Return the open file of (operator's directory, name), calling ``opened`` if necessary."""
        with self._lock:
            if (file := self._files.get(key)) is not None:
                return file
        return self.keep(key, OpenFile(opened()))

    def keep(self, key: tuple[str, str], file: OpenFile) -> OpenFile:
        """Cache an open file; return the cached one if another thread was first."""
        with self._lock:
            if (known := self._files.get(key)) is not None:
                return known
            with contextlib.suppress(ValueError):  # it is larger than the budget
                self._files[key] = file
            self._blocks.shrink(self._budget - self._file_bytes)
            return file

    # -- blocks -------------------------------------------------------------------------------

    def find(
        self, asked: Sequence[tuple[CachedBlocks, I64, I64]], batch: AddressedKeys
    ) -> tuple[Hits, I64, I64]:
        """Search for cells of ``batch`` in the blocks that would hold them, if these are cached.

        ``asked`` holds, for each file, the blocks and the cells to search for in them. Returns the
        hits, their positions among all requested cells, and the positions whose block is not
        cached.
        """
        with self._lock:
            bases = _joined([residence.bases[blocks] for residence, blocks, _ in asked])
            counts = _joined([residence.counts[blocks] for residence, blocks, _ in asked])
            which = _joined([cells for _, _, cells in asked])
            for residence, blocks, _ in asked:
                residence.used[blocks] = True
            missing = bases < 0
            absent = int(np.count_nonzero(missing))
            self.hits += len(which) - absent
            self.misses += absent
            if not absent:
                places = CandidateBlocks(bases, counts, asked[0][0].has_times)
                hits, at = search_pairs(self._blocks.arena, places, batch, which)
                return hits, at, np.zeros(0, np.int64)
            here = np.flatnonzero(~missing)
            places = CandidateBlocks(bases[here], counts[here], asked[0][0].has_times)
            hits, at = search_pairs(self._blocks.arena, places, batch, which[here])
            return hits, here[at], np.flatnonzero(missing)

    def note(self, *, hits: int = 0, misses: int = 0) -> None:
        """Count cells that were looked for in blocks which open files hold, or had to read."""
        with self._lock:
            self.hits += hits
            self.misses += misses

    def copy(self, residence: CachedBlocks, block: int, size: int) -> bytes | None:
        """Return the raw bytes of one block if it is cached."""
        with self._lock:
            base = int(residence.bases[block])
            if base < 0:
                self.misses += 1
                return None
            self.hits += 1
            residence.used[block] = True
            return bytes(self._blocks.arena.buffer[base : base + size])

    def insert(self, found: Sequence[NewBlocks]) -> None:
        """Cache raw blocks."""
        with self._lock:
            for new in found:
                self._blocks.insert(new, self._budget - self._file_bytes)


def _joined(parts: Sequence[I64]) -> I64:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


CACHE: Final = ProcessCache()
"""The cache of this process."""
