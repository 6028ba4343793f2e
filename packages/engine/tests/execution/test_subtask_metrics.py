"""The metrics of a subtask: phases, requests to storage, and the counts of the engine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_state_api import KeyedProcessFunction, StateTtlConfig, ValueStateDescriptor
from forebay_state_api.metrics.phases import Phase
from forebay_testing import KeyedJob, ManualClock
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

LATENCY_S = 0.2


class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        return [row]


class CountAsync(Count):
    async def process_element(self, row, ctx):
        await self.n.async_update(await self.n.async_value() + 1)
        return [row]


class Sleep(Count):
    async def process_element(self, row, ctx):
        await asyncio.sleep(LATENCY_S)
        return [row]


class Timed(Count):
    def process_element(self, row, ctx):
        now = ctx.timers.processing_time
        for at in (now - timedelta(seconds=1), now + timedelta(hours=1)):
            ctx.timers.register_processing_time(at)

    def on_timer(self, time, ctx):
        return []


class Kept(Count):
    def open(self, ctx):
        ttl = StateTtlConfig(timedelta(seconds=10))
        self.n = ctx.get_state(ValueStateDescriptor("n", int, ttl=ttl))

    def process_element(self, row, ctx):
        self.n.value()
        self.n.update(1)
        return [row]


@pytest.fixture
def slow(new_job):
    def make(**settings):
        job = new_job(**settings)
        job.options = {"read-latency": LATENCY_S}
        return job

    return make


def figures(job, function, rows):
    job.run(function, rows)
    return job.reports[0].figures


def test_phases_add_up_to_the_time_of_the_subtask(new_job):
    job, rests = new_job(), []
    for _ in range(3):  # another process may take the core from one of them
        with job.subtask(Count()) as running:
            clock = running.subtask_metrics.clock
            running.process([("a",)], ["a"], [0])
            report = running.commit()
        seconds = clock.seconds()
        known = {"open", "function", "commit_snapshot", "commit_files", "commit_check"}
        assert known <= set(seconds)
        assert report.figures["phase_seconds_commit_manifest"] > 0
        rests.append(seconds["rest"] / sum(seconds.values()))
    assert min(rests) < 1 / 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "read_ahead", "phase"),
    [
        (Count, True, "read_ahead"),
        (Count, False, "state_wait"),
        (CountAsync, False, "state_wait"),
        (Sleep, False, "call_wait"),
    ],
)
def test_waits_are_apart_from_the_function(slow, function, read_ahead, phase):
    found = figures(slow(read_ahead=read_ahead), function(), [("a",)])
    # A wait begins a little after what it waits for.
    assert found[f"phase_seconds_{phase}"] > LATENCY_S / 10


def test_records_that_go_on_beside_the_task_leave_its_clock_alone(new_job, monkeypatch):
    with new_job().subtask(CountAsync()) as running:
        clock, scheduler = running.subtask_metrics.clock, running.engine.scheduler

        def advance(_: object) -> None:
            assert running.subtask_metrics.clock.switch(Phase.STATE_WAIT) is Phase.REST

        with monkeypatch.context() as patched:
            patched.setattr(type(scheduler.progress), "advance", advance)
            patched.setitem(scheduler.busy, "k", None)
            clock.switch(Phase.INPUT)
            running.engine._go_on()
        running.engine._raise_late_error()
        assert clock.switch(Phase.REST) is Phase.INPUT


@pytest.mark.long
def test_keys_calls_and_late_rows_are_counted(new_job):
    found = figures(new_job(), Count(), [("a",), ("b",), ("a",)])
    assert (found["rows_in"], found["rows_out"], found["keys_touched"]) == (3, 3, 2)
    assert figures(new_job(), Sleep(), [("a",), ("b",)])["calls_awaited"] == 2
    assert "runs_max" not in found, "what a backend does not know is absent"


@pytest.mark.long
def test_records_that_wait_for_their_key_are_counted(slow):
    found = figures(slow(), CountAsync(), [("a",)] * 5)
    assert (found["blocked_max"], found["in_flight_max"]) == (4, 5)


def test_timers_are_counted(new_job):
    found = figures(new_job(), Timed(), [("a",), ("b",)])
    assert (found["timers_registered"], found["timers_late"], found["timers_fired"]) == (4, 2, 2)


def test_added_timers_are_distinct_and_neither_fired_nor_deleted(new_job):
    at = datetime(2077, 1, 1, tzinfo=UTC)

    class Often(Timed):
        def process_element(self, row, ctx):
            super().process_element(row, ctx)
            ctx.timers.register_processing_time(at)
            ctx.timers.delete_processing_time(at)

    found = figures(new_job(), Often(), [("a",), ("b",), ("a",)])
    assert (found["timers_registered"], found["timers_added"]) == (8, 2)


def test_keys_with_timers_count_where_fewer_have_touched_state(new_job):
    far = datetime(2077, 1, 1, tzinfo=UTC)

    class Remind(Count):
        def process_element(self, row, ctx):
            if row[0] == "c":
                self.n.update(1)
            for hours in range(row[1]):
                ctx.timers.register_processing_time(far + timedelta(hours=hours))
            ctx.timers.delete_processing_time(far + timedelta(hours=2))

        def on_timer(self, time, ctx):
            return []

    found = figures(new_job(), Remind(), [("a", 5), ("b", 1), ("a", 4), ("c", 0)])
    assert (found["keys_touched"], found["timers_added"]) == (2, 5)


def test_the_rows_of_the_hottest_key_group(new_job):
    job = new_job()
    found = figures(job, Count(), [("a",), ("b",), ("a",)])
    assert found["group_rows_max"] == 2
    assert SubtaskMetrics().rows_of_groups() == {}


def test_expired_values_are_counted():
    clock = ManualClock()
    job = KeyedJob(ReferenceBackend, memory_storage(), clock=clock)
    assert figures(job, Kept(), [("a",), ("b",)])["values_expired"] == 0
    clock.advance(timedelta(minutes=1))
    assert figures(job, Kept(), [("a",)])["values_expired"] == 1


def test_bytes_read_until_the_version_is_open_restored_it():
    subtask_metrics = SubtaskMetrics()
    assert subtask_metrics.storage() == {}, "requests that nobody counts are not 0"
    storage = subtask_metrics.counted(memory_storage())
    storage.put("a", b"123")
    storage.get("a")
    subtask_metrics.opened()
    storage.get("a")
    found = subtask_metrics.storage()
    assert (found["restored_bytes"], found["storage_requests_get"]) == (3, 2)


def test_read_times_are_buckets_that_add_up():
    subtask_metrics = SubtaskMetrics()
    assert subtask_metrics.reads() == {}, "nothing was read"
    subtask_metrics.note_access("a", 0.002, 10)
    subtask_metrics.note_access("b", 0.2, 5)
    subtask_metrics.note_access("b", 20.0, 1)
    found = subtask_metrics.reads()
    assert [found[f"state_read_seconds_{le}"] for le in ("0.001", "0.003", "0.3", "10", "inf")] == [
        *(0, 10, 15, 15, 16)
    ]
