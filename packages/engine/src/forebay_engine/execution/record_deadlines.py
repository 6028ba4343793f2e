"""The times by which records must be done: all have the same limit, so they are in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from forebay_engine.execution.record import Record


class RecordTimeoutError(TimeoutError):
    """A record took longer than ``record_timeout``."""


class RecordDeadlines:
    """Records that are to end within ``limit_s`` seconds of `add`."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._due: dict[Record, float] = {}
        self._clock: Callable[[], float] = time.monotonic
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._woke: Callable[[], object]

    def wake(self, loop: asyncio.AbstractEventLoop, woke: Callable[[], object]) -> None:
        """Call ``woke`` on the loop when a deadline passes, and take the time from it."""
        shift = loop.time() - self._clock()
        self._due = {record: due + shift for record, due in self._due.items()}
        self._clock, self._loop, self._woke = loop.time, loop, woke
        self._arm()

    def __bool__(self) -> bool:
        return bool(self._due)

    def add(self, record: Record) -> None:
        """Let the time of a record begin."""
        self._due[record] = self._clock() + self.limit_s
        if self._timer is None:
            self._arm()

    def remove(self, record: Record) -> None:
        """Forget a record, which is done."""
        self._due.pop(record, None)

    def left_s(self) -> float | None:
        """Return the seconds until the next deadline; ``None`` without one."""
        first = next(iter(self._due.values()), None)
        return None if first is None else max(first - self._clock(), 0.0)

    def past(self) -> list[Record]:
        """Remove and return the records whose time has passed."""
        found = []
        while self.left_s() == 0:
            found.append(next(iter(self._due)))
            del self._due[found[-1]]
        if found and self._timer is None:
            self._arm()
        return found

    def close(self) -> None:
        """Stop the timer."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        left = self.left_s()
        self._timer = None
        if self._loop is not None and left is not None:
            self._timer = self._loop.call_later(left, self._on_time)

    def _on_time(self) -> None:
        woke: Any = self._woke
        self._timer = None
        if self.left_s() == 0:
            woke()  # which has `past` called, and that sets the timer again
        else:
            self._arm()
