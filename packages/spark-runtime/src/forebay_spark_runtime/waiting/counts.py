"""What one task counts while it waits for its calls."""

from __future__ import annotations

from typing import Any, Self

import attrs

from forebay_spark_runtime.waiting.histogram import Histogram


@attrs.define(kw_only=True)
class Counts:
    """Of one task, or the sum of several."""

    rows: int = 0
    """Rows that were taken in."""
    tries: int = 0
    """Calls that were made, hedges aside."""
    retries: int = 0
    """Tries after the first one of their call."""
    timeouts: int = 0
    """Tries that ran out of time."""
    laters: int = 0
    """Tries that a server answered with 429, or 503 and Retry-After."""
    failed: int = 0
    """Rows whose error went to ``on_error``."""
    carried: int = 0
    """Rows that were left for the next micro-batch."""
    hedges: int = 0
    """Second calls that were started because the first one took long."""
    hedges_won: int = 0
    """Second calls that answered first."""
    in_flight_max: int = 0
    """The most calls at one time in one task."""
    blocked_max: int = 0
    """The most answers that waited for an earlier one in one task, as seen now and then."""
    work_s: float = 0.0
    """From the first row at hand to the last answer, of the task where it took longest."""
    drain_s: float = 0.0
    """From the end of the input to the last answer, of the task where it took longest."""
    latency: Histogram = attrs.field(factory=Histogram)
    """How long tries took."""

    def add(self, other: Self) -> None:
        """Add what another task counted."""
        for field in attrs.fields(type(self)):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, Histogram):
                mine.counts.update(theirs.counts)
            elif field.name.endswith(("_max", "_s")):
                setattr(self, field.name, max(mine, theirs))
            else:
                setattr(self, field.name, mine + theirs)

    def as_data(self) -> dict[str, Any]:
        """Plain values, for JSON and for accumulators; `of_data` reads them."""
        data = {name: getattr(self, name) for name in attrs.fields_dict(type(self))}
        data["latency"] = {str(bucket): n for bucket, n in self.latency.counts.items()}
        return data

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Self:
        """What `as_data` gave."""
        buckets = {int(bucket): count for bucket, count in data["latency"].items()}
        return cls(**{**data, "latency": Histogram(buckets)})

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows, {self.tries:,} tries, {self.retries:,} retries, "
            f"{self.timeouts:,} timeouts, {self.laters:,} asked to call later, "
            f"{self.failed:,} rows failed, {self.carried:,} carried over; at most "
            f"{self.in_flight_max:,} in flight and {self.blocked_max:,} blocked; "
            f"calls took {self.latency.quantile(0.5) * 1e3:.1f} ms "
            f"at 50 % and {self.latency.quantile(0.99) * 1e3:.1f} ms at 99 %; "
            f"all in {self.work_s:.2f} s, {self.drain_s:.2f} s of it after the end of the input"
        )
