"""The metrics of keyed operators: what one subtask measures in one micro-batch."""

from __future__ import annotations

from typing import Any, Final

from forebay_state_api.metrics.definitions import Kind, Level, Metric, Unit
from forebay_state_api.metrics.phases import Phase

REQUESTS: Final = ("get", "list", "put", "delete")
"""Requests to storage: content, listings, objects written, objects deleted."""

GROUP_ROWS: Final = "group_rows"
"""Key in a manifest's metrics: rows of the micro-batch for each key group of the subtask, in order;
empty if there were no rows, absent if they were not counted."""

CACHES: Final = ("process", "memory", "disk")
"""Where a backend finds what it need not fetch: opened state, blocks in memory, blocks on disk."""

READ_BOUNDS: Final = (
    *("0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1", "3", "10"),
    "inf",
)
"""Upper bounds of the buckets of read times, in seconds."""


def _counter(what: str, meaning: str, **more: Any) -> Metric:
    return Metric(area="keyed", what=what, kind=Kind.COUNTER, meaning=meaning, **more)


def _gauge(what: str, meaning: str, **more: Any) -> Metric:
    return Metric(area="keyed", what=what, kind=Kind.GAUGE, meaning=meaning, **more)


KEYED: Final = (
    _counter("commits", "Subtasks that committed, once per micro-batch."),
    _counter(
        "phase",
        "Time of the subtasks by phase.",
        unit=Unit.SECONDS,
        labels=("phase",),
        values=tuple(phase.value for phase in Phase),
    ),
    _counter("rows_in", "Rows that the function got."),
    _counter("group_rows_max", "Rows of the key group that had the most.", add=max),
    _counter("rows_out", "Rows that the function emitted."),
    _counter("failed_records", "Records whose error became a row."),
    _counter("late_rows", "Rows whose event time was not after the watermark."),
    _counter("late_rows_dropped", "Rows for which `ctx.timers.drop_late` returned true."),
    _counter(
        "keys_touched",
        "Keys whose state was written, or read from storage: of the state with the most; or, if "
        "more timers were added and these are more keys, keys that registered timers.",
    ),
    _counter("keys_new", "Cells that did not exist before, if the backend knows."),
    _counter("keys_removed", "Cells that were deleted, if the backend knows."),
    _gauge("keys", "Cells, pairs of key and namespace, of all states, if the backend knows."),
    _gauge("state", "Size of the committed version.", unit=Unit.BYTES),
    _counter("written", "Bytes that commits wrote.", unit=Unit.BYTES),
    _counter("restored", "Bytes read from storage to open versions.", unit=Unit.BYTES),
    _counter(
        "values_expired", "Expired values that reads met, or that a sweep after the rows removed."
    ),
    _counter("timers_registered", "Registrations of timers, also of timers that were there."),
    _counter(
        "timers_added",
        "Timers that each hand-over of writes leaves more than before; there is one at the end of "
        "a micro-batch, and more if writes fill the buffer. A timer that was moved may count as "
        "one, and unless the backend holds all state in memory, one that was stored before counts "
        "again.",
    ),
    _counter("timers_fired", "Timers that fired."),
    _counter("timers_late", "Timers that were registered for a time that had passed."),
    _gauge("in_flight_max", "The most records started or blocked at once.", add=max),
    _gauge("blocked_max", "The most records that waited for an earlier one of their key.", add=max),
    _counter("calls_awaited", "Times that a record waited for something other than state."),
    _counter("call_tries", "Calls that `ctx.call` made, without hedges."),
    _counter("call_retries", "Tries of `ctx.call` after the first one of their call."),
    _counter("call_timeouts", "Tries of `ctx.call` that ran out of time."),
    _counter(
        "call_laters",
        "Tries of `ctx.call` that a server answered with 429, or 503 and `Retry-After`.",
    ),
    _counter("call_failed", "Calls of `ctx.call` whose last try failed."),
    _counter("call_hedges", "Second tries that started because the first one took long."),
    _counter("call_hedges_won", "Second tries that answered first."),
    _gauge("calls_in_flight_max", "The most calls of `ctx.call` at one time.", add=max),
    Metric(
        area="keyed",
        what="call",
        kind=Kind.HISTOGRAM,
        unit=Unit.SECONDS,
        meaning="Tries of `ctx.call` that ended within this time.",
        labels=("le",),
        values=READ_BOUNDS,
    ),
    _counter("state_requests", "Reads sent to the backend, except those made by reading ahead."),
    _counter("state_request_batches", "Batches in which these reads were sent."),
    _counter("read_ahead_cells", "Cells read before the records that may need them."),
    _counter("sync_waits", "Synchronous accesses that had to wait for storage."),
    _counter("cache_hits", "Look-ups that a cache answered.", labels=("cache",), values=CACHES),
    _counter(
        "cache_misses", "Look-ups that a cache did not answer.", labels=("cache",), values=CACHES
    ),
    _gauge("runs_max", "Sorted runs of the key group that has the most.", add=max),
    _gauge("compactions_pending", "Compactions that were submitted and have no result yet."),
    _counter(
        "compaction_stalled",
        "Time in which commits compacted, because there were too many runs.",
        unit=Unit.SECONDS,
    ),
    _counter("storage_requests", "Requests to storage.", labels=("request",), values=REQUESTS),
    Metric(
        area="keyed",
        what="state_read",
        kind=Kind.HISTOGRAM,
        unit=Unit.SECONDS,
        meaning="Cells of any state that a batch of reads answered within this time.",
        labels=("le",),
        values=READ_BOUNDS,
    ),
    Metric(
        area="keyed",
        what="state_access",
        kind=Kind.HISTOGRAM,
        unit=Unit.SECONDS,
        meaning="Time of a batch of reads, by state, counted once for each cell.",
        level=Level.DETAIL,
        labels=("state",),
    ),
)
"""All metrics of keyed operators."""
