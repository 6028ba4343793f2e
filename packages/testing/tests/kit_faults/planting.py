"""Plants faults in the SQLite backend, each with the row of the kit that catches it by itself.

A fault is a class that overrides a part of the backend, of its table, scan or database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from .sqlite_backend import SqliteBackend, SqliteScan, SqliteTable

Row = Callable[..., Any]


@attrs.frozen
class Fault:
    """One way to be wrong."""

    name: str
    backend: type[SqliteBackend]
    row: Row
    """The test of the kit that has to fail."""
    case: str
    """Its case, where the other ones pass or take long."""


FAULTS: dict[str, Fault] = {}
MISSED: dict[str, type[SqliteBackend]] = {}
"""Backends with faults that the default kit does not find."""


def caught_by(row: Row, case: str = "") -> Callable[[type], type]:
    """Plant the faults of a class: of a table if it is one, else of the backend."""

    def plant(broken: type) -> type:
        assert broken.__name__ not in FAULTS, "two faults of one name"
        FAULTS[broken.__name__] = Fault(broken.__name__, backend_of(broken), row, case)
        return broken

    return plant


def missed(why: str) -> Callable[[type], type]:
    """Plant a fault that no default row finds, and say why."""

    def plant(broken: type) -> type:
        assert why
        MISSED[broken.__name__] = backend_of(broken)
        return broken

    return plant


def backend_of(broken: type) -> type[SqliteBackend]:
    backend = broken
    if issubclass(broken, SqliteTable):
        backend = with_table(broken)
    elif issubclass(broken, SqliteScan):
        backend = with_table(with_scan(broken))
    backend.kept_databases = {}
    if "contract_version" not in vars(backend):  # or the whole kit finds that it inherits one
        backend.contract_version = SqliteBackend.contract_version
    return backend


def with_table(table_class: type[SqliteTable]) -> type[SqliteBackend]:
    class Backend(SqliteBackend):
        def new_table(self, spec):
            table = table_class(self.database, spec)
            self.unpack(table)
            return table

    return Backend


def with_scan(scan_class: type[SqliteScan]) -> type[SqliteTable]:
    class Table(SqliteTable):
        def scan(self, namespace, group, key):
            scan = super().scan(namespace, group, key)
            scan.__class__ = scan_class
            return scan

    return Table
