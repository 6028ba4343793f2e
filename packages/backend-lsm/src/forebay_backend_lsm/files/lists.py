"""Reads the times of list elements, which are stored in the values and not in a column.

The value of a list cell is a sequence of chunks, so appending to it is concatenating bytes::

    u32 n | n times (i64), in a table with TTL | n lengths (u32) | the elements
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay_backend_lsm.files.blocks import Blobs
from forebay_backend_lsm.files.cells import I64, U8, Mask, Positions

_COUNT: Final = struct.Struct("<I")


@attrs.frozen(eq=False)
class Stamps:
    """The times of all elements of some list values."""

    times: I64
    cells: Positions
    """The number of the value that each time belongs to."""

    @classmethod
    def of(cls, values: pa.Array) -> Stamps:
        """Read the times of values of a list table with TTL."""
        blobs = Blobs.of(values)
        data = np.frombuffer(blobs.data, np.uint8)
        at, end = blobs.offsets[:-1].copy(), blobs.offsets[1:]
        cells = np.arange(len(values))
        times, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        # The first pass reads the first chunk of every value, the second all second chunks, …
        while (more := at < end).any():
            at, end, cells = at[more], end[more], cells[more]
            counts = _numbers(data, at, "<u4").astype(np.int64)
            owners.append(np.repeat(cells, counts))
            times.append(_numbers(data, _within(at + 4, counts, 8), "<i8").astype(np.int64))
            lengths = _numbers(data, _within(at + 4 + 8 * counts, counts, 4), "<u4")
            sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
            stops = np.cumsum(counts)
            at = at + 4 + 12 * counts + sums[stops] - sums[stops - counts]
        return cls(np.concatenate(times), np.concatenate(owners))

    def expired(self, until: I64) -> Mask:
        """Return which values have an element whose time is at most their item in ``until``."""
        answer = np.zeros(len(until), np.bool_)
        answer[self.cells[self.times <= until[self.cells]]] = True
        return answer


def without_expired(value: bytes, until: int) -> bytes:
    """Remove the elements whose time is at most ``until``; the value may become empty."""
    kept = bytearray()
    for times, elements in chunks_of(value):
        alive = [i for i, time in enumerate(times) if time > until]
        if alive:
            kept += _chunk([times[i] for i in alive], [elements[i] for i in alive])
    return bytes(kept)


def chunks_of(value: bytes) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield the times and the elements of each chunk of a value with times."""
    at = 0
    while at < len(value):
        (count,) = _COUNT.unpack_from(value, at)
        times = np.frombuffer(value, "<i8", count, at + 4).tolist()
        lengths = np.frombuffer(value, "<u4", count, at + 4 + 8 * count).astype(np.int64)
        ends = (np.cumsum(lengths) + at + 4 + 12 * count).tolist()
        starts = [at + 4 + 12 * count, *ends[:-1]]
        yield times, [value[a:b] for a, b in zip(starts, ends, strict=False)]
        at = ends[-1] if ends else at + 4


def _chunk(times: list[int], elements: list[bytes]) -> bytes:
    lengths = np.array([len(element) for element in elements], "<u4").tobytes()
    stamps = np.array(times, "<i8").tobytes()
    return b"".join((_COUNT.pack(len(times)), stamps, lengths, *elements))


def _within(starts: Positions, counts: Positions, width: int) -> Positions:
    """Return the offsets of ``counts`` numbers of ``width`` bytes from each of ``starts``."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - width * before, counts) + width * np.arange(int(counts.sum()))


def _numbers(data: U8, at: Positions, kind: str) -> npt.NDArray[Any]:
    """Read numbers at unaligned offsets."""
    width = np.dtype(kind).itemsize
    found = data[at[:, None] + np.arange(width)]
    return np.ascontiguousarray(found).view(kind).reshape(len(at))
