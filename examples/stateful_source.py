"""A source in Python whose offsets are committed together with the state made from its rows.

In Flink a source keeps its offsets in operator state, under a lock. On Spark the source returns the
start and end offsets of a micro-batch, Spark records them before the batch runs (``offsets/n`` in
the checkpoint), and the operator makes version ``n + 1`` of its state in that batch. Whichever
process dies, the batch is run again from the same offsets, on the same version. So no ticket is
lost or counted twice, without a lock, and the source does not need to know the state.

Needs pyspark 4.0 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor

LAST = ValueStateDescriptor("last ticket", int, default=-1)
GATES = ("north", "south", "west")


class Tickets(DataSource):
    """Numbered tickets, each at one of three gates, with the options ``upto`` and ``batch``."""

    @classmethod
    def name(cls) -> str:
        return "tickets"

    def schema(self) -> str:
        return "id long, gate string"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802 - Spark's
        return TicketReader(self.options)


class TicketReader(SimpleDataSourceStreamReader):
    """Its offset is the number of the next ticket."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.upto = int(options.get("upto", "12"))
        self.batch = int(options.get("batch", "5"))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"next": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int, str]], dict[str, int]]:
        end = {"next": min(start["next"] + self.batch, self.upto)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(  # noqa: N802 - Spark's name
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int, str]]:
        """Return the same tickets for the same offsets: a replayed batch depends on it."""
        return iter([(n, GATES[n % len(GATES)]) for n in range(start["next"], end["next"])])


class InOrder(KeyedProcessFunction[str, Any, tuple[str, int]]):
    """Emits each ticket, and fails if a gate's ticket is missing or comes twice."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(LAST)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Iterator[tuple[str, int]]:
        before = self.last.value()
        if before is not None and before >= 0 and row.id != before + len(GATES):
            message = f"ticket {row.id} at {ctx.current_key} follows ticket {before}"
            raise ValueError(message)
        self.last.update(row.id)
        yield row.gate, row.id


def tickets(spark: SparkSession, upto: int, batch: int = 5) -> DataFrame:
    spark.dataSource.register(Tickets)
    return spark.readStream.format("tickets").option("upto", upto).option("batch", batch).load()


def run(spark: SparkSession, folder: Path, upto: int, function: Any = None) -> None:
    """Run the query in ``folder`` from its last offset up to a ticket."""
    checked = keyed(
        tickets(spark, upto), "gate", uid="gates", parallelism=2, state_dir=folder / "state"
    ).process(function or InOrder(), "gate string, id long")
    query = (
        checked.writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with TemporaryDirectory() as name:
        folder = Path(name)
        run(spark, folder, upto=12)
        run(spark, folder, upto=30)  # a restart: continues at ticket 12
        spark.read.parquet(str(folder / "output")).groupBy("gate").count().show()
    spark.stop()


if __name__ == "__main__":
    main()
