"""Keep the errors of a backend apart from the errors of user code that reads through it.

A synchronous access calls the backend in the middle of the user's function. Whatever the backend
raises there fails the micro-batch, also if the function catches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from forebay_state_api.contract.backend import Scan, Table, TableSpec
from forebay_state_api.contract.changes import Changes, Space
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.errors import ForebayError, PluginError
from forebay_state_api.metrics.phases import Phase

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.contract.columns import CellColumns, EncodedKeys, NamespaceColumns

T = TypeVar("T")

Fail = Callable[[Exception], None]
"""Fails the micro-batch with one of our own errors, also if user code catches it."""


class GuardedTable(Table):
    """A backend's table, as state objects use it.

    Time of reads on the task thread is time in which the task waits for state.
    """

    def __init__(self, table: Table, state: str, host: StateHost) -> None:
        self._table = table
        self._state = state
        self._fail = host.fail
        self._host = host

    def space(self, namespace: Any) -> Space:
        with guarded(self._fail):
            return self._table.space(namespace)

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        return self._timed(self._table.get_many, namespace, keys)

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        return self._timed(self._table.get_entries, namespace, cells)

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        with guarded(self._fail):
            return _GuardedScan(self._table.scan(namespace, group, key), self._fail)

    def scan_range(self, namespace: Any, group: int, key: Any, part: KeyRange) -> Scan:
        with guarded(self._fail):
            return _GuardedScan(self._table.scan_range(namespace, group, key, part), self._fail)

    def apply(self, changes: Changes) -> None:
        self._table.apply(changes)

    def export(self, keys: int) -> Iterator[Changes]:
        return self._table.export(keys)

    def get_columns(self, spec: TableSpec, namespace: Any, keys: EncodedKeys) -> CellColumns:
        return self._measured(len(keys), lambda: self._table.get_columns(spec, namespace, keys))

    def apply_columns(
        self, spec: TableSpec, namespace: Any, keys: EncodedKeys, cells: CellColumns
    ) -> None:
        with guarded(self._fail, "a write"):
            self._table.apply_columns(spec, namespace, keys, cells)

    def export_columns(self, spec: TableSpec, keys: int) -> Iterator[NamespaceColumns]:
        return self._table.export_columns(spec, keys)

    def _timed(
        self, read: Callable[[Any, Sequence[Any]], list[Any]], namespace: Any, asked: Sequence[Any]
    ) -> list[Any]:
        return self._measured(len(asked), lambda: read(namespace, asked))

    def _measured(self, cells: int, read: Callable[[], T]) -> T:
        started = perf_counter()
        try:
            with guarded(self._fail):
                return read()
        finally:
            seconds, subtask_metrics = perf_counter() - started, self._host.subtask_metrics
            subtask_metrics.note_access(self._state, seconds, cells)
            if self._host.scheduler.is_task_thread():
                subtask_metrics.clock.count(Phase.STATE_WAIT, seconds)


class _GuardedScan(Scan):
    def __init__(self, scan: Scan, fail: Fail) -> None:
        self._scan = scan
        self._fail = fail

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        with guarded(self._fail):
            yield from self._scan.pages(page_size)


@contextmanager
def guarded(fail: Fail, what: str = "a read") -> Iterator[None]:
    """Raise what a backend raises in ``what`` as an error that fails the micro-batch."""
    try:
        yield
    except ForebayError as error:
        fail(error)
        raise
    except Exception as error:
        failure = PluginError(
            f"the state backend failed in {what}: {type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        fail(failure)
        raise failure from error
