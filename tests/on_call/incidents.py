"""The incidents: each function runs a small job that has one trouble, in a state directory.

``python incidents.py hot-key /tmp/state`` provokes one by hand, to look at it with ``forebay top``
and ``forebay explain``.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.job import KeyedJob
from forebay_testing.storage import FaultyStorage

BATCHES: Final = 5
ROWS: Final = 2_000
TTL: Final = StateTtlConfig(timedelta(hours=1))
FAR: Final = datetime(2077, 1, 1, tzinfo=UTC)
LOOK_S: Final = 0.35
"""Seconds that slow storage takes to list the opened version, and for the get of each commit."""
WRITE_S: Final = 0.55
"""Seconds that storage takes to write a data file, if its writes are slow."""
COMPACT_S: Final = 0.3
"""Seconds that a compaction takes at least where there is no CPU for it."""


class Count(KeyedProcessFunction):
    """Counts the rows of each key; counts expire after an hour."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, ttl=TTL))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield row[0], n


class Remind(Count):
    """Adds a timer for each row, and replaces none."""

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(FAR + timedelta(seconds=row[1]))
        yield from super().process_element(row, ctx)

    def on_timer(self, at, ctx):
        return []


class RemindOnly(KeyedProcessFunction):
    """Adds a timer for each row, and has no state."""

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(FAR + timedelta(seconds=row[1]))

    def on_timer(self, at, ctx):
        return []


class Window(Count):
    """Counts the rows of each key and window of an hour; each row registers the window's end."""

    def process_element(self, row, ctx):
        now = ctx.timers.processing_time
        end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        ctx.timers.register_processing_time(end)
        yield from super().process_element(row, ctx)

    def on_timer(self, at, ctx):
        yield at, self.n.value()
        self.n.clear()


class Session(Window):
    """Counts the rows of each session, which ends ten minutes after its last row."""

    def process_element(self, row, ctx):
        gap = timedelta(minutes=10, milliseconds=row[1])
        ctx.timers.replace_processing_time(ctx.timers.processing_time + gap)
        yield from Count.process_element(self, row, ctx)


class Expire(Window):
    """Forgets a key a day after its first row."""

    def process_element(self, row, ctx):
        if self.n.value() is None:
            ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(days=1))
        yield from Count.process_element(self, row, ctx)


class Wake(KeyedProcessFunction):
    """Reports at the end of an hour that the key had rows; has no state."""

    def process_element(self, row, ctx):
        now = ctx.timers.processing_time
        end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        ctx.timers.register_processing_time(end)

    def on_timer(self, at, ctx):
        yield at


class Remember(KeyedProcessFunction):
    """Keeps every row of each key, for ever."""

    def open(self, context):
        self.rows = context.get_list_state(ListStateDescriptor("rows", int))

    def process_element(self, row, ctx):
        self.rows.add(row[1])
        return []


def rows(batch: int, keys: int = 500) -> list[tuple[str, int]]:
    """The rows of a micro-batch, evenly over the keys."""
    chosen = random.Random(batch)
    return [(f"user-{chosen.randrange(keys)}", batch * ROWS + n) for n in range(ROWS)]


def job_on(storage: Any, backend: str = "heap", parallelism: int = 2, **how: Any) -> KeyedJob:
    """Return a job with 16 key groups."""
    return KeyedJob(
        plugins().backend(backend),
        storage,
        query="orders",
        uid="incident",
        parallelism=parallelism,
        max_parallelism=16,
        key_type=str,
        **how,
    )


def calm(directory: Path) -> None:
    """Run a job without any trouble."""
    job = job_on(open_storage(directory))
    for batch in range(BATCHES):
        job.run(Count(), rows(batch))


def ordinary(function: type[KeyedProcessFunction], directory: Path, backend: str) -> None:
    """Run a job whose timers are in order, with a micro-batch every 7 minutes."""
    job = job_on(open_storage(directory), backend)
    for batch in range(12):
        job.run(function(), rows(batch))
        job.clock.advance(timedelta(minutes=7))


def hot_key(directory: Path) -> None:
    """From the third batch on, one key has another 38,000 rows."""
    job = job_on(open_storage(directory))
    for batch in range(BATCHES):
        found = rows(batch)
        if batch >= 2:
            found += [("user-7", at) for at in range(19 * ROWS)]
        job.run(Count(), found)


def slow_storage(directory: Path) -> None:
    """Requests that transfer almost nothing take long."""
    listed = slowly(open_storage(directory), "list", "/versions", LOOK_S)
    run_on(slowly(listed, "get", "/taken/", LOOK_S))


def slow_writes(directory: Path) -> None:
    """Each data file takes long to write, though it is small."""
    run_on(slowly(open_storage(directory), "put", "/data/", WRITE_S))


def run_on(storage: FaultyStorage) -> None:
    """Run a job of one subtask on slow storage."""
    job = job_on(storage, parallelism=1)
    for batch in range(3):
        job.run(Count(), rows(batch))


def slowly(inner: ObjectStorage, slow: str, part: str, seconds: float) -> FaultyStorage:
    """Return storage whose ``slow`` requests take long for names with this part."""

    def latency(operation: str, name: str) -> None:
        if operation == slow and part in name:
            threading.Event().wait(seconds)

    return FaultyStorage(inner, latency=latency)


def compaction_behind(directory: Path) -> None:
    """No compaction ends: the service takes jobs and does nothing; one in a commit takes long."""
    storage = slowly(open_storage(directory), "put", "/compaction-", COMPACT_S)
    job = job_on(storage, "lsm", compaction=ImmediateCompaction(storage, hold=True))
    for batch in range(14):
        job.run(Count(), rows(batch)[:200])


def leaking_timers(
    directory: Path, function: type[KeyedProcessFunction] = Remind, backend: str = "heap"
) -> None:
    """Each row adds a timer that does not fire for decades."""
    job = job_on(open_storage(directory), backend)
    for batch in range(BATCHES):
        job.run(function(), rows(batch))


def growing_state(directory: Path) -> None:
    """Every row stays, and new keys come with each batch."""
    job = job_on(open_storage(directory))
    for batch in range(BATCHES):
        job.run(Remember(), [(f"{batch}-{key}", at) for key, at in rows(batch)])


INCIDENTS: Final[Mapping[str, Callable[[Path], None]]] = {
    "calm": calm,
    "hot-key": hot_key,
    "slow-storage": slow_storage,
    "slow-writes": slow_writes,
    "compaction-behind": compaction_behind,
    "leaking-timers": leaking_timers,
    "growing-state": growing_state,
}
"""Name → the function that provokes it."""

ORDINARY: Final = (Window, Session, Expire, Wake)
"""Functions whose timers do not leak, for `ordinary`."""

if __name__ == "__main__":
    INCIDENTS[sys.argv[1]](Path(sys.argv[2]))
