"""Warnings about accesses to state that stop a subtask, or that are never awaited."""

from __future__ import annotations

import warnings
from typing import Final, Protocol

from forebay_engine.versions.format.timer_tables import TIMER_TABLES
from forebay_state_api.metrics.engine import EngineMetrics

_warned: Final[set[object]] = set()
"""Warnings already given in this process: by uid about synchronous accesses that wait, by uid and
function name about reads that were dropped."""


class CountedReads(Protocol):
    """The part of the scheduler that counts requests, and reads that are never awaited."""

    counters: EngineMetrics
    dropped_reads: int

    def look_at_tail(self) -> None:
        """Count the last request if it was not awaited."""


class AccessWarnings:
    """Warns of the accesses of one function, once per operator and process."""

    def __init__(
        self, scheduler: CountedReads, *, uid: str, function: str, is_asynchronous: bool
    ) -> None:
        """``is_asynchronous``: the function has an asynchronous record method."""
        self._scheduler: Final = scheduler
        self._uid: Final = uid
        self._function: Final = function
        self._is_asynchronous: Final = is_asynchronous
        self._waited_for: str | None = None

    def waits(self, state: str) -> None:
        """Count a synchronous access that has to wait."""
        self._scheduler.counters.sync_waits += 1
        self._waited_for = "timers" if state in TIMER_TABLES else state
        if self._is_asynchronous:
            self.warn_of_waits()

    def warn_of_waits(self) -> None:
        """Warn, once per operator, if synchronous accesses stop asynchronous ones."""
        mixed = self._is_asynchronous or self._scheduler.counters.requests > 0
        if self._waited_for is None or not mixed or self._uid in _warned:
            return
        _warned.add(self._uid)
        message = (
            f"operator {self._uid!r} mixes asynchronous state accesses with synchronous ones that "
            f"have to wait (state {self._waited_for!r}); each stops all records of its subtask. "
            "So does the next access of a state whose merge of namespaces, or whose read that may "
            "show expired data, is not awaited"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=5)

    def warn_of_dropped_reads(self) -> None:
        """Warn, once per operator, of reads that are never awaited."""
        scheduler = self._scheduler
        scheduler.look_at_tail()
        dropped, scheduler.dropped_reads = scheduler.dropped_reads, 0
        uid, name = self._uid, self._function
        if not dropped or (uid, name) in _warned:
            return
        _warned.add((uid, name))
        message = (
            f"operator {uid!r}: {name} made {dropped} asynchronous read(s) that were never "
            "awaited: `await state.async_value()`, or chain with then_apply"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=4)
