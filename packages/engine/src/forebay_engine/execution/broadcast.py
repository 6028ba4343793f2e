"""The broadcast input of a function: runs its rows, and guards the state that they write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.returned_rows import collected, give_out
from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.job.context import BroadcastAccess
from forebay_state_api.job.futures import check_awaited, next_await

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import RecordHost
    from forebay_engine.execution.record_methods import RecordMethod
    from forebay_engine.operator_state.store import Store
    from forebay_state_api.job.descriptors import StateDescriptor

Visit = Callable[["StateDescriptor", Callable[[Any, Any], Any]], None]
"""Calls a function of key and state for every key that has the state."""


class BroadcastInput(BroadcastAccess):
    """Runs one row after the other; no record is in flight while one runs, and no key current."""

    def __init__(self, host: RecordHost, method: RecordMethod, store: Store, visit: Visit) -> None:
        """``store`` holds the broadcast state."""
        self._host = host
        self._method = method
        self._store = store
        self._visit = visit
        self._running: str | None = None
        """``element`` while the method runs, ``visit`` while it visits keys."""

    @property
    def name(self) -> str:
        """The method's name, for errors."""
        return self._method.name

    def run(self, row: Any) -> None:
        """Run one row to its end."""
        self._running = "element"
        try:
            result = self._method.fn(row, self._host.context)
            if inspect.isasyncgen(result):
                result = collected(result)
            while inspect.iscoroutine(result):
                result = self._driven(result)
            give_out(self._host, result)
        finally:
            self._running = None

    def state(self, descriptor: Any) -> Any:
        state = self._store.get_broadcast_state(descriptor)
        state.check_write = self._check_write
        return state

    def visit(self, descriptor: StateDescriptor, fn: Callable[[Any, Any], Any]) -> None:
        if self._running != "element":
            raise StateAccessError(
                f"apply_to_keyed_state is for {self.name}, and not for the function that it calls"
            )
        if not callable(fn):
            raise TypeError(
                f"apply_to_keyed_state takes a function fn(key, state), not {fn!r:.200}"
            )
        self._running = "visit"
        try:
            self._visit(descriptor, fn)
        finally:
            self._running = "element"

    def _check_write(self, what: str) -> None:
        if self._running != "element":
            raise StateAccessError(
                f"{what} is read-only here: only {self.name} writes broadcast state, so that the "
                "copies of all subtasks stay equal"
            )

    def _driven(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, and return its result."""
        scheduler = self._host.scheduler
        while True:
            try:
                awaited = next_await(coroutine)
            except StopIteration as stop:
                return stop.value
            future = check_awaited(awaited, coroutine)
            scheduler.progress.run_until(partial(attrgetter("_done"), future))


def undeclared_state_error(descriptor: object, uid: str) -> ConfigurationError:
    """Return the error for a visit of a state that `open` has not declared."""
    return ConfigurationError(
        f"operator {uid!r}: apply_to_keyed_state takes the descriptor of a state that open() "
        f"declares, not {descriptor!r:.200}"
    )
