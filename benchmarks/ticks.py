"""The cost of time on a stream: ``python -m benchmarks.ticks`` (ten minutes).

Ticks of an operator, compared with micro-batches without rows of a stateless ``mapInArrow`` in as
many Python tasks; and micro-batches of 100 rows with the pulse, compared with those without. All
run in one session, in turn.
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

from benchmarks.jobs import JOBS
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import start_session
from benchmarks.processes import cpu_s_of_tree
from benchmarks.report import Line, Result, benchmark
from benchmarks.subtasks import Count, write_files
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
PULSE: Final = 1.03
"""The largest multiple of the time without the pulse."""
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


def hundred_rows(session: SparkSession, subtasks: int, *, pulse: bool) -> float:
    """Run micro-batches of 100 rows; return their median time in ms."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        write_files(work / "events", FILES)
        reader = session.readStream.schema(INPUT).option("maxFilesPerTrigger", 1)
        stream = reader.parquet(str(work / "events"))
        # What Spark Connect has: the plan without the pulse.
        with mock.patch.object(plan, "is_connect", return_value=not pulse):
            df = keyed_count(stream, subtasks, work, ticks=False)
        query = started(df, work, availableNow=True)
        query.awaitTermination()
        progress = [json.loads(one.json) for one in query.recentProgress]
    took = [one["durationMs"]["triggerExecution"] for one in progress if one["numInputRows"]]
    return statistics.median(took[COLD:])


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


def of_pulse(session: SparkSession, subtasks: int, rounds: int) -> Line:
    """Compare micro-batches with the pulse and without."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds + 1):
        for pulse in sorted(found, reverse=bool(number % 2)):
            taken = hundred_rows(session, subtasks, pulse=pulse)
            if number:
                found[pulse].append(taken)
        _say(f"pulse of {subtasks} subtasks, round {number}/{rounds}")
    on, off = (statistics.median(found[pulse]) for pulse in (True, False))
    return Line(
        what=f"micro-batches of 100 rows, {subtasks} subtasks: with the pulse ÷ without",
        values=[one / other for one, other in zip(found[True], found[False], strict=True)],
        bound=PULSE,
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
def main(*, rounds: int, no_ticks: bool, no_pulse: bool, subtasks: tuple[int, ...]) -> Result:
    """Measure ticks and the pulse."""
    session = start_session(JOBS["ours-sync"], "2g")
    lines: list[Line] = []
    try:
        with ForeignLoad() as load:
            for number in subtasks:
                if not no_ticks:
                    lines += of_ticks(session, number, rounds)
                if not no_pulse:
                    lines.append(of_pulse(session, number, rounds))
    finally:
        session.stop()
    notes = [] if load.cores is None else [f"Others used {load.cores:.2f} cores meanwhile."]
    return Result(lines=lines, notes=notes)


if __name__ == "__main__":
    main()
