"""The cost of time on a stream: ``python -m benchmarks.ticks`` (ten minutes).

Ticks of an operator, compared with micro-batches without rows of a stateless ``mapInArrow`` in as
many Python tasks; and micro-batches of few and of many rows with the pulse, compared with those
without. All run in one session, in turn.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import attrs
import click
from rich.console import Console

from benchmarks.data import SCHEMA, Dataset, default_folder, first_files, materialise
from benchmarks.jobs import JOBS, PARTITIONS
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import start_session
from benchmarks.processes import cpu_s_of_tree
from benchmarks.report import Line, Result, benchmark
from benchmarks.subtasks import ROWS, Count, write_files
from forebay_spark_runtime import keyed
from forebay_spark_runtime.event_time.ticks import tick_stream
from forebay_spark_runtime.keyed_operator import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUBTASKS: Final = (2, 16)
COLD: Final = 6
"""Micro-batches of a query that do not count."""
TICKS: Final = 16
"""Warm ticks of a query."""
FILES: Final = 24
"""Micro-batches of 100 rows of a query."""
TASK_MS: Final = {2: 60.0, 16: 480.0}
"""Number of subtasks → the longest time that a tick's tasks may take beyond stateless ones."""
SMALL, LARGE = 1.03, 1.01
"""The largest multiples of the time without the pulse, of 100 rows and of many."""
MANY: Final = Dataset(keys=100_000, rows_per_file=83_334, files=FILES)
PERIOD_MS: Final = 1
INPUT: Final = "k string"
OUTPUT: Final = "k string, n long"


@attrs.frozen
class Ticked:
    """The times of a warm micro-batch without rows, in ms."""

    tasks: float
    """The time of its tasks, added up."""
    cpu: float
    """The CPU time of all processes."""
    add_batch: float


def _nothing(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def stateless(stream: DataFrame, subtasks: int, work: Path) -> DataFrame:
    """Return as many Python tasks, without a function or state."""
    del work
    ticks = tick_stream(stream.sparkSession, PERIOD_MS, has_rows=False)
    both = stream.unionByName(ticks.selectExpr("'' as k"))
    return both.repartition(subtasks, "k").mapInArrow(_nothing, INPUT)


def keyed_count(stream: DataFrame, subtasks: int, work: Path, *, ticks: bool = True) -> DataFrame:
    """Return an operator that counts rows."""
    period = f"{PERIOD_MS} milliseconds" if ticks else None
    options = {"uid": "c", "parallelism": subtasks, "state_dir": work / "state", "ticks": period}
    return keyed(stream, "k", **options).process(Count(), OUTPUT)


def started(df: DataFrame, work: Path, **trigger: Any) -> StreamingQuery:
    """Start a query whose rows go nowhere."""
    writer = df.writeStream.format("noop").option("checkpointLocation", str(work / "checkpoint"))
    return writer.trigger(**trigger).start()


def ticked(session: SparkSession, make: Callable[..., DataFrame], subtasks: int) -> Ticked:
    """Run a query that gets no rows."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "events").mkdir()
        stream = session.readStream.schema(INPUT).parquet(str(work / "events"))
        query = started(make(stream, subtasks, work), work, processingTime="0 seconds")
        try:
            _await_batches(query, COLD)
            before, cpu_s = _task_ms(session), cpu_s_of_tree()
            first = _batches(query)
            _await_batches(query, first + TICKS)
            count = _batches(query) - first
            tasks = (_task_ms(session) - before) / count
            cpu = (cpu_s_of_tree() - cpu_s) * 1e3 / count
        finally:
            query.stop()
        took = [json.loads(one.json)["durationMs"]["addBatch"] for one in query.recentProgress]
    return Ticked(tasks, cpu, statistics.median(took[COLD:]))


def _batches(query: StreamingQuery) -> int:
    newest = query.lastProgress
    return 0 if newest is None else int(newest["batchId"]) + 1


def _await_batches(query: StreamingQuery, count: int) -> None:
    while _batches(query) < count:
        if query.awaitTermination(0.02):
            raise click.ClickException("a query without an end is done")


def _task_ms(session: SparkSession) -> float:
    """Return the time of all tasks of the session so far."""
    java: Any = session.sparkContext._jsc  # noqa: SLF001 - pyspark has no public way
    executors = java.sc().statusStore().executorList(False)  # noqa: FBT003 - Scala's activeOnly
    return float(sum(executors.apply(at).totalDuration() for at in range(executors.size())))


@attrs.frozen
class Stream:
    """Files that a query reads, one in each micro-batch."""

    rows: int
    """Rows in a file."""
    schema: str
    folder: Path
    build: Callable[[DataFrame, Path], DataFrame]
    """Builds the operator on the stream, with a state directory."""

    def median_ms(self, session: SparkSession, *, pulse: bool) -> float:
        """Run a query over all files; return the median time of a micro-batch in ms."""
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)
            reader = session.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
            stream = reader.parquet(str(self.folder))
            # What Spark Connect has: the plan without the pulse.
            with mock.patch.object(plan, "is_connect", return_value=not pulse):
                df = self.build(stream, work / "state")
            query = started(df, work, availableNow=True)
            query.awaitTermination()
            progress = [json.loads(one.json) for one in query.recentProgress]
        took = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
        return statistics.median(took[COLD:])


def hundred_rows(folder: Path, subtasks: int) -> Stream:
    """Return a stream of small micro-batches."""
    write_files(folder, FILES)

    def build(stream: DataFrame, state: Path) -> DataFrame:
        return keyed_count(stream, subtasks, state.parent, ticks=False)

    return Stream(ROWS, INPUT, folder, build)


def many_rows(folder: Path, data_dir: Path) -> Stream:
    """Return the stream of the scenario 83k-100k of `benchmarks.streaming`."""
    source = materialise(MANY, data_dir)
    first_files(source, FILES, folder)
    return Stream(MANY.rows_per_file, SCHEMA, folder, JOBS["ours-sync"].build)


def of_ticks(session: SparkSession, subtasks: int, rounds: int) -> list[Line]:
    """Compare ticks with micro-batches of a stateless operator."""
    found: dict[str, list[Ticked]] = defaultdict(list)
    jobs = {"keyed": keyed_count, "stateless": stateless}
    for number in range(rounds + 1):
        for job in sorted(jobs, reverse=bool(number % 2)):
            taken = ticked(session, jobs[job], subtasks)
            if number:  # the first round is cold
                found[job].append(taken)
        _say(f"ticks of {subtasks} subtasks, round {number}/{rounds}")
    ours, bare = found["keyed"], found["stateless"]
    lines = []
    for what, take in (
        ("time of its tasks", "tasks"),
        ("CPU time of all processes", "cpu"),
        ("addBatch", "add_batch"),
    ):
        pairs = [(getattr(a, take), getattr(b, take)) for a, b in zip(ours, bare, strict=True)]
        mean = [statistics.median(side) for side in zip(*pairs, strict=True)]
        lines.append(
            Line(
                what=f"a tick, {subtasks} subtasks: keyed minus stateless, {what}",
                values=[one - other for one, other in pairs],
                bound=TASK_MS[subtasks],
                at_least=False,
                unit="ms",
                detail=f"{mean[0]:.0f} / {mean[1]:.0f} ms",
                decimals=0,
            )
        )
    return lines


def of_pulse(
    session: SparkSession, stream: Stream, subtasks: int, bound: float, rounds: int
) -> Line:
    """Compare micro-batches with the pulse and without."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for pulse in sorted(found, reverse=bool(number % 2)):
            taken = stream.median_ms(session, pulse=pulse)
            if number:
                found[pulse].append(taken)
        _say(f"{stream.rows} rows, {subtasks} subtasks, round {number}/{rounds}")
    on, off = (statistics.median(found[pulse]) for pulse in (True, False))
    return Line(
        what=f"micro-batches of {stream.rows:,} rows, {subtasks} subtasks: "
        "with the pulse ÷ without",
        values=[one / other for one, other in zip(found[True], found[False], strict=True)],
        bound=bound,
        at_least=False,
        detail=f"{on:.0f} / {off:.0f} ms",
    )


def _say(text: str) -> None:
    Console(stderr=True).print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False)


@benchmark("ticks")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--no-ticks", is_flag=True, help="Only the pulse.")
@click.option("--no-pulse", is_flag=True, help="Only ticks.")
@click.option("--subtasks", type=int, multiple=True, default=SUBTASKS, show_default=True)
@click.option("--data-dir", default=default_folder(), type=click.Path(path_type=Path))
def main(
    *, rounds: int, no_ticks: bool, no_pulse: bool, subtasks: tuple[int, ...], data_dir: Path
) -> Result:
    """Measure ticks and the pulse."""
    session = start_session(JOBS["ours-sync"], "2g")
    lines: list[Line] = []
    try:
        with ForeignLoad() as load, tempfile.TemporaryDirectory() as scratch:
            for number in subtasks:
                if not no_ticks:
                    lines += of_ticks(session, number, rounds)
                if not no_pulse:
                    few = hundred_rows(Path(scratch) / f"few-{number}", number)
                    lines.append(of_pulse(session, few, number, SMALL, rounds))
            if not no_pulse:
                many = many_rows(Path(scratch) / "many", data_dir)
                lines.append(of_pulse(session, many, PARTITIONS, LARGE, rounds))
    finally:
        session.stop()
    notes = [] if load.cores is None else [f"Others used {load.cores:.2f} cores meanwhile."]
    return Result(lines=lines, notes=notes)


if __name__ == "__main__":
    main()
