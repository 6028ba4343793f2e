"""The state of each worker's current call, and the single timer that enforces all deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from forebay_engine.calls.call_permits import CallPermit
from forebay_engine.calls.current_call import Call

NEVER: Final = float("inf")

GRAIN_S: Final = 0.001
"""Calls whose deadlines are at most this far apart, in seconds, are cancelled together."""


class WorkerSlot:
    """The state of one worker's call. The worker writes it; the sweeper and `current_call` read it.

    A worker makes one call at a time, and only the worker decides about its record.
    """

    __slots__ = (
        "_key_of",
        "attempt",
        "client",
        "deadline",
        "expired",
        "hedge",
        "hedge_at",
        "hedge_won",
        "indexes",
        "permit",
        "start_hedge",
        "task",
    )

    def __init__(self, task: asyncio.Task[Any], key_of: Callable[[int], str]) -> None:
        self.task = task
        self._key_of = key_of
        self.indexes: Sequence[int] | int = 0
        """The row of the current call, or with `Batch` its rows."""
        self.attempt = 1
        self.client: Any = None
        """The client that the last guarded call got."""
        self.permit: CallPermit | None = None
        """The permit of the current try, where permits bound the calls in flight."""
        self.deadline = NEVER
        self.expired = False
        """Set by the sweeper when it cancels the call; cleared by the worker."""
        self.hedge_at = NEVER
        self.start_hedge: Callable[[], asyncio.Task[Any] | None] | None = None
        self.hedge: asyncio.Task[Any] | None = None
        self.hedge_won = False
        """Set when the call is cancelled because the second call has answered."""

    def fixed_call(self) -> Call | None:
        """Return the current call for code of a hedge; ``None`` if it can find the call itself."""
        return self.call()

    def begin_hedge(self) -> None:
        """Start the second call, if it may start now."""
        if self.start_hedge is not None:
            self.hedge = self.start_hedge()

    def call(self) -> Call:
        """Return the current call and attempt."""
        indexes = (self.indexes,) if isinstance(self.indexes, int) else self.indexes
        keys = tuple(map(self._key_of, indexes))
        return Call(key=keys[0], keys=keys, attempt=self.attempt)


class Sweeper:
    """Cancels calls at their deadlines: one timer for all slots, set to the earliest deadline.

    It cancels the worker's task, which is inside the call at that time, and sets a flag by which
    the worker recognises the cancellation. The worker goes on with the record: nothing else ever
    decides about it.
    """

    def __init__(self, slots: Collection[WorkerSlot], clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self.wake = NEVER
        """The time at which the timer fires."""

    def arm(self, at: float) -> None:
        """Set the timer to fire at ``at``, a time of the clock in seconds."""
        self.stop()
        self.wake = at
        delay = max(at - self._clock(), 0.0)
        self._handle = asyncio.get_running_loop().call_later(delay, self._sweep)

    def stop(self) -> None:
        """Cancel the timer; `arm` sets it again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self.wake = NEVER

    def _sweep(self) -> None:
        now = self._clock()
        earliest = NEVER
        for slot in self._slots:
            if slot.deadline <= now:
                slot.deadline = slot.hedge_at = NEVER
                slot.expired = True
                slot.task.cancel()
            elif slot.hedge_at <= now:
                slot.hedge_at = NEVER
                slot.begin_hedge()
            earliest = min(earliest, slot.deadline, slot.hedge_at)
        self.wake = NEVER
        if earliest < NEVER:
            self.arm(max(earliest, now + GRAIN_S))
