"""A limit on tries per second: the time of the next turn, without tokens or timers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from forebay_state_api.calls.policies import Rate, seconds

LATE_S: Final = 0.01
"""How late a turn may be taken without delaying later ones, in seconds: timers are not more exact.

Holds where turns are closer together than this, and is at most a hundredth of the rate's ``per``.
Such turns are spaced further apart to compensate, so that the rate is kept."""


class RateLimiter:
    """Spaces tries evenly, with bursts after pauses; first come, first served.

    A turn is taken when the try begins, so that turns do not accumulate while tries wait for
    something else.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        per = seconds(rate.per, "Rate.per")
        self._late = min(per / 100, LATE_S) if rate.interval_s < LATE_S else 0.0
        self._interval = rate.interval_s * (1 + self._late / per)
        self._slack = self._interval * (rate.burst - 1)
        self._clock = clock
        self._next = 0.0
        self._queue = asyncio.Lock()

    def acquire_at_once(self) -> bool:
        """Take a turn if one is free and no other try waits for it; return whether it was taken."""
        return not self._queue.locked() and self._delay_s(self._clock()) <= 0

    async def acquire(self, prepared: Callable[[], Awaitable[None]]) -> None:
        """Wait for the turn, and for everything else that the try needs.

        ``prepared`` waits for everything else. After a wait for the turn, it is awaited again.
        """
        came = self._clock()
        async with self._queue:
            await prepared()
            while (delay := self._delay_s(came)) > 0:
                await asyncio.sleep(delay)
                await prepared()

    def _delay_s(self, came: float) -> float:
        """Take the turn of a try that has waited since ``came``, and return 0.

        Before its turn, return the seconds until then.
        """
        now = self._clock()
        a_little_late = came <= self._next <= now <= self._next + self._late
        turn = self._next if a_little_late else max(self._next, now - self._slack)
        if turn > now:
            return turn - now
        self._next = turn + self._interval
        return 0.0
