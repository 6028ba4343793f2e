"""The clock of a compaction that is to see time pass: it goes on from the micro-batch's time."""

from __future__ import annotations

import time
from collections.abc import Callable


def running_clock(now_us: int) -> Callable[[], int]:
    """A clock that says ``now_us`` now, in µs, and goes on from there.

    The machine's own idea of the date does not matter, so a wrong one expires nothing.
    """
    ahead_us = now_us - time.monotonic_ns() // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000
