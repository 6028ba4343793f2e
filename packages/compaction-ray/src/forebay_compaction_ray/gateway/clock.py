"""Time as the gateway lives through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class WakingClock:
    """Counts the time between two ticks, but no more than ``most_s`` of it.

    A gateway that was suspended has heard nothing meanwhile: what others let pass in that time must
    not count against them before they could be asked again.
    """

    def __init__(self, clock: Callable[[], float], most_s: float) -> None:
        """Begin where ``clock`` stands."""
        self._clock: Final = clock
        self._most_s: Final = most_s
        self._ticked_s = self._counted_s = clock()

    def __call__(self) -> float:
        """The time by what was counted."""
        return self._counted_s + min(self._clock() - self._ticked_s, self._most_s)

    def tick(self) -> None:
        """The gateway is awake."""
        self._counted_s, self._ticked_s = self(), self._clock()
