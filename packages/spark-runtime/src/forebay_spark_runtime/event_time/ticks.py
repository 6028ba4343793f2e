"""Ticks: micro-batches while nothing comes.

A stream with ``ticks=`` is united with a source that has no rows, and a new offset each period.
"""

# ruff: noqa: SLF001 - pyspark has no public way to a plan

from __future__ import annotations

import re
import weakref
from datetime import timedelta
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime.driver.session import is_connect
from forebay_spark_runtime.driver.tick_entries import NAME
from forebay_state_api.errors import ConfigurationError

_MS: Final = timedelta(milliseconds=1)
_UNITS: Final = {
    "millisecond": _MS,
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_PERIOD: Final = re.compile(rf"(\d+) *({'|'.join(_UNITS)})s?", re.IGNORECASE)
MARK: Final = "__forebay_ticks_"
"""The beginning of the name of a source's column, which plans show; the period in ms follows."""

_IN_PLAN: Final = re.compile(rf"StreamingRelationV2 .*\[{MARK}(\d+)#")
_FIRST_VERSION: Final = (4, 0)
_NAMED: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_registered: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def checked_ticks(df: Any, ticks: object, uid: str) -> int | None:
    """Return the period of the ``ticks=`` of `keyed` in ms; ``None`` without ticks.

    Raises `ConfigurationError` if it is no period, and where there can be no ticks: on a bounded
    DataFrame, in ``foreachBatch``, under Spark Connect, and before pyspark 4.0.
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
    if is_connect(df.sparkSession):
        raise ConfigurationError(
            f"operator {uid!r}: ticks= needs classic Spark: under Spark Connect only rows bring "
            "the time to a subtask. Unite the input with a stream of ticks under a key of its own"
        )
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _FIRST_VERSION:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= needs pyspark 4.0 or newer, and this is "
            f"{pyspark.__version__}, which has no sources in Python; its source 'rate' would begin "
            "a micro-batch every second. Upgrade, or leave ticks= out"
        )
    return period_ms


def _period_ms(ticks: object) -> int | None:
    period = ticks
    if isinstance(ticks, str) and (found := _PERIOD.fullmatch(ticks.strip())) is not None:
        try:
            period = int(found[1]) * _UNITS[found[2].lower()]
        except OverflowError:
            return None
    if not isinstance(period, timedelta) or period < _MS:
        return None
    return period // _MS


def ticks_of(df: DataFrame, period_ms: int, uid: str) -> DataFrame | None:
    """Return a stream of ticks; ``None`` if the stream ``df`` comes from an operator with ticks.

    Raises `ConfigurationError` if the ticks there have another period.
    """
    java: Any = df._jdf
    periods = {
        int(found) for found in _IN_PLAN.findall(java.queryExecution().analyzed().toString())
    }
    if not periods:
        return _tick_stream(df.sparkSession, period_ms)
    if periods != {period_ms}:
        raise ConfigurationError(
            f"operator {uid!r}: ticks= is {period_ms:,} ms, and an operator before it has ticks of "
            f"{max(periods):,} ms, which reach this one too: give ticks= once, or the same in all"
        )
    return None


def _tick_stream(session: SparkSession, period_ms: int) -> DataFrame:
    from forebay_spark_runtime.event_time.tick_source import COLUMN, PERIOD, TickSource

    if session not in _registered:
        session.dataSource.register(TickSource)
        _registered.add(session)
    reader = session.readStream.format(NAME).option(PERIOD, str(period_ms))
    if session.conf.get(_NAMED, "false") == "true":  # then all sources of a query have names
        reader = reader.name("forebay_ticks")
    return reader.option(COLUMN, f"{MARK}{period_ms}").load()
