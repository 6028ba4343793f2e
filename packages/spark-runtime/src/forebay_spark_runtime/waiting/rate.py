"""A limit on tries per second, as a time that moves on with every try: no queue, no tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from forebay_spark_runtime.waiting.arguments import Rate


class Limiter:
    """Spaces tries evenly, with bursts after pauses; first come, first served."""

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self._interval = rate.interval_s
        self._slack = rate.interval_s * (rate.burst - 1)
        self._clock = clock
        self._next = 0.0

    def acquire_at_once(self) -> bool:
        """Take a turn if one is free now."""
        now = self._clock()
        turn = max(self._next, now - self._slack)
        if turn > now:
            return False
        self._next = turn + self._interval
        return True

    async def acquire(self) -> None:
        """Wait for the turn. A turn that is cancelled is lost: the rate is kept, not reached."""
        now = self._clock()
        turn = max(self._next, now - self._slack)
        self._next = turn + self._interval
        if turn > now:
            await asyncio.sleep(turn - now)
