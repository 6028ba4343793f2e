"""Looks up a whole batch of cells in many blocks with a few numpy operations.

The blocks are in one buffer, an *arena*, each aligned to eight bytes, in the layout of
`forebay_backend_lsm.files.blocks`. So the same few arrays view the columns of all blocks, and every
step of a search handles all cells of the batch at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt

from forebay_backend_lsm.addressing import I64, U8, U64, AddressedKeys
from forebay_backend_lsm.files import CellKind

Mask = npt.NDArray[np.bool_]

SLACK_BYTES: Final = 64
"""Bytes of an arena after its last block: a search may read one element too far."""
ALIGNMENT: Final = 8
_SHORT: Final = 48
"""Contents with fewer bytes than this on average are gathered byte by byte."""


class Arena:
    """A buffer, viewed as arrays of each width."""

    __slots__ = ("buffer", "bytes", "u32", "u64")

    def __init__(self, buffer: Any) -> None:
        """View ``buffer``, whose length in bytes is a multiple of eight."""
        self.buffer: Final = memoryview(buffer).cast("B")
        self.bytes: Final[U8] = np.frombuffer(buffer, np.uint8)
        self.u32: Final = np.frombuffer(buffer, "<u4")
        self.u64: Final[U64] = np.frombuffer(buffer, "<u8")

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> tuple[Self, I64]:
        """Copy raw blocks into a new arena; return it, and where each begins and the last ends."""
        views = [memoryview(block).cast("B") for block in blocks]
        sizes = np.array([view.nbytes for view in views], np.int64)
        room = -(-sizes // ALIGNMENT) * ALIGNMENT
        bases = np.concatenate(([0], np.cumsum(room)))
        buffer = np.empty(int(bases[-1]) + SLACK_BYTES, np.uint8)
        whole = memoryview(buffer.data)
        for base, view in zip(bases.tolist(), views, strict=False):
            whole[base : base + view.nbytes] = view
        return cls(buffer), bases


@attrs.frozen(eq=False)
class Hits:
    """Found cells, copied out of the arena."""

    which: I64
    """Positions of the cells in the batch, ascending."""
    kinds: U8
    times: list[int] | None
    """``None`` in a table without a time column."""
    values: bytes
    """All values, joined."""
    lengths: I64
    """Bytes of each value."""

    @classmethod
    def none(cls, *, has_times: bool) -> Self:
        """Return hits without cells."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing.astype(np.uint8), [] if has_times else None, b"", nothing)

    def split(self) -> list[bytes]:
        """Return the value of each cell."""
        ends = np.cumsum(self.lengths)
        starts = (ends - self.lengths).tolist()
        return [self.values[a:b] for a, b in zip(starts, ends.tolist(), strict=True)]

    def cut(self, bounds: Sequence[int]) -> Iterator[Hits]:
        """Split into consecutive hits at ``bounds``, whose last item is the number of hits."""
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        for start, stop in pairwise(bounds):
            yield Hits(
                self.which[start:stop],
                self.kinds[start:stop],
                None if self.times is None else self.times[start:stop],
                self.values[int(ends[start]) : int(ends[stop])],
                self.lengths[start:stop],
            )

    def only(self, kind: CellKind) -> Hits:
        """Return the hits of one kind."""
        return self.take(self.kinds == kind)

    def take(self, chosen: Mask) -> Hits:
        """Return the chosen hits."""
        if chosen.all():
            return self
        parts = [part for part, is_one in zip(self.split(), chosen.tolist(), strict=True) if is_one]
        times = None
        if self.times is not None:
            times = [self.times[i] for i in np.flatnonzero(chosen).tolist()]
        return Hits(
            self.which[chosen], self.kinds[chosen], times, b"".join(parts), self.lengths[chosen]
        )


@attrs.frozen(eq=False)
class CandidateBlocks:
    """The block that would hold each requested cell: its offset and its number of cells."""

    bases: I64
    counts: I64
    has_times: bool

    def take(self, chosen: Any) -> CandidateBlocks:
        """Return the items at some positions."""
        return CandidateBlocks(self.bases[chosen], self.counts[chosen], self.has_times)


@attrs.frozen(eq=False)
class _Columns:
    """The offsets of some blocks' columns, as laid out by `forebay_backend_lsm.files.blocks`."""

    times: I64
    """Index into the arena's ``u64``."""
    key_offsets: I64
    """Index into the arena's ``u32``, like ``value_offsets``."""
    value_offsets: I64
    kinds: I64
    """Offset in bytes, like ``keys``."""
    keys: I64

    @classmethod
    def of(cls, places: CandidateBlocks) -> Self:
        counts = places.counts
        times = (places.bases >> 3) + counts
        key_offsets = (times + counts if places.has_times else times) << 1
        value_offsets = key_offsets + (counts + 1)
        kinds = (value_offsets + (counts + 1)) << 2
        return cls(times, key_offsets, value_offsets, kinds, kinds + counts)


def search(arena: Arena, places: CandidateBlocks, batch: AddressedKeys, which: I64) -> Hits:
    """Search for cells ``which`` of ``batch``, each in its candidate block.

    `Hits.which` has the positions in ``batch``; a cell may be searched for in several blocks.
    """
    return search_pairs(arena, places, batch, which)[0]


def search_pairs(
    arena: Arena, places: CandidateBlocks, batch: AddressedKeys, which: I64
) -> tuple[Hits, I64]:
    """Search as `search` does; also return the positions in ``which`` of the cells found."""
    wanted = batch.addresses[which]
    found, at = _lower_bounds(arena, places, wanted)
    hit = np.flatnonzero((found < places.counts) & (arena.u64[at] == wanted))
    if not len(hit):
        # Usually false positives of filters.
        return Hits.none(has_times=places.has_times), hit
    if len(hit) < len(which):
        places, found, which = places.take(hit), found[hit], which[hit]
    columns = _Columns.of(places)
    same = _keys_match(arena, columns, found, batch, which)
    if not same.all():
        for i in np.flatnonzero(~same).tolist():
            asked = int(which[i])
            one = int(batch.addresses[asked]), batch.keys[asked]
            found[i] = _among_equals(arena, places.take([i]), int(found[i]), *one)
        kept = found >= 0
        hit, found, which = hit[kept], found[kept], which[kept]
        columns = _Columns.of(places.take(kept))
    return _taken_out(arena, columns, found, which, has_times=places.has_times), hit


def _lower_bounds(arena: Arena, places: CandidateBlocks, wanted: U64) -> tuple[I64, I64]:
    """Find each block's first cell whose address is not below the wanted one; also in ``u64``."""
    if not len(wanted):
        return wanted.astype(np.int64), wanted.astype(np.int64)
    addresses = arena.u64
    first = places.bases >> 3
    low, left = first - 1, places.counts.copy()
    for _ in range(int(left.max()).bit_length()):
        half = (left + 1) >> 1
        ahead = low + half
        below = addresses[ahead] < wanted
        # When a search is finished, ``half`` is zero and the position stays.
        low += half * below
        left -= half
    low += 1
    return low - first, low


def _keys_match(
    arena: Arena, columns: _Columns, found: I64, batch: AddressedKeys, which: I64
) -> Mask:
    starts, lengths = _extents(arena, columns.key_offsets + found)
    starts += columns.keys
    same: Mask = lengths == batch.lengths[which]
    if same.all():
        there = gathered(arena, starts, lengths)
        asked = _gather(batch.data, batch.starts[which], lengths)
        if there == asked.tobytes():
            return same
        owners = np.repeat(np.arange(len(which)), lengths)
        same[owners[np.frombuffer(there, np.uint8) != asked]] = False
        return same
    alike = np.flatnonzero(same)
    part = _Columns(*(column[alike] for column in attrs.astuple(columns, recurse=False)))
    same[alike] = _keys_match(arena, part, found[alike], batch, which[alike])
    return same


def _extents(arena: Arena, at: I64) -> tuple[I64, I64]:
    """Return start, within the area, and length of the extents between neighbouring offsets."""
    starts = arena.u32[at].astype(np.int64)
    return starts, arena.u32[at + 1] - starts


def _among_equals(
    arena: Arena, place: CandidateBlocks, position: int, address: int, key: bytes
) -> int:
    """Find a cell that is not the first of its address; return its position, or -1."""
    columns = _Columns.of(place)
    first, count = int(place.bases[0]) >> 3, int(place.counts[0])
    while position < count and int(arena.u64[first + position]) == address:
        starts, lengths = _extents(arena, columns.key_offsets + position)
        start = int(starts[0] + columns.keys[0])
        if arena.buffer[start : start + int(lengths[0])] == key:
            return position
        position += 1
    return -1


def _taken_out(arena: Arena, columns: _Columns, found: I64, which: I64, *, has_times: bool) -> Hits:
    """Copy cells out of the arena; ``which`` are their positions in the batch."""
    kinds = arena.bytes[columns.kinds + found]
    times = arena.u64[columns.times + found].view(np.int64).tolist() if has_times else None
    starts, lengths = _extents(arena, columns.value_offsets + found)
    key_bytes = arena.u32[columns.value_offsets - 1]
    starts += columns.keys + key_bytes
    return Hits(which, kinds, times, gathered(arena, starts, lengths), lengths)


def gathered(arena: Arena, starts: I64, lengths: I64) -> bytes:
    """Gather and join the bytes of many extents."""
    total = int(lengths.sum())
    if total < _SHORT * len(lengths):
        return _gather(arena.bytes, starts, lengths).tobytes()
    buffer = arena.buffer
    ends = (starts + lengths).tolist()
    return b"".join([buffer[a:b] for a, b in zip(starts.tolist(), ends, strict=True)])


def _gather(data: U8, starts: I64, lengths: I64) -> U8:
    ends = np.cumsum(lengths)
    if not len(ends):
        return data[:0]
    at = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    found: U8 = data[at]
    return found
