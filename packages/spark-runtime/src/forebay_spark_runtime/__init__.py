"""Keyed functions with asynchronous state, and asynchronous calls, on Spark DataFrames.

``keyed(df, "user", uid="totals").process(fn, schema)`` and ``ordered_wait(df, fn, output)`` return
ordinary DataFrames, for streams as well.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay_engine.calls.current_call import Call, current_call
    from forebay_engine.versions import RestoreFrom
    from forebay_spark_runtime.driver.diagnosis import Diagnosis, ProcessReport, doctor
    from forebay_spark_runtime.driver.failure import why
    from forebay_spark_runtime.keyed_operator.keyed_dataframe import (
        BroadcastConnectedDataFrame,
        BroadcastDataFrame,
        ConnectedDataFrame,
        KeyedDataFrame,
        broadcast,
        keyed,
    )
    from forebay_spark_runtime.waiting.operators import ordered_wait, unordered_wait
    from forebay_spark_runtime.waiting.reports import BatchReport, WaitMetrics
    from forebay_state_api.calls.errors import ClientBrokenError, RetryLaterError
    from forebay_state_api.calls.policies import Batch, Rate, Retry

__all__ = [
    "Batch",
    "BatchReport",
    "BroadcastConnectedDataFrame",
    "BroadcastDataFrame",
    "Call",
    "ClientBrokenError",
    "ConnectedDataFrame",
    "Diagnosis",
    "KeyedDataFrame",
    "ProcessReport",
    "Rate",
    "RestoreFrom",
    "Retry",
    "RetryLaterError",
    "WaitMetrics",
    "broadcast",
    "current_call",
    "doctor",
    "keyed",
    "ordered_wait",
    "unordered_wait",
    "why",
]

_HOMES: Final = {
    "forebay_spark_runtime.driver.diagnosis": ("Diagnosis", "ProcessReport", "doctor"),
    "forebay_spark_runtime.driver.failure": ("why",),
    "forebay_spark_runtime.keyed_operator.keyed_dataframe": (
        "BroadcastConnectedDataFrame",
        "BroadcastDataFrame",
        "ConnectedDataFrame",
        "KeyedDataFrame",
        "RestoreFrom",
        "broadcast",
        "keyed",
    ),
    "forebay_spark_runtime.waiting.operators": ("ordered_wait", "unordered_wait"),
    "forebay_spark_runtime.waiting.reports": ("BatchReport", "WaitMetrics"),
    "forebay_engine.calls.current_call": ("Call", "current_call"),
    "forebay_state_api.calls.policies": ("Batch", "Rate", "Retry"),
    "forebay_state_api.calls.errors": ("ClientBrokenError", "RetryLaterError"),
}
"""Module → its public names. They are imported on first use, because the plugin layer imports this
package to list its plugins, and no ``forebay`` command should wait for pyspark."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, without the submodules that happen to be imported."""
    return __all__
