"""Holds the state of one key-group range in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from forebay_backend_heap.encoding import encode
from forebay_backend_heap.expiry import GroupedKeys
from forebay_backend_heap.files import Operation, Section
from forebay_backend_heap.gc_pause import paused
from forebay_backend_heap.table import HeapTable
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import ValueCodec
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.expiry import Deadline

_log = logging.getLogger(__name__)


class Resident:
    """The tables of a range: declared ones decoded to objects, others as sections of files."""

    def __init__(self, groups: KeyGroupRange) -> None:
        self.groups = groups
        self.tables: dict[str, HeapTable] = {}
        self.raw: dict[str, list[Section]] = {}
        self.size = 0
        """The estimate of its bytes after the last commit here; 0 if there was none."""

    def replay(self, files: Iterable[list[Section]]) -> None:
        """Apply the sections of files, oldest first."""
        with paused():
            for section in (section for sections in files for section in sections):
                table = self.tables.get(section.table)
                if table is not None and section.description == table.spec.description():
                    table.replay([section])
                    continue
                if table is not None:
                    # The section has a newer declaration; the table's spec could lose part of it.
                    self.raw[section.table] = self._encoded(self.tables.pop(section.table))
                self.raw.setdefault(section.table, []).append(section)

    def table(self, spec: TableSpec) -> HeapTable:
        """Return a declared state's table, decoding it if necessary.

        Raises `StateMigrationError`, and changes nothing, if stored state does not fit ``spec``.
        """
        held = self.tables.get(spec.name)
        if held is not None and _interchangeable(held.spec, spec):
            held.spec = spec
            return held
        sections = self.raw.get(spec.name, []) if held is None else self._encoded(held)
        table = HeapTable(spec)
        with paused():
            table.replay(sections)
        self.tables[spec.name] = table
        self.raw.pop(spec.name, None)
        return table

    def clean_up(self, now_us: int) -> list[Section]:
        """Drop expired content of tables that clean up in snapshots or folds.

        A snapshot folds all deltas, so both settings apply. Returns the sections that drop the same
        content from a copy of the previous version.
        """
        return [
            section
            for table in self.tables.values()
            for keys, until_us in _expiring(table, now_us)
            for section in self.dropping(table, keys, until_us)
        ]

    def dropping(self, table: HeapTable, keys: GroupedKeys, until_us: int) -> list[Section]:
        """Drop content as `HeapTable.drop`; return the sections that drop it elsewhere."""
        dropped = table.drop(keys, until_us)
        if len(dropped):
            _log.debug(
                "ttl: a fold or snapshot dropped expired parts of %d cells of state %r, groups %s",
                len(dropped),
                table.spec.name,
                self.groups,
            )
        return [encode(table.spec, op, block, self.groups) for op, block in dropped.blocks()]

    def bytes_by_state(self) -> dict[str, int]:
        """Return state → the bytes of its sections; a decoded table is encoded for that."""
        found = {name: sum(one.size for one in sections) for name, sections in self.raw.items()}
        for name, table in self.tables.items():
            found[name] = sum(section.size for section in self._encoded(table))
        return found

    def frozen(self) -> Resident:
        """Return a copy of the whole state, which later changes leave alone."""
        frozen = Resident(self.groups)
        frozen.raw = {name: [*sections] for name, sections in self.raw.items()}
        with paused():
            frozen.tables = {name: table.frozen() for name, table in self.tables.items()}
        return frozen

    def thaw(self) -> None:
        """Forget the cells of a frozen copy, and keep what `compact_as` needs."""
        self.raw = {}
        for table in self.tables.values():
            table.thaw()

    def compact_as(self, frozen: Resident) -> None:
        """Compact the indexes of groups as a frozen copy has done for its snapshot."""
        for name in self.tables.keys() & frozen.tables.keys():
            self.tables[name].compact_as(frozen.tables[name])

    def snapshot(self, pause: Callable[[], object] = lambda: None) -> list[Section]:
        """Return sections of the whole state; calls ``pause`` before each chunk."""
        raw = [section for sections in self.raw.values() for section in sections]
        return [*raw, *(s for t in self.tables.values() for s in self._encoded(t, pause))]

    def delta(self) -> list[Section]:
        """Return sections of the changes since the last commit."""
        with paused():
            return [section for table in self.tables.values() for section in self._changed(table)]

    @property
    def pending(self) -> int:
        """Number of cells changed since the last commit."""
        return sum(len(table.pending) for table in self.tables.values())

    @property
    def cells(self) -> int:
        """Number of cells of the decoded tables."""
        return sum(map(len, self.tables.values()))

    def settled(self) -> None:
        """Forget pending changes: the commit is durable."""
        for table in self.tables.values():
            table.settled()
        self.raw = {name: [s.detached() for s in found] for name, found in self.raw.items()}

    def _encoded(
        self, table: HeapTable, pause: Callable[[], object] = lambda: None
    ) -> list[Section]:
        block = table.content()
        sections = (
            [] if block is None else [encode(table.spec, Operation.PUT, block, self.groups, pause)]
        )
        table.wrote(sections, everything=True)
        return sections

    def _changed(self, table: HeapTable) -> list[Section]:
        blocks = table.pending.blocks()
        sections = [encode(table.spec, op, block, self.groups) for op, block in blocks]
        table.wrote(sections)
        return sections


def _expiring(table: HeapTable, now_us: int) -> Iterator[tuple[GroupedKeys, int]]:
    """Yield all keys of a table with the time up to which their content has expired.

    Yields them in parts if the clock is to be read in between.
    """
    spec = table.spec
    expiry = spec.compaction_expiry or spec.snapshot_expiry
    if expiry is None:
        return
    keys, start = [*table.grouped_keys()], 0
    for cells, until_us in Deadline(expiry, now_us, spec.compaction_clock_every).steps(len(keys)):
        yield keys[start : start + cells], until_us
        start += cells


def _interchangeable(held: TableSpec, spec: TableSpec) -> bool:
    """Return whether decoding with either spec gives the same values."""
    if held.description() != spec.description():
        return False
    pairs = [(held.key, spec.key), (held.value, spec.value), (held.user_key, spec.user_key)]
    return all(a is b or _made_of(a) == _made_of(b) for a, b in pairs)


def _made_of(codec: ValueCodec | None) -> frozenset[type]:
    """Return the classes of a codec's values, and the classes of users' codecs.

    Editing a function in a notebook makes a new class of the same name and description.
    """
    return frozenset() if codec is None else codec.classes
