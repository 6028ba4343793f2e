"""When what has a time to live is dead: one rule, for engine, backends and compactors.

Cells of point tables, elements of lists and entries of maps carry a time. Whatever a state's TTL
says, at any moment it comes down to one time: what is of that time or older is dead. So a backend
compares times, and knows of no mode of TTL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

Clock = Callable[[], int]
"""Gives µs since the epoch."""


@attrs.frozen
class Expiry:
    """The rule of one state."""

    ttl_us: int
    """At most 2**62."""

    @classmethod
    def of(cls, plain: Any) -> Expiry:
        """Return the rule that was told as `plain`."""
        return cls(plain)

    @property
    def plain(self) -> Any:
        """Plain data, which options of a compaction job may hold."""
        return self.ttl_us

    def until_us(self, now_us: int) -> int:
        """What is of this time or older is dead at ``now_us``; fits into 64 bits.

        It never goes back while ``now_us`` does not. At `NO_TIME` nothing is dead.
        """
        return now_us - self.ttl_us


class Deadline:
    """Until when cells are dead that are looked at one after another, while time may go on."""

    def __init__(
        self, expiry: Expiry, now_us: int, every: int | None = None, clock: Clock | None = None
    ) -> None:
        """``now_us`` counts for the first ``every`` cells; then ``clock`` is read, and so on.

        The time never goes back. Without ``every`` it stands still, without ``clock`` it goes on
        from ``now_us``.
        """
        self._expiry: Final = expiry
        self._now_us = now_us
        self._every: Final = every
        self._clock: Final = clock or running_clock(now_us)
        self._left = every or 0

    def steps(self, cells: int) -> Iterator[tuple[int, int]]:
        """Split the next ``cells`` into neighbours: how many, and until when they are dead."""
        if self._every is None:
            yield cells, self.until_us
            return
        while cells:
            if not self._left:
                self._now_us = max(self._now_us, self._clock())
                self._left = self._every
            step = min(self._left, cells)
            self._left -= step
            cells -= step
            yield step, self.until_us

    @property
    def until_us(self) -> int:
        """What is of this time or older is dead, by the last reading of the clock."""
        return self._expiry.until_us(self._now_us)


def running_clock(now_us: int) -> Clock:
    """A clock that says ``now_us`` now, in µs, and goes on from there.

    The machine's own idea of the date does not matter, so a wrong one expires nothing.
    """
    ahead_us = now_us - time.monotonic_ns() // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000
