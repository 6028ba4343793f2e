"""Keyed functions with asynchronous state on Spark's DataFrames and Structured Streaming.

``keyed(df, "user", uid="totals").process(fn, schema)`` gives an ordinary DataFrame.
"""

from __future__ import annotations

from forebay_spark_runtime.keyed import ConnectedDataFrame, KeyedDataFrame, keyed

__all__ = ["ConnectedDataFrame", "KeyedDataFrame", "keyed"]
