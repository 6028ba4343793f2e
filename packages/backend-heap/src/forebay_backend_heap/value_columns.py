"""Columns of values by slot: arrays that grow, and texts whose places are overwritten."""

from __future__ import annotations

from typing import Final

import numpy as np

from forebay_backend_heap.key_slots import grown
from forebay_backend_heap.slots import Array
from forebay_state_api.codecs.columns import Column, Texts, copy_spans, offsets_of

_TYPES: Final = {"bool": np.bool_, "int64": np.int64, "float64": np.float64, "date": np.int64}

_SLACK: Final = 1 << 16
"""Overwritten bytes that are not worth compacting."""


class TextsBySlot:
    """Texts by slot, side by side in the order in which they were written."""

    def __init__(self, capacity: int, *, binary: bool) -> None:
        self._starts = np.zeros(capacity, np.int64)
        self._lengths = np.zeros(capacity, np.int32)
        self._data = np.empty(0, np.uint8)
        self._used = self._live = 0
        """Bytes written, and those of them that a slot still has."""
        self._binary = binary

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._starts.nbytes + self._lengths.nbytes + self._data.nbytes

    def put(self, slots: Array, texts: Texts) -> None:
        """Write texts; what was there before stays in the data until `compacted`."""
        start, stop = int(texts.offsets[0]), int(texts.offsets[-1])
        end = self._used + stop - start
        self._data = grown(self._data, end)
        self._data[self._used : end] = texts.data[start:stop]
        self._live += stop - start - int(self._lengths[slots].sum(dtype=np.int64))
        self._starts[slots] = texts.offsets[:-1] - start + self._used
        self._lengths[slots] = texts.lengths
        self._used = end

    def take(self, slots: Array) -> Texts:
        """Return the texts of some slots."""
        lengths = self._lengths[slots].astype(np.int64)
        offsets = offsets_of(lengths)
        data = np.empty(int(offsets[-1]), np.uint8)
        copy_spans(self._data, self._starts[slots], data, offsets[:-1], lengths)
        return Texts(offsets, data, self._binary)

    def grow(self, capacity: int) -> None:
        """Make room for slots."""
        self._starts, self._lengths = grown(self._starts, capacity), grown(self._lengths, capacity)

    def frozen(self) -> TextsBySlot:
        """Return a copy; it shares the data, which are not overwritten."""
        frozen: TextsBySlot = TextsBySlot(0, binary=self._binary)
        frozen._starts, frozen._lengths = self._starts.copy(), self._lengths.copy()
        frozen._data, frozen._used = self._data, self._used
        return frozen

    @property
    def is_sparse(self) -> bool:
        """Whether most of the data were overwritten."""
        return self._used > 2 * self._live + _SLACK


class ColumnBySlot:
    """The values of one column by slot."""

    def __init__(self, kind: str, capacity: int, *, nullable: bool) -> None:
        self._values: Array | TextsBySlot
        if kind in ("str", "bytes"):
            self._values = TextsBySlot(capacity, binary=kind == "bytes")
        else:
            self._values = np.zeros(capacity, _TYPES[kind])
        self._valid = np.zeros(capacity, np.bool_) if nullable else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._values.nbytes + (0 if self._valid is None else self._valid.nbytes)

    def put(self, slots: Array, column: Column) -> None:
        """Write the values of some slots."""
        if isinstance(self._values, TextsBySlot):
            assert isinstance(column.values, Texts)  # as the type's columns are
            self._values.put(slots, column.values)
        elif isinstance(column.values, Texts) or column.values.dtype != self._values.dtype:
            given = getattr(column.values, "dtype", "texts")
            raise TypeError(f"a column of {given} where the state has one of {self._values.dtype}")
        else:
            self._values[slots] = column.values
        if self._valid is not None:
            self._valid[slots] = True if column.valid is None else column.valid

    def take(self, slots: Array) -> Column:
        """Return the values of some slots."""
        values = self._values
        valid = None if self._valid is None else self._valid[slots]
        return Column(values.take(slots), valid)

    def grow(self, capacity: int) -> None:
        """Make room for slots."""
        if isinstance(self._values, TextsBySlot):
            self._values.grow(capacity)
        else:
            self._values = grown(self._values, capacity)
        if self._valid is not None:
            self._valid = grown(self._valid, capacity)

    def frozen(self) -> ColumnBySlot:
        """Return a copy of the values."""
        frozen: ColumnBySlot = ColumnBySlot("bool", 0, nullable=False)
        held = self._values
        frozen._values = held.frozen() if isinstance(held, TextsBySlot) else held.copy()
        frozen._valid = None if self._valid is None else self._valid.copy()
        return frozen

    @property
    def is_sparse(self) -> bool:
        """Whether most of the memory holds overwritten values."""
        return isinstance(self._values, TextsBySlot) and self._values.is_sparse
