"""Expiry: the rule by which engine, backends, compactors and readers find expired data.

Cells of point tables, elements of lists and entries of maps carry a time. Whatever the state's TTL
mode, at any moment there is one limit: data with that time or an older one have expired. So a
backend only compares times, and does not know the modes of TTL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

__all__ = ["Clock", "Deadline", "Expiry", "running_clock"]

Clock = Callable[[], int]
"""Returns µs since the epoch."""


@attrs.frozen
class Expiry:
    """The expiry rule of one state."""

    ttl_us: int
    """Time to live in µs, at most 2**62."""

    @classmethod
    def of(cls, plain: Any) -> Expiry:
        """Return the rule that `plain` described."""
        return cls(plain)

    @property
    def plain(self) -> Any:
        """The rule as plain data, for the options of a compaction job."""
        return self.ttl_us

    def until_us(self, now_us: int) -> int:
        """Return the newest time that has expired at ``now_us``, in µs; fits into 64 bits.

        It never decreases while ``now_us`` does not. At `NO_TIME` nothing has expired.
        """
        return now_us - self.ttl_us

    def expires_us(self, time_us: int) -> int:
        """Return the first moment, in µs, at which data with this time have expired."""
        return time_us + self.ttl_us


class Deadline:
    """The expiry limit for cells that are checked one after another while time may advance."""

    def __init__(
        self, expiry: Expiry, now_us: int, every: int | None = None, clock: Clock | None = None
    ) -> None:
        """Use ``now_us`` for the first ``every`` cells, then read ``clock``, and so on.

        The time never goes back. Without ``every`` it does not advance; without ``clock`` it
        advances from ``now_us``.
        """
        self._expiry: Final = expiry
        self._now_us = now_us
        self._every: Final = every
        self._clock: Final = clock or running_clock(now_us)
        self._left = every or 0

    def steps(self, cells: int) -> Iterator[tuple[int, int]]:
        """Split the next ``cells`` into runs; yield the length of each and its limit in µs."""
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
        """The newest time that has expired, by the last reading of the clock, in µs."""
        return self._expiry.until_us(self._now_us)


def running_clock(now_us: int) -> Clock:
    """Return a clock that starts at ``now_us`` (µs) and advances with real time.

    It does not depend on the machine's date, so a wrong date expires nothing.
    """
    ahead_us = now_us - time.monotonic_ns() // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000
