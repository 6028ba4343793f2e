"""The README's first example, with annotations. Type-checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, assert_type

from pyspark.sql import DataFrame

import forebay_spark_runtime as runtime
from forebay_state_api import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor


class RunningCount(KeyedProcessFunction[str, Any, tuple[str, int]]):
    """Counts the rows of a key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def process_element(
        self,
        row: Any,
        ctx: RuntimeContext,
    ) -> AsyncIterator[tuple[str, int]]:
        count = await self.count.async_value() + 1
        assert_type(count, int)
        await self.count.async_update(count)
        yield row.user, count


def job(clicks: DataFrame) -> None:
    keyed = runtime.keyed(clicks, "user", uid="count")
    assert_type(keyed, runtime.KeyedDataFrame)
    assert_type(keyed.process(RunningCount(), "user string, n long"), DataFrame)
