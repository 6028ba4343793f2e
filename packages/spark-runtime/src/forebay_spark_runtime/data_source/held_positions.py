"""`HeldPositions`: the pins of a stream's driver, on the positions that it still needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay_state_processor.reading import START, ChangeFeed, Position

if TYPE_CHECKING:
    from datetime import timedelta

    from forebay_engine.versions.choosing.pins import Pin


class HeldPositions:
    """Positions that the janitor leaves alone, each for ``lease`` after its last renewal."""

    def __init__(self, lease: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
        self._lease: Final = lease
        self._clock: Final = clock
        self._pins: Final[dict[Position, Pin]] = {}
        self._renewed: Final[dict[Position, float]] = {}

    def hold(self, feed: ChangeFeed, position: Position) -> None:
        """Pin a position, or renew its pin if a quarter of the lease has passed.

        Raises `VersionGoneError` if the janitor has deleted the position.
        """
        if position == START:
            return
        now = self._clock()
        if position not in self._pins:
            self._pins[position] = feed.hold(position, self._lease)
        elif now - self._renewed[position] >= self._lease.total_seconds() / 4:
            self._pins[position].renew()
        else:
            return
        self._renewed[position] = now

    def keep_only(self, *positions: Position) -> None:
        """Release all positions but these."""
        for position in self._pins.keys() - set(positions):
            self._pins.pop(position).close()
            del self._renewed[position]
