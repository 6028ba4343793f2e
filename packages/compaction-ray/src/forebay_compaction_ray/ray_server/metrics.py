"""Exports a gateway's numbers with Ray's own metrics, if Ray exports any (``ray[default]``)."""

from __future__ import annotations

from typing import Any

import ray.util.metrics

from forebay_compaction_ray.gateway.metrics import HELP, PREFIX, Metrics


class RayMetrics:
    """Copies the numbers of `Metrics` to Ray."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def show(self, metrics: Metrics) -> None:
        """Export the current numbers; counters become gauges that only grow."""
        for (name, labels), value in metrics.values.items():
            self._gauge(name, tuple(key for key, _ in labels)).set(value, tags=dict(labels))

    def _gauge(self, name: str, keys: tuple[str, ...]) -> Any:
        if name not in self._gauges:
            gauge: Any = ray.util.metrics.Gauge
            self._gauges[name] = gauge(PREFIX + name, description=HELP[name], tag_keys=keys)
        return self._gauges[name]
