"""Exports a gateway's numbers with Ray's own metrics, if Ray exports any (``ray[default]``)."""

from __future__ import annotations

from typing import Any

import ray.util.metrics

from forebay_compaction_ray.gateway.metrics import Metrics


class RayMetrics:
    """Copies the numbers of `Metrics` to Ray."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def show(self, metrics: Metrics) -> None:
        """Export the current numbers; counters and histograms become gauges that only grow."""
        for family in metrics.registry.collect():
            for sample in family.samples:
                gauge = self._gauge(sample.name, family.documentation, tuple(sample.labels))
                gauge.set(sample.value, tags=dict(sample.labels))

    def _gauge(self, name: str, meaning: str, keys: tuple[str, ...]) -> Any:
        if name not in self._gauges:
            gauge: Any = ray.util.metrics.Gauge
            self._gauges[name] = gauge(name, description=meaning, tag_keys=keys)
        return self._gauges[name]
