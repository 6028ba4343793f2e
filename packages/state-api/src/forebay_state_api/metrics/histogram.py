"""A histogram of call durations, in buckets that are each 5 % wider than the previous one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

_STEP: Final = math.log(1.05)
_SMALLEST_S: Final = 1e-6


class Histogram:
    """Durations with an error of at most 2.5 %; histograms of several tasks can be added."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: Counter[int] = Counter(counts or {})

    def add(self, durations_s: Sequence[float]) -> None:
        """Count durations, in seconds."""
        self.counts.update(map(_bucket, durations_s))

    def add_times(self, duration_s: float, times: int) -> None:
        """Count one duration several times."""
        self.counts[_bucket(duration_s)] += times

    def at_most(self, duration_s: float) -> int:
        """Return how many durations do not exceed ``duration_s``, within 5 %."""
        last = _bucket(duration_s)
        return sum(times for bucket, times in self.counts.items() if bucket <= last)

    def include(self, other: Histogram) -> None:
        """Add the counts of another histogram, at the cost of its buckets alone."""
        self.counts.update(other.counts)

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return ", ".join(f"{self.quantile(q) * 1e3:.1f} ms at {q * 100:.0f} %" for q in (0.5, 0.99))

    def quantile(self, share: float) -> float:
        """Return the duration in seconds that ``share`` of all do not exceed; 0 if empty."""
        wanted = share * self.counts.total()
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return _SMALLEST_S * math.exp((bucket + 0.5) * _STEP)
        return 0.0


def _bucket(duration_s: float) -> int:
    return int(math.log(duration_s / _SMALLEST_S) / _STEP) if duration_s > _SMALLEST_S else 0
