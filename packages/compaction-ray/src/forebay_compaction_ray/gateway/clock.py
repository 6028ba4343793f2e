"""The gateway's clock, which discounts the time while the gateway was suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class WakingClock:
    """Counts the time between two ticks, but at most ``most_s`` of it.

    A suspended gateway receives no answers. Silence during that time must not count against workers
    before the gateway can ask them again.
    """

    def __init__(self, clock: Callable[[], float], most_s: float) -> None:
        """Begin at the current time of ``clock``."""
        self._clock: Final = clock
        self._most_s: Final = most_s
        self._ticked_s = self._counted_s = clock()

    def __call__(self) -> float:
        """Return the counted time, in seconds."""
        return self._counted_s + min(self._clock() - self._ticked_s, self._most_s)

    def tick(self) -> None:
        """Count the time since the last tick: the gateway is awake."""
        self._counted_s, self._ticked_s = self(), self._clock()
