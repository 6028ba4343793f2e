"""A running total over a stream: the minutes of delay of each airline, flight by flight.

Needs the flights: ``pip install 'forebay-spark-runtime[demo]'``.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime import keyed
from forebay_spark_runtime.demo import SCHEMA, Flights
from forebay_state_api import KeyedProcessFunction, ReducingStateDescriptor, RuntimeContext

MINUTES = ReducingStateDescriptor("minutes", lambda first, second: first + second, int)
OUTPUT = "carrier string, sequence long, minutes long"


class RunningDelay(KeyedProcessFunction[str, Any, tuple[str, int, int]]):
    def open(self, context: RuntimeContext) -> None:
        self.minutes = context.get_reducing_state(MINUTES)

    async def process_element(
        self, row: Any, ctx: RuntimeContext
    ) -> AsyncIterator[tuple[str, int, int]]:
        if row.arr_delay is not None:
            await self.minutes.async_add(max(row.arr_delay, 0))
            yield ctx.current_key, row.sequence, await self.minutes.async_get() or 0


def run(spark: SparkSession, directory: Path, months: int = 3) -> DataFrame:
    """Stream some months, and return the last total of each airline."""
    flights = Flights(directory / "data")
    flights.prepare()
    (directory / "stream").mkdir()
    for month in range(months):
        flights.deliver(month, directory / "stream")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    totals = keyed(
        stream.parquet(str(directory / "stream")),
        "carrier",
        uid="delay-by-airline",
        parallelism=2,
        order_by="sequence",
        state_dir=directory / "state",
    ).process(RunningDelay(), OUTPUT)
    writer = totals.writeStream.format("parquet").option("path", str(directory / "totals"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    last = F.max_by("minutes", "sequence").alias("minutes")
    return spark.read.parquet(str(directory / "totals")).groupBy("carrier").agg(last)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        run(spark, Path(directory)).orderBy(F.desc("minutes")).show()
    spark.stop()


if __name__ == "__main__":
    main()
