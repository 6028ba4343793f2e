"""The metrics of keyed operators: what one subtask measures in one micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.definitions import Metric, MetricKind, MetricLevel, MetricUnit
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.metrics.fields import definition, keyed_fields
from forebay_state_api.metrics.phases import Phase

REQUESTS: Final = ("get", "list", "put", "delete")
"""Requests to storage: content, listings, objects written, objects deleted."""

GROUP_ROWS: Final = "group_rows"
"""Key in a manifest's metrics: rows of the micro-batch for each key group of the subtask, in order;
empty if there were no rows, absent if they were not counted."""

CACHES: Final = ("process", "memory", "disk")
"""The caches of a backend: opened state, blocks in memory, blocks on disk."""

READ_BOUNDS: Final = (
    *("0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.3", "1", "3", "10"),
    "inf",
)
"""Upper bounds of the buckets of read times, in seconds."""


def _counter(what: str, meaning: str, **more: Any) -> Metric:
    return Metric(area="keyed", what=what, kind=MetricKind.COUNTER, meaning=meaning, **more)


def _gauge(what: str, meaning: str, **more: Any) -> Metric:
    return Metric(area="keyed", what=what, kind=MetricKind.GAUGE, meaning=meaning, **more)


def _definitions(kind: type[attrs.AttrsInstance], whose: str = "") -> Iterator[Metric]:
    """Yield the definitions of a class's fields that have a key; meanings begin with ``whose``."""
    for key, field in keyed_fields(kind).items():
        metric = definition(field, area="keyed", what=key)
        yield attrs.evolve(metric, meaning=f"{whose}{metric.meaning}")


KEYED: Final = (
    _counter("commits", "Subtasks that committed, once per micro-batch."),
    _counter(
        "phase",
        "Time of the subtasks by phase.",
        unit=MetricUnit.SECONDS,
        labels=("phase",),
        values=tuple(phase.value for phase in Phase),
    ),
    *_definitions(EngineMetrics),
    _counter("group_rows_max", "Rows of the key group that had the most.", add=max),
    _counter("keys_new", "Cells that did not exist before, if the backend knows."),
    _counter("keys_removed", "Cells that were deleted, if the backend knows."),
    _gauge("keys", "Cells, pairs of key and namespace, of all states, if the backend knows."),
    _gauge("state", "Size of the committed version.", unit=MetricUnit.BYTES),
    _counter("written", "Bytes that commits wrote.", unit=MetricUnit.BYTES),
    _counter("restored", "Bytes read from storage to open versions.", unit=MetricUnit.BYTES),
    *_definitions(CallMetrics, "`ctx.call`: "),
    Metric(
        area="keyed",
        what="call",
        kind=MetricKind.HISTOGRAM,
        unit=MetricUnit.SECONDS,
        meaning="Tries of `ctx.call` that ended within this time.",
        labels=("le",),
        values=READ_BOUNDS,
    ),
    _counter("cache_hits", "Look-ups that a cache answered.", labels=("cache",), values=CACHES),
    _counter(
        "cache_misses", "Look-ups that a cache did not answer.", labels=("cache",), values=CACHES
    ),
    _gauge("runs_max", "Sorted runs of the key group that has the most.", add=max),
    _gauge("compactions_pending", "Compactions that were submitted and have no result yet."),
    _counter(
        "compaction_stalled",
        "Time in which commits compacted, because there were too many runs.",
        unit=MetricUnit.SECONDS,
    ),
    _counter(
        "storage_requests",
        "Requests of the subtask to storage, each try of them, as stores bill them: pages of "
        "lists, ranges, parts of large objects and deleted objects count once each. Those of the "
        "janitor, and of compactions outside the task, are not among them.",
        labels=("request",),
        values=REQUESTS,
    ),
    Metric(
        area="keyed",
        what="state_read",
        kind=MetricKind.HISTOGRAM,
        unit=MetricUnit.SECONDS,
        meaning="Cells of any state that a batch of reads answered within this time.",
        labels=("le",),
        values=READ_BOUNDS,
    ),
    Metric(
        area="keyed",
        what="state_access",
        kind=MetricKind.HISTOGRAM,
        unit=MetricUnit.SECONDS,
        meaning="Time of a batch of reads, by state, counted once for each cell.",
        level=MetricLevel.DETAIL,
        labels=("state",),
    ),
)
"""All metrics of keyed operators."""
