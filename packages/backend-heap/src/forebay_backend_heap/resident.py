"""Holds the state of one key-group range in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forebay_backend_heap.column_encoding import UnheldValueError
from forebay_backend_heap.column_table import ColumnTable
from forebay_backend_heap.files import Section
from forebay_backend_heap.gc_pause import paused
from forebay_backend_heap.resident_table import ResidentTable
from forebay_backend_heap.table import HeapTable
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import ValueCodec
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.expiry import Deadline


class Resident:
    """The tables of a range: declared ones decoded to objects, others as sections of files."""

    def __init__(self, groups: KeyGroupRange) -> None:
        self.groups = groups
        self.tables: dict[str, ResidentTable] = {}
        self.raw: dict[str, list[Section]] = {}
        self.size = 0
        """The estimate of its bytes after the last commit here; 0 if there was none."""

    def replay(self, files: Iterable[list[Section]]) -> None:
        """Apply the sections of files, oldest first."""
        with paused():
            for section in (section for sections in files for section in sections):
                table = self.tables.get(section.table)
                if table is not None and _replayed(table, section):
                    continue
                if table is not None:
                    self.raw[section.table] = table.everything(self.groups)
                    del self.tables[section.table]
                self.raw.setdefault(section.table, []).append(section)

    def table(self, spec: TableSpec) -> ResidentTable:
        """Return a declared state's table, decoding it if necessary.

        Raises `StateMigrationError`, and changes nothing, if stored state does not fit ``spec``.
        """
        held = self.tables.get(spec.name)
        if held is not None and _serves(held, spec):
            held.spec = spec
            return held
        sections = self.raw.get(spec.name, []) if held is None else held.everything(self.groups)
        with paused():
            table = _decoded(spec, sections)
        self.tables[spec.name] = table
        self.raw.pop(spec.name, None)
        return table

    def clean_up(self, now_us: int) -> list[Section]:
        """Drop expired content of tables that clean up in snapshots or folds.

        A snapshot folds all deltas, so both settings apply. Returns the sections that drop the same
        content from a copy of the previous version.
        """
        dropped: list[Section] = []
        for table in self.tables.values():
            spec = table.spec
            if (expiry := spec.compaction_expiry or spec.snapshot_expiry) is not None:
                deadline = Deadline(expiry, now_us, spec.compaction_clock_every)
                dropped += table.clean_up(deadline, self.groups)
        return dropped

    def bytes_by_state(self) -> dict[str, int]:
        """Return state → the bytes of its sections; a decoded table is encoded for that."""
        found = {name: sum(one.size for one in sections) for name, sections in self.raw.items()}
        for name, table in self.tables.items():
            found[name] = sum(section.size for section in table.everything(self.groups))
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
        for name, table in self.tables.items():
            copied = frozen.tables.get(name)
            if isinstance(table, HeapTable) and isinstance(copied, HeapTable):
                table.compact_as(copied)

    def snapshot(self, pause: Callable[[], object] = lambda: None) -> list[Section]:
        """Return sections of the whole state; calls ``pause`` before each chunk."""
        raw = [section for sections in self.raw.values() for section in sections]
        return [*raw, *(s for t in self.tables.values() for s in t.everything(self.groups, pause))]

    def delta(self) -> list[Section]:
        """Return sections of the changes since the last commit."""
        with paused():
            return [s for table in self.tables.values() for s in table.changed(self.groups)]

    @property
    def pending(self) -> int:
        """Number of cells changed since the last commit."""
        return sum(table.pending_cells for table in self.tables.values())

    @property
    def cells(self) -> int:
        """Number of cells of the decoded tables."""
        return sum(map(len, self.tables.values()))

    def settled(self) -> None:
        """Forget pending changes: the commit is durable."""
        for table in self.tables.values():
            table.settled()
        self.raw = {name: [s.detached() for s in found] for name, found in self.raw.items()}


def _replayed(table: ResidentTable, section: Section) -> bool:
    """Apply a section to a table, if its spec and its columns lose nothing of it."""
    if section.description != table.spec.description():
        return False
    try:
        table.replay([section])
    except UnheldValueError:
        return False
    return True


def _decoded(spec: TableSpec, sections: list[Section]) -> ResidentTable:
    """Return a table of the cells in ``sections``: by columns if the run reads it so."""
    by_columns = ColumnTable.holds(spec)
    if by_columns:
        table = ColumnTable(spec)
        try:
            table.replay(sections)
        except UnheldValueError:
            pass  # the error, if there is one, is that of the table by cells
        else:
            return table
    by_cells = HeapTable(spec)
    by_cells.replay(sections)
    by_cells.replaces_columns = by_columns
    return by_cells


def _serves(held: ResidentTable, spec: TableSpec) -> bool:
    """Return whether a table that was made for another spec holds cells as one for ``spec``."""
    by_columns = isinstance(held, ColumnTable) or held.replaces_columns
    return by_columns is ColumnTable.holds(spec) and _interchangeable(held.spec, spec)


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
