"""Definitions of metrics: name, kind, unit, meaning, and where each is shown."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Final

import attrs

AREAS: Final = ("keyed", "wait", "compaction")
"""The second words of names: keyed operators, ordered waits, remote compaction."""


class MetricKind(enum.Enum):
    """The kind of a metric, in the terms of Prometheus."""

    COUNTER = "counter"
    """It only grows. A manifest and a progress event hold what one micro-batch added."""
    GAUGE = "gauge"
    """A reading, which the next one replaces."""
    HISTOGRAM = "histogram"
    """Counts of durations or sizes, in buckets."""


class MetricUnit(enum.Enum):
    """The unit of a metric; the value is the last word of its name."""

    COUNT = ""
    SECONDS = "seconds"
    BYTES = "bytes"


class MetricLevel(enum.Enum):
    """The level of a metric, which decides where it is shown."""

    INFO = "info"
    """Shown in manifests, in progress events, and in Spark's metrics system."""
    DETAIL = "detail"
    """Shown in manifests alone."""


@attrs.frozen(kw_only=True)
class Metric:
    """One metric."""

    area: str
    """One of `AREAS`."""
    what: str
    """The middle of its name, and its key in manifests and progress events, before the unit."""
    kind: MetricKind
    meaning: str
    """One sentence for the documentation."""
    unit: MetricUnit = MetricUnit.COUNT
    level: MetricLevel = MetricLevel.INFO
    labels: tuple[str, ...] = ()
    """The names of its labels, such as the phase of a batch."""
    values: tuple[str, ...] = ()
    """All values of its only label, where they are known in advance."""
    add: Callable[[float, float], float] = operator.add
    """Combines the readings of two subtasks in one micro-batch."""

    @property
    def key(self) -> str:
        """The key in manifests and progress events: ``restored_bytes``."""
        return "_".join(filter(None, (self.what, self.unit.value)))

    @property
    def name(self) -> str:
        """The name for Prometheus: ``forebay_keyed_restored_bytes_total``."""
        ending = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"forebay_{self.area}_{self.key}{ending}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in progress events: one for each value of its label."""
        return tuple(f"{self.key}_{value}" for value in self.values) or (self.key,)
