"""Watermarks and timers of event time (docs/reference/state.md)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import KeyedCoProcessFunction
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_testing.backends.subject import MANNERS, SECOND, Recorded
from forebay_testing.backends.timers import (
    EVENT,
    PROCESSING,
    START,
    TimerFunction,
    at,
    change_timer,
    row,
    seconds_of,
)

from ..subjects import OnHeap, OnReference, Timeless
from .timer_functions import FUNCTIONS, Timed

FIRST = datetime.min.replace(tzinfo=UTC)


class EventTime(Timed):
    def test_the_watermark_comes_from_the_batch_before(self, timed):
        _, run = timed(lateness=3 * SECOND)
        assert run(0, row("a", 10, 20, event_time=5, domain=EVENT)) == []
        assert run(0, row("a", event_time=13)) == []
        assert run(0, row("a", event_time=20)) == [("a", 10)], "the batch before has seen 13"
        assert run(0) == []
        assert run(0, row("a", event_time=23)) == []
        assert run(0) == [("a", 20)]

    def test_the_watermark_is_the_least_of_the_subtasks_that_had_rows(self, new_job):
        job = new_job(parallelism=2, event_time=lambda row: at(row[1]))
        first, second = _keys_of_subtasks(job)

        def watermark():
            return _watermark_of(job)

        assert watermark() is None
        job.run(Watching(), [row(first, event_time=50), row(second, event_time=30)])
        assert watermark() == at(30)
        job.run(Watching(), [row(first, event_time=60)])
        assert watermark() == at(60), "a subtask without rows holds nothing back"
        job.run(Watching(), [row(first, event_time=70), row(second, event_time=10)])
        assert watermark() == at(60), "it never goes back"
        job.restart(parallelism=8)
        assert watermark() == at(60)

    def test_without_rows_the_time_is_that_of_the_version(self, new_job):
        state = ValueStateDescriptor("seen", int, ttl=StateTtlConfig(10 * SECOND))

        class Stamping(TimerFunction):
            def open(self, context):
                super().open(context)
                self.seen = context.get_state(state)

            def on_timer(self, at, ctx):
                self.seen.update(1)
                return [(ctx.current_key, ctx.timers.processing_time)]

        job = new_job(event_time=lambda row: at(row[1]))
        rows = [row("a", 5, domain=EVENT), row("b", event_time=9)]
        job.run(Stamping(), rows)
        clock, job.clock = job.clock, Timeless()
        assert job.run(Stamping(), []) == [("a", START)]
        job.clock = clock
        assert job.peek(state, "a") == (job.clock.now_us, 1)

    @pytest.mark.parametrize("leap", [4, 5], ids=lambda windows: f"{windows} windows")
    def test_a_chain_of_windows_that_the_watermark_leaps_over_closes_before_later_rows(
        self, new_job, manner, leap
    ):
        base = FUNCTIONS[manner.style]

        class Windows(base):
            """Each window registers the next one."""

            def process_element(self, row, ctx):
                ctx.collect((row[0], f"row at {row[1]}"))
                return super().process_element(row, ctx)

            def on_timer(self, at, ctx):
                change_timer(ctx, "register", EVENT, seconds_of(at) + 60)
                return [(ctx.current_key, f"window to {seconds_of(at)}")]

        job = new_job(settings=manner.settings, event_time=lambda row: at(row[1]))
        job.run(Windows(), [row("a", 60, event_time=0, domain=EVENT)])
        job.run(Windows(), [row("b", event_time=60 * leap)])
        found = job.run(Windows(), [row("a", event_time=60 * leap + 30)])
        closed = [("a", f"window to {60 * n}") for n in range(1, leap + 1)]
        assert found == [*closed, ("a", f"row at {60 * leap + 30}")]
        assert job.run(Windows(), []) == []

    def test_the_end_of_the_input_fires_every_event_time_timer(self, timed):
        _, run = timed(parallelism=2)
        run(0, row("a", 500, 20, event_time=5, domain=EVENT), row("b", 30, domain=EVENT))
        run(0, row("a", 70, event_time=6), row("b", event_time=6))
        fired = run(1, row("c", 10, event_time=7, domain=EVENT), end=True)
        of_keys = {key: [seconds for one, seconds in fired if one == key] for key in "abc"}
        assert of_keys == {"a": [20, 500], "b": [30], "c": [10]}
        assert run(70) == [("a", 70)], "a timer of the other kind stays"

    def test_a_row_that_comes_late_is_a_row(self, timed):
        _, run = timed()
        run(0, row("a", event_time=100))
        late = row("a", 40, 120, event_time=30, domain=EVENT)
        assert run(0, late) == [("a", 40)], "it may register what is over, which fires at once"

    @pytest.mark.parametrize("lateness", [SECOND, timedelta.max], ids=["1 s", "for ever"])
    def test_the_watermark_is_never_before_the_year_1(self, new_job, lateness):
        job = new_job(event_time=lambda row: at(row[1]), lateness=lateness)
        first = row("a", event_time=seconds_of(FIRST))
        assert job.run(Watching(), [first]) == [None]
        job.restart()
        assert job.run(Watching(), [row("a", event_time=5)]) == [FIRST]
        later = FIRST if lateness is timedelta.max else at(4)
        assert _watermark_of(job) == later

    def test_both_kinds_at_one_time(self, timed):
        _, run = timed()
        both = [("register", EVENT, 5), ("register", PROCESSING, 5)]
        run(0, ("a", 0, both))
        assert run(5) == [("a", 5)]
        run(5, row("a", event_time=7))
        assert run(5) == [("a", 5)]

    def test_two_inputs(self, new_job):
        class Two(KeyedCoProcessFunction):
            def process_element1(self, row, ctx):
                ctx.timers.register_event_time(at(row[1] + 5))

            process_element2 = process_element1

            def on_timer(self, at, ctx):
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(Two(), [row("a", event_time=10)], [row("b", event_time=1)]) == []
        assert job.run(Two(), [], [row("c", event_time=20)]) == [], "the second input has seen 1"
        assert job.run(Two(), []) == [("b", 6), ("a", 15)]

    def test_a_function_that_drops_its_timers_and_takes_them_up_again(self, timed):
        job, run = timed()
        run(0, row("a", 5))
        job.clock.advance(10 * SECOND)
        assert job.run(Recorded(lambda *_: None, lambda *_: None), [row("k")]) == []
        assert run(10) == [("a", 5)]


class TestOnHeap(OnHeap, EventTime):
    """Synchronous, and with coroutines that wait for their turn."""


class TestOnReference(OnReference, EventTime):
    """Awaited, and with callbacks."""

    @pytest.fixture(params=["coroutine", "callback"])
    def manner(self, request):
        return MANNERS[request.param]


class Watching(TimerFunction):
    """Emits the watermark."""

    def process_element(self, row, ctx):
        return [ctx.timers.watermark]


def _watermark_of(job):
    """Return the watermark that the next micro-batch would see."""
    return job.run(Watching(), [row("any")], crash=True)[0]


def _keys_of_subtasks(job):
    """Return a key of each subtask."""
    found = {}
    for number in range(100):
        group = key_group_of(f"k{number}", job.max_parallelism)
        found.setdefault(subtask_of(group, job.parallelism, job.max_parallelism), f"k{number}")
    return [found[subtask] for subtask in range(job.parallelism)]
