"""A backend whose cells are rows of a server, after docs/plugin-authors/state-in-a-server.md.

The server is one SQLite database outside the state directory. Each commit inserts its rows, one for
each key group that it changed, under the name of an anchor: a small sealed object in the state
directory, which manifests, pins, forks and the janitor treat as the commit's file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from operator import itemgetter
from typing import Any, ClassVar, Self

import attrs
import msgpack
import xxhash

from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.checksummed import read_sealed, seal
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import CommittedState, StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import ConfigurationError, CorruptStateError, StorageError
from forebay_state_api.settings import Setting

from ..kit_faults.sqlite_backend import SqliteBackend


class Server:
    """The database: a row for each (operator's folder, anchor, key group)."""

    def __init__(self, options: Mapping[str, Any], budget_s: float = 0.0) -> None:
        if options.get("dsn") is None:
            raise ConfigurationError("spark.forebay.server.dsn is not set")
        self._dsn = options["dsn"]
        self._budget_s = budget_s
        """SQLite waits for a lock so long; a client of a real server tries again so long."""

    def run(self, *statements: tuple[str, Any]) -> list[Any]:
        """Run statements in one transaction; the rows of the last one."""
        try:
            connection = sqlite3.connect(self._dsn, timeout=self._budget_s)
            with closing(connection), connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS cells (folder TEXT, anchor TEXT, grp INTEGER, "
                    "data BLOB, PRIMARY KEY (folder, anchor, grp)) WITHOUT ROWID"
                )
                for statement, rows in statements[:-1]:
                    connection.executemany(statement, rows)
                statement, values = statements[-1]
                return connection.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            raise StorageError(f"the server of state refused: {error}") from error


class ServerBackend(SqliteBackend):
    """Rows under anchors; what an opened range holds is in a scratch database as in its base."""

    contract_version: ClassVar[int] = 2
    name: ClassVar[str] = "server"
    options: ClassVar[Mapping[str, Setting]] = {
        **SqliteBackend.options,
        "dsn": Setting("dsn", str, None, "Where the server is.", secret=True),
    }
    kept_databases: ClassVar[dict[Any, Any]] = {}

    @classmethod
    def open(cls, opening: Opening) -> Self:
        Server(opening.options)
        return super().open(opening)

    # -- reading ------------------------------------------------------------------------------

    @classmethod
    def read(cls, opening: Opening, file: StateFile) -> dict[str, list[Any]]:
        what = f"{file.name} of operator {opening.uid!r}, version {opening.version}"
        folder, digests = cls.anchor(opening.storage, file, what)
        rows = cls.rows(opening, folder, anchor_of(file.name))
        tables: dict[str, list[Any]] = {}
        for group, digest in digests.items():
            if group not in file.range or group not in opening.range:
                continue
            row = f"row {anchor_of(file.name)}/{group} of {what}"
            if group not in rows:
                raise CorruptStateError(f"{row} is missing")
            if xxhash.xxh3_128_digest(rows[group]) != digest:
                raise CorruptStateError(f"{row} was altered")
            for state, blocks in msgpack.unpackb(rows[group], strict_map_key=False).items():
                tables.setdefault(state, []).extend(blocks)
        return tables

    @classmethod
    def anchor(cls, storage: ObjectStorage, file: StateFile, what: str) -> tuple[str, dict]:
        """The folder that a commit's rows are under, and the digest of each by its key group."""
        try:
            data = storage.get(file.name)
        except ObjectNotFoundError as error:
            raise CorruptStateError(f"{what} is missing") from error
        if len(data) != file.size:
            raise CorruptStateError(f"{what} has {len(data)} bytes instead of {file.size}")
        name, folder, digests = read_sealed(data, what, itemgetter("name", "folder", "rows"))
        if not file.name.endswith(name):
            raise CorruptStateError(f"{what} holds {name}")
        return folder, dict(digests)

    @classmethod
    def rows(cls, opening: Opening, folder: str, anchor: str) -> dict[int, bytes]:
        server = Server(opening.options, opening.retry_budget_s)
        where = "folder = ? AND anchor = ? AND grp BETWEEN ? AND ?"
        values = (folder, anchor, opening.range.start, opening.range.end)
        return dict(server.run((f"SELECT grp, data FROM cells WHERE {where}", values)))

    # -- committing: the anchor, the server's commit, and the engine puts the manifest ----------

    def commit(self, version: int) -> CommittedState:
        files, changed = self.files_of(self.opening), any(t.changes for t in self.tables.values())
        parents = self.opening.parents
        total = sum(parent.meta.get("bytes", 0) for parent in parents)
        written = 0
        if changed:
            if len(files) > self.opening.options["deltas"]:
                self.drop_expired()
                files, total, content = [], 0, self.everything()
            else:
                content = self.changed()
            file, written = self.put_commit(data_name(version, "server"), content)
            files = [*files, file]
            total += written
        return CommittedState(
            files=files,
            meta={"swept": self.database.swept, "bytes": total},
            keys=None if self.database.unread else self.database.keys(),
            bytes_total=total,
            bytes_written=written,
        )

    def put_commit(self, name: str, content: Mapping[str, Any]) -> tuple[StateFile, int]:
        folder, anchor = self.opening.path, anchor_of(name)
        rows = {group: msgpack.packb(tables) for group, tables in by_group(content).items()}
        digests = {group: xxhash.xxh3_128_digest(data) for group, data in rows.items()}
        sealed = seal({"name": name, "folder": folder, "rows": list(digests.items())})
        self.opening.storage.put(name, sealed)
        inserted = [(folder, anchor, group, data) for group, data in rows.items()]
        server = Server(self.opening.options, self.opening.retry_budget_s)
        server.run(("INSERT INTO cells VALUES (?, ?, ?, ?)", inserted), ("SELECT 1", ()))
        size = len(sealed) + sum(map(len, rows.values()))
        return StateFile(name=name, size=len(sealed), range=self.opening.range), size

    # -- clearing -------------------------------------------------------------------------------

    @classmethod
    def clear(
        cls, storage: ObjectStorage, options: Mapping[str, Any], *, retry_budget_s: float
    ) -> None:
        server, folder = Server(options, retry_budget_s), storage.url
        committed = server.run(("SELECT DISTINCT anchor FROM cells WHERE folder = ?", (folder,)))
        living = {anchor_of(info.name) for info in storage.list("data")}
        gone = [(folder, anchor) for (anchor,) in committed if anchor not in living]
        delete = "DELETE FROM cells WHERE folder = ? AND anchor = ?"
        server.run((delete, gone), ("SELECT 1", ()))


@attrs.frozen
class ServerCells:
    """The rows, as pieces that the kit damages."""

    dsn: str
    in_files = False

    def _run(self, statement: str, *values: Any) -> list[Any]:
        return Server({"dsn": self.dsn}).run((statement, values))

    def pieces(self, storage: ObjectStorage) -> dict[str, bytes]:
        rows = self._run("SELECT anchor, grp, data FROM cells WHERE folder = ?", storage.url)
        return {f"{anchor}/{group}": data for anchor, group, data in rows}

    def put(self, storage: ObjectStorage, name: str, data: bytes) -> None:
        where = "folder = ? AND anchor = ? AND grp = ?"
        self._run(f"UPDATE cells SET data = ? WHERE {where}", data, storage.url, *name.split("/"))

    def delete(self, storage: ObjectStorage, name: str) -> None:
        where = "folder = ? AND anchor = ? AND grp = ?"
        self._run(f"DELETE FROM cells WHERE {where}", storage.url, *name.split("/"))


def anchor_of(name: str) -> str:
    """An anchor's name without folders: the same in the operator that wrote it and in a fork."""
    return name.rpartition("/")[2]


def by_group(content: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The operations of a commit, by key group."""
    found: dict[int, dict[str, Any]] = {}
    for state, blocks in content.items():
        for description, operations in blocks:
            groups: dict[int, list[Any]] = {}
            for operation in operations:
                groups.setdefault(operation[0], []).append(operation)
            for group, own in groups.items():
                found.setdefault(group, {}).setdefault(state, []).append((description, own))
    return found
