"""`ColumnTable`: a point table that is read, written and stored by columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from forebay_backend_heap.column_encoding import Part, decode_columns, encode_columns
from forebay_backend_heap.column_space import ColumnSpace
from forebay_backend_heap.encoding import NAMESPACE
from forebay_backend_heap.expiry import GroupedKeys, log_dropped
from forebay_backend_heap.files import Operation, Section
from forebay_backend_heap.resident_table import ResidentTable
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.contract.backend import Scan, TableSpec
from forebay_state_api.contract.changes import Changes, PointChanges, Shape, Space
from forebay_state_api.contract.columns import CellColumns, EncodedKeys, NamespaceColumns
from forebay_state_api.contract.expiry import Deadline


class ColumnTable(ResidentTable):
    """A resident table of arrays; for single cells it works as a table that is not resident."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self._columns: dict[Any, ColumnSpace] = {}
        self._spaces: dict[Any, Space] = {}
        self._position = 0
        """Slots, of all namespaces one after the other, that the current walk has passed."""

    @staticmethod
    def holds(spec: TableSpec) -> bool:
        """Return whether columns hold the table: a point table of flat values, to be read so."""
        if not spec.columns or spec.shape is not Shape.POINT:
            return False
        return ColumnTypes.of(spec.value).are_flat and ColumnTypes.of(spec.key).is_joinable

    # -- columns ----------------------------------------------------------------------------------

    def get_columns(self, spec: TableSpec, namespace: Any, keys: EncodedKeys) -> CellColumns:
        del spec  # its own
        return self._space_of(namespace).get(keys)

    def apply_columns(
        self, spec: TableSpec, namespace: Any, keys: EncodedKeys, cells: CellColumns
    ) -> None:
        del spec  # its own
        space = self._space_of(namespace)
        if cells.present is None or cells.present.all():
            self._put(space, keys, cells)
            return
        there = np.flatnonzero(cells.present)
        if len(there):
            kept = cells.take(there)
            self._put(space, keys.take(there), CellColumns(kept.columns, None, kept.times))
        self.removed += space.delete(keys.take(np.flatnonzero(~cells.present)))

    def export_columns(self, spec: TableSpec, keys: int) -> Iterator[NamespaceColumns]:
        del spec  # its own
        for namespace, space, slots in self._existing():
            for start in range(0, len(slots), keys):
                page = slots[start : start + keys]
                yield namespace, space.keys_of(page), space.take(page)

    def _put(self, space: ColumnSpace, keys: EncodedKeys, cells: CellColumns) -> None:
        space.put(keys, cells)
        self._saw_times(cells)

    def _saw_times(self, cells: CellColumns) -> None:
        if cells.times is not None and len(cells.times):
            self._wrote(int(cells.times.min()))

    def _space_of(self, namespace: Any) -> ColumnSpace:
        space = self._columns.get(namespace)
        if space is None:
            space = self._columns[namespace] = self._new_space()
        return space

    def _new_space(self, capacity: int = 0, key_bytes: int = 0) -> ColumnSpace:
        types = ColumnTypes.of(self.spec.value)
        return ColumnSpace(types, ttl=self.spec.ttl, capacity=capacity, key_bytes=key_bytes)

    def _existing(self) -> list[Part]:
        return [(name, space, space.existing()) for name, space in self._columns.items()]

    # -- single cells -----------------------------------------------------------------------------

    def space(self, namespace: Any) -> Space:
        space = self._spaces.get(namespace)
        if space is None:
            space = self._spaces[namespace] = Space(namespace=namespace, complete=False)
        return space

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        encoded = EncodedKeys.of(self.spec.key, [key for _, key in keys], [g for g, _ in keys])
        found = self._columns.get(namespace, self._new_space()).get(encoded)
        return found.cells(self.spec.value)

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        raise NotImplementedError  # it is no map

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        raise NotImplementedError  # it is no list, and no map

    def apply(self, changes: Changes) -> None:
        for namespace, points in changes.points.items():
            keys = EncodedKeys.of(self.spec.key, points.keys, points.groups)
            cells = CellColumns.of(self.spec.value, points.keys, points.values, ttl=self.spec.ttl)
            self.apply_columns(self.spec, namespace, keys, cells)

    def export(self, keys: int) -> Iterator[Changes]:
        for namespace, some, cells in self.export_columns(self.spec, keys):
            points = PointChanges(
                some.decoded(self.spec.key), some.groups.tolist(), cells.cells(self.spec.value)
            )
            yield Changes(points={namespace: points})

    def keys(self, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        space = self._space_of(namespace)
        slots = space.existing()
        keys = space.keys_of(slots).decoded(self.spec.key)
        return (keys[start : start + page_size] for start in range(0, len(keys), page_size))

    # -- files ------------------------------------------------------------------------------------

    def replay(self, sections: Sequence[Section]) -> None:
        """Apply sections of files, oldest first.

        Raises `UnheldValueError`, and changes nothing, if one has a value that columns cannot hold.
        """
        decoded = [(section, decode_columns(section, self.spec)) for section in sections]
        for section, blocks in decoded:
            fresh = self._fresh(section)
            for block in blocks:
                space = self._space_of(block.namespace)
                if block.cells is None:
                    space.delete(block.keys)
                    continue
                (space.load if block.namespace in fresh else space.put)(block.keys, block.cells)
                self._saw_times(block.cells)
        self.settled()

    def _fresh(self, section: Section) -> set[Any]:
        """Return the namespaces without slots before ``section``; make room in the default one."""
        namespaces = {NAMESPACE.unpack_one(packed) for packed in section.namespaces}
        if namespaces == {None} and None not in self._columns:
            key_bytes = sum(chunk.lengths[0] for chunk in section.chunks)
            self._columns[None] = self._new_space(section.cells, key_bytes)
        return {name for name in namespaces if not self._space_of(name).slots}

    @property
    def pending_cells(self) -> int:
        return sum(space.pending for space in self._columns.values())

    def changed(self, groups: KeyGroupRange) -> list[Section]:
        parts = [(name, space, space.changed()) for name, space in self._columns.items()]
        puts = [(name, space, put) for name, space, (put, _) in parts]
        deletes = [(name, space, gone) for name, space, (_, gone) in parts]
        return [
            *encode_columns(self.spec, Operation.PUT, puts, groups),
            *encode_columns(self.spec, Operation.DELETE, deletes, groups),
        ]

    def everything(
        self, groups: KeyGroupRange, pause: Callable[[], object] = lambda: None
    ) -> list[Section]:
        return encode_columns(self.spec, Operation.PUT, self._existing(), groups, pause)

    def frozen(self) -> ColumnTable:
        frozen = ColumnTable(self.spec)
        frozen._columns = {name: space.frozen() for name, space in self._columns.items()}
        return frozen

    def thaw(self) -> None:
        self._columns = {}

    def settled(self) -> None:
        kept = {n: space.settled() for n, space in self._columns.items() if n is None or len(space)}
        if [*kept.values()] != [*self._columns.values()]:
            passed = self._passed()
            self._columns = kept
            self._position = self._slot_after(passed)
        self._spaces = {}

    # -- expiry -----------------------------------------------------------------------------------

    def sweep(self, checks: int, until_us: int) -> int:
        if self._walk.is_clean(until_us):
            return 0
        if self._left_off is not None:
            self._position, self._left_off = self._slot_after(self._left_off), None
        wanted, removed = min(checks, len(self)), 0
        while wanted > 0 and len(self):
            parts = [*self._next(wanted)]
            if not parts:
                self._position = 0
                self._walk.rewind()
                if self._walk.is_clean(until_us):
                    break
                continue
            wanted -= sum(len(slots) for _, _, slots in parts)
            removed += sum(len(slots) for _, _, slots in self._dropped(parts, until_us))
        return removed

    def clean_up(self, deadline: Deadline, groups: KeyGroupRange) -> list[Section]:
        dropped: list[Section] = []
        for name, space, slots in self._existing():
            start = 0
            for cells, until_us in deadline.steps(len(slots)):
                part = name, space, slots[start : start + cells]
                dropped += self._sections_without(self._dropped([part], until_us), groups)
                start += cells
        return dropped

    def drop(self, keys: GroupedKeys, until_us: int, groups: KeyGroupRange) -> list[Section]:
        asked = EncodedKeys.of(self.spec.key, [key for key, _ in keys], [g for _, g in keys])
        parts = [(name, space, space.find(asked)) for name, space in self._columns.items()]
        return self._sections_without(self._dropped(parts, until_us), groups)

    def _dropped(self, parts: Iterable[Part], until_us: int) -> list[Part]:
        """Delete expired cells; return them."""
        found: list[Part] = []
        for name, space, slots in parts:
            gone, oldest_us = space.expired(slots, until_us)
            self._walk.saw(oldest_us)
            self.removed += space.remove(gone)
            if len(gone):
                found.append((name, space, gone))
        return found

    def _sections_without(self, parts: Collection[Part], groups: KeyGroupRange) -> list[Section]:
        if parts:
            log_dropped(sum(len(slots) for _, _, slots in parts), self.spec, groups)
        return encode_columns(self.spec, Operation.DELETE, [*parts], groups)

    def _next(self, cells: int) -> Iterator[Part]:
        """Yield the next existing cells of the walk, and move it on; nothing at its end."""
        before = 0
        for name, space in self._columns.items():
            slots = space.existing(max(self._position - before, 0))[:cells]
            if len(slots):
                yield name, space, slots
                self._position = before + int(slots[-1]) + 1
                cells -= len(slots)
            before += space.slots

    def _passed(self) -> int:
        passed, before = 0, 0
        for space in self._columns.values():
            passed += len(space.existing(0, max(self._position - before, 0)))
            before += space.slots
        return passed

    def _slot_after(self, cells: int) -> int:
        """Return the number of slots that hold the first ``cells`` existing cells."""
        before = 0
        for space in self._columns.values():
            slots = space.existing()
            if cells < len(slots):
                return before + (int(slots[cells - 1]) + 1 if cells else 0)
            cells -= len(slots)
            before += space.slots
        return before

    def memory_size(self) -> int:
        return sum(space.nbytes for space in self._columns.values())

    def __len__(self) -> int:
        return sum(map(len, self._columns.values()))
