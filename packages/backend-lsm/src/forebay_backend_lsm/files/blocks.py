"""Blocks: consecutive cells, as the columns of one buffer, compressed and checksummed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay_backend_lsm.files.arrow import binary_array, binary_from, compute, flags_of, taken
from forebay_backend_lsm.files.cells import I64, U8, U64, Cells, Place, Positions, joined

COMPRESSIONS: Final[dict[str, str | None]] = {"lz4": "lz4_raw", "zstd": "zstd", "none": None}
"""Name in files and settings → name of pyarrow's codec."""
MAX_RAW_BYTES: Final = (1 << 31) - 1
"""Largest block: its offsets are read as signed 32-bit numbers."""
_FEW: Final = 8


@attrs.frozen
class Columns:
    """The offsets of a block's columns, in bytes from its start."""

    addresses: int
    times: int | None
    """``None`` in a table without a time column."""
    key_offsets: int
    value_offsets: int
    kinds: int
    keys: int
    """The value bytes follow the key bytes, whose length is in ``key_offsets``."""


def columns(count: int, *, has_times: bool) -> Columns:
    """Return the offsets of the columns in a block of ``count`` cells."""
    times = 8 * count
    key_offsets = times + (8 * count if has_times else 0)
    value_offsets = key_offsets + 4 * (count + 1)
    kinds = value_offsets + 4 * (count + 1)
    return Columns(
        0, times if has_times else None, key_offsets, value_offsets, kinds, kinds + count
    )


def cell_overhead(*, has_times: bool) -> int:
    """Return the bytes that a cell takes in a block in addition to key and value."""
    return 25 if has_times else 17


@attrs.frozen(eq=False)
class Blobs:
    """A binary array as offsets into a buffer."""

    offsets: I64
    """The offset of each element in ``data``, followed by the end of the last one."""
    data: memoryview

    @classmethod
    def of(cls, array: pa.Array) -> Blobs:
        """View an array, copying only its offsets."""
        _, offsets, data = array.buffers()
        wide = np.dtype("<i8" if array.type == pa.large_binary() else "<i4")
        first, count = array.offset, len(array) + 1
        if offsets is None:
            return cls(np.zeros(1, np.int64), memoryview(b""))
        found = np.frombuffer(offsets, wide, count, first * wide.itemsize)
        return cls(found.astype(np.int64, copy=False), memoryview(data or b""))

    def between(self, start: int, stop: int) -> memoryview:
        """Return the bytes of elements ``start`` to ``stop`` (exclusive)."""
        return self.data[int(self.offsets[start]) : int(self.offsets[stop])]


class Cutter:
    """Cuts cells into blocks and lays these out."""

    def __init__(self, cells: Cells) -> None:
        """``cells`` are sorted."""
        self._cells: Final = cells
        self._keys: Final = Blobs.of(cells.keys)
        self._values: Final = Blobs.of(cells.values)
        # Offsets within a block are below 2^32, so differences modulo 2^32 are exact.
        self._key_offsets: Final = self._keys.offsets.astype("<u4")
        self._value_offsets: Final = self._values.offsets.astype("<u4")

    def ends(self) -> I64:
        """Cumulative bytes of cells in blocks, up to each position, from an arbitrary base."""
        overhead = cell_overhead(has_times=self._cells.times is not None)
        every = overhead * np.arange(len(self._cells) + 1)
        return self._keys.offsets + self._values.offsets + every

    def raw(self, start: int, stop: int) -> bytes:
        """Return the columns of cells ``start`` to ``stop`` (exclusive), uncompressed."""
        cells, after = self._cells, stop + 1
        times = () if cells.times is None else (cells.times[start:stop].astype("<i8"),)
        parts: tuple[Any, ...] = (
            cells.addresses[start:stop].astype("<u8", copy=False),
            *times,
            self._key_offsets[start:after] - self._key_offsets[start],
            self._value_offsets[start:after] - self._value_offsets[start],
            cells.kinds[start:stop],
            self._keys.between(start, stop),
            self._values.between(start, stop),
        )
        return b"".join(parts)


def cells_of_blocks(
    raws: Sequence[bytes | memoryview], counts: Sequence[int], *, has_times: bool
) -> Cells:
    """Copy the cells of decompressed blocks into columns."""
    addresses, times, kinds, keys, values = [], [], [], _Pieces(), _Pieces()
    for raw, count in zip(raws, counts, strict=True):
        at = 8 * count
        addresses.append(np.frombuffer(raw, "<u8", count))
        if has_times:
            times.append(np.frombuffer(raw, "<i8", count, at))
            at += 8 * count
        key_ends = np.frombuffer(raw, "<u4", count, at + 4)
        value_ends = np.frombuffer(raw, "<u4", count, at + 4 * count + 8)
        at += 8 * count + 8
        kinds.append(np.frombuffer(raw, np.uint8, count, at))
        data, middle = memoryview(raw), at + count + int(key_ends[-1])
        keys.add(key_ends, data[at + count : middle])
        values.add(value_ends, data[middle:])
    return Cells(
        np.concatenate(addresses),
        np.concatenate(kinds),
        np.concatenate(times) if has_times else None,
        keys.array(counts),
        values.array(counts),
    )


class _Pieces:
    """Collects the binary columns of several blocks."""

    def __init__(self) -> None:
        self._ends: Final[list[npt.NDArray[Any]]] = []
        self._data: Final[list[memoryview]] = []

    def add(self, ends: npt.NDArray[Any], data: memoryview) -> None:
        self._ends.append(ends)
        self._data.append(data)

    def array(self, counts: Sequence[int]) -> pa.Array:
        lengths = np.fromiter(map(len, self._data), np.int64, len(self._data))
        offsets = np.zeros(sum(counts) + 1, np.int64)
        np.concatenate(self._ends, out=offsets[1:])
        offsets[1:] += np.repeat(np.cumsum(lengths) - lengths, counts)
        return binary_from(offsets, pa.py_buffer(b"".join(self._data)))


class Block:
    """A decompressed block: numpy and pyarrow views on one buffer."""

    __slots__ = ("addresses", "count", "key_offsets", "kinds", "raw", "times", "value_offsets")

    def __init__(self, raw: pa.Buffer, count: int, *, has_times: bool) -> None:
        """View ``raw``, whose layout `columns` describes."""
        place = columns(count, has_times=has_times)
        self.raw: Final = raw
        self.count: Final = count
        self.addresses: Final[U64] = np.frombuffer(raw, "<u8", count)
        self.times: Final[I64 | None] = (
            None if place.times is None else np.frombuffer(raw, "<i8", count, place.times)
        )
        self.kinds: Final[U8] = np.frombuffer(raw, np.uint8, count, place.kinds)
        self.key_offsets: Final = np.frombuffer(raw, "<i4", count + 1, place.key_offsets)
        self.value_offsets: Final = np.frombuffer(raw, "<i4", count + 1, place.value_offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return int(self.raw.size)

    @property
    def cells(self) -> Cells:
        """Return all cells without copying."""
        start = self.raw.size - int(self.value_offsets[-1]) - int(self.key_offsets[-1])
        keys = self.raw.slice(start, int(self.key_offsets[-1]))
        values = self.raw.slice(start + int(self.key_offsets[-1]))
        return Cells(
            self.addresses,
            self.kinds,
            self.times,
            binary_from(self.key_offsets, keys),
            binary_from(self.value_offsets, values),
        )

    def key(self, position: int) -> bytes:
        """Return the cell key bytes of one cell."""
        start = self.raw.size - int(self.value_offsets[-1]) - int(self.key_offsets[-1])
        return self._bytes(start, self.key_offsets, position)

    def keys(self, start: int, stop: int) -> list[bytes]:
        """Return the cell key bytes of some cells; several times faster than one by one."""
        found: list[bytes] = self.cells.keys.slice(start, stop - start).to_pylist()
        return found

    def value(self, position: int) -> bytes:
        """Return the value bytes of one cell."""
        start = self.raw.size - int(self.value_offsets[-1])
        return self._bytes(start, self.value_offsets, position)

    def slice_of(self, first: int, last: int | None = None) -> tuple[int, int]:
        """Return the positions, start and stop, of addresses ``first`` to ``last`` (inclusive)."""
        bounds = np.array([first, first if last is None else last], np.uint64)
        start = np.searchsorted(self.addresses, bounds[0], "left")
        return int(start), int(np.searchsorted(self.addresses, bounds[1], "right"))

    def lower_bound(self, place: Place) -> int:
        """Return the position of the first cell that is not before a place."""
        start, stop = self.slice_of(place[0])
        if place[1] is None:
            return stop
        return bisect_left(range(start, stop), place[1], key=self.key) + start

    def find(self, addresses: U64, keys: Sequence[bytes]) -> Positions:
        """Return the position of each cell, -1 for a missing cell."""
        positions = np.searchsorted(self.addresses, addresses, "left")
        if len(keys) < _FEW:
            found = [self._find(p, k) for p, k in zip(positions.tolist(), keys, strict=True)]
            return np.array(found, np.int64)
        return self._find_many(positions, keys)

    def _find_many(self, positions: Positions, keys: Sequence[bytes]) -> Positions:
        there = taken(joined([self.cells.keys]), np.minimum(positions, self.count - 1))
        found = np.where(flags_of(compute().equal(there, binary_array(keys))), positions, -1)
        # Keys that are not the first of their address are rare: each gets its own search.
        for i in np.flatnonzero(found < 0).tolist():
            found[i] = self._find(int(positions[i]), keys[i])
        return found

    def _find(self, position: int, key: bytes) -> int:
        """Search the cells of one address, which begins at ``position``."""
        if position == self.count:
            return -1
        _, stop = self.slice_of(int(self.addresses[position]))
        found = bisect_left(range(position, stop), key, key=self.key) + position
        return found if found < stop and self.key(found) == key else -1

    def _bytes(self, start: int, offsets: npt.NDArray[Any], position: int) -> bytes:
        begin, end = int(offsets[position]), int(offsets[position + 1])
        return bytes(self.raw[start + begin : start + end])
