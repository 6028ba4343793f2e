"""State directories with timers, event times and sweeps that stopped halfway, one for each format.

They stand beside those of ``test_golden_versions``, as ``tests/golden/<backend>-<format>-timers``,
and stay readable for ever. `write_golden` made them; a new format gets directories of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forebay_state_api import (
    CleanupIncrementally,
    KeyedCoProcessFunction,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group_of,
)
from forebay_state_api.backend import ABSENT
from forebay_state_api.keys import subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import open_storage
from forebay_state_api.testing import ManualClock
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.versions import RestoreFrom

GOLDEN = Path(__file__).parent / "golden"
STARTED = datetime(2024, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LATENESS = 5 * SECOND
KEYS = [f"key {number}" for number in range(12)]
DELETED = "key 4"
"""Its timers were deleted, those of the others wait or fired."""
REGISTERED = 100_000
"""So many seconds later a timer that fires in the first minute registers another one."""
WATERMARK = 115
"""Of the last micro-batch that was written: 120 of the second input, less the lateness."""
NEXT_WATERMARK = 155
"""Of the next one: 160 of the first subtask, less the lateness."""
SEEN = ValueStateDescriptor(
    "seen", int, ttl=StateTtlConfig(timedelta(days=1), cleanup=(CleanupIncrementally(2),))
)


class Row(NamedTuple):
    key: str
    second: int
    """Its event time."""
    what: str


def at(seconds: int) -> datetime:
    return STARTED + seconds * SECOND


def event_timer(number: int) -> int:
    return 100 + 10 * number


def processing_timers(number: int) -> list[int]:
    return [30 + 60 * number, 2_600_000 + number]


class Timed(KeyedCoProcessFunction):
    """Does what rows say; gives key, kind and second of each timer that fires."""

    def open(self, context):
        self.seen = context.get_state(SEEN)

    def process_element1(self, row, ctx):
        return getattr(self, row.what)(row, ctx.timers)

    process_element2 = process_element1

    def register(self, row, timers):
        number = KEYS.index(row.key)
        self.seen.update(number)
        timers.register_event_time(at(event_timer(number)))
        for second in processing_timers(number):
            timers.register_processing_time(at(second))

    def delete(self, row, timers):
        number = KEYS.index(row.key)
        timers.delete_event_time(at(event_timer(number)))
        for second in processing_timers(number):
            timers.delete_processing_time(at(second))

    def look(self, row, timers):
        """An access, which earns two checks."""
        self.seen.value()
        return [timers.watermark]

    def nothing(self, row, timers):
        pass

    def on_timer(self, at, ctx):
        second = (at - STARTED) // SECOND
        if second < 60:
            ctx.timers.register_processing_time(at + REGISTERED * SECOND)
        return [(ctx.current_key, ctx.timers.domain.value, second)]


def write_golden(backend: str, folder: Path) -> list[Any]:
    """Made the golden directories: three versions of two subtasks; what fired meanwhile."""
    job = golden_job(backend, folder, parallelism=2)
    fired = job.run(
        Timed(),
        [Row(key, 100, "register") for key in KEYS],
        [Row(key, 50, "nothing") for key in KEYS],
    )
    job.clock.advance(60 * SECOND)
    fired += job.run(
        Timed(), [Row(key, 150, "nothing") for key in KEYS], [Row(DELETED, 120, "delete")]
    )
    job.clock.advance(60 * SECOND)
    looks = [Row(key, 160 + 10 * n, "look") for n, key in enumerate(readers(job))]
    return fired + job.run(Timed(), looks)


def golden_job(backend: str, folder: Path, **more: Any) -> KeyedJob:
    return KeyedJob(
        plugins().backend(backend),
        open_storage(folder),
        uid="timed",
        key_type=str,
        clock=ManualClock(STARTED),
        event_time=lambda row: at(row.second),
        **{"query": "golden", "lateness": LATENESS, **more},
    )


def reopened(name: str, folder: Path, **more: Any) -> KeyedJob:
    """A job that goes on where the golden one ended, at its last time."""
    job = golden_job(name.partition("-")[0], folder, **more)
    job.clock.advance(120 * SECOND)
    job.batch_id = 3
    return job


def readers(job: KeyedJob) -> list[str]:
    """A key without state for each subtask of the job."""
    names = [f"reader {number}" for number in range(100)]
    groups = [key_group_of(name, job.max_parallelism) for name in names]
    owners = [subtask_of(group, job.parallelism, job.max_parallelism) for group in groups]
    return [names[owners.index(subtask)] for subtask in range(job.parallelism)]


def waiting() -> set[tuple[str, str, int]]:
    """The timers of the golden version: those that did not fire in its three micro-batches."""
    kept = [(key, number) for number, key in enumerate(KEYS) if key != DELETED]
    by_event = {(key, "event_time", event_timer(n)) for key, n in kept}
    by_clock = {(key, "processing_time", s) for key, n in kept for s in processing_timers(n)}
    by_clock.add((KEYS[0], "processing_time", processing_timers(0)[0] + REGISTERED))
    return {t for t in by_event if t[2] > WATERMARK} | {t for t in by_clock if t[2] > 120}


def stored() -> list[str]:
    return sorted(path.name for path in GOLDEN.glob("*-timers"))


@pytest.fixture
def copied(tmp_path):
    """Gives copies of golden directories, each of its own, which may be written to."""

    def copy(name: str) -> Path:
        copies = len(list(tmp_path.iterdir()))
        return Path(shutil.copytree(GOLDEN / name, tmp_path / str(copies)))

    return copy


def test_each_backend_has_directories():
    assert {name.partition("-")[0] for name in stored()} == {"heap", "lsm"}


def fires_what_waits(job: KeyedJob) -> None:
    """The next micro-batches fire every stored timer at its time, once and in order."""
    rows = job.run(Timed(), [Row("reader", 9_000_000, "look")])
    assert at(NEXT_WATERMARK) in rows
    fired = [[row for row in rows if row != at(NEXT_WATERMARK)]]
    assert {second for _, _, second in fired[0]} == {120, 130, 150}
    for seconds in (30, 2_592_000, 10_000):
        job.clock.advance(seconds * SECOND)
        fired.append(job.run(Timed(), []))
    assert {domain for _, domain, _ in fired[1]} == {"event_time", "processing_time"}
    everything = [timer for batch in fired for timer in batch]
    assert sorted(everything) == sorted(waiting())
    assert_in_order(fired, job)
    job.clock.advance(timedelta(days=365))
    assert job.run(Timed(), []) == []


def assert_in_order(batches: Sequence[Sequence[tuple[str, str, int]]], job: KeyedJob) -> None:
    """Within each subtask: by domain, then by time."""
    for batch in batches:
        for subtask in range(job.parallelism):
            own = [
                (domain, second)
                for key, domain, second in batch
                if subtask_of(
                    key_group_of(key, job.max_parallelism), job.parallelism, job.max_parallelism
                )
                == subtask
            ]
            assert own == sorted(own)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("name", stored())
def test_the_timers_and_the_watermark_of_a_golden_version_go_on(copied, name, parallelism):
    fires_what_waits(reopened(name, copied(name), parallelism=parallelism))


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("name", stored())
def test_the_timers_of_a_golden_version_are_restored(copied, name, backend):
    job = golden_job(backend, copied(name), query="fork", restore=RestoreFrom("golden"))
    job.clock.advance(120 * SECOND)
    fires_what_waits(job)


@pytest.mark.parametrize("name", stored())
def test_the_event_times_of_a_golden_version_are_kept(copied, name):
    job = reopened(name, copied(name), parallelism=2, lateness=100 * SECOND)
    looks = [Row(key, 10, "look") for key in readers(job)]
    assert at(WATERMARK) in job.run(Timed(), looks), "it never goes back"
    job.lateness = LATENESS
    assert at(NEXT_WATERMARK) in job.run(Timed(), looks), "the latest times ever seen count"


@pytest.mark.parametrize("name", stored())
def test_a_sweep_goes_on_where_the_golden_one_stopped(copied, name):
    passed = dropped_next(reopened(name, copied(name), parallelism=2), batch_id=2)
    dropped = dropped_next(reopened(name, copied(name), parallelism=2), batch_id=3)
    assert len(passed) == len(dropped) == 4, "two of each subtask"
    assert not passed & dropped


def dropped_next(job: KeyedJob, batch_id: int) -> set[str]:
    """The keys that a batch drops whose sweeps make two checks in each subtask."""
    job.batch_id = batch_id
    job.clock.advance(timedelta(days=2))
    job.run(Timed(), [Row(key, 0, "look") for key in readers(job)])
    return {key for key in KEYS if job.peek(SEEN, key) is ABSENT}
