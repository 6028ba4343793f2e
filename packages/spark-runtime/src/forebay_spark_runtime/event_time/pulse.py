"""The pulse: rows that bring the time of every micro-batch to every subtask.

They come from a ``range`` that Spark takes for a stream without a source. So it begins no
micro-batch and is in no checkpoint, and a query may begin or cease to have it at any restart.
"""

# ruff: noqa: SLF001 - pyspark has no public way to such a plan

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def streaming_range(session: SparkSession, rows: int) -> DataFrame:
    """Return a stream with the same ``rows`` rows in every micro-batch, numbered in ``id``.

    It needs classic Spark: Connect has no such plan.
    """
    bounded: Any = session.range(0, rows, 1, 1)._jdf
    given = bounded.queryExecution().logical()
    parts = (given.start(), given.end(), given.step(), given.numSlices(), given.output())
    # The companion of the class, which has another package from Spark 4.0 on.
    path = bounded.getClass().getName().split(".")
    dataset: Any = functools.reduce(getattr, path, session._jvm)
    streaming = given.copy(*parts, True)  # noqa: FBT003 - Scala's isStreaming
    return DataFrame(dataset.ofRows(session._jsparkSession, streaming), session)
