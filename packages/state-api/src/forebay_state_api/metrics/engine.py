"""The engine's metrics."""

from __future__ import annotations

import attrs

from forebay_state_api.metrics.fields import metric


@attrs.define(kw_only=True)
class EngineMetrics:
    """The engine's current load, and its counts in this micro-batch.

    Manifests hold the counts with a key, in this order.
    """

    in_flight: int = metric("Records that have started and not ended.")
    waiting_requests: int = metric(
        "Reads that have no answer yet; a batch in progress counts as one."
    )
    blocked_keys: int = metric("Records that wait for an earlier record of their key.")
    records: int = metric("Rows that the function got.", key="rows_in")
    rows_out: int = metric("Rows that the operator emitted.", key="rows_out")
    rows_out_late: int = metric("Rows emitted too late for Spark's operators.", key="rows_out_late")
    failed: int = metric("Records whose error became a row.", key="failed_records")
    late_rows: int = metric("Rows whose event time was not after the watermark.", key="late_rows")
    late_rows_dropped: int = metric(
        'Rows dropped by `late="drop"` or `ctx.timers.drop_late`.', key="late_rows_dropped"
    )
    rows_ahead: int = metric("Rows beyond `max_event_time_ahead`.", key="rows_ahead")
    keys_touched: int = metric(
        "Keys whose state was written, or read from storage, in the state with the most such keys. "
        "If more keys registered timers, and more timers were added, the number of these keys.",
        key="keys_touched",
    )
    values_expired: int = metric(
        "Expired values that reads met, or that a sweep after the rows removed.",
        key="values_expired",
    )
    timers_registered: int = metric(
        "Registrations of timers, also of timers that were there.", key="timers_registered"
    )
    timers_added: int = metric(
        "Timers that hand-overs of writes to the backend add. A moved timer may count; a stored "
        "one counts again, unless the backend holds all state in memory.",
        key="timers_added",
    )
    timers_fired: int = metric("Timers that fired.", key="timers_fired")
    timers_late: int = metric(
        "Timers that were registered for a time that had passed.", key="timers_late"
    )
    largest_in_flight: int = metric(
        "The most records started or blocked at once.", key="in_flight_max", add=max
    )
    largest_blocked: int = metric(
        "The most records that waited for an earlier one of their key.", key="blocked_max", add=max
    )
    calls_awaited: int = metric("Waits of records other than for state.", key="calls_awaited")
    requests: int = metric(
        "Reads sent to the backend, except those made by reading ahead.", key="state_requests"
    )
    request_batches: int = metric(
        "Batches in which these reads were sent.", key="state_request_batches"
    )
    read_ahead_cells: int = metric(
        "Cells read before the records that may need them.", key="read_ahead_cells"
    )
    sync_waits: int = metric("Synchronous accesses that had to wait for storage.", key="sync_waits")
