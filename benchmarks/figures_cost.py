"""The cost of what a keyed operator measures: ``python -m benchmarks.figures_cost``.

Queries run in one session in lock step, with and without all that the operator measures
(`benchmarks.unmeasured`); a third one measures and stores its figures, but does not send them to
progress events. Their micro-batches take turns in every order, and those of a turn are compared, so
that a machine whose speed changes from second to second slows all. A query that waits looks for
files seldom, which would otherwise take as much of the processor as the plan of the one that runs.
Queries with small micro-batches run before: they warm the JVM, whose compiler is busy for hundreds
of micro-batches, and the last of them show the cost that does not depend on rows. The engine alone
runs in pairs of micro-batches, in several processes: one favours an engine by some percent,
whichever it is, for as long as it lives.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import attrs
import click
from rich.console import Console
from rich.progress import track

from benchmarks.data import SCHEMA, Dataset, Event, default_folder, materialise, rows_in_memory
from benchmarks.jobs import JOBS, OUTPUT, PARTITIONS
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import start_session
from benchmarks.processes import cpu_s_of_tree
from benchmarks.report import Line, Result, benchmark
from benchmarks.unmeasured import SwitchedCoroutine, SwitchedSync, switch
from forebay_backend_heap import HeapBackend
from forebay_engine.versions import OperatorStorage, operator_folder
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.markers import list_version
from forebay_spark_runtime import keyed
from forebay_spark_runtime.arrow.rows_in import SLICE_ROWS
from forebay_spark_runtime.driver.operator_names import uid_of_figures
from forebay_spark_runtime.keyed_operator.task_output import OUTPUT_ROWS
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UID: Final = "bench"
MAX_PARALLELISM: Final = 128
FORMS: Final = {"sync": SwitchedSync, "coroutine": SwitchedCoroutine}
BACKENDS: Final = ("heap", "lsm")
COST: Final = 0.01
"""The share of a job that measuring may take."""
DATASET: Final = Dataset(keys=100_000, rows_per_file=83_334, files=28)
SMALL: Final = Dataset(keys=100, rows_per_file=100, files=28)
"""Rows that cost nothing: a micro-batch of them takes the time that each one takes."""
Kind: TypeAlias = Literal["measured", "stored", "bare"]
"""Kind of a query: it measures and sends all, it measures and stores all, or it does nothing."""
WARM_UP: Final = 400
"""Turns of small micro-batches before all others."""
SMALL_TURNS: Final = 150
"""The last turns of the small micro-batches, which count."""
FIRST_TURNS: Final = 20
"""Turns of a stream that do not count."""
POLLING_DELAY: Final = "300ms"
"""The time between two looks for files of a query that waits; Spark's default is 10 ms."""
SMALL_DELAY: Final = "60ms"
"""The same, for small micro-batches, which wait for the next look."""
COLD: Final = 2
"""Micro-batches of the engine alone that do not count."""
PROCESSES: Final = 16
"""Processes of the engine alone; the engine that is made first alternates."""
ROWS: Final = DATASET.rows_per_file // PARTITIONS
"""Rows of a micro-batch of the engine alone: those of one subtask."""


# -- streaming ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class MicroBatch:
    """The times of one micro-batch."""

    cpu_ms: float
    """CPU time of the JVM, the workers and this process, until the listeners have returned."""
    wall_ms: float
    """As Spark's progress event has it."""


class LoneQuery:
    """A query that runs a micro-batch when it is given a file."""

    def __init__(
        self, session: SparkSession, form: str, backend: str, work: Path, kind: Kind
    ) -> None:
        self._session = session
        self._kind = kind
        self._events = work / "events"
        self._state = work / "state"
        self._events.mkdir(parents=True)
        self._given = 0
        session.conf.set("spark.forebay.state.backend", backend)
        events = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        measures = kind != "bare"
        switch(measures=measures, sends=kind == "measured")
        try:
            grouped = keyed(
                events.parquet(str(self._events)),
                "user",
                uid=UID,
                parallelism=PARTITIONS,
                state_dir=str(self._state),
            )
            output = grouped.process(FORMS[form](measures=measures), OUTPUT)
        finally:
            switch(measures=True)
        writer = output.writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(work / "checkpoint"))
        self._query = writer.start()
        self._query.processAllAvailable()

    def run(self, file: Path) -> MicroBatch:
        """Run a micro-batch of the rows of ``file``."""
        self._given += 1
        cpu_s = cpu_s_of_tree()
        os.link(file, self._events / f"{self._given:05d}.parquet")
        self._query.processAllAvailable()
        # What listeners do with figures is a part of their cost.
        bus = self._session.sparkContext._jsc.sc().listenerBus()  # noqa: SLF001 - Spark shows no other
        bus.waitUntilEmpty()
        spent_ms = (cpu_s_of_tree() - cpu_s) * 1e3
        progress = self._query.lastProgress
        if progress is None or not progress.numInputRows:
            raise click.ClickException(f"the micro-batch of {file.name} has no progress event")
        return MicroBatch(cpu_ms=spent_ms, wall_ms=progress.durationMs["triggerExecution"])

    def stop(self) -> None:
        """Stop the query; check that each file was a micro-batch, and what became of figures."""
        self._query.stop()
        events = [json.loads(one.json) for one in self._query.recentProgress]
        progress = [one for one in events if one["numInputRows"]]
        shown = [UID in map(uid_of_figures, one["observedMetrics"]) for one in progress]
        storage = open_storage(str(self._state))
        folder = OperatorStorage(storage, operator_folder(progress[-1]["id"], UID))
        with open_version(folder, uid=UID) as reader:
            stored = ["phase_seconds" in one.metrics for one in reader.manifests]
            listing = list_version(folder, reader.version)
        named = [bool(one.figures.phase_ms) for one in listing.manifests]
        found = {"stored": {*stored, *named}, "shown": {*shown}, "version": listing.version}
        kind = self._kind
        asked = {"stored": {kind != "bare"}, "shown": {kind == "measured"}, "version": self._given}
        if found != asked:
            raise click.ClickException(f"the query {kind} was to be {asked}, and was {found}")


def lock_step(
    queries: Mapping[Kind, LoneQuery], files: Sequence[Path], count: int, what: str
) -> list[Mapping[Kind, MicroBatch]]:
    """Return ``count`` turns: a micro-batch of each query, one after another."""
    orders = itertools.cycle(itertools.permutations(queries))
    turns = []
    for number in track(range(count), what, console=Console(stderr=True)):
        file = files[number % len(files)]
        turns.append({kind: queries[kind].run(file) for kind in next(orders)})
    for query in queries.values():
        query.stop()
    return turns


_TIMES: Final = (
    ("CPU time", operator.attrgetter("cpu_ms")),
    ("time", operator.attrgetter("wall_ms")),
)


_COMPARED: Final[Mapping[Kind, str]] = {
    "stored": "measuring and storing",
    "measured": "measuring, storing and sending",
}
"""Kind of a query → what it does that the bare one does not."""


def lines_of(what: str, turns: Sequence[Mapping[Kind, MicroBatch]]) -> list[Line]:
    """Compare the CPU time and the time of the micro-batches of a turn."""
    return [
        _line(
            f"{what}: {doing} ÷ nothing, {name}",
            [take(one[kind]) for one in turns],
            [take(one["bare"]) for one in turns],
            DATASET.rows_per_file,
        )
        for kind, doing in _COMPARED.items()
        for name, take in _TIMES
    ]


def note_of_small(form: str, turns: Sequence[Mapping[Kind, MicroBatch]]) -> str:
    """Say what figures cost a micro-batch whose rows cost nothing."""
    parts = []
    for kind, doing in _COMPARED.items():
        for name, take in _TIMES:
            more_ms = [take(one[kind]) - take(one["bare"]) for one in turns]
            low, high = median_within(more_ms)
            middle = statistics.median(more_ms)
            parts.append(f"{doing} {middle:.1f} ms of {name} ({low:.1f} to {high:.1f}, 95 %)")
    return (
        f"A micro-batch of {SMALL.rows_per_file} rows on heap, {form}, costs more, in "
        f"{len(turns)} turns: {', '.join(parts)}."
    )


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
    each = max(1, pairs // PROCESSES)
    orders = itertools.cycle([(True, False), (False, True)])
    parts = [(form, each, next(orders)) for _ in range(min(PROCESSES, pairs))]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        found = pool.starmap(_engine_times, parts, chunksize=1)
    ours, bare = ([ms for took in found for ms in took[on]] for on in (True, False))
    what = f"engine alone, {form}: with measuring ÷ without, CPU time"
    return _line(what, ours, bare, ROWS)


def _engine_times(form: str, pairs: int, order: Sequence[bool]) -> Mapping[bool, Sequence[float]]:
    """Return the CPU ms of micro-batches, with and without measuring, in pairs.

    ``order`` is the one in which the engines are made: with measuring, without.
    """
    engines = {on: EngineAlone(form, measures=on) for on in order}
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
    return {on: [one * 1e3 for one in times[COLD:]] for on, times in took.items()}


def _batches(count: int) -> list[RowBatch]:
    rows = rows_in_memory(DATASET.keys // PARTITIONS, ROWS * count)
    groups = {key: key_group_of(key, MAX_PARALLELISM) for key in {row.user for row in rows}}
    parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    return [
        RowBatch(part, [row.user for row in part], [groups[row.user] for row in part])
        for part in parts
    ]


def _line(what: str, ours_ms: Sequence[float], bare_ms: Sequence[float], rows: int) -> Line:
    """Compare adjacent micro-batches of ``rows`` rows."""
    ratios = [ours / bare for ours, bare in zip(ours_ms, bare_ms, strict=True)]
    low, high = median_within(ratios)
    medians = " / ".join(f"{statistics.median(one):.1f}" for one in (ours_ms, bare_ms))
    return Line(
        what=what,
        values=ratios,
        bound=1 + COST,
        at_least=False,
        decimals=3,
        detail=f"{medians} ms a micro-batch of {rows:,} rows; {len(ratios)} pairs, median within "
        f"{low:.3f} to {high:.3f} (95 %)",
    )


def median_within(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, from the ranks of ``values``."""
    ranked, reach = sorted(values), 0.98 * math.sqrt(len(values))
    middle = (len(values) - 1) / 2
    return (
        ranked[max(0, math.floor(middle - reach))],
        ranked[min(len(ranked) - 1, math.ceil(middle + reach))],
    )


@benchmark("figures-cost")
@click.option("--pairs", default=150, show_default=True, help="Turns of a stream's queries.")
@click.option("--batches", default=60, show_default=True, help="Pairs of the engine's batches.")
@click.option("--quick", is_flag=True, help="A check only: few micro-batches, which are not warm.")
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
    quick: bool,
    forms: tuple[str, ...],
    backends: tuple[str, ...],
    data_dir: Path,
) -> Result:
    """Measure a job and the engine with and without what they measure."""
    if quick:
        pairs, batches = 2, 2
    materialise(DATASET, data_dir)
    with ForeignLoad() as load:
        lines = [engine_line(form, batches) for form in forms or FORMS] if batches else []
        notes = []
        if pairs:
            streams = [*itertools.product(backends or ["heap"], forms or FORMS)]
            of_streams, notes = compare_streams(streams, pairs, data_dir, quick=quick)
            lines += of_streams
    if load.cores is not None:
        notes.append(f"Others used {load.cores:.2f} cores meanwhile.")
    return Result(lines=lines, notes=notes)


def compare_streams(
    streams: Sequence[tuple[str, str]], pairs: int, folder: Path, *, quick: bool
) -> tuple[list[Line], list[str]]:
    """Compare streams of some (backend, form) in one session; return lines and notes."""
    warm_up, first_turns = (2, 1) if quick else (WARM_UP, FIRST_TURNS)
    small_form = streams[0][1]
    lines = []
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch:
        session = start_session(JOBS["ours-sync"], "4g")
        run = partial(_turns, session, Path(scratch), folder)
        try:
            session.conf.set("spark.sql.streaming.pollingDelay", SMALL_DELAY)
            small = run(SMALL, small_form, "heap", warm_up)[-SMALL_TURNS:]
            session.conf.set("spark.sql.streaming.pollingDelay", POLLING_DELAY)
            for backend, form in streams:
                turns = run(DATASET, form, backend, first_turns + pairs)[first_turns:]
                lines += lines_of(f"stream on {backend}, {form}", turns)
        finally:
            session.stop()
    return lines, [note_of_small(small_form, small)]


def _turns(  # noqa: PLR0917 - two callers
    session: SparkSession,
    scratch: Path,
    folder: Path,
    dataset: Dataset,
    form: str,
    backend: str,
    count: int,
) -> list[Mapping[Kind, MicroBatch]]:
    """Return ``count`` turns of queries of each kind, which begin and end here."""
    files = sorted(materialise(dataset, folder).glob("*.parquet"))
    what = f"{dataset.rows_per_file} rows on {backend}, {form}"
    queries = {
        kind: LoneQuery(session, form, backend, scratch / what / kind, kind)
        for kind in get_args(Kind)
    }
    return lock_step(queries, files, count, what)


if __name__ == "__main__":
    main()
