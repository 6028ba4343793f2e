"""Keyed functions with asynchronous state, and asynchronous calls, on Spark's DataFrames.

``keyed(df, "user", uid="totals").process(fn, schema)`` and ``ordered_wait(df, fn, output)`` give
ordinary DataFrames, of streams too.
"""

from __future__ import annotations

from forebay_spark_runtime.keyed import ConnectedDataFrame, KeyedDataFrame, keyed
from forebay_spark_runtime.waiting.arguments import Batch, Rate, Retry
from forebay_spark_runtime.waiting.current import Call, current_call
from forebay_spark_runtime.waiting.operators import ordered_wait, unordered_wait
from forebay_spark_runtime.waiting.reports import BatchReport, WaitMetrics
from forebay_spark_runtime.waiting.retry import ClientBrokenError, RetryLaterError

__all__ = [
    "Batch",
    "BatchReport",
    "Call",
    "ClientBrokenError",
    "ConnectedDataFrame",
    "KeyedDataFrame",
    "Rate",
    "Retry",
    "RetryLaterError",
    "WaitMetrics",
    "current_call",
    "keyed",
    "ordered_wait",
    "unordered_wait",
]
