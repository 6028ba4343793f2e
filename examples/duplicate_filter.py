"""Pass only the first row of each key (the example of FLIP-153, as a filter)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import (
    FlatMapFunction,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)

SEEN = ValueStateDescriptor[bool]("seen", bool, ttl=StateTtlConfig(timedelta(days=1)))


class DuplicateFilter(FlatMapFunction[Any, Any]):
    """Drops rows whose key was seen within a day; without the TTL, the state would only grow."""

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(SEEN)

    async def flat_map(self, row: Any) -> AsyncIterator[Any]:
        if not await self.seen.async_value():
            await self.seen.async_update(value=True)
            yield row


def run(spark: SparkSession) -> DataFrame:
    words = [("hello", 1, 2), ("hello", 1, 3), ("flink", 2, 1)]
    rows = spark.createDataFrame(words, "word string, x int, y int").coalesce(1)
    return keyed(rows, "word", uid="first-only").flat_map(DuplicateFilter(), rows.schema)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    run(spark).show()
    spark.stop()


if __name__ == "__main__":
    main()
