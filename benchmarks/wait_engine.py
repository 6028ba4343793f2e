"""Runs the ordered wait without Spark, and common hand-written versions, on the same calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa

from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.arrow_in import InputLayout
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_spark_runtime.waiting.spec import WaitSpec
from forebay_spark_runtime.waiting.task import RowNaming, TaskRun
from forebay_state_api.calls.policies import CallPolicy

SEGMENT: Final = 1_024

Function: TypeAlias = Callable[[Any, Any], Awaitable[Any]]
Way: TypeAlias = Callable[[Function, int, int], Coroutine[Any, Any, list[Any]]]
"""A function of the user function, the number of rows and the capacity; returns the answers."""


async def at_once(row: Any, _client: Any) -> Any:
    return row


async def ten_ms(row: Any, _client: Any) -> Any:
    await asyncio.sleep(0.01)
    return row


async def heavy_tail(row: Any, _client: Any) -> Any:
    """Make a function of which one call in a hundred takes 20 times as long."""
    await asyncio.sleep(0.2 if row % 100 == 50 else 0.01)
    return row


def ours(**policy: Any) -> Way:
    """Return our engine with a policy."""

    async def run(fn: Function, rows: int, capacity: int) -> list[Any]:
        out: list[Any] = []
        checked = CallPolicy(**{"capacity": capacity, **policy})
        engine = CallEngine(fn, checked, emit=lambda segment, _: out.extend(segment.answers))
        for start in range(0, rows, SEGMENT):
            engine.input_queue.push(
                RowSegment(start, list(range(start, min(rows, start + SEGMENT))))
            )
        engine.input_queue.end()
        await engine.run()
        return out

    return run


async def semaphore_and_gather(fn: Function, rows: int, capacity: int) -> list[Any]:
    """Run a semaphore and ``gather``, as most pages on the web advise."""
    semaphore = asyncio.Semaphore(capacity)

    async def one(row: int) -> Any:
        async with semaphore:
            return await fn(row, None)

    return list(await asyncio.gather(*map(one, range(rows))))


async def one_queue(fn: Function, rows: int, capacity: int) -> list[Any]:
    """Run a task for each row, in a queue that counts finished tasks, as Flink's operator does."""
    queue: deque[asyncio.Task[Any]] = deque()
    out: list[Any] = []
    for row in range(rows):
        if len(queue) == capacity:
            out.append(await queue.popleft())
        queue.append(asyncio.ensure_future(fn(row, None)))
    out.extend([await task for task in queue])
    return out


def seconds(way: Way, fn: Function, rows: int, capacity: int, *, uv: bool) -> float:
    """Time one run; check its answers."""
    factory = None
    if uv:
        import uvloop

        factory = uvloop.new_event_loop

    async def timed() -> float:
        started = time.perf_counter()
        out = await way(fn, rows, capacity)
        took = time.perf_counter() - started
        if out != list(range(rows)):
            raise SystemExit(f"wrong answers from {way}")
        return took

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(timed())


class Peaks:
    """A function whose every 10,000th row is slow; it records the most tasks and threads."""

    def __init__(self) -> None:
        self.threads = self.tasks = self.calls = 0

    async def __call__(self, row: Any, _client: Any) -> int:
        self.calls += 1
        if self.calls % 1_000 == 0:
            self.threads = max(self.threads, threading.active_count())
            self.tasks = max(self.tasks, len(asyncio.all_tasks()))
        await asyncio.sleep(0.2 if row.n % 10_000 == 5_000 else 0)
        return len(row.text)


def batches(rows: int) -> Iterator[Any]:
    """Yield Arrow batches as Spark sends them, with rows of about a kilobyte."""
    for start in range(0, rows, 10_000):
        numbers = range(start, min(rows, start + 10_000))
        columns = [list(numbers), [f"{number:01000d}" for number in numbers], [0] * len(numbers)]
        arrays = [pa.array(column) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=["n", "text", "partition"])


def peaks_of(rows: int, resident_bytes: Callable[[], int]) -> dict[str, int]:
    """Run a worker's task over a number of rows; return its peaks above the initial values."""
    fn = Peaks()
    spec = WaitSpec(
        name="peaks",
        function_name="peaks",
        fn=fn,
        asynchronous=True,
        policy=CallPolicy(capacity=100, buffer=10_000),
        on_error="fail",
        key=None,
        resources=None,
    )
    naming = RowNaming(name="peaks", function_name="peaks", query="q", batch_id=0, partition="0")
    layout = InputLayout(names=("n", "text"), shown=(0, 1), key=None)
    before, most, out = resident_bytes(), 0, 0
    with TaskRun(spec, naming, layout, batches(rows)) as run:
        for number, (segment, _) in enumerate(run.chunks()):
            out += len(segment.rows)
            if number % 8 == 0:
                most = max(most, resident_bytes() - before)
    if out != rows:
        raise SystemExit(f"{out} rows came out of {rows}")
    return {"bytes": most, "threads": fn.threads, "tasks": fn.tasks}
