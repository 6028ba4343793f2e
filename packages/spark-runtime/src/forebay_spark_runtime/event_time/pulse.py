"""The pulse: rows that bring the time of every micro-batch to every subtask.

They come from a ``range`` that Spark takes for a stream without a source. So it begins no
micro-batch and is in no checkpoint, and a query may begin or cease to have it at any restart.
"""

# ruff: noqa: SLF001 - pyspark has no public way to such a plan

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_spark_runtime.driver.session import with_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def streaming_range(session: SparkSession, rows: int) -> DataFrame:
    """Return a stream with the same ``rows`` rows in every micro-batch, numbered in ``id``.

    It needs classic Spark: Connect has no such plan.
    """
    frame = session.range(0, rows, 1, 1)
    bounded: Any = frame._jdf
    given = bounded.queryExecution().logical()
    parts = (given.start(), given.end(), given.step(), given.numSlices(), given.output())
    streaming = given.copy(*parts, True)  # noqa: FBT003 - Scala's isStreaming
    return with_plan(frame, streaming)
