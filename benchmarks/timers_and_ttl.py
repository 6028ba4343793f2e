"""Timers, and the cost and effect of TTL: ``python -m benchmarks.timers_and_ttl`` (a minute).

Measures the engine on the heap backend, without Spark: a million timers registered by as many
records and fired by the next micro-batch; the memory of a state after ten generations of keys
compared with one generation; and the time of a record of the running count with TTL and without.
"""

from __future__ import annotations

import itertools
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from benchmarks.memory import SLICE, in_fresh_process, resident_bytes, user
from benchmarks.report import Line, Result, benchmark
from forebay_backend_heap import HeapBackend
from forebay_engine.execution.subtask import Subtask
from forebay_state_api import (
    CleanupIncrementally,
    KeyedProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group_of,
)
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

MAX_PARALLELISM: Final = 128
START: Final = datetime(2024, 1, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
GENERATIONS: Final = 10
_numbers = itertools.count()

Columns = tuple[list[Any], list[str], list[int]]
"""Rows, keys and key groups of a micro-batch, as on Spark."""


class Timed(KeyedProcessFunction[str, Any, Any]):
    """Registers a timer for each row, and does nothing when it fires."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_processing_time(row[1])

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        """Do nothing; the contract requires the method."""


class Count(KeyedProcessFunction[str, Any, Any]):
    """Counts the rows of each key."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.descriptor = ValueStateDescriptor("count", int, ttl=ttl)

    def open(self, context: Any) -> None:
        self.count = context.get_state(self.descriptor)

    def process_element(self, row: Any, ctx: Any) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return [(row[0], count)]


def new_job() -> KeyedJob:
    """Make a job with empty state."""
    storage = MemoryStorage(f"memory://benchmark-{next(_numbers)}")
    return KeyedJob(HeapBackend, storage, max_parallelism=MAX_PARALLELISM, key_type=str)


def columns(keys: list[str], rows: list[Any]) -> Columns:
    """Return rows with their keys and key groups."""
    return rows, keys, [key_group_of(key, MAX_PARALLELISM) for key in keys]


def micro_batch(job: KeyedJob, function: Any, batch: Columns) -> float:
    """Run and commit a micro-batch; return the seconds from its first to its last record."""
    with job.subtask(function) as subtask:
        seconds = _records(subtask, batch)
        subtask.commit()
    job.batch_id += 1
    return seconds


def _records(subtask: Subtask, batch: Columns) -> float:
    rows, keys, groups = batch
    start = time.perf_counter()
    while subtask.fire_timers():
        subtask.take_rows()
    for at in range(0, len(rows), SLICE):
        part = slice(at, at + SLICE)
        subtask.process(rows[part], keys[part], groups[part])
        subtask.take_rows()
    subtask.drain()
    return time.perf_counter() - start


def timers_per_second(count: int) -> float:
    """Register and fire timers; return the timers per second of both micro-batches."""
    keys = [user(number) for number in range(count)]
    times = [START + timedelta(milliseconds=37 * (number % 1_000_003)) for number in range(count)]
    job = new_job()
    job.clock.advance(START - HOUR - datetime.fromtimestamp(job.clock.now_us / 1e6, UTC))
    seconds = micro_batch(job, Timed(), columns(keys, list(zip(keys, times, strict=True))))
    job.clock.advance(24 * HOUR)
    seconds += micro_batch(job, Timed(), ([], [], []))
    return count / seconds


def turned_over_bytes(keys: int, generations: int) -> int:
    """Return the resident bytes after generations of keys, each expired when the next comes."""
    ttl = StateTtlConfig(HOUR, cleanup=(CleanupIncrementally(5),))
    job, function = new_job(), Count(ttl)
    before = resident_bytes()
    for generation in range(generations):
        numbers = range(generation * keys, (generation + 1) * keys)
        for start in range(0, keys, SLICE):
            part = [user(number) for number in numbers[start : start + SLICE]]
            micro_batch(job, function, columns(part, [(key,) for key in part]))
        job.clock.advance(HOUR)
    return resident_bytes() - before - _stored_bytes(job)


def _stored_bytes(job: KeyedJob) -> int:
    """Return the bytes of the in-memory storage, which are not the backend's memory."""
    return sum(info.size for info in job.storage.list(""))


def seconds_without_and_with_ttl(keys: int, batches: int) -> tuple[float, float]:
    """Measure a micro-batch of a running count without TTL and with it, in turn."""
    batch = columns([user(n % keys) for n in range(keys)], [(user(n),) for n in range(keys)])
    functions = [Count(None), Count(StateTtlConfig(HOUR))]
    jobs = [new_job(), new_job()]
    taken: list[list[float]] = [[], []]
    for _ in range(batches):
        for job, function, seconds in zip(jobs, functions, taken, strict=True):
            start = time.perf_counter()
            micro_batch(job, function, batch)
            seconds.append(time.perf_counter() - start)
    plain, with_ttl = (statistics.median(seconds[1:]) for seconds in taken)
    return plain, with_ttl


@benchmark("timers")
@click.option("--timers", default=1_000_000, show_default=True)
@click.option("--keys", default=200_000, show_default=True, help="Keys of a generation.")
@click.option("--repetitions", default=3, show_default=True)
def main(*, timers: int, keys: int, repetitions: int) -> Result:
    """Measure timers and TTL."""
    lines = [
        _timers_line(timers, repetitions),
        _turnover_line(keys, repetitions),
    ]
    note = _ttl_note(keys // 2, repetitions)
    return Result(lines=lines, notes=[note])


def _timers_line(timers: int, repetitions: int) -> Line:
    return Line(
        what=f"{timers:,} timers registered and fired",
        values=[in_fresh_process(timers_per_second, timers) / 1e3 for _ in range(repetitions)],
        bound=200.0,
        at_least=True,
        unit="k/s",
        detail="both micro-batches, without their commits",
    )


def _turnover_line(keys: int, repetitions: int) -> Line:
    one = [in_fresh_process(turned_over_bytes, keys, 1) for _ in range(repetitions)]
    all_of_them = [
        in_fresh_process(turned_over_bytes, keys, GENERATIONS) for _ in range(repetitions)
    ]
    return Line(
        what=f"memory, {GENERATIONS} generations of {keys:,} keys ÷ one, cleaned incrementally",
        values=[ten / first for ten, first in zip(all_of_them, one, strict=True)],
        bound=2.0,
        at_least=False,
        detail=f"{all_of_them[0] / keys:.0f} / {one[0] / keys:.0f} bytes a key",
    )


def _ttl_note(keys: int, repetitions: int) -> str:
    found = [in_fresh_process(seconds_without_and_with_ttl, keys, 8) for _ in range(repetitions)]
    plain, with_ttl = (
        1e6 * statistics.median(column) / keys for column in zip(*found, strict=True)
    )
    ratios = [after / before for before, after in found]
    return (
        f"In the engine alone, with a count over {keys:,} keys and one committed change per "
        f"record, a record takes {plain:.2f} µs without TTL and {with_ttl:.2f} µs with it: "
        f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}). The cost "
        "in a job is `ours-sync-ttl` of [Streaming](#streaming), which has a target."
    )


if __name__ == "__main__":
    main()
