"""Decide which record starts: one of a key at a time, and no more than may be in flight or call.

A record whose key is held queues behind the holder. Where too many records are in flight, or call
something, those that are go on until one more may start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from forebay_engine.execution.progress import Progress
    from forebay_engine.execution.record import Record
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.metrics.engine import EngineMetrics

POLL_EVERY: Final = 32
"""Number of admissions after which answers are polled while records wait."""


class RecordsInFlight(Protocol):
    """The scheduler's interface for admission."""

    busy: dict[Any, Record]
    ready: deque[Record]
    calling: int
    side: int
    counters: EngineMetrics
    progress: Progress
    bind_namespace: Callable[[Any], None]

    @property
    def context(self) -> RuntimeContext:
        """The current key and namespace."""


class Admission:
    """The records of one subtask that wait until they may start."""

    # Slots, because every record reads some of them while others wait.
    __slots__ = (
        "_admitted",
        "_busy",
        "_calls_limit",
        "_limit",
        "_put_off",
        "_restarting",
        "_scheduler",
        "blocked",
        "loops",
    )

    def __init__(
        self, scheduler: RecordsInFlight, *, in_flight_limit: int, calls_in_flight: int | None
    ) -> None:
        self._scheduler = scheduler
        self._busy = scheduler.busy
        self._limit = in_flight_limit
        self._calls_limit = calls_in_flight
        self._admitted, self._restarting = 0, False
        self.blocked = 0
        """Records that wait for their keys."""
        self.loops: list[Callable[[Iterator[tuple[Any, Any, int]], int], Any]] = []
        """Set by the engine: runs records, for each input."""
        self._put_off = scheduler.progress.put_off
        scheduler.progress.start_put_off = self._start_put_off

    def must_wait(self, row: Any, key: Any, group: int, side: int) -> bool:
        """Queue the record if its key is held; make room if too many are in flight."""
        if self._restarting:
            # It has waited: its key is free, and it was counted when it arrived.
            self._restarting = False
            return False
        holder = self._busy.get(key)
        in_flight = len(self._busy) + self.blocked
        if holder is not None:
            if holder.waiting is None:
                holder.waiting = deque()
            holder.waiting.append((row, key, group, side))
            self.blocked += 1
            in_flight += 1
            counters = self._scheduler.counters
            counters.largest_blocked = max(counters.largest_blocked, self.blocked)
            counters.largest_in_flight = max(counters.largest_in_flight, in_flight)
        self._admitted += 1
        if in_flight >= self._limit:
            self._run_others(self._make_room)
        limit = self._calls_limit
        if limit is not None and self._scheduler.calling + len(self._scheduler.ready) >= limit:
            self._run_others(self._await_calls)
        elif self._admitted % POLL_EVERY == 0:
            self._run_others(self._scheduler.progress.poll)
        return holder is not None

    def _make_room(self) -> None:
        self._scheduler.progress.run_until(lambda: len(self._busy) + self.blocked < self._limit)

    def _await_calls(self) -> None:
        """Wait until another record may call: one that has begun always goes on."""
        self._scheduler.progress.run_until(lambda: not self._at_limit())

    def _at_limit(self) -> bool:
        """Return whether the limit of calling records is reached.

        Records that can continue may call again.
        """
        limit = self._calls_limit
        scheduler = self._scheduler
        return limit is not None and scheduler.calling + len(scheduler.ready) >= limit

    def _run_others(self, run: Callable[[], object]) -> None:
        """Call ``run`` in the default namespace, where a timer's record is about to begin."""
        scheduler = self._scheduler
        namespace = scheduler.context._namespace
        if namespace is not None:
            scheduler.bind_namespace(None)
        run()
        if namespace is not None:
            scheduler.bind_namespace(namespace)

    def start_next(self, ended: Record) -> None:
        """Start the records that waited for one that is done, as far as they need not wait."""
        waiting, scheduler = ended.waiting, self._scheduler
        while waiting:
            if self._calls_limit is not None and self._at_limit():
                self._busy[ended.key] = ended
                self._put_off.append(ended)
                return
            row, key, group, side = waiting.popleft()
            self.blocked -= 1
            self._restarting = True
            before, scheduler.side = scheduler.side, side
            self.loops[side](iter(((row, key, group),)), side)
            scheduler.side = before
            self._restarting = False
            holder = self._busy.get(ended.key)
            if holder is not None:
                holder.waiting = waiting
                return

    def _start_put_off(self) -> bool:
        """Start records that were put off, if they may start now; return whether any has."""
        moved = False
        while self._put_off and not self._at_limit():
            ended = self._put_off.popleft()
            del self._busy[ended.key]
            self.start_next(ended)
            moved = True
        return moved
