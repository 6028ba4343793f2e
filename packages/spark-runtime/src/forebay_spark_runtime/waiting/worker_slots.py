"""The place of one worker, and the one timer that watches over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from forebay_spark_runtime.waiting.current_call import Call

NEVER: Final = float("inf")

GRAIN_S: Final = 0.001
"""Expired calls that are no further apart are cancelled together."""


class WorkerSlot:
    """What one worker is at: written by the worker, read by the sweeper and by `current_call`."""

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
        "start_hedge",
        "task",
    )

    def __init__(self, task: asyncio.Task[Any], key_of: Callable[[int], str]) -> None:
        self.task = task
        self._key_of = key_of
        self.indexes: Sequence[int] | int = 0
        """The row of the call at hand, or with `Batch` its rows."""
        self.attempt = 1
        self.client: Any = None
        """What the last guarded call was made with."""
        self.deadline = NEVER
        self.expired = False
        """Set by the sweeper when it cancels the call; cleared by the worker."""
        self.hedge_at = NEVER
        self.start_hedge: Callable[[], asyncio.Task[Any] | None] | None = None
        self.hedge: asyncio.Task[Any] | None = None
        self.hedge_won = False
        """Set when the call is cancelled because the second one has answered."""

    def call(self) -> Call:
        """The call at hand, as it is now."""
        indexes = (self.indexes,) if isinstance(self.indexes, int) else self.indexes
        keys = tuple(map(self._key_of, indexes))
        return Call(key=keys[0], keys=keys, attempt=self.attempt)


class Sweeper:
    """Ends calls whose time is over: one timer for all slots, set to the earliest deadline.

    It cancels the worker's task, which is inside the call then, and leaves a mark by which the
    worker knows the cancellation for its own. The worker goes on with the record: nothing else
    ever decides about it.
    """

    def __init__(self, slots: Sequence[WorkerSlot], clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self.wake = NEVER
        """When the timer is set to."""

    def arm(self, at: float) -> None:
        """Wake up at ``at`` at the latest."""
        self.stop()
        self.wake = at
        delay = max(at - self._clock(), 0.0)
        self._handle = asyncio.get_running_loop().call_later(delay, self._sweep)

    def stop(self) -> None:
        """Watch no more, until it is armed again."""
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
            elif slot.hedge_at <= now and slot.start_hedge is not None:
                slot.hedge_at = NEVER
                slot.hedge = slot.start_hedge()
            earliest = min(earliest, slot.deadline, slot.hedge_at)
        self.wake = NEVER
        if earliest < NEVER:
            self.arm(max(earliest, now + GRAIN_S))
