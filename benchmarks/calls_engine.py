"""Keyed functions that call without Spark, the ideal, and a version by hand, on the same calls.

Each runs on a thread of its own, as functions that await do on Spark: with a new event loop, and
without the signals that uvloop prepares for in each turn on the main thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import wraps
from typing import Any, Final, ParamSpec

from benchmarks.data import Event
from benchmarks.engine_drive import EngineDrive
from benchmarks.functions import CountRow, CountWithCall
from forebay_engine.execution.awaitables import records_on
from forebay_engine.execution.task_thread import waits_for_task_thread
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api.settings import EngineSettings

P = ParamSpec("P")

ROWS: Final = 10_000
"""Rows, and their keys: each row has its own."""

SecondsOf = Callable[[Event], float]


def ten_ms(_row: Event) -> float:
    return 0.01


def heavy_tail(row: Event) -> float:
    """Let one call in a hundred take 20 times as long."""
    return 0.2 if row.seq % 100 == 50 else 0.01


def rows_of_as_many_keys(count: int = ROWS) -> list[Event]:
    return [Event(f"user {number}", number, number) for number in range(count)]


@contextmanager
def loops_of(*, uv: bool) -> Iterator[None]:
    """Let new event loops be uvloop's, or asyncio's own."""
    before = asyncio.get_event_loop_policy()
    if uv:
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


def on_own_thread(measure: Callable[P, float]) -> Callable[P, float]:
    """Measure on a thread that nothing else uses."""

    @wraps(measure)
    def measured(*arguments: P.args, **named: P.kwargs) -> float:
        with ThreadPoolExecutor(1) as thread, waits_for_task_thread():
            return thread.submit(measure, *arguments, **named).result()

    return measured


@on_own_thread
def ours(seconds_of: SecondsOf, rows: Sequence[Event], in_flight: int) -> float:
    """Time the function in the engine, at most ``in_flight`` calls at a time."""
    settings = EngineSettings(calls_in_flight=in_flight)
    function = CountWithCall(seconds_of)
    with (
        closing(asyncio.new_event_loop()) as loop,
        records_on(loop),
        EngineDrive(function, "memory://calls", settings=settings) as drive,
    ):
        keys, groups = drive.columns_of(rows)
        begin_task()  # which makes collections rare, as on Spark
        started = time.perf_counter()
        out = drive(rows, keys, groups)
        took = time.perf_counter() - started
    return _checked(out, rows, took)


@on_own_thread
def semaphore_and_gather(seconds_of: SecondsOf, rows: Sequence[Event], in_flight: int) -> float:
    """Time a semaphore, ``gather`` and a dict: no order of a key's rows, and nothing durable."""

    async def run() -> list[CountRow]:
        semaphore, state = asyncio.Semaphore(in_flight), dict[str, tuple[int, int]]()

        async def one(row: Event) -> CountRow:
            async with semaphore:
                count, total = state.get(row.user) or (0, 0)
                await asyncio.sleep(seconds_of(row))
                state[row.user] = count, total = count + 1, total + row.amount
                return row.user, row.amount, count, total

        return list(await asyncio.gather(*map(one, rows)))

    started = time.perf_counter()
    out = asyncio.run(run())
    return _checked(out, rows, time.perf_counter() - started)


@on_own_thread
def asyncio_alone(seconds_of: SecondsOf, rows: Sequence[Event], in_flight: int) -> float:
    """Time as many tasks as calls may be in flight, which do nothing but call: asyncio's floor."""
    left = iter(rows)

    async def calls() -> None:
        for row in left:
            await asyncio.sleep(seconds_of(row))

    async def run() -> None:
        await asyncio.gather(*(calls() for _ in range(in_flight)))

    started = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - started


def _checked(out: Sequence[Any], rows: Sequence[Event], took: float) -> float:
    if sorted(out) != sorted((row.user, row.amount, 1, row.amount) for row in rows):
        raise SystemExit("wrong rows came out")
    return took
