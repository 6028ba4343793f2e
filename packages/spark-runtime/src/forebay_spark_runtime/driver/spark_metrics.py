"""Figures of keyed operators and ordered waits in Spark's own metrics system, on classic Spark.

Whatever sink a site has configured shows them: PrometheusServlet, JMX, StatsD. Each metric is an
accumulator of the driver. Spark would go on showing the first accumulator of a name, so one is
registered once per ``SparkContext`` and used again when a query restarts. Names carry the labels,
as in ``forebay_keyed_rows_in_total..query..clicks..uid..visits``; ``monitoring/`` has the rules
that make labels of them.
"""

# ruff: noqa: SLF001 - pyspark has no public way to what its JVM knows

from __future__ import annotations

import hashlib
import logging
import re
import weakref
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from forebay_engine.calls.wait_metrics import WAIT
from forebay_spark_runtime.driver.operator_batch import OperatorBatch
from forebay_state_api.metrics import KEYED, Metric, MetricKind, MetricLevel

_log = logging.getLogger(__name__)

MOST_OPERATORS: Final = 100
"""Operators of one application that are shown; a job may make one for each tenant."""
_NAMES: Final = frozenset({"query", "uid"})
"""Labels whose values users choose; the values of others are known, and differ."""
_DIGEST: Final = 6
"""Characters of a digest."""


def _by_key(metrics: Iterable[Metric]) -> dict[str, tuple[Metric, str]]:
    """Return key of a figure → its metric, and the value of its label."""
    return {
        key: (metric, value)
        for metric in metrics
        if metric.level is MetricLevel.INFO
        for key, value in zip(metric.keys, metric.values or ("",), strict=True)
    }


_KEYED: Final = _by_key(KEYED)
_WAIT: Final = _by_key(WAIT)


class SparkMetrics:
    """The accumulators of one ``SparkContext``."""

    def __init__(self, context: Any) -> None:
        self._context: Final = context
        self._accumulators: Final[dict[str, Any]] = {}
        self._shown: Final[dict[str, float]] = {}
        self._operators: Final[set[tuple[str, str]]] = set()
        self._is_warned = False

    def show(self, batch: OperatorBatch) -> None:
        """Show a micro-batch: counters grow, gauges are set. An error is logged once."""
        self._show(batch.query, batch.uid, _KEYED, batch.figures)

    def show_wait(self, query: str, name: str, figures: Mapping[str, float]) -> None:
        """Show a micro-batch of an ordered wait, whose name takes the place of a uid."""
        self._show(query, name, _WAIT, figures)

    def _show(
        self,
        query: str,
        uid: str,
        known: Mapping[str, tuple[Metric, str]],
        figures: Mapping[str, float],
    ) -> None:
        try:
            if self._has_room((query, uid)):
                shown = {
                    _name(query, uid, *known[key]): (known[key][0].kind, number)
                    for key, number in figures.items()
                    if key in known
                }
                self._register([name for name in shown if name not in self._accumulators])
                for name, (kind, number) in shown.items():
                    self._put(name, kind, number)
        except Exception:  # noqa: BLE001 - whatever the JVM raises; metrics fail no query
            self._warn("Spark's metrics system does not show operator %r", uid, error=True)

    def _has_room(self, operator: tuple[str, str]) -> bool:
        if operator not in self._operators and len(self._operators) >= MOST_OPERATORS:
            self._warn(
                "Spark's metrics system shows %d operators; others are in progress events only",
                MOST_OPERATORS,
            )
            return False
        self._operators.add(operator)
        return True

    def _warn(self, message: str, argument: object, *, error: bool = False) -> None:
        if not self._is_warned:
            self._is_warned = True
            _log.warning(message, argument, exc_info=error)

    def _put(self, name: str, kind: MetricKind, number: float) -> None:
        before = self._shown.get(name, 0.0)
        after = number if kind is MetricKind.GAUGE else before + number
        if after != before:
            self._accumulators[name].add(float(after - before))
            self._shown[name] = after

    def _register(self, names: list[str]) -> None:
        """Make accumulators that Spark's metrics system shows; all at once take fewer calls."""
        if not names:
            return
        scala_context = self._context._jsc.sc()
        added, source = self._empty_and_source
        made = {name: scala_context.doubleAccumulator(name) for name in names}
        for name, accumulator in made.items():
            added = added.updated(name, accumulator)
        source.register(scala_context, added)
        self._accumulators.update(made)

    @cached_property
    def _empty_and_source(self) -> tuple[Any, Any]:
        """Scala's empty map and Spark's source of accumulators.

        They are looked up once: a JVM searches all jars for each part of a dotted name.
        """
        jvm = self._context._jvm
        empty = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        source = getattr(jvm.org.apache.spark.metrics.source, "DoubleAccumulatorSource$")
        return empty, getattr(source, "MODULE$")


def _name(query: str, uid: str, metric: Metric, value: str) -> str:
    labels = [("query", query), ("uid", uid)]
    labels += zip(metric.labels, [value], strict=False) if value else []
    return registered_name(metric, labels)


def registered_name(metric: Metric, labels: list[tuple[str, str]]) -> str:
    """Return the name in Spark's metrics system; values of labels have neither dots nor ``__``.

    A query or a uid that loses characters ends in a digest, so that no two share a series.
    """
    ending = "_bucket" if metric.kind is MetricKind.HISTOGRAM else ""
    labelled = "".join(f"..{label}..{_value(label, value)}" for label, value in labels)
    return f"{metric.name}{ending}{labelled}"


def _value(label: str, text: str) -> str:
    plain = re.sub(r"[^a-zA-Z0-9]+", "_", text).strip("_")
    if plain == text or label not in _NAMES:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return f"{plain}_{digest}" if plain else digest


_by_context: Final[weakref.WeakKeyDictionary[Any, SparkMetrics]] = weakref.WeakKeyDictionary()


def spark_metrics(context: Any) -> SparkMetrics:
    """Return the metrics of a ``SparkContext``."""
    return _by_context.setdefault(context, SparkMetrics(context))
