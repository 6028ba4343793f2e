"""The metrics of ordered waits, made of the counts of their tasks."""

from __future__ import annotations

from typing import Any, Final

import attrs

from forebay_state_api.metrics import Metric, MetricKind, MetricUnit
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.fields import definition
from forebay_state_api.metrics.keyed import READ_BOUNDS

_SECONDS: Final = "_s"
_LATENCY: Final = "latency"


def _metric(field: attrs.Attribute[Any]) -> Metric:
    """Return the definition of a metric, from the field of `CallMetrics` that counts it."""
    if field.name == _LATENCY:
        return Metric(
            area="wait",
            what="try",
            kind=MetricKind.HISTOGRAM,
            unit=MetricUnit.SECONDS,
            meaning="Tries that took at most this time.",
            labels=("le",),
            values=READ_BOUNDS,
        )
    unit = MetricUnit.SECONDS if field.name.endswith(_SECONDS) else MetricUnit.COUNT
    return definition(field, area="wait", what=field.name.removesuffix(_SECONDS), unit=unit)


_BY_FIELD: Final = {field.name: _metric(field) for field in attrs.fields(CallMetrics)}
WAIT: Final = tuple(_BY_FIELD.values())
"""All metrics of ordered waits."""


def wait_figures(counts: CallMetrics) -> dict[str, float]:
    """Return counts by the keys of metrics, as in progress events of keyed operators."""
    plain = {
        metric.key: getattr(counts, name) for name, metric in _BY_FIELD.items() if name != _LATENCY
    }
    latency, metric = counts.latency, _BY_FIELD[_LATENCY]
    bounds = zip(metric.keys[:-1], READ_BOUNDS[:-1], strict=True)
    tries = {key: latency.at_most(float(bound)) for key, bound in bounds}
    return {**plain, **tries, metric.keys[-1]: latency.counts.total()}
