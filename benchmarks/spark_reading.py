"""State read by Spark, compared with Spark's own reader of the equal state.

``python -m benchmarks.spark_reading`` (2 minutes). `transformWithState` on RocksDB and our operator
on both backends make the state of the same events, one per key; then ``spark.read`` of all of it is
timed in pairs, from ``load()`` to the last row, in one session.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from benchmarks.jobs import JOBS, PARTITIONS
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


def make_events(spark: SparkSession, keys: int, folder: Path) -> Path:
    """Write an event for each key."""
    events = spark.range(0, keys, 1, PARTITIONS).selectExpr(
        "concat('user-', lpad(id, 7, '0')) as user", "id as amount"
    )
    events.write.parquet(str(folder / "events"))
    return folder / "events"


def make_state(spark: SparkSession, name: str, events: Path, folder: Path) -> str:
    """Run a job over the events in one micro-batch; return the id of its query."""
    job = JOBS[name]
    for key, value in job.conf.items():
        spark.conf.set(key, value)
    rows = spark.readStream.schema("user string, amount long").parquet(str(events))
    writer = job.build(rows, folder / name / "state").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / name / "checkpoint"))
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


def compared(
    backend: str,
    peer: Callable[[], DataFrame],
    read: Callable[[], DataFrame],
    *,
    keys: int,
    pairs: int,
) -> Line:
    """Read both in pairs, in reverse order every other time."""
    expected = (keys, keys, keys * (keys - 1) // 2)
    assert sums(peer()) == sums(read()) == expected  # also warms both up
    times: dict[Any, list[float]] = {peer: [], read: []}
    for pair in range(pairs):
        for one in (peer, read) if pair % 2 else (read, peer):
            times[one].append(seconds(one))
    best = [f"{1e-3 * keys / min(times[one]):,.0f}" for one in (read, peer)]
    return Line(
        what=f"{backend}: `spark.read` of all keys, time of statestore ÷ time of forebay",
        values=[theirs / ours for theirs, ours in zip(times[peer], times[read], strict=True)],
        bound=TIMES_FASTER,
        at_least=True,
        detail=f"{keys:,} keys; at best forebay {best[0]}, statestore {best[1]} thousand rows/s",
    )


@benchmark("spark-reading")
@click.option("--keys", default=200_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--memory", default="2g", show_default=True, help="Heap of the driver's JVM.")
def main(*, keys: int, pairs: int, memory: str) -> Result:
    """Compare readers of state on Spark."""
    spark = start_session(JOBS[PEER], memory)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        events = make_events(spark, keys, folder)
        make_state(spark, PEER, events, folder)
        lines = []
        for backend, name in OURS.items():
            query = make_state(spark, name, events, folder)
            lines.append(
                compared(
                    backend,
                    lambda: theirs(spark, folder),
                    lambda name=name, query=query: ours(spark, folder, name, query),
                    keys=keys,
                    pairs=pairs,
                )
            )
        spark.stop()
    return Result(lines=lines)


if __name__ == "__main__":
    main()
