"""Holds a few cells as tuples, which costs less than columns for so few.

A table with one small block in a file, and a part of a memtable with as many cells, are held like
this. Both forms of the cells are written as the same bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Self

import numpy as np

from forebay_backend_lsm.files.blocks import cell_overhead
from forebay_backend_lsm.files.cells import CellKind, Cells

MOST: Final = 32
"""Most cells that are held as tuples: from about here on columns are faster."""
MOST_BYTES: Final = 4 * 1024
"""Most bytes of their block."""
_CELL_BYTES: Final = 250
"""Memory of a cell's objects, without its key and value."""


class Cell(NamedTuple):
    """One cell; cells are sorted by the first two parts."""

    address: int
    key: bytes
    kind: int
    time: int | None
    """``None`` in a table without a time column."""
    value: bytes


class FewCells:
    """Sorted cells of one table, as tuples. Never changes."""

    __slots__ = ("_columns", "cells", "has_times")

    def __init__(self, cells: Sequence[Cell], *, has_times: bool) -> None:
        """``cells`` are sorted and distinct."""
        self.cells: Final = cells
        self.has_times: Final = has_times
        self._columns: Cells | None = None

    @classmethod
    def sorted(cls, cells: list[Cell], *, has_times: bool) -> Self:
        """Sort cells; equal ones keep their order."""
        if len(cells) > 1:
            cells.sort(key=_place)
        return cls(cells, has_times=has_times)

    @classmethod
    def of_block(cls, raw: bytes | memoryview, count: int, *, has_times: bool) -> Self:
        """Read the cells of a decompressed block."""
        layout = _layout(count, has_times=has_times)
        columns = layout.unpack_from(raw)
        addresses, at = columns[:count], count
        times: Sequence[int | None] = (None,) * count
        if has_times:
            times, at = columns[at : at + count], at + count
        key_ends = columns[at : at + count + 1]
        value_ends = columns[at + count + 1 : at + 2 * count + 2]
        kinds = columns[at + 2 * count + 2 :]
        data = bytes(raw[layout.size :])
        middle = key_ends[-1]
        return cls(
            [
                Cell(
                    addresses[i],
                    data[key_ends[i] : key_ends[i + 1]],
                    kinds[i],
                    times[i],
                    data[middle + value_ends[i] : middle + value_ends[i + 1]],
                )
                for i in range(count)
            ],
            has_times=has_times,
        )

    def __len__(self) -> int:
        return len(self.cells)

    def find(self, address: int, key: bytes) -> Cell | None:
        """Return the cell with this address and key."""
        cells = self.cells
        at = bisect_left(cells, (address, key))
        if at < len(cells) and (cell := cells[at])[1] == key and cell[0] == address:
            return cell
        return None

    @property
    def bytes_in_block(self) -> int:
        """Bytes of the cells in a block, as a writer counts them to end it."""
        each = cell_overhead(has_times=self.has_times)
        return sum([each + len(cell[1]) + len(cell[4]) for cell in self.cells])

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that they take up."""
        return len(self.cells) * _CELL_BYTES + self.bytes_in_block

    @property
    def clears(self) -> bool:
        """Whether some cells are of `CellKind.CLEAR`."""
        return any(cell[2] == CellKind.CLEAR for cell in self.cells)

    @property
    def columns(self) -> Cells:
        """The cells, column by column."""
        if self._columns is None:
            addresses, keys, kinds, times, values = zip(*self.cells, strict=True)
            self._columns = Cells.of(
                np.array(addresses, np.uint64),
                np.array(kinds, np.uint8),
                keys,
                values,
                times if self.has_times else None,
            )
        return self._columns

    @property
    def raw(self) -> bytes:
        """The cells as a decompressed block."""
        addresses, keys, kinds, times, values = zip(*self.cells, strict=True)
        head = _layout(len(keys), has_times=self.has_times).pack(
            *addresses, *(times if self.has_times else ()), *_ends(keys), *_ends(values), *kinds
        )
        return b"".join((head, *keys, *values))


def _place(cell: Cell) -> tuple[int, bytes]:
    return cell[:2]


def _ends(parts: Iterable[bytes]) -> list[int]:
    ends, end = [0], 0
    for part in parts:
        end += len(part)
        ends.append(end)
    return ends


@lru_cache(maxsize=2 * MOST)
def _layout(count: int, *, has_times: bool) -> struct.Struct:
    """Return the layout of a block up to its kinds."""
    times = f"{count}q" if has_times else ""
    return struct.Struct(f"<{count}Q{times}{2 * (count + 1)}I{count}B")
