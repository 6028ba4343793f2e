"""Keyed functions with asynchronous state, and asynchronous calls, on Spark DataFrames.

``keyed(df, "user", uid="totals").process(fn, schema)`` and ``ordered_wait(df, fn, output)`` return
ordinary DataFrames, for streams as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_engine.calls.current_call import Call as Call, current_call as current_call
    from forebay_engine.versions import RestoreFrom as RestoreFrom
    from forebay_spark_runtime.driver.diagnosis import (
        Diagnosis as Diagnosis,
        ProcessReport as ProcessReport,
        doctor as doctor,
    )
    from forebay_spark_runtime.driver.failure import why as why
    from forebay_spark_runtime.keyed_operator.keyed_dataframe import (
        BroadcastConnectedDataFrame as BroadcastConnectedDataFrame,
        BroadcastDataFrame as BroadcastDataFrame,
        ConnectedDataFrame as ConnectedDataFrame,
        KeyedDataFrame as KeyedDataFrame,
        broadcast as broadcast,
        keyed as keyed,
    )
    from forebay_spark_runtime.waiting.operators import (
        ordered_wait as ordered_wait,
        unordered_wait as unordered_wait,
    )
    from forebay_spark_runtime.waiting.reports import (
        BatchReport as BatchReport,
        WaitMetrics as WaitMetrics,
    )
    from forebay_state_api.calls.errors import (
        ClientBrokenError as ClientBrokenError,
        RetryLaterError as RetryLaterError,
    )
    from forebay_state_api.calls.policies import Batch as Batch, Rate as Rate, Retry as Retry
