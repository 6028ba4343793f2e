"""State read by Spark, compared with Spark's own reader of the equal state.

``python -m benchmarks.spark_reading`` (6 minutes). `transformWithState` on RocksDB and our operator
on both backends make the state of the same events, one per key; then ``spark.read`` of all of it is
timed in turn, from ``load()`` to the last row, in one session. As a bound, a Python data source
yields batches that are ready, with as many rows of the same columns: what is left to it is Spark's
own time, which no source in Python can do without.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.jobs import JOBS, PARTITIONS, Job
from benchmarks.one_run import start_session
from benchmarks.report import Line, Result, benchmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PEER: Final = "tws"
OURS: Final = {"heap": "ours-sync", "lsm": "ours-lsm-sync"}
"""Backend → job."""
TIMES_FASTER: Final = 3.0
STATE: Final = "acc"
ROWS: Final = "value.*"
"""Count and sum of a key, in both readers' rows."""
COLUMNS: Final = "key string, namespace string, key_group int, value struct<_1: bigint, _2: bigint>"
"""The columns of our reader."""
READY: Final = 4_096
"""Rows in a batch that is ready, as in ours."""


class Ready(DataSource):
    """Yields the same batch again and again."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "ready"

    def schema(self) -> str:
        """Return the columns of our reader."""
        return COLUMNS

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader."""
        return ReadyReader(int(self.options["rows"]))


class ReadyReader(DataSourceReader):
    """Reads nothing."""

    def __init__(self, rows: int) -> None:
        """``rows`` are all, in all partitions."""
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return as many partitions as the states have."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        numbers = pa.array(range(READY), pa.int64())
        arrays = [
            pa.array([f"user-{number:07d}" for number in range(READY)], pa.string()),
            pa.nulls(READY, pa.string()),
            numbers.cast(pa.int32()),
            pa.StructArray.from_arrays([numbers, numbers], ["_1", "_2"]),
        ]
        names = ["key", "namespace", "key_group", "value"]
        batch = pa.RecordBatch.from_arrays(arrays, names)
        left = self.rows // PARTITIONS
        while left > 0:
            yield batch.slice(0, left)
            left -= READY


def make_events(spark: SparkSession, keys: int, folder: Path) -> Path:
    """Write an event for each key."""
    events = spark.range(0, keys, 1, PARTITIONS).selectExpr(
        "concat('user-', lpad(id, 7, '0')) as user", "id as amount"
    )
    events.write.parquet(str(folder / "events"))
    return folder / "events"


def make_state(spark: SparkSession, job: Job, events: Path, folder: Path) -> str:
    """Run a job over the events in one micro-batch; return the id of its query."""
    for key, value in job.conf.items():
        spark.conf.set(key, value)
    rows = spark.readStream.schema("user string, amount long").parquet(str(events))
    writer = job.build(rows, folder / job.name / "state").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / job.name / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id)


def theirs(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the state of `transformWithState` with Spark's reader."""
    source = spark.read.format("statestore").option("stateVarName", STATE)
    return source.load(str(folder / PEER / "checkpoint"))


def ours(spark: SparkSession, folder: Path, name: str, query: str) -> DataFrame:
    """Read the state of our operator."""
    source = spark.read.format("forebay").option("query", query).option("uid", "bench")
    return source.option("state", STATE).load(str(folder / name / "state"))


def sums(df: DataFrame) -> tuple[int, ...]:
    """Return the number of keys, and the sums of both numbers of their state."""
    count, total = df.select(ROWS).columns
    (row,) = df.select(ROWS).selectExpr("count(*)", f"sum({count})", f"sum({total})").collect()
    return tuple(row)


def seconds(read: Callable[[], DataFrame]) -> float:
    """Return the time of reading all rows."""
    started = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def ready(spark: SparkSession, rows: int) -> DataFrame:
    """Read batches that are ready."""
    return spark.read.format("ready").option("rows", rows).load()


Reads = Mapping[str, Callable[[], "DataFrame"]]
"""``forebay``, ``statestore`` and ``ready``, each with what reads all keys."""


def compared(backend: str, reads: Reads, *, keys: int, rounds: int) -> Line:
    """Read all in turn, in reverse order every other time."""
    expected = (keys, keys, keys * (keys - 1) // 2)
    assert sums(reads["statestore"]()) == sums(reads["forebay"]()) == expected
    assert reads["ready"]().count() == keys  # these also warm all of them up
    times: dict[str, list[float]] = {name: [] for name in reads}
    for number in range(rounds):
        for name in [*reads][:: -1 if number % 2 else 1]:
            times[name].append(seconds(reads[name]))
    best = ", ".join(f"{name} {1e-3 * keys / min(found):,.0f}" for name, found in times.items())
    pairs = zip(times["statestore"], times["forebay"], strict=True)
    return Line(
        what=f"{backend}: `spark.read` of all keys, time of statestore ÷ time of forebay",
        values=[theirs / ours for theirs, ours in pairs],
        bound=TIMES_FASTER,
        at_least=True,
        detail=f"{keys:,} keys; at best {best} thousand rows/s",
    )


@benchmark("spark-reading")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--rounds", default=7, show_default=True)
@click.option("--memory", default="2g", show_default=True, help="Heap of the driver's JVM.")
def main(*, keys: int, rounds: int, memory: str) -> Result:
    """Compare readers of state on Spark."""
    spark = start_session(JOBS[PEER], memory)
    spark.dataSource.register(Ready)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        events = make_events(spark, keys, folder)
        make_state(spark, JOBS[PEER], events, folder)
        lines = []
        for backend, name in OURS.items():
            query = make_state(spark, JOBS[name], events, folder)
            reads: Reads = {
                "forebay": lambda name=name, query=query: ours(spark, folder, name, query),
                "statestore": lambda: theirs(spark, folder),
                "ready": lambda: ready(spark, keys),
            }
            lines.append(compared(backend, reads, keys=keys, rounds=rounds))
        spark.stop()
    return Result(lines=lines)


if __name__ == "__main__":
    main()
