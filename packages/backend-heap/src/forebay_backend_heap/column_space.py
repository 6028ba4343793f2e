"""`ColumnSpace`: the cells of one namespace of a point table, by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from forebay_backend_heap.expiry import NEVER
from forebay_backend_heap.key_slots import KeySlots, grown
from forebay_backend_heap.slots import Array
from forebay_backend_heap.value_columns import ColumnBySlot
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.codecs.columns import Column
from forebay_state_api.contract.columns import CellColumns, EncodedKeys

_SPARSE_FROM: Final = 4096
"""Fewer slots are not compacted."""


class ColumnSpace:
    """Keys by slot, with their values, times, and whether a cell exists."""

    def __init__(
        self, types: ColumnTypes, *, ttl: bool, capacity: int = 0, key_bytes: int = 0
    ) -> None:
        """Make room for ``capacity`` cells, whose keys have ``key_bytes`` in total."""
        self._types = types
        self._ttl = ttl
        self._keys = KeySlots(capacity, key_bytes)
        self._columns = [
            ColumnBySlot(kind, capacity, nullable=nullable)
            for kind, nullable in zip(types.kinds, types.nullable, strict=True)
        ]
        self._times = np.zeros(capacity if ttl else 0, np.int64)
        self._there = np.zeros(capacity, np.bool_)
        self._changed = np.zeros(capacity, np.bool_)
        self._touched: list[Array] = []
        """The slots of the changed cells, in parts."""
        self._count = 0
        self._capacity = capacity

    # -- reads and writes -------------------------------------------------------------------------

    def get(self, keys: EncodedKeys) -> CellColumns:
        """Return the cells of ``keys``."""
        slots = self._keys.find(keys, self._keys)
        known = slots >= 0
        if known.all():
            there = self._there[slots]
            known &= there
        else:
            known[known] = self._there[slots[known]]
        if known.all():
            return self.take(slots)
        found = self.take(slots[known])
        times = None
        if found.times is not None:
            times = np.zeros(len(slots), np.int64)
            times[known] = found.times
        return CellColumns(tuple(one.spread(known) for one in found.columns), known, times)

    def put(self, keys: EncodedKeys, cells: CellColumns) -> None:
        """Write a cell for each of ``keys``, all of which exist from now on."""
        self._set(self._keys.find_or_add(keys, self._keys), cells)

    def load(self, keys: EncodedKeys, cells: CellColumns) -> None:
        """Write a cell for each of ``keys``, none of which has a slot yet."""
        self._set(self._keys.add(keys), cells)

    def _set(self, slots: Array, cells: CellColumns) -> None:
        if self._keys.count > self._capacity:
            self._grow()
        for mine, given in zip(self._columns, cells.columns, strict=True):
            mine.put(slots, given)
        if cells.times is not None:
            self._times[slots] = cells.times
        self._count += len(slots) - int(np.count_nonzero(self._there[slots]))
        self._there[slots] = True
        self._touch(slots)

    def delete(self, keys: EncodedKeys) -> int:
        """Delete the cells of ``keys``; return how many there were."""
        return self.remove(self.find(keys))

    def remove(self, slots: Array) -> int:
        """Delete the cells in some slots, all of which exist."""
        self._there[slots] = False
        self._touch(slots)
        self._count -= len(slots)
        return len(slots)

    def _touch(self, slots: Array) -> None:
        new = slots[~self._changed[slots]]
        self._changed[new] = True
        self._touched.append(new)

    def _grow(self) -> None:
        self._there = grown(self._there, self._keys.count)
        self._capacity = len(self._there)
        self._changed = grown(self._changed, self._capacity)
        if self._ttl:
            self._times = grown(self._times, self._capacity)
        for column in self._columns:
            column.grow(self._capacity)

    # -- cells by slot ----------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """The number of slots, also of cells that were deleted."""
        return self._keys.count

    def existing(self, start: int = 0, stop: int | None = None) -> Array:
        """Return the slots of the cells that exist."""
        stop = self._keys.count if stop is None else min(stop, self._keys.count)
        return np.flatnonzero(self._there[start:stop]) + start

    def changed(self) -> tuple[Array, Array]:
        """Return the slots of the cells that were put, and deleted, since `settled`."""
        slots = np.concatenate([np.zeros(0, np.int64), *self._touched])
        there = self._there[slots]
        return slots[there], slots[~there]

    @property
    def pending(self) -> int:
        """The number of cells that were changed since `settled`."""
        return sum(map(len, self._touched))

    def groups_of(self, slots: Array) -> Array:
        """Return the key groups of some slots."""
        groups: Array = self._keys.groups[slots]
        return groups

    def find(self, keys: EncodedKeys) -> Array:
        """Return the slots of those of ``keys`` whose cells exist."""
        slots = self._keys.find(keys, self._keys)
        slots = slots[slots >= 0]
        found: Array = slots[self._there[slots]]
        return found

    def keys_of(self, slots: Array) -> EncodedKeys:
        """Return the keys of some slots."""
        return self._keys.take(slots)

    def take(self, slots: Array) -> CellColumns:
        """Return the cells in some slots, which exist."""
        columns: tuple[Column, ...] = tuple(column.take(slots) for column in self._columns)
        return CellColumns(columns, None, self._times[slots] if self._ttl else None)

    def expired(self, slots: Array, until_us: int) -> tuple[Array, int]:
        """Return which have a time of ``until_us`` or older, and the oldest time of the others."""
        times = self._times[slots]
        gone = times <= until_us
        live = times[~gone]
        return slots[gone], int(live.min()) if len(live) else NEVER

    def __len__(self) -> int:
        return self._count

    # -- the life of a table ----------------------------------------------------------------------

    def settled(self) -> ColumnSpace:
        """Forget what was changed; return the space itself, or a compact one in its place."""
        for slots in self._touched:
            self._changed[slots] = False
        self._touched = []
        deleted = self._keys.count - self._count
        sparse = any(column.is_sparse for column in self._columns)
        if not sparse and not (deleted > self._count and self._keys.count >= _SPARSE_FROM):
            return self
        compact = ColumnSpace(self._types, ttl=self._ttl, capacity=self._count)
        existing = self.existing()
        compact.load(self.keys_of(existing), self.take(existing))
        return compact.settled()

    def frozen(self) -> ColumnSpace:
        """Return a copy to read from, which later changes of this one leave alone."""
        frozen: ColumnSpace = ColumnSpace(self._types, ttl=self._ttl)
        frozen._keys = self._keys.frozen()
        frozen._columns = [column.frozen() for column in self._columns]
        frozen._times, frozen._there = self._times.copy(), self._there.copy()
        frozen._count = self._count
        return frozen

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        own = self._times.nbytes + self._there.nbytes + self._changed.nbytes
        return own + self._keys.nbytes + sum(column.nbytes for column in self._columns)


def joined(parts: Sequence[CellColumns]) -> CellColumns:
    """Return the cells of several parts, one after the other; all exist."""
    columns = tuple(
        Column.joined(one) for one in zip(*(part.columns for part in parts), strict=True)
    )
    times = [part.times for part in parts if part.times is not None]
    return CellColumns(columns, None, np.concatenate(times) if times else None)
