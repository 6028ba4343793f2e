"""State read by Spark, compared with Spark's own reader of the equal state.

``python -m benchmarks.spark_reading`` (10 minutes, of which 7 make the state). `transformWithState`
on RocksDB and our operator on both backends make the state of the same events, one per key, each
in as few partitions as there are cores, and in the 200 that Spark's operator has by default. Then
``spark.read`` of all of it is timed in turn, from ``load()`` to the last row, in one session. As a
bound, a Python data source yields batches that are ready, with as many rows of the same columns:
what is left to it is Spark's own time, which no source in Python can do without.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import attrs
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
DEFAULT: Final = 200
"""``spark.sql.shuffle.partitions``, which `transformWithState` keeps for the life of its state."""
TIMES_FASTER: Final = 3.0
COMPARED: Final = {
    "as it is made by default": (DEFAULT, PARTITIONS),
    f"in {DEFAULT} partitions each": (DEFAULT, DEFAULT),
    f"in {PARTITIONS} partitions each": (PARTITIONS, PARTITIONS),
}
"""Comparison → the partitions of Spark's state, and the subtasks of ours."""
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


def make_events(spark: SparkSession, keys: int, folder: Path) -> None:
    """Write an event for each key."""
    events = spark.range(0, keys, 1, PARTITIONS).selectExpr(
        "concat('user-', lpad(id, 7, '0')) as user", "id as amount"
    )
    events.write.parquet(str(folder / "events"))


@attrs.frozen
class State:
    """The state that a job makes of the events, in some partitions."""

    job: Job
    partitions: int
    folder: Path

    @property
    def place(self) -> Path:
        """The folder of the job's checkpoint and state."""
        return self.folder / f"{self.job.name}-{self.partitions}"

    @property
    def query(self) -> str:
        """The id of the query that made it."""
        return (self.place / "query").read_text()

    def make(self, spark: SparkSession) -> None:
        """Run the job in one micro-batch, unless it has run."""
        if (self.place / "query").exists():
            return
        for key, value in self.job.conf.items():
            spark.conf.set(key, value)
        spark.conf.set("spark.sql.shuffle.partitions", self.partitions)
        events = str(self.folder / "events")
        rows = spark.readStream.schema("user string, amount long").parquet(events)
        built = self.job.build(rows, self.place / "state", self.partitions)
        writer = built.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.place / "checkpoint")).start()
        query.awaitTermination()
        (self.place / "query").write_text(str(query.id))

    def read(self, spark: SparkSession) -> DataFrame:
        """Read it with the reader of its kind."""
        if self.job.name == PEER:
            source = spark.read.format("statestore").option("stateVarName", STATE)
            return source.load(str(self.place / "checkpoint"))
        source = spark.read.format("forebay").option("query", self.query).option("uid", "bench")
        return source.option("state", STATE).load(str(self.place / "state"))


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
"""Name → what reads all keys."""
Times = Mapping[str, list[float]]
"""Name → the seconds of each round."""
READY_NAME: Final = "ready"


def timed(reads: Reads, *, keys: int, rounds: int) -> Times:
    """Read all in turn, in reverse order every other time."""
    expected = (keys, keys, keys * (keys - 1) // 2)
    for name, read in reads.items():  # this also warms all of them up
        assert (read().count() == keys) if name == READY_NAME else (sums(read()) == expected), name
    times: dict[str, list[float]] = {name: [] for name in reads}
    for number in range(rounds):
        for name in [*reads][:: -1 if number % 2 else 1]:
            times[name].append(seconds(reads[name]))
    return times


def named(job: str, partitions: int) -> str:
    """Return the name of a read."""
    return f"{job}-{partitions}"


def line(backend: str, what: str, times: Times) -> Line:
    """Compare Spark's reader with ours, and with batches that are ready."""
    spark, own = COMPARED[what]
    theirs, ours = times[named(PEER, spark)], times[named(OURS[backend], own)]
    bound = [one / two for one, two in zip(theirs, times[READY_NAME], strict=True)]
    return Line(
        what=f"{backend}: `spark.read` of state {what}, time of statestore ÷ time of forebay",
        values=[one / two for one, two in zip(theirs, ours, strict=True)],
        bound=TIMES_FASTER,
        at_least=True,
        detail=f"{median(theirs):.2f} s ÷ {median(ours):.2f} s; batches that are ready would reach "
        f"{median(bound):.1f} x",
    )


@benchmark("spark-reading")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--memory", default="3g", show_default=True, help="Heap of the driver's JVM.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Keep the states in this folder, and read those that are there. [default: a new one]",
)
def main(*, keys: int, rounds: int, memory: str, folder: Path | None) -> Result:
    """Compare readers of state on Spark."""
    spark = start_session(JOBS[PEER], memory)
    spark.dataSource.register(Ready)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) if folder is None else folder
        if not (place / "events").exists():
            make_events(spark, keys, place)
        states = [
            State(JOBS[name], partitions, place)
            for partitions in (PARTITIONS, DEFAULT)
            for name in (PEER, *OURS.values())
        ]
        for state in states:
            state.make(spark)
        reads: dict[str, Callable[[], DataFrame]] = {READY_NAME: partial(ready, spark, keys)}
        for state in states:
            reads[named(state.job.name, state.partitions)] = partial(state.read, spark)
        times = timed(reads, keys=keys, rounds=rounds)
        spark.stop()
    return Result(
        lines=[line(backend, what, times) for what in COMPARED for backend in OURS],
        notes=[f"{keys:,} keys; batches that are ready: {median(times[READY_NAME]):.2f} s."],
    )


if __name__ == "__main__":
    main()
