"""A streaming job with two consoles next to it: ``python -m benchmarks.console_beside``.

Queries run in pairs in one session, with and without two consoles that are looked at: for each, a
timeline and a heat map that stay open, and a scrape of ``/metrics``. All share the machine's cores.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import attrs
import click
from pyspark.sql import SparkSession

from benchmarks.console_process import console
from benchmarks.cpu_by_process import CpuOfTrees
from benchmarks.data import Dataset, default_folder, materialise
from benchmarks.jobs import JOBS, PARTITIONS
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import measure, start_session, stream
from benchmarks.report import Line, Result, benchmark
from forebay_spark_runtime.metrics import OperatorBatch, operators_of

DATASET: Final = Dataset(keys=100_000, rows_per_file=83_334, files=30)
JOB: Final = JOBS["ours-sync"]
SKIP: Final = 2
CONSOLES: Final = 2
REFRESH_S: Final = 2.0
"""How often an open page asks for news, as by default, and how often Prometheus scrapes."""
THROUGHPUT: Final = 0.9
"""The least share of the job's events/s that two consoles leave it on the same cores."""
COMMIT: Final = 1.2
"""The largest allowed multiple of the time of a commit without consoles."""
PAGES: Final = ("", "/groups")
"""The pages of an operator that stay open."""


@attrs.define
class Views:
    """The answers that the viewers of all consoles got."""

    seconds: list[float] = attrs.field(factory=list)
    """The time of each answer."""
    of_operator: int = 0
    """How often the pages of the running operator were shown."""
    cores: list[float] = attrs.field(factory=list)
    """The mean number of cores that the consoles kept busy, query by query."""


@attrs.frozen(kw_only=True)
class Run:
    """One query."""

    events_per_s: float
    commit_s: float
    """The median, over the micro-batches, of the time that a subtask's commit takes."""


def look(address: str, stop: threading.Event, views: Views) -> None:
    """Keep the pages of the first operator open and scrape ``/metrics`` until ``stop``."""
    while not stop.wait(REFRESH_S):
        operator = re.search(r'href="(/operators/[^/"]+/[^/"?]+)', _answer(address, "/", views))
        _answer(address, "/metrics", views)
        if operator is not None:
            for page in PAGES:
                _answer(address, operator[1] + page, views)
            views.of_operator += 1


def _answer(address: str, path: str, views: Views) -> str:
    """Return a page; anything but a page is an error, which ends the viewer."""
    started = time.perf_counter()
    with urlopen(address + path, timeout=100) as answer:
        text: str = answer.read().decode()
    views.seconds.append(time.perf_counter() - started)
    return text


@contextlib.contextmanager
def looked_at(state_dir: Path, views: Views) -> Iterator[list[float]]:
    """Run the consoles and their viewers; the list gets the mean number of cores they used."""
    cores: list[float] = []
    stop = threading.Event()
    with contextlib.ExitStack() as running:
        found = [running.enter_context(console(state_dir, REFRESH_S)) for _ in range(CONSOLES)]
        failures: list[BaseException] = []
        threads = [_viewer(address, stop, views, failures) for address, _ in found]
        used = CpuOfTrees({f"console {pid}": pid for _, pid in found})
        started = time.monotonic()
        with used:
            yield cores
        cores.append(
            sum(used.total(f"console {pid}") for _, pid in found) / (time.monotonic() - started)
        )
        stop.set()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


def _viewer(
    address: str, stop: threading.Event, views: Views, failures: list[BaseException]
) -> threading.Thread:
    def run() -> None:
        try:
            look(address, stop, views)
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def run_once(session: SparkSession, folder: Path, files: int, views: Views | None) -> Run:
    """Run one query, with consoles if there are ``views`` to fill."""
    source = materialise(DATASET, folder)
    with (
        tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch,
        contextlib.ExitStack() as beside,
    ):
        state_dir = Path(scratch) / "state"
        state_dir.mkdir()
        if views is not None:
            used = beside.enter_context(looked_at(state_dir, views))
        progress = stream(session, JOB, source, Path(scratch), files=files)
    if views is not None:
        views.cores += used
    warm = measure(JOB, progress, SKIP)
    return Run(events_per_s=warm.events_per_s, commit_s=_commit_s(progress[SKIP:]))


def _commit_s(progress: Sequence[Mapping[str, Any]]) -> float:
    """Return the median time of a commit; each subtask must have committed each batch once."""
    batches = [one for event in progress for one in operators_of(event)]
    if {one.subtasks for one in batches} != {PARTITIONS} or len(batches) != len(progress):
        raise click.ClickException("a subtask did not commit, or not once")
    return statistics.median(map(_of_commit, batches)) / PARTITIONS


def _of_commit(batch: OperatorBatch) -> float:
    return sum(s for phase, s in batch.phase_seconds.items() if phase.value.startswith("commit"))


def lines_of(pairs: Sequence[tuple[Run, Run]]) -> list[Line]:
    """Compare throughput and commits of (with, without)."""
    speeds = [[one.events_per_s for one in runs] for runs in zip(*pairs, strict=True)]
    commits = [[one.commit_s for one in runs] for runs in zip(*pairs, strict=True)]
    fast = [statistics.median(one) for one in speeds]
    took = [statistics.median(one) * 1e3 for one in commits]
    return [
        Line(
            what=f"stream with {CONSOLES} consoles ÷ without, events/s",
            values=[ours / alone for ours, alone in zip(*speeds, strict=True)],
            bound=THROUGHPUT,
            at_least=True,
            detail=f"{fast[0]:,.0f} / {fast[1]:,.0f} events/s",
        ),
        Line(
            what=f"commit with {CONSOLES} consoles ÷ without, time",
            values=[ours / alone for ours, alone in zip(*commits, strict=True)],
            bound=COMMIT,
            at_least=False,
            detail=f"{took[0]:.1f} / {took[1]:.1f} ms, median of the micro-batches",
        ),
    ]


@benchmark("console-beside")
@click.option("--pairs", default=6, show_default=True, help="Pairs of queries.")
@click.option("--files", default=DATASET.files, show_default=True, help="Micro-batches of a query.")
@click.option("--data-dir", default=default_folder(), type=click.Path(path_type=Path))
def main(*, pairs: int, files: int, data_dir: Path) -> Result:
    """Measure a job with and without consoles next to it."""
    session = start_session(JOB, "4g")
    views = Views()
    found: list[tuple[Run, Run]] = []
    with ForeignLoad() as load:
        for number in range(pairs + 1):  # the first one warms the JVM up
            looked = Views() if number == 0 else views
            runs = {
                beside: run_once(session, data_dir, files, looked if beside else None)
                for beside in ((True, False) if number % 2 else (False, True))
            }
            found.append((runs[True], runs[False]))
    session.stop()
    if not views.of_operator:
        raise click.ClickException("no viewer saw the running operator")
    answers = sorted(views.seconds)
    note = (
        f"{len(answers):,} pages were answered, all of them, in {statistics.median(answers):.3f} s "
        f"(the slowest in {answers[-1]:.2f} s); the consoles used "
        f"{statistics.median(views.cores):.2f} cores. Each subtask committed each micro-batch once."
    )
    others = f"All other processes used {load.cores:.2f} cores." if load.cores is not None else ""
    return Result(lines=lines_of(found[1:]), notes=[note, *filter(None, [others])])


if __name__ == "__main__":
    main()
