"""Metrics: their definitions, the phases of a micro-batch, and classes of numbers for people.

`definitions` says what a metric is, `keyed` lists the metrics of keyed operators, and `phases`
divides a task's time. `fields` makes classes whose fields are metrics: `engine` and `calls` hold
them.
"""

from __future__ import annotations

from forebay_state_api.metrics.definitions import MetricKind, MetricLevel, Metric, MetricUnit
from forebay_state_api.metrics.fields import described, metric, nonzero, shown, total
from forebay_state_api.metrics.keyed import KEYED
from forebay_state_api.metrics.phases import Phase

__all__ = [
    "KEYED",
    "Metric",
    "MetricKind",
    "MetricLevel",
    "MetricUnit",
    "Phase",
    "described",
    "metric",
    "nonzero",
    "shown",
    "total",
]
