"""Small micro-batches if every request takes 20 ms: ``python -m benchmarks.slow_requests``.

Four subtasks run in turn, without Spark; the time is that of one of them. The targets are what
commit 5bc70406 took.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import click

from benchmarks.report import Line, Result, benchmark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import CountingStorage, KeyedJob
from forebay_testing.storage import FaultyStorage

REQUEST_S: Final = 0.02
SUBTASKS: Final = 4
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
TARGETS_MS: Final = {
    ("heap", False): {10: 148, 0: 127, 2_000: 150},
    ("heap", True): {10: 233, 0: 211, 2_000: 237},
    ("lsm", False): {10: 422, 0: 133, 2_000: 435},
    ("lsm", True): {10: 563, 0: 242, 2_000: 565},
}
"""Backend, and whether there is event time → rows of a micro-batch → the most milliseconds."""


class Row(NamedTuple):
    """A row with its key first."""

    key: str
    at: datetime


class Count(KeyedProcessFunction[str, Row, int]):
    """Counts the rows of each key."""

    def open(self, context: Any) -> None:
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row: Row, ctx: Any) -> Iterator[int]:
        del row, ctx
        self.n.update(self.n.value() + 1)
        yield 1


def measure(backend: str, batches: int, *, event_time: bool) -> Iterator[Line]:
    """Measure micro-batches of each size, one after the other on one state."""
    slow = FaultyStorage(
        MemoryStorage(f"memory://{uuid.uuid4()}"), latency=lambda *_: time.sleep(REQUEST_S)
    )
    counting = CountingStorage(slow)
    job = KeyedJob(
        plugins().backend(backend),
        counting,
        parallelism=SUBTASKS,
        max_parallelism=64,
        event_time=(lambda row: row.at) if event_time else None,
    )
    for rows, most_ms in TARGETS_MS[backend, event_time].items():
        took, requests = [], []
        for batch in range(batches):
            given = [Row(f"k{n}", START + timedelta(seconds=batch)) for n in range(rows)]
            counting.reset()
            began = time.perf_counter()
            job.run(Count(), given)
            took.append((time.perf_counter() - began) * 1e3 / SUBTASKS)
            requests.append(len(counting.requests) / SUBTASKS)
        yield Line(
            what=f"{backend}{', event time' if event_time else ''}: {rows:,} rows",
            values=took,
            bound=most_ms,
            at_least=False,
            unit="ms",
            detail=f"{statistics.median(requests):g} requests",
            decimals=0,
        )


@benchmark("slow-requests")
@click.option("--batches", default=9, show_default=True, help="Micro-batches of each size.")
def main(*, batches: int) -> Result:
    """Measure micro-batches on a slow store."""
    lines = [
        line
        for backend, event_time in TARGETS_MS
        for line in measure(backend, batches, event_time=event_time)
    ]
    return Result(lines=lines)


if __name__ == "__main__":
    main()
