"""The cost of what a keyed operator measures: ``python -m benchmarks.figures_cost``.

The same streaming job runs in pairs in one session, with and without all that the operator measures
(`benchmarks.unmeasured`). The engine alone runs in pairs of micro-batches, in this process.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.data import Dataset, Event, default_folder, materialise, rows_in_memory
from benchmarks.jobs import JOBS, OUTPUT, PARTITIONS, Job
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import measure, start_session, stream
from benchmarks.processes import processes, tree_of
from benchmarks.report import Line, Result, benchmark
from benchmarks.unmeasured import SwitchedCoroutine, SwitchedSync, switch
from forebay_backend_heap import HeapBackend
from forebay_spark_runtime import keyed
from forebay_spark_runtime.arrow.rows_in import SLICE_ROWS
from forebay_spark_runtime.keyed_operator.task_output import OUTPUT_ROWS
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing import KeyedJob
from forebay_state_api.versions import OperatorStorage, operator_folder
from forebay_state_api.versions.markers import list_version
from forebay_state_api.versions.reader import open_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UID: Final = "bench"
MAX_PARALLELISM: Final = 128
FORMS: Final = {"sync": SwitchedSync, "coroutine": SwitchedCoroutine}
BACKENDS: Final = ("heap", "lsm")
COST: Final = 0.01
"""The share of a job that measuring may take."""
DATASET: Final = Dataset(keys=100_000, rows_per_file=83_334, files=28)
SKIP: Final = 8
"""Micro-batches of a query that do not count: the JVM compiles again what the query before it did
in another way."""
WARM_UP: Final = 1
"""Pairs of queries that do not count."""
COLD: Final = 2
"""Micro-batches of the engine alone that do not count."""
ROWS: Final = DATASET.rows_per_file // PARTITIONS
"""Rows of a micro-batch of the engine alone: those of one subtask."""


@attrs.frozen(kw_only=True)
class Run:
    """One streaming query."""

    events_per_s: float
    cpu_s: float
    """CPU time of the JVM, the workers and this process."""


# -- streaming ------------------------------------------------------------------------------------


def job_of(form: str, backend: str, *, measures: bool) -> Job:
    """Return the job that measures, or does not."""

    def build(events: DataFrame, state_dir: Path, partitions: int = PARTITIONS) -> DataFrame:
        switch(measures=measures)
        conf = events.sparkSession.conf
        conf.set("spark.forebay.state.backend", backend)
        stream = keyed(events, "user", uid=UID, parallelism=partitions, state_dir=str(state_dir))
        return stream.process(FORMS[form](measures=measures), OUTPUT)

    return Job(name=f"{backend}-{form}", about="with or without measuring", build=build)


@attrs.frozen(kw_only=True)
class Queries:
    """Runs queries in one session."""

    session: SparkSession
    folder: Path
    """Where the events are."""
    scratch: Path
    """Where state and checkpoints go."""
    files: int
    """Micro-batches of a query."""

    def run(self, form: str, backend: str, *, measures: bool) -> Run:
        """Run one query, and check that it measured, or did not."""
        job = job_of(form, backend, measures=measures)
        source = materialise(DATASET, self.folder)
        # Workers go on looking at the state for a while, so it stays until the session ends.
        work = Path(tempfile.mkdtemp(dir=self.scratch))
        cpu_s = _cpu_s()
        progress = stream(self.session, job, source, work, files=self.files)
        cpu_s = _cpu_s() - cpu_s
        _check(progress, work, measures=measures)
        warm = measure(job, progress, min(SKIP, self.files - 1))
        return Run(events_per_s=warm.events_per_s, cpu_s=cpu_s)

    def pairs(self, form: str, backend: str, count: int) -> Iterator[tuple[Run, Run]]:
        """Yield (with, without) of each pair, after those that warm the JVM up."""
        for number in range(1 - WARM_UP, count + 1):
            found = {
                measures: self.run(form, backend, measures=measures)
                for measures in ((True, False) if number % 2 else (False, True))
            }
            ours, bare = found[True], found[False]
            Console(stderr=True).print(
                f"{backend} {form}  pair {number}/{count}  events/s {ours.events_per_s:,.0f} ÷ "
                f"{bare.events_per_s:,.0f} = {ours.events_per_s / bare.events_per_s:.3f}, CPU "
                f"{ours.cpu_s:.2f} ÷ {bare.cpu_s:.2f} = {ours.cpu_s / bare.cpu_s:.3f}",
                highlight=False,
            )
            if number > 0:
                yield ours, bare


def _check(progress: Sequence[Mapping[str, Any]], work: Path, *, measures: bool) -> None:
    """Refuse a run that measured what it should not, or did not measure what it should."""
    storage = open_storage(str(work / "state"))
    folder = OperatorStorage(storage, operator_folder(progress[-1]["id"], UID))
    with open_version(folder, uid=UID) as reader:
        stored = ["phase_seconds" in one.metrics for one in reader.manifests]
        listing = list_version(folder, reader.version)
    named = [bool(one.figures.phase_ms) for one in listing.manifests]
    shown = [f"forebay:{UID}" in one["observedMetrics"] for one in progress]
    if {*stored, *named, *shown} != {measures}:
        found = f"manifests {stored}, names {named}, progress events {shown}"
        raise click.ClickException(f"measuring was to be {measures}, and was: {found}")


def _cpu_s() -> float:
    running = processes()
    ticks = sum(running[pid].used for pid in tree_of(os.getpid(), running))
    return ticks / os.sysconf("SC_CLK_TCK")


def lines_of(what: str, pairs: Sequence[tuple[Run, Run]]) -> list[Line]:
    """Compare the throughput and the CPU time of the pairs."""
    speeds = [[one.events_per_s for one in runs] for runs in zip(*pairs, strict=True)]
    used = [[one.cpu_s for one in runs] for runs in zip(*pairs, strict=True)]
    return [
        Line(
            what=f"{what}: with measuring ÷ without, events/s",
            values=[ours / bare for ours, bare in zip(*speeds, strict=True)],
            bound=1 - COST,
            at_least=True,
            decimals=3,
            detail=" / ".join(f"{statistics.median(one):,.0f}" for one in speeds) + " events/s",
        ),
        Line(
            what=f"{what}: with measuring ÷ without, CPU time",
            values=[ours / bare for ours, bare in zip(*used, strict=True)],
            bound=1 + COST,
            at_least=False,
            decimals=3,
            detail=" / ".join(f"{statistics.median(one):.2f}" for one in used) + " s a query",
        ),
    ]


# -- the engine alone -----------------------------------------------------------------------------


@attrs.frozen
class RowBatch:
    """A micro-batch of one subtask; keys and key groups arrive as columns, as they do on Spark."""

    rows: Sequence[Event]
    keys: Sequence[str]
    groups: Sequence[int]

    def slices(self) -> Iterator[tuple[Sequence[Event], Sequence[str], Sequence[int]]]:
        """Yield the parts in which a worker passes rows to the engine."""
        for start in range(0, len(self.rows), SLICE_ROWS):
            part = slice(start, start + SLICE_ROWS)
            yield self.rows[part], self.keys[part], self.groups[part]


class EngineAlone:
    """One subtask on the heap backend in this process, with versions in memory."""

    def __init__(self, form: str, *, measures: bool) -> None:
        self._function = FORMS[form](measures=measures)
        self._measures = measures
        storage = open_storage(f"memory://figures-{form}-{measures}")
        self._job = KeyedJob(HeapBackend, storage, max_parallelism=MAX_PARALLELISM, key_type=str)

    def cpu_s(self, batch: RowBatch) -> float:
        """Run and commit a micro-batch; return its CPU seconds, without the collection after it."""
        switch(measures=self._measures)
        started = time.process_time()
        with self._job.subtask(self._function) as running:
            for rows, keys, groups in batch.slices():
                running.process(rows, keys, groups)
                if running.rows_ready >= OUTPUT_ROWS:
                    running.take_rows()
            running.drain()
            running.take_rows()
            running.commit()
        spent = time.process_time() - started
        self._job.batch_id += 1
        gc.collect()
        return spent


def engine_line(form: str, pairs: int) -> Line:
    """Compare the CPU time of micro-batches with their commits, without Spark and Arrow."""
    engines = {on: EngineAlone(form, measures=on) for on in (True, False)}
    took: dict[bool, list[float]] = {True: [], False: []}
    batches = _batches(pairs + COLD)
    begin_task()  # which makes collections rare, and skips what is loaded, as on Spark
    try:
        for number, batch in enumerate(batches):
            for on in (True, False) if number % 2 else (False, True):
                took[on].append(engines[on].cpu_s(batch))
    finally:
        gc.unfreeze()
        switch(measures=True)
    ours, bare = (took[on][COLD:] for on in (True, False))
    return Line(
        what=f"engine alone, {form}: with measuring ÷ without, CPU time",
        values=[mine / its for mine, its in zip(ours, bare, strict=True)],
        bound=1 + COST,
        at_least=False,
        decimals=3,
        detail=" / ".join(f"{statistics.median(one) * 1e3:.1f}" for one in (ours, bare))
        + f" ms a micro-batch of {ROWS:,} rows",
    )


def _batches(count: int) -> list[RowBatch]:
    rows = rows_in_memory(DATASET.keys // PARTITIONS, ROWS * count)
    groups = {key: key_group_of(key, MAX_PARALLELISM) for key in {row.user for row in rows}}
    parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    return [
        RowBatch(part, [row.user for row in part], [groups[row.user] for row in part])
        for part in parts
    ]


@benchmark("figures-cost")
@click.option("--pairs", default=10, show_default=True, help="Pairs of streaming queries.")
@click.option("--batches", default=60, show_default=True, help="Pairs of the engine's batches.")
@click.option("--files", default=DATASET.files, show_default=True, help="Micro-batches of a query.")
@click.option("--quick", is_flag=True, help="A check only: one pair of short queries.")
@click.option("--form", "forms", multiple=True, type=click.Choice([*FORMS]), help="[default: all]")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(BACKENDS),
    help="Of the streams; none with --pairs 0 [default: heap].",
)
@click.option("--data-dir", default=default_folder(), type=click.Path(path_type=Path))
def main(
    *,
    pairs: int,
    batches: int,
    files: int,
    quick: bool,
    forms: tuple[str, ...],
    backends: tuple[str, ...],
    data_dir: Path,
) -> Result:
    """Measure a job and the engine with and without what they measure."""
    if quick:
        pairs, batches, files = 1, 2, 3
    materialise(DATASET, data_dir)
    with ForeignLoad() as load:
        lines = [engine_line(form, batches) for form in forms or FORMS] if batches else []
        if pairs:
            lines += stream_lines(forms or [*FORMS], backends or ["heap"], pairs, files, data_dir)
    note = f"Others used {load.cores:.2f} cores meanwhile." if load.cores is not None else ""
    return Result(lines=lines, notes=[note] if note else [])


def stream_lines(
    forms: Sequence[str], backends: Sequence[str], pairs: int, files: int, folder: Path
) -> list[Line]:
    """Run all pairs in one session, so that the JVM and the workers are warm."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch:
        session = start_session(JOBS["ours-sync"], "4g")
        queries = Queries(session=session, folder=folder, scratch=Path(scratch), files=files)
        try:
            return [
                line
                for backend, form in itertools.product(backends, forms)
                for line in lines_of(
                    f"stream on {backend}, {form}", [*queries.pairs(form, backend, pairs)]
                )
            ]
        finally:
            session.stop()


if __name__ == "__main__":
    main()
