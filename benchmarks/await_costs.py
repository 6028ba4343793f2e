"""CPU time of a record that awaits, by Python: ``python -m benchmarks.await_costs``.

Each work runs in the engine, which steps records itself, and in a task of asyncio's for each
record, with 1,000 at a time. ``--python`` names further interpreters that have the packages and
those of ``benchmarks``.
"""

from __future__ import annotations

import asyncio
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.data import Event
from benchmarks.engine_drive import EngineDrive
from benchmarks.report import Result, benchmark, table
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api import KeyedProcessFunction
from forebay_state_api.settings import EngineSettings

ROWS: Final = 20_000
TOGETHER: Final = 1_000
Work = Callable[[Any], Awaitable[None]]


async def nothing(_: Any) -> None:
    """Await nothing."""


async def turn(_: Any) -> None:
    await asyncio.sleep(0)


async def future(_: Any) -> None:
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    loop.call_soon(answered.set_result, None)
    await answered


async def timeout(_: Any) -> None:
    async with asyncio.timeout(100):
        await asyncio.sleep(0)


async def group(_: Any) -> None:
    async with asyncio.TaskGroup() as children:
        children.create_task(asyncio.sleep(0))
        children.create_task(asyncio.sleep(0))


async def call(ctx: Any) -> None:
    await ctx.call(asyncio.sleep, 0)


WORKS: Final[Mapping[str, Work]] = {
    "nothing": nothing,
    "`asyncio.sleep(0)`": turn,
    "a future that the loop completes": future,
    "`async with asyncio.timeout()`, a turn": timeout,
    "a `TaskGroup` of two turns": group,
    "`ctx.call`, a turn": call,
}
"""Name of a record's work → its coroutine; the last one needs the engine."""


class Awaits(KeyedProcessFunction[str, Event, tuple[int]]):
    """Awaits ``work`` for each row."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def process_element(self, row: Event, ctx: Any) -> list[tuple[int]]:
        """Await it."""
        await self.work(ctx)
        return [(row.seq,)]


def in_engine(work: Work, rows: Sequence[Event], repeat: int) -> list[float]:
    """Return the µs of CPU for each record, a value for each repetition."""
    settings = EngineSettings(in_flight_limit=TOGETHER)
    with EngineDrive(Awaits(work), "memory://awaits", settings=settings) as drive:
        keys, groups = drive.columns_of(rows)
        drive(rows, keys, groups)
        return [_us(lambda: drive(rows, keys, groups), len(rows)) for _ in range(repeat)]


def in_tasks(work: Work, rows: Sequence[Event], repeat: int) -> list[float]:
    """Do the same in asyncio's tasks."""

    async def one(row: Event) -> tuple[int]:
        await work(None)
        return (row.seq,)

    async def run() -> None:
        for start in range(0, len(rows), TOGETHER):
            await asyncio.gather(*map(one, rows[start : start + TOGETHER]))

    with asyncio.Runner() as runner:
        return [_us(lambda: runner.run(run()), len(rows)) for _ in range(repeat)]


def _us(run: Callable[[], object], rows: int) -> float:
    started = time.process_time()
    run()
    return (time.process_time() - started) / rows * 1e6


def measured(repeat: int) -> dict[str, list[str]]:
    """Return what a record awaits → its medians in the engine and in tasks."""
    begin_task()  # which makes collections rare, as on Spark
    rows = [Event(f"user {number}", number, number) for number in range(ROWS)]
    found = {}
    for name, work in WORKS.items():
        ours = statistics.median(in_engine(work, rows, repeat))
        theirs = None if work is call else statistics.median(in_tasks(work, rows, repeat))
        found[name] = [f"{ours:.1f}", "" if theirs is None else f"{theirs:.1f}"]
    return found


def measured_by(python: str, repeat: int) -> tuple[str, dict[str, list[str]]]:
    """Measure in another interpreter."""
    command = [python, "-m", "benchmarks.await_costs", "--repeat", str(repeat), "--as-json"]
    place = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=place)
    version, found = json.loads(done.stdout)
    return version, found


@benchmark("await-costs")
@click.option("--repeat", default=5, show_default=True, help="Runs of each work.")
@click.option("--python", "pythons", multiple=True, help="A further Python that has the packages.")
@click.option("--as-json", is_flag=True, help="Print the figures of this Python, and nothing else.")
def main(*, repeat: int, pythons: Sequence[str], as_json: bool) -> Result | None:
    """Measure what awaiting costs."""
    if as_json:
        click.echo(json.dumps([platform.python_version(), measured(repeat)]))
        return None
    by_python = [measured_by(python, repeat) for python in (sys.executable, *pythons)]
    header = ["a record awaits"]
    for version, _ in by_python:
        header += [f"{version}: engine", "tasks"]
    rows = [[name, *(cell for _, found in by_python for cell in found[name])] for name in WORKS]
    about = f"µs of CPU a record, {TOGETHER:,} at a time, medians of {repeat}, without state."
    return Result(lines=[], notes=[table(rows, header), about], data={"by Python": by_python})


if __name__ == "__main__":
    main()
