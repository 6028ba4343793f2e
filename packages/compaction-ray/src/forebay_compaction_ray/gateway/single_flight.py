"""Work that concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final


class SingleFlight:
    """Runs ``work`` once for all callers that wait for it to begin.

    A call returns after a run that began later than the call: a run under way may have missed what
    the caller asks for. If the caller whose run it is is cancelled, another one begins it again.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        """``work`` never runs twice at a time."""
        self._work: Final = work
        self._running: Final = asyncio.Lock()
        self._begun = 0
        self._done = 0
        """The number of the last run that was completed."""

    async def __call__(self) -> None:
        """Wait for a run."""
        begun = self._begun
        async with self._running:
            if self._done <= begun:
                self._begun += 1
                await self._work()
                self._done = self._begun
