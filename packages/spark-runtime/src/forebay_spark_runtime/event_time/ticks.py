"""Ticks: micro-batches while nothing comes.

A stream with ``ticks=`` is united with a source that has a new offset each period. Under Spark
Connect it also has a row, which brings the time to the subtasks.
"""

# ruff: noqa: SLF001 - pyspark has no public way to a plan

from __future__ import annotations

import re
import sys
import weakref
from typing import Any, Final

import pyspark
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from forebay_engine.execution.periods import MILLISECOND, period_of
from forebay_spark_runtime.driver.session import is_connect
from forebay_spark_runtime.driver.tick_entries import NAME
from forebay_state_api.errors import ConfigurationError

MARK: Final = "__forebay_ticks_"
"""The beginning of the name of a source's column, which plans show; the period in ms follows."""

_IN_PLAN: Final = re.compile(rf"StreamingRelationV2 .*\[{MARK}(\d+)#")
_FIRST_VERSION: Final = (4, 0)
_NAMED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_registered: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def checked_ticks(df: Any, ticks: object, uid: str) -> int | None:
    """Return the period of the ``ticks=`` of `keyed` in ms; ``None`` without ticks.

    Raises `ConfigurationError` if it is no period, and where there can be no ticks: on a bounded
    DataFrame, in ``foreachBatch``, in declarative pipelines, and before pyspark 4.0.
    """
    if ticks is None:
        return None
    period_ms = _period_ms(ticks)
    if period_ms is None:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= is the time between two micro-batches of a quiet stream, "
            f"such as '10 seconds' or timedelta(seconds=10), at least a millisecond, not {ticks!r}"
        )
    if not df.isStreaming:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= begins micro-batches of a stream. A bounded DataFrame has "
            "none, and a batch in foreachBatch is one already: put keyed(..., ticks=...) before "
            "writeStream"
        )
    if _in_pipeline():
        raise ConfigurationError(
            f"operator {uid!r}: ticks= does not work in a declarative pipeline. A run with a "
            "source in Python completes, but then Spark's client of pipelines fails with "
            "UNKNOWN_RESPONSE. Leave ticks= out, or run the query outside a pipeline"
        )
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _FIRST_VERSION:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= needs pyspark 4.0 or newer, and this is "
            f"{pyspark.__version__}, which has no sources in Python; its source 'rate' would begin "
            "a micro-batch every second. Upgrade, or leave ticks= out"
        )
    return period_ms


def _in_pipeline() -> bool:
    """Return whether the modules of a declarative pipeline are being read."""
    registry: Any = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if registry is None:
        return False
    try:
        registry.get_active_graph_element_registry()
    except PySparkRuntimeError:
        return False
    return True


def _period_ms(ticks: object) -> int | None:
    period = period_of(ticks)
    return None if period is None or period < MILLISECOND else period // MILLISECOND


def ticks_of(df: DataFrame, period_ms: int, uid: str) -> DataFrame | None:
    """Return a stream of ticks; ``None`` if the stream ``df`` comes from an operator with ticks.

    Under Spark Connect each operator has its own, since its row brings the time to this operator
    alone. Raises `ConfigurationError` if the ticks there have another period.
    """
    session = df.sparkSession
    if is_connect(session):
        return tick_stream(session, period_ms, has_rows=True)
    periods = periods_before(df)
    if not periods:
        return tick_stream(session, period_ms, has_rows=False)
    if periods != {period_ms}:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= is {period_ms:,} ms, and an operator before it has ticks of "
            f"{max(periods):,} ms, which reach this one too: give ticks= once, or the same in all"
        )
    return None


def periods_before(df: DataFrame) -> set[int]:
    """Return the periods in ms of the ticks in the plan of ``df``; none under Spark Connect."""
    if is_connect(df.sparkSession):
        return set()
    java: Any = df._jdf
    plan = java.queryExecution().analyzed().toString()
    return {int(found) for found in _IN_PLAN.findall(plan)}


def tick_stream(session: SparkSession, period_ms: int, *, has_rows: bool) -> DataFrame:
    """Return a stream of ticks, with a row for each or without rows."""
    from forebay_spark_runtime.event_time.tick_source import COLUMN, HAS_ROWS, PERIOD, TickSource

    if session not in _registered:
        session.dataSource.register(TickSource)
        _registered.add(session)
    reader = session.readStream.format(NAME).option(PERIOD, str(period_ms))
    if has_rows:
        reader = reader.option(HAS_ROWS, "true")
    if session.conf.get(_NAMED, "false") == "true":  # then all sources of a query have names
        reader = reader.name("forebay_ticks")
    return reader.option(COLUMN, f"{MARK}{period_ms}").load()
