"""State of `transformWithState` taken over, from Spark's files to a version of ours.

``python -m benchmarks.spark_import`` (3 minutes). `transformWithState` on RocksDB makes the state
of one event per key; then `import_tws` takes all of it over, again and again, each time into new
directories. In turn, Spark's own reader only sends the same
state to Python.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from benchmarks.functions import CountSync
from benchmarks.jobs import JOBS, PARTITIONS
from benchmarks.one_run import start_session
from benchmarks.report import Line, Result, benchmark
from benchmarks.spark_reading import PEER, STATE, State, make_events
from forebay_spark_runtime.importing import import_tws

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BACKENDS: Final = ("heap", "lsm")
THOUSAND_KEYS_PER_S: Final = 50


def seconds(work: Callable[[], object]) -> float:
    """Return the time of some work."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def take_over(spark: SparkSession, state: State, into: Path, keys: int) -> None:
    """Import the state, with its checkpoint, into new directories."""
    done = import_tws(
        spark,
        str(state.place / "checkpoint"),
        CountSync(),
        into=str(into / "checkpoint"),
        state_dir=str(into / "state"),
        uid="bench",
    )
    assert done.rows == {STATE: keys}


def read_to_python(spark: SparkSession, state: State) -> None:
    """Let Spark's reader send all rows to Python, which drops them."""
    rows = state.read(spark)
    rows.mapInArrow(lambda batches: (b for b in batches if not b.num_rows), rows.schema).count()


@benchmark("spark-import")
@click.option("--keys", default=200_000, show_default=True)
@click.option("--pairs", default=3, show_default=True)
@click.option("--memory", default="2g", show_default=True, help="Heap of the driver's JVM.")
def main(*, keys: int, pairs: int, memory: str) -> Result:
    """Measure how fast state of transformWithState is taken over."""
    spark = start_session(JOBS[PEER], memory)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_events(spark, keys, folder)
        state = State(JOBS[PEER], PARTITIONS, folder)
        state.make(spark)
        lines = []
        for backend in BACKENDS:
            spark.conf.set("spark.forebay.state.backend", backend)
            take_over(spark, state, folder / f"{backend}-warm", keys)
            taken, read = [], []
            for pair in range(pairs):
                into = folder / f"{backend}-{pair}"
                taken.append(seconds(partial(take_over, spark, state, into, keys)))
                read.append(seconds(partial(read_to_python, spark, state)))
            lines.append(
                Line(
                    what=f"{backend}: `import-tws`, checked, written and published",
                    values=[1e-3 * keys / one for one in taken],
                    bound=THOUSAND_KEYS_PER_S,
                    at_least=True,
                    unit="1,000 keys/s",
                    detail=f"{keys:,} keys; `statestore` to Python alone: "
                    f"{1e-3 * keys / min(read):,.0f} thousand rows/s at best",
                )
            )
        spark.stop()
    return Result(lines=lines)


if __name__ == "__main__":
    main()
