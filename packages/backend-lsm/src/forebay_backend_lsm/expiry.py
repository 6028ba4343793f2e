"""What has expired while files are merged, by the job's clock or by one that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from forebay_backend_lsm.files.cells import I64

_FIRST_US: Final = int(np.iinfo(np.int64).min)

Clock = Callable[[], int]
"""Gives µs since the epoch."""


class Expiry:
    """Tells of each cell of a table, as they come, until when it would have expired."""

    def __init__(self, ttl_us: int, now_us: int, every: int | None, clock: Clock) -> None:
        """``now_us`` counts for the first ``every`` cells; then ``clock`` is read, and so on.

        The time never goes back. Without ``every`` it stands still.
        """
        self._ttl_us: Final = ttl_us
        self._now_us = now_us
        self._every: Final = every
        self._clock: Final = clock
        self._left = every or 0
        self.dropped = 0
        """Of how many cells something has expired."""

    def until(self, count: int) -> I64:
        """Of each of the next ``count`` cells: what is of this time, or older, has expired."""
        answer = np.empty(count, np.int64)
        done = 0
        while done < count:
            if self._every is not None and not self._left:
                self._now_us = max(self._now_us, self._clock())
                self._left = self._every
            step = count - done if self._every is None else min(self._left, count - done)
            # A time to live may be longer than time itself: then nothing has expired.
            answer[done : done + step] = max(self._now_us - self._ttl_us, _FIRST_US)
            self._left -= step
            done += step
        return answer
