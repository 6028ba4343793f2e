"""The longest time for which an engine waits in its loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class WaitLimit:
    """Stops a loop in which the engine has waited for too long.

    One timer serves all waits of a piece of work: most end long before it, and a timer for each
    costs more than the wait itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._due: float | None = None
        """The time at which the wait is too long; ``None`` if nothing waits."""
        self._timer: asyncio.TimerHandle | None = None
        self._fires = 0.0
        """The time of the timer."""

    def begin(self, seconds: float) -> None:
        """Stop the loop once it has turned for ``seconds``."""
        self._due = self._clock() + seconds
        if self._timer is None or self._fires > self._due:
            self._arm(self._due)

    def end(self) -> bool:
        """Let the loop turn on; return whether the wait took too long."""
        late = self._due is not None and self._clock() >= self._due
        self._due = None
        return late

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        self.close()
        self._fires = due
        self._timer = self._loop.call_later(due - self._clock(), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._clock() >= self._due:
            self._loop.stop()
        else:
            self._arm(self._due)
