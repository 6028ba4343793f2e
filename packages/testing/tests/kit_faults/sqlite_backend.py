"""A small backend over SQLite, written from docs/plugin-authors/backend.md: what `faults` breaks.

The cells of an opened range are rows of a scratch database. A commit writes the changes since the
previous version, or a snapshot of everything when there are many deltas. Between batches the
database is cached under the manifest whose state it holds.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Self

import attrs

from forebay_state_api.codecs import codec_for, decoding
from forebay_state_api.contract.backend import (
    Capability,
    Opening,
    Scan,
    StateBackend,
    Table,
    TableSpec,
    packed_bounds,
)
from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange, Shape, Space
from forebay_state_api.contract.checksummed import read_sealed, seal
from forebay_state_api.contract.expiry import Expiry
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.job.ttl import CleanupIncrementally
from forebay_state_api.settings import Setting

NAMESPACES = codec_for(None, what="a namespace")
AT_ONCE = 500
"""Number of variables in a statement."""
_log = logging.getLogger(__name__)

Operation = tuple[int, bytes, bytes, bool, list[Any]]
"""Key group, namespace, key, whether to remove older parts, (part, value or ``None``) pairs."""
Block = tuple[dict[str, Any], list[Operation]]
"""The description under which some operations were packed, and the operations."""


def connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


class Database:
    """The rows of one range: (state, namespace, key, part) → key group, time and value.

    The part is empty for points, a number for elements and the user key for entries.
    """

    def __init__(self) -> None:
        self.one_at_a_time = threading.Lock()  # threads would share a prepared statement
        with tempfile.NamedTemporaryFile() as scratch:
            self.connection = connect(scratch.name)
            self.run("PRAGMA journal_mode = OFF")
            self.run("PRAGMA synchronous = OFF")
            self.run(
                "CREATE TABLE cells (state TEXT, namespace BLOB, key BLOB, part BLOB, grp INTEGER, "
                "time INTEGER, value BLOB, PRIMARY KEY (state, namespace, key, part)) WITHOUT ROWID"
            )
        # The default of SQLite; some distributions allow more.
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
        self.run("BEGIN")
        self.unread: dict[str, list[Block]] = {}
        """States that were not declared yet."""
        self.descriptions: dict[str, dict[str, Any]] = {}
        """Declared state → the description under which its rows are packed."""
        self.lists: set[str] = set()
        """The declared states that are lists."""
        self.swept: dict[str, Any] = {}
        """State → the row at which its last sweep stopped."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self.one_at_a_time:
            return self.connection.execute(statement, values).fetchall()

    def write(self, state: str, operation: Operation, times: Iterable[int | None]) -> None:
        group, namespace, key, whole, parts = operation
        place = (state, namespace, key)
        if whole:
            self.clear(place)
        rows, last = [], None
        for (part, value), time in zip(parts, times, strict=True):
            if part is None:
                last = self.last(place) + 1 if last is None else last + 1
                part = self.part(last)
            if value is None:
                self.remove([*place, part])
            else:
                rows.append([*place, part, group, time, value])
        self.connection.executemany("REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def part(self, number: int) -> bytes:
        return number.to_bytes(8, "big")

    def clear(self, place: Sequence[Any]) -> None:
        self.run("DELETE FROM cells WHERE state = ? AND namespace = ? AND key = ?", place)

    def remove(self, row: Sequence[Any]) -> None:
        where = "state = ? AND namespace = ? AND key = ? AND part = ?"
        self.run(f"DELETE FROM cells WHERE {where}", row)

    def last(self, place: Sequence[Any]) -> int:
        where = "state = ? AND namespace = ? AND key = ?"
        ((last,),) = self.run(f"SELECT max(part) FROM cells WHERE {where}", place)
        return -1 if last is None else int.from_bytes(last, "big")

    def parts(self, place: Sequence[Any]) -> list[Any]:
        where = "state = ? AND namespace = ? AND key = ?"
        return self.run(f"SELECT part, value FROM cells WHERE {where} ORDER BY part", place)

    def parts_between(self, place: Sequence[Any], bounds: Any, descending: bool) -> list[Any]:
        low, high = bounds
        where = "state = ? AND namespace = ? AND key = ? AND part >= ? AND (? IS NULL OR part < ?)"
        order = f"ORDER BY part {'DESC' if descending else 'ASC'}"
        values = [*place, low or b"", high, high]
        return self.run(f"SELECT part, value FROM cells WHERE {where} {order}", values)

    def dump(self, state: str, is_list: bool) -> list[Operation]:
        """Return the whole content of a state, as operations."""
        columns = "grp, namespace, key, part, value"
        order = "ORDER BY namespace, key, part"
        rows = self.run(f"SELECT {columns} FROM cells WHERE state = ? {order}", [state])
        return [
            (*place, True, [(None if is_list else part, value) for *_, part, value in parts])
            for place, parts in groupby(rows, key=itemgetter(0, 1, 2))
        ]

    def keys(self) -> int:
        ((count,),) = self.run(
            "SELECT count(*) FROM (SELECT DISTINCT state, namespace, key FROM cells)"
        )
        return count

    @property
    def size(self) -> int:
        ((pages,),) = self.run("PRAGMA page_count")
        return pages * 4096

    def close(self) -> None:
        self.connection.close()


@attrs.frozen
class Kept:
    """The copy that a process keeps between batches."""

    manifest_id: str
    database: Database


class SqliteBackend(StateBackend):
    """Deltas and snapshots of a scratch database."""

    name: ClassVar[str] = "sqlite"
    contract_version: ClassVar[int] = 2
    capabilities: ClassVar[Capability] = (
        Capability.CLEANUP_FULL_SNAPSHOT | Capability.CLEANUP_INCREMENTALLY
    )
    background_cleanup: ClassVar[CleanupIncrementally] = CleanupIncrementally(5)
    options: ClassVar[Mapping[str, Setting]] = {
        "deltas": Setting("deltas", int, 6, "How many deltas a snapshot follows.", minimum=0)
    }
    kept_databases: ClassVar[dict[Any, Kept]] = {}
    database_class: ClassVar[type[Database]] = Database

    def __init__(self, opening: Opening, database: Database) -> None:
        self.opening = opening
        self.database: Database | None = database
        self.tables: dict[str, SqliteTable] = {}

    # -- opening ------------------------------------------------------------------------------

    @classmethod
    def open(cls, opening: Opening) -> Self:
        kept = cls.kept_databases.pop(cls.address(opening), None)
        if kept is not None and cls.is_of(kept, opening):
            return cls(opening, kept.database)
        if kept is not None:
            kept.database.close()
        return cls(opening, cls.loaded(opening))

    @classmethod
    def address(cls, opening: Opening) -> Any:
        return opening.path, opening.range

    @classmethod
    def is_of(cls, kept: Kept, opening: Opening) -> bool:
        parents = opening.parents
        return len(parents) == 1 and parents[0].whole and parents[0].manifest_id == kept.manifest_id

    @classmethod
    def loaded(cls, opening: Opening) -> Database:
        database = cls.database_class()
        for file in cls.files_of(opening):
            for state, blocks in cls.read(opening, file).items():
                own = [(description, cls.own(file, rows)) for description, rows in blocks]
                database.unread.setdefault(state, []).extend(own)
        if len(opening.parents) == 1:
            database.swept = dict(opening.parents[0].meta.get("swept", {}))
        return database

    @classmethod
    def files_of(cls, opening: Opening) -> list[StateFile]:
        return [file for parent in opening.parents for file in parent.files]

    @classmethod
    def own(cls, file: StateFile, operations: Sequence[Operation]) -> list[Operation]:
        return [operation for operation in operations if operation[0] in file.range]

    @classmethod
    def read(cls, opening: Opening, file: StateFile) -> dict[str, list[Block]]:
        what = f"{file.name} of operator {opening.uid!r}, version {opening.version}"
        try:
            data = opening.storage.get(file.name)
        except ObjectNotFoundError as error:
            raise CorruptStateError(f"{what} is missing") from error
        if len(data) != file.size:
            raise CorruptStateError(f"{what} has {len(data)} bytes instead of {file.size}")
        name, tables = read_sealed(data, what, itemgetter("name", "tables"))
        if not file.name.endswith(name):
            raise CorruptStateError(f"{what} holds {name}")
        return tables

    def table(self, spec: TableSpec) -> SqliteTable:
        if spec.name not in self.tables:
            for parent in self.opening.parents:
                if spec.name in parent.descriptions:
                    reader_of(parent.descriptions[spec.name], spec)
            self.tables[spec.name] = self.new_table(spec)
        return self.tables[spec.name]

    def new_table(self, spec: TableSpec) -> SqliteTable:
        table = SqliteTable(self.database, spec)
        self.unpack(table)
        return table

    def unpack(self, table: SqliteTable) -> None:
        """Insert the stored operations as rows, packed under the current declaration."""
        database, spec = table.database, table.spec
        written = database.descriptions.get(spec.name)
        if written is not None and written != spec.description():
            rows = database.dump(spec.name, table.is_list)
            database.unread[spec.name] = [(written, rows)]
            database.run("DELETE FROM cells WHERE state = ?", [spec.name])
        where = f"operator {self.opening.uid!r}, {self.opening.path}, state {spec.name!r}"
        for description, operations in database.unread.pop(spec.name, ()):
            reader = self.reader(description, spec)
            with decoding(lambda _: where):
                for operation in operations:
                    table.write(repacked(operation, reader, spec))
        database.descriptions[spec.name] = spec.description()
        if table.is_list:
            database.lists.add(spec.name)

    def reader(self, description: dict[str, Any], spec: TableSpec) -> TableSpec:
        return reader_of(description, spec)

    # -- committing ---------------------------------------------------------------------------

    def commit(self, version: int) -> CommittedState:
        files, written = self.files_of(self.opening), 0
        if any(table.changes for table in self.tables.values()):
            if len(files) > self.opening.options.get("deltas", 6):
                self.drop_expired()
                files, kind, content = [], "snapshot", self.everything()
            else:
                kind, content = "delta", self.changed()
            name = self.new_name(version, kind)
            data = seal({"name": name, "tables": content})
            self.put(name, data)
            written = len(data)
            files = self.chain(files, self.described(name, data))
        return CommittedState(
            files=files,
            meta={"swept": self.database.swept},
            keys=None if self.database.unread else self.database.keys(),
            bytes_total=sum(file.size for file in files),
            bytes_written=written,
        )

    def new_name(self, version: int, kind: str) -> str:
        return data_name(version, f"sqlite-{kind}")

    def put(self, name: str, data: bytes) -> None:
        self.opening.storage.put(name, data)

    def described(self, name: str, data: bytes) -> StateFile:
        return StateFile(name=name, size=len(data), range=self.opening.range)

    def chain(self, files: list[StateFile], new: StateFile) -> list[StateFile]:
        return [*files, new]

    def changed(self) -> dict[str, list[Block]]:
        tables = self.tables.items()
        return {n: [(t.spec.description(), t.changes)] for n, t in tables if t.changes}

    def everything(self) -> dict[str, list[Block]]:
        """Return all states; undeclared states are unchanged."""
        database = self.database
        asked = {
            name: [(table.spec.description(), database.dump(name, table.is_list))]
            for name, table in self.tables.items()
        }
        return self.not_asked_for() | asked

    def not_asked_for(self) -> dict[str, list[Block]]:
        database = self.database
        known = {
            name: [(description, database.dump(name, name in database.lists))]
            for name, description in database.descriptions.items()
            if name not in self.tables
        }
        return known | database.unread

    def drop_expired(self) -> None:
        for table in self.tables.values():
            expiry = table.spec.snapshot_expiry
            if expiry is not None and (dropped := table.drop(self.until(expiry))):
                self.log(table.spec.name, dropped)

    def until(self, expiry: Expiry) -> int:
        return expiry.until_us(self.opening.now_us)

    def log(self, state: str, dropped: int) -> None:
        _log.debug("ttl: a snapshot dropped %d expired parts of state %r", dropped, state)

    def installed(self, manifest_id: str) -> None:
        database, self.database = self.database, None
        if database is None:
            return
        database.run("COMMIT")
        database.run("BEGIN")
        self.keep(Kept(manifest_id, database))

    def keep(self, kept: Kept) -> None:
        databases = self.kept_databases
        databases[self.address(self.opening)] = kept
        while databases and sum(one.database.size for one in databases.values()) > self.budget():
            databases.pop(next(iter(databases))).database.close()

    def budget(self) -> int:
        return self.opening.cache_bytes

    def close(self) -> None:
        database, self.database = self.database, None
        if database is not None:
            database.close()

    @classmethod
    def forget(cls) -> None:
        """Drop everything that a new process does not have."""
        for kept in cls.kept_databases.values():
            kept.database.close()
        cls.kept_databases.clear()


class SqliteTable(Table):
    """The rows of one state."""

    def __init__(self, database: Database, spec: TableSpec) -> None:
        self.database = database
        self.spec = spec
        self.is_list = spec.shape is Shape.LIST
        self.changes: list[Operation] = []
        """The applied changes."""
        self.spaces: dict[Any, Space] = {}

    def space(self, namespace: Any) -> Space:
        return self.spaces.setdefault(namespace, Space(namespace, complete=False))

    # -- reading ------------------------------------------------------------------------------

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        packed = [self.packed_key(key) for _, key in keys]
        found: dict[bytes, bytes] = {}
        for start in range(0, len(packed), AT_ONCE):
            found |= self.values(namespace, packed[start : start + AT_ONCE])
        return [self.value(found.get(key)) for key in packed]

    def values(self, namespace: Any, packed: Sequence[bytes]) -> dict[bytes, bytes]:
        marks = ", ".join("?" * len(packed))
        where = f"state = ? AND namespace = ? AND part = x'' AND key IN ({marks})"
        name = self.packed_namespace(namespace)
        select = f"SELECT key, value FROM cells WHERE {where}"
        return dict(self.database.run(select, [self.spec.name, name, *packed]))

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        return [self.entry(self.place(namespace, key), entry) for _, key, entry in cells]

    def entry(self, place: Sequence[Any], entry: Any) -> Any:
        where = "state = ? AND namespace = ? AND key = ? AND part = ?"
        row = [*place, self.packed_entry(entry)]
        found = self.database.run(f"SELECT value FROM cells WHERE {where}", row)
        return self.value(found[0][0]) if found else self.value(None)

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        parts = self.database.parts(self.place(namespace, key))
        return SqliteScan(self.elements(parts))

    def scan_range(self, namespace: Any, group: int, key: Any, part: KeyRange) -> Scan:
        parts = self.database.parts_between(
            self.place(namespace, key), packed_bounds(self.spec, part), part.descending
        )
        return SqliteScan(self.elements(parts))

    def elements(self, parts: Sequence[Any]) -> list[Any]:
        if self.is_list:
            return [self.value(value) for _, value in parts]
        return [(self.address(part), self.value(value)) for part, value in parts]

    def value(self, packed: bytes | None) -> Any:
        if packed is None:
            return ABSENT
        with decoding(lambda _: f"state {self.spec.name!r}"):
            return self.spec.stored.unpack_one(packed)

    def place(self, namespace: Any, key: Any) -> list[Any]:
        return [self.spec.name, self.packed_namespace(namespace), self.packed_key(key)]

    def packed_key(self, key: Any) -> bytes:
        return self.spec.key.pack_one(key)

    def packed_namespace(self, namespace: Any) -> bytes:
        return NAMESPACES.pack_one(namespace)

    def address(self, part: bytes) -> Any:
        entry = self.spec.user_key.unpack_one(part)
        return entry if self.spec.user_key.address is None else self.spec.user_key.address(entry)

    def packed_entry(self, address: Any) -> bytes:
        original = self.spec.user_key.original
        return self.spec.user_key.pack_one(address if original is None else original(address))

    # -- writing ------------------------------------------------------------------------------

    def apply(self, changes: Changes) -> None:
        for namespace, points in changes.points.items():
            for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
                self.set_point(namespace, key, group, value)
        for namespace, lists in changes.lists.items():
            for key, change in lists.items():
                self.change_list(namespace, key, change)
        for namespace, maps in changes.maps.items():
            for key, change in maps.items():
                self.change_map(namespace, key, change)

    def set_point(self, namespace: Any, key: Any, group: int, value: Any) -> None:
        parts = [] if value is ABSENT else [(b"", self.packed(value))]
        self.change(self.operation(namespace, key, group, True, parts))

    def change_list(self, namespace: Any, key: Any, change: ListChange) -> None:
        parts = [(None, self.packed(element)) for element in change.elements]
        self.change(self.operation(namespace, key, change.group, change.replaced, parts))

    def change_map(self, namespace: Any, key: Any, change: MapChange) -> None:
        parts = [(self.packed_entry(e), self.packed(v)) for e, v in change.entries.items()]
        self.change(self.operation(namespace, key, change.group, change.cleared, parts))

    def operation(
        self, namespace: Any, key: Any, group: int, whole: bool, parts: list[Any]
    ) -> Operation:
        return (group, *self.place(namespace, key)[1:], whole, parts)

    def packed(self, value: Any) -> bytes | None:
        return None if value is ABSENT else self.spec.stored.pack_one(value)

    def change(self, operation: Operation) -> None:
        """Write, for this version and for the delta."""
        self.write(operation)
        self.changes.append(operation)

    def write(self, operation: Operation) -> None:
        times = [self.time(value) for _, value in operation[-1]]
        self.database.write(self.spec.name, operation, times)

    def time(self, packed: bytes | None) -> int | None:
        """Return when a value was last accessed."""
        return self.value(packed)[0] if packed is not None and self.spec.ttl else None

    # -- cleaning up --------------------------------------------------------------------------

    def drop(self, until_us: int) -> int:
        rows = self.rows("AND time <= ?", [until_us])
        self.remove(rows)
        return len(rows)

    def sweep(self, checks: int, until_us: int) -> int:
        rows, start = self.rows(), self.database.swept.get(self.spec.name)
        ahead = [row for row in rows if start is None or row[:3] > tuple(start)]
        turn = [*ahead, *rows[: len(rows) - len(ahead)]][:checks]
        if turn:
            self.database.swept[self.spec.name] = turn[-1][:3]
        expired = [row for row in turn if self.has_expired(row[4], until_us)]
        self.remove(expired)
        self.note(expired)
        return len(expired)

    def has_expired(self, time: int, until_us: int) -> bool:
        return time <= until_us

    def rows(self, where: str = "", values: Sequence[Any] = ()) -> list[Any]:
        columns = "namespace, key, part, grp, time"
        order = "ORDER BY namespace, key, part"
        statement = f"SELECT {columns} FROM cells WHERE state = ? {where} {order}"
        return self.database.run(statement, [self.spec.name, *values])

    def remove(self, rows: Sequence[Any]) -> None:
        for namespace, key, part, *_ in rows:
            self.database.remove([self.spec.name, namespace, key, part])

    def note(self, removed: Sequence[Any]) -> None:
        """Write to the delta what is left of the cells that a sweep changed."""
        for (namespace, key, group), _ in groupby(removed, key=itemgetter(0, 1, 3)):
            left = self.database.parts([self.spec.name, namespace, key])
            parts = [(None if self.is_list else part, value) for part, value in left]
            self.changes.append((group, namespace, key, True, parts))

    # -- handing over -------------------------------------------------------------------------

    def export(self, keys: int) -> Iterator[Changes]:
        operations = self.database.dump(self.spec.name, self.is_list)
        for namespace, found in groupby(operations, key=itemgetter(1)):
            name, cells = NAMESPACES.unpack_one(namespace), list(found)
            for start in range(0, len(cells), keys):
                yield self.exported(name, cells[start : start + keys])

    def exported(self, namespace: Any, operations: Sequence[Operation]) -> Changes:
        point = self.spec.shape is Shape.POINT
        cells = [
            (
                self.spec.key.unpack_one(key),
                group,
                self.value(parts[0][1]) if point else self.elements(parts),
            )
            for group, _, key, _, parts in operations
        ]
        return Changes.whole(self.spec.shape, namespace, cells)


class SqliteScan(Scan):
    """Elements as they were."""

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        for start in range(0, len(self.elements), page_size):
            yield self.elements[start : start + page_size]


def repacked(operation: Operation, reader: TableSpec, spec: TableSpec) -> Operation:
    """An operation that ``reader`` reads, as ``spec`` packs it."""
    group, namespace, key, whole, parts = operation
    return (
        group,
        namespace,
        key,
        whole,
        [
            (
                part if not part else spec.user_key.pack_one(reader.user_key.unpack_one(part)),
                None if value is None else spec.stored.pack_one(reader.stored.unpack_one(value)),
            )
            for part, value in parts
        ],
    )
