"""The average of every two values of a key: a window that ends by count, and then starts again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import FlatMapFunction, RuntimeContext, ValueStateDescriptor


class Window(NamedTuple):
    seen: int
    total: int


WINDOW = ValueStateDescriptor("window", Window, default=Window(0, 0))


class CountWindowAverage(FlatMapFunction[Any, tuple[int, float]]):
    def open(self, context: RuntimeContext) -> None:
        self.window = context.get_state(WINDOW)

    async def flat_map(self, row: Any) -> AsyncIterator[tuple[int, float]]:
        window = await self.window.async_value()
        assert window is not None  # the descriptor has a default
        seen, total = window.seen + 1, window.total + row.value
        if seen < 2:  # noqa: PLR2004 - every two values
            await self.window.async_update(Window(seen, total))
            return
        yield row.key, total / seen
        await self.window.async_clear()


def run(spark: SparkSession) -> DataFrame:
    values = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]
    rows = spark.createDataFrame(values, "key int, value int").coalesce(1)
    return keyed(rows, "key", uid="average").flat_map(
        CountWindowAverage(), "key int, average double"
    )


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    run(spark).show()  # 4.0 and 5.5; the 2 waits for another value
    spark.stop()


if __name__ == "__main__":
    main()
