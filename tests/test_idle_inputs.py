"""Silent inputs and the bound on the future in the harness: the table of cases of the reference."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_state_api import (
    ConfigurationError,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from forebay_testing import FunctionHarness

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def at(minutes):
    return NOON + minutes * MINUTE


class Row(NamedTuple):
    key: str
    at: datetime | None


class Watermarks(KeyedProcessFunction):
    """Emits the key of a late row, and a timer's time when the watermark has reached it."""

    def process_element(self, row, ctx):
        if ctx.timers.is_late(row.at):
            yield "late", row.at
        ctx.timers.register_event_time(row.at + MINUTE)

    def on_timer(self, at, ctx):
        yield "timer", at


class Both(KeyedCoProcessFunction):
    process_element1 = process_element2 = Watermarks.process_element
    on_timer = Watermarks.on_timer


class Job:
    """A harness with a tick each minute."""

    def __init__(self, fn=None, **options):
        options = {"idle_after": "5 minutes", "max_event_time_ahead": None, **options}
        fn = Watermarks() if fn is None else fn
        self.harness = FunctionHarness(fn, "key", event_time="at", **options)

    @property
    def clock(self):
        return self.harness.clock

    def rows(self, *minutes, key="a", other=None, later=1):
        self.clock.advance(later * MINUTE)
        second = None if other is None else [Row("b", at(one)) for one in other]
        return self.harness.process([Row(key, at(one)) for one in minutes], second)

    def quiet(self, ticks, later=1):
        return [one for _ in range(ticks) for one in self.rows(later=later)]

    def watermark(self):
        """Return the watermark of the next micro-batch, in minutes after noon."""
        with self.harness._job.subtask(self.harness._pickled) as running:
            us = running.watermark_us
        return (us / 1e6 - NOON.timestamp()) / 60


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_the_watermark_goes_on_when_all_is_silent(backend):
    job = Job(backend=backend, allowed_lateness=2 * MINUTE)
    job.rows(10)
    job.quiet(4)
    assert job.watermark() == 8, "a silence of 4 minutes"
    assert job.quiet(1) == []
    assert job.watermark() == 13
    assert job.quiet(1) == [("timer", at(11))]
    assert job.watermark() == 14
    assert job.rows(13.5) == [("late", at(13.5))]
    assert job.watermark() == 14, "it never goes back, and a late row counts as activity"
    job.quiet(4)
    assert job.watermark() == 14
    job.quiet(1)
    assert job.watermark() == 16.5, "the mark plus the silence"


def test_an_input_holds_the_watermark_until_it_is_idle():
    job = Job(Both())
    job.rows(0, other=[0])
    job.rows(30)
    assert job.rows(31, other=[1, 2]) == [], "no row of the second input is late"
    for minute in range(5):
        job.rows(40 + minute)
        assert job.watermark() == (2 if minute < 4 else 44)
    assert ("late", at(3)) in job.rows(46, other=[3])
    assert job.watermark() == 44


def test_an_input_without_a_first_row_holds_the_watermark_too():
    job = Job(Both())
    job.rows(0)
    job.quiet(2)
    assert ("late", at(-30)) not in job.rows(30, other=[-30])
    assert job.watermark() == -30
    fresh = Job(Both())
    for minute in range(7):
        fresh.rows(minute)
    assert fresh.watermark() == 6


def test_of_two_silent_inputs_the_last_one_that_spoke_gives_the_time():
    job = Job(Both())
    job.rows(60, other=[0])
    for minute in range(4):
        job.rows(other=[minute])
    assert job.watermark() == 3
    job.quiet(5)
    assert job.watermark() == 3 + 5


def test_a_subtask_never_holds_the_watermark():
    job = Job(parallelism=4)
    job.harness.process([Row(key, at(0)) for key in "abcde"])
    job.rows(60)
    assert job.watermark() == 60


def test_a_driver_that_was_down_for_two_days_finds_no_late_row():
    job = Job(Both())
    job.rows(0, other=[0])
    job.quiet(4)
    two_days = 2 * 24 * 60
    job.harness.restart()
    job.clock.advance(two_days * MINUTE)
    backlog = range(5, two_days, 60)
    assert job.quiet(1) == [], "the first micro-batch of a run adds nothing"
    found = job.rows(*backlog, other=[*backlog], later=0)
    assert [one for one in found if one[0] == "late"] == []
    assert job.watermark() == backlog[-1]


def test_an_outage_upstream_looks_like_a_pause():
    job = Job()
    job.rows(0)
    job.quiet(30)
    assert job.watermark() == 30
    found = [what for what, _ in job.rows(*range(1, 61)) if what == "late"]
    assert len(found) == 30, "rows of the outage are late by as much as it lasted"
    assert job.harness.metrics.late_rows == 30


def test_a_replay_at_another_speed():
    fast = Job()
    fast.rows(0)
    fast.quiet(6)
    assert fast.watermark() == 6, "a replay 60 times as fast has moved 6 hours in that time"
    assert fast.rows(360) == [], "and no row of those hours is late"
    slow = Job()
    slow.rows(0)
    slow.quiet(19)
    assert ("late", at(1)) in slow.rows(1), "20 minutes of the clock are one of the replay"


def test_a_machine_that_was_suspended_was_not_silent():
    job = Job()
    job.rows(0)
    job.quiet(1)
    eight_hours = 8 * 60
    job.quiet(1, later=eight_hours)
    assert job.watermark() == 6, "a step adds 5 minutes at most"
    late = [row for row in job.rows(*range(1, eight_hours), later=0) if row[0] == "late"]
    assert len(late) == 6


def test_time_that_goes_back_adds_nothing():
    job = Job()
    job.rows(0)
    job.quiet(4)
    job.quiet(1, later=-60)
    job.clock.advance(timedelta(0))
    assert job.watermark() == 0
    job.quiet(1)
    assert job.watermark() == 5


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_rescale_while_silent(backend):
    job = Job(parallelism=3, backend=backend)
    job.harness.process([Row(key, at(0)) for key in "abcde"])
    job.quiet(3)
    for parallelism in (1, 4):
        job.harness.restart(parallelism=parallelism)
        job.quiet(2)
    assert job.watermark() == 5, (
        "3 minutes, and 1 in each run, whose first micro-batch adds nothing"
    )
    version = job.harness.version
    job.quiet(3)
    assert job.watermark() == 8
    job.harness.restart(version=version)
    assert job.watermark() == 5


def test_a_restart_of_one_micro_batch_adds_nothing():
    """As a job with `availableNow` that is started each hour."""
    job = Job(Both())
    job.rows(0, other=[0])
    for hour in range(1, 9):
        job.harness.restart()
        job.rows(60 * hour, later=60)
    assert job.watermark() == 0


def test_a_downgrade_and_an_upgrade():
    job = Job(Both())
    job.rows(0, other=[0])
    job.rows(30)
    job.harness._job.idle_after_us = None  # as in a release without it
    job.harness.restart()
    job.rows(31)
    assert job.watermark() == 31
    job.harness._job.idle_after_us = 5 * 60 * 10**6
    job.harness.restart()
    job.rows(40)
    assert job.watermark() == 30, "the watermark of the version is the mark of every input"
    for minute in range(41, 46):
        job.rows(minute)
    assert job.watermark() == 45


def test_rows_beyond_the_bound_do_not_move_the_watermark():
    job = Job(idle_after=None, max_event_time_ahead="1 hour")
    job.clock.set(at(0))
    far = (datetime(2031, 1, 1, tzinfo=UTC) - NOON) / MINUTE
    assert job.rows(0, far) == []
    assert job.watermark() == 0
    assert (job.harness.metrics.rows_ahead, job.harness.metrics.late_rows) == (1, 0)
    job.rows(62.01, later=1)
    assert job.watermark() == 0
    job.rows(63, later=1)
    assert job.watermark() == 63
    assert job.harness.metrics.records == 1, "they are processed, as late rows are"


def test_a_row_beyond_the_bound_is_activity():
    job = Job(max_event_time_ahead="1 hour")
    job.clock.set(at(0))
    job.rows(0)
    job.quiet(4)
    job.rows(6_000)
    job.quiet(4)
    assert job.watermark() == 0
    job.quiet(1)
    assert job.watermark() == 5


def test_null_event_times_are_silence():
    job = Job(lambda row, ctx: [])
    job.rows(0)
    for _ in range(5):
        job.clock.advance(MINUTE)
        job.harness.process([Row("a", None)])
    assert job.watermark() == 5


class Marks(KeyedBatchFunction):
    def process_batch(self, rows, ctx):
        return None


@pytest.mark.long
def test_two_inputs_of_a_batch_function():
    job = Job(Marks())
    job.rows(0, other=[10])
    assert job.watermark() == 0
    job.rows(30)
    assert job.watermark() == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"idle_after": "soon"}, "such as '5 minutes' or timedelta"),
        ({"idle_after": timedelta(0)}, "at least a millisecond"),
        ({"idle_after": 300}, "not 300"),
        ({"max_event_time_ahead": "-1 hour"}, "such as '1 hour' or timedelta"),
        ({"max_event_time_ahead": timedelta(hours=-1)}, "not negative"),
        ({"idle_after": "5 minutes", "event_time": None}, "idle_after= goes with event_time="),
        ({"max_event_time_ahead": "1 hour", "event_time": None}, "goes with event_time="),
    ],
)
def test_refused_arguments(options, words):
    with pytest.raises(ConfigurationError, match=words):
        FunctionHarness(Watermarks(), "key", **{"event_time": "at", **options})


def test_the_longest_periods_are_no_bound():
    job = Job(idle_after=timedelta.max, max_event_time_ahead=timedelta.max)
    job.rows(0)
    job.quiet(2)
    assert job.watermark() == 0
