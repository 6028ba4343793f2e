"""What the engine counts."""

from __future__ import annotations

import attrs

from forebay_state_api.metrics import metric


@attrs.define(kw_only=True)
class EngineMetrics:
    """What stands in the engine now, and what it did in this micro-batch."""

    in_flight: int = metric("Records that were started and have not ended.")
    waiting_requests: int = metric(
        "Reads that were not answered yet; a batch under way counts as one."
    )
    blocked_keys: int = metric("Records that wait for an earlier one of their key.")
    records: int = metric("Records admitted so far.")
    rows_out: int = metric("Rows given out so far.")
    requests: int = metric("Reads that went to the backend, without what was read ahead.")
    request_batches: int = metric("Batches in which they went.")
    largest_in_flight: int = metric(
        "The most records that were started or blocked at once.", add=max
    )
    read_ahead_cells: int = metric("Cells that were read before the records that may want them.")
    sync_waits: int = metric("Synchronous accesses that had to wait for storage.")
    timers_fired: int = metric("Timers that fired so far.")
