"""The counts of a task's rows, tries and times."""

from __future__ import annotations

from typing import Any, Self

import attrs

from forebay_state_api.metrics.fields import metric, shown
from forebay_state_api.metrics.histogram import Histogram


@attrs.define(kw_only=True)
class CallMetrics:
    """The counts of one task, or the totals of several.

    Counts with a key are also taken of a keyed operator's ``ctx.call``; manifests hold them in this
    order.
    """

    rows: int = metric("Rows that were read.")
    tries: int = metric("Calls that were made, without hedges.", key="call_tries")
    retries: int = metric("Tries after the first one of their call.", key="call_retries")
    timeouts: int = metric("Tries that ran out of time.", key="call_timeouts")
    laters: int = metric(
        "Tries that a server answered with 429, or 503 and `Retry-After`.", key="call_laters"
    )
    failed: int = metric(
        "Calls whose last try failed; in a wait, rows whose error went to `on_error`.",
        key="call_failed",
    )
    carried: int = metric("Rows that were left for the next micro-batch.")
    hedges: int = metric(
        "Second calls that were started because the first one took long.", key="call_hedges"
    )
    hedges_won: int = metric("Second calls that answered first.", key="call_hedges_won")
    answered: int = metric(
        "Calls that were not made, because an earlier attempt of the micro-batch had kept the "
        "answer.",
        key="call_answered",
    )
    kept_bytes: int = metric("Bytes of answers that were kept.", key="call_kept_bytes")
    dropped: int = metric(
        "Answers that were not kept, because storage was slow or failed.", key="call_dropped"
    )
    in_flight_max: int = metric(
        "The most calls at one time in one task.", key="calls_in_flight_max", add=max
    )
    blocked_max: int = metric(
        "The most answers that waited for an earlier one in one task, as sampled.",
        add=max,
    )
    work_s: float = metric(
        "Seconds from the first row to the last answer, of the task where it took longest.",
        add=max,
        zero=float,
    )
    drain_s: float = metric(
        "Seconds of that time after the end of the input, of the task where it took longest.",
        add=max,
        zero=float,
    )
    latency: Histogram = metric(  # noqa: RUF009 - a field
        "How long tries took: `quantile(share)` in seconds, within 2.5 %. Of calls without limits, "
        "retry and `on_error` one in eight is timed after the first thousands.",
        zero=Histogram,
    )

    def as_data(self) -> dict[str, Any]:
        """Return plain values for JSON and accumulators; `of_data` reads them."""
        data = {name: getattr(self, name) for name in attrs.fields_dict(type(self))}
        data["latency"] = {str(bucket): n for bucket, n in self.latency.counts.items()}
        return data

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Self:
        """Make counts from a result of `as_data`."""
        buckets = {int(bucket): count for bucket, count in data["latency"].items()}
        return cls(**{**data, "latency": Histogram(buckets)})

    def __str__(self) -> str:
        return shown(self)
