"""Timers (docs/reference/state.md): they fire once, in the order of their times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from forebay_state_api.errors import FunctionError
from forebay_testing.backends.kinds import BERLIN, SWITCHES
from forebay_testing.backends.subject import MANNERS, SECOND
from forebay_testing.backends.timers import (
    DOMAINS,
    EVENT,
    PROCESSING,
    CoroutineTimers,
    TimerFunction,
    at,
    change_timer,
    row,
    seconds_of,
)
from forebay_testing.clock import ManualClock

from ..subjects import OnHeap, OnReference, Timeless
from .timer_functions import FUNCTIONS, Timed, TimersAndTtl

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timers(Timed):
    def test_a_timer_fires_once_when_its_time_has_come(self, timed):
        _, run = timed()
        assert run(0, row("a", 5)) == []
        assert run(4.999999) == []
        assert run(5) == [("a", 5)]
        assert run(6) == []

    def test_registering_again_changes_nothing(self, timed):
        _, run = timed()
        run(0, row("a", 5, 5))
        run(1, row("a", 5))
        assert run(5) == [("a", 5)]

    def test_deleting(self, timed):
        _, run = timed()
        run(0, row("a", 5, 6), row("b", 5))
        deleting = [("delete", PROCESSING, seconds) for seconds in (5, 7)]
        assert run(1, ("a", 0, deleting)) == []
        assert run(9) == [("b", 5), ("a", 6)]

    def test_they_fire_in_the_order_of_times(self, timed):
        _, run = timed()
        times = [170, 3, 100000, 66, 67, 4, 68, 1, 60]
        run(0, *(row(f"k{n}", seconds) for n, seconds in enumerate(times)))
        fired = run(200_000)
        assert sorted(fired) == sorted((f"k{n}", s) for n, s in enumerate(times))
        assert [seconds for _, seconds in fired] == sorted(times)

    def test_what_is_due_fires_before_the_rows_and_what_they_register_after_them(self, timed):
        _, run = timed()
        run(0, row("a", 5))
        assert run(10, row("a", 7, 3)) == [("a", 5), ("a", 3), ("a", 7)]

    def test_a_timer_that_is_deleted_by_a_row_before_it_fires(self, timed):
        _, run = timed()
        changes = [("register", PROCESSING, 3), ("delete", PROCESSING, 3)]
        assert run(10, ("a", 0, changes)) == []
        assert run(20) == []

    def test_what_firing_registers_joins_in_if_it_is_due(self, timed):
        _, run = timed()
        run(0, row("a", 9), row("b", 25))
        assert sorted(run(40)) == [("a", 9), ("a", 19), ("a", 29), ("a", 39), ("b", 25)]
        assert run(48) == []
        assert run(49) == [("a", 49)]

    def test_what_is_registered_again_while_it_waits_its_turn_fires_once(self, timed):
        _, run = timed()
        run(0, row("a", 9, 19, 59, domain=EVENT))
        run(0, row("z", event_time=200))
        assert run(0) == [("a", seconds) for seconds in range(9, 201, 10)]
        assert run(0) == []

    def test_what_processing_time_timers_register_and_is_due_fires_after_the_rows(self, timed):
        _, run = timed()
        run(0, row("a", 9, 25, 89))
        found = run(100, row("a", 7))
        before, after = [9, 25, 89], [7, 19, 29, 39, 49, 59, 69, 79, 89, 99]
        assert found == [("a", seconds) for seconds in before + after]
        assert run(109) == [("a", 109)]

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    def test_a_processing_time_timer_that_is_stored_is_not_deferred_by_another(
        self, new_job, domain, manner
    ):
        base = FUNCTIONS[manner.style]

        class Again(base):
            """Registers and deletes timers that may be stored."""

            def on_timer(self, at, ctx):
                if seconds_of(at) == 1:
                    for seconds in (70, 80, 90):
                        change_timer(ctx, "register", PROCESSING, seconds)
                    change_timer(ctx, "delete", PROCESSING, 90)
                return [(ctx.current_key, seconds_of(at))]

            def process_element(self, row, ctx):
                if row[2]:
                    return super().process_element(row, ctx)
                return [(row[0], "row")]

        job = new_job(event_time=lambda row: at(row[1]))
        first = row("a", 1, domain=domain)
        job.run(Again(), [("a", 1, [*first[2], ("register", PROCESSING, 70)])])
        job.clock.advance(100 * SECOND)
        assert job.run(Again(), [row("a")]) == [("a", 1), ("a", 70), ("a", "row"), ("a", 80)]

    def test_event_time_timers_that_processing_time_timers_register_fire_before_the_rows(
        self, new_job
    ):
        class Both(TimerFunction):
            def process_element(self, row, ctx):
                super().process_element(row, ctx)
                return [(row[0], "row")]

            def on_timer(self, at, ctx):
                if ctx.timers.domain is PROCESSING:
                    change_timer(ctx, "register", EVENT, 3)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(Both(), [row("a", 5, event_time=4)]) == [("a", "row")]
        job.clock.advance(10 * SECOND)
        assert job.run(Both(), [row("a")]) == [("a", 5), ("a", 3), ("a", "row")]

    def test_a_time_that_is_not_later_waits_for_the_next_batch(self, new_job):
        class Again(TimerFunction):
            def on_timer(self, at, ctx):
                ctx.timers.register_processing_time(at - SECOND)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job()
        job.clock.advance(10 * SECOND)
        assert job.run(Again(), [row("a", 5)]) == [("a", 5)]
        assert job.run(Again(), []) == [("a", 4)]
        assert job.run(Again(), []) == [("a", 3)]

    def test_a_timer_deletes_another_of_its_key(self, new_job, engine_settings):
        class Deleting(CoroutineTimers):
            async def on_timer(self, at, ctx):
                await self.count.async_value()
                ctx.timers.delete_processing_time(at + SECOND)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(settings=engine_settings)
        job.run(Deleting(), [row("a", 5, 6, 7), row("b", 6)])
        job.clock.advance(10 * SECOND)
        assert sorted(job.run(Deleting(), [])) == [("a", 5), ("a", 7), ("b", 6)]

    def test_keys_and_state_are_those_of_records(self, timed):
        job, run = timed()

        class Counting(TimerFunction):
            def on_timer(self, at, ctx):
                self.count.update((self.count.value() or 0) + 100)
                return [(ctx.current_key, self.count.value(), ctx.current_namespace)]

        run(0, row("a", 5), row("b", 6))
        job.clock.advance(10 * SECOND)
        counted = {key: value for key, value, _ in job.run(Counting(), [])}
        assert set(counted) == {"a", "b"}
        assert all(value in (100, 101) for value in counted.values())

    def test_a_failure_names_the_timer_and_commits_nothing(self, timed):
        job, run = timed()

        class Failing(TimerFunction):
            def on_timer(self, at, ctx):
                raise LookupError("trouble")

        run(0, row("a", 5))
        job.clock.advance(10 * SECOND)
        with pytest.raises(FunctionError, match=r"Failing\.on_timer.*'a'.*trouble"):
            job.run(Failing(), [])
        assert run(10) == [("a", 5)]

    @pytest.mark.parametrize(("before", "after", "max_parallelism"), [(2, 5, 128), (8, 1, 10)])
    def test_a_rescale_keeps_timers_beside_times_to_live(
        self, new_job, before, after, max_parallelism
    ):
        job = new_job(parallelism=before, max_parallelism=max_parallelism)
        keys = [f"k{n}" for n in range(40)]
        job.run(TimersAndTtl(), [row(key, 60, 120, event_time=1) for key in keys])
        job.clock.advance(50 * SECOND)
        job.restart(parallelism=after)
        assert job.run(TimersAndTtl(), [row(key, event_time=2) for key in keys[:20]]) == []
        job.clock.advance(10 * SECOND)
        fired = job.run(TimersAndTtl(), [])
        assert sorted(fired) == sorted((key, 60, 2 - n // 20) for n, key in enumerate(keys))
        job.clock.advance(60 * SECOND)
        job.restart(parallelism=before)
        lasting = dict.fromkeys(keys[:20], 2)
        fired = job.run(TimersAndTtl(), [])
        assert sorted(fired) == sorted((key, 120, lasting.get(key)) for key in keys)

    def test_timers_of_a_clock_set_back_wait(self, timed):
        _, run = timed()
        run(100, row("a", 150))
        assert run(50, row("b", 60)) == []
        assert run(60) == [("b", 60)]
        assert run(150) == [("a", 150)]

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_clock_at_the_epoch_fires_a_timer_for_the_epoch(self, new_job, manner, *, stored):
        zero = seconds_of(EPOCH)
        job = new_job(clock=ManualClock(EPOCH - stored * SECOND))
        function = FUNCTIONS[manner.style]()
        fired = [job.run(function, [row("a", zero, zero + 1)])]
        job.clock.set(EPOCH)
        fired += [job.run(function, []), job.run(function, [])]
        assert fired == ([[], [("a", zero)], []] if stored else [[("a", zero)], [], []])

    def test_an_event_time_timer_for_the_epoch_fires_at_the_epoch(self, new_job):
        zero = seconds_of(EPOCH)
        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(TimerFunction(), [row("a", zero, event_time=zero - 1, domain=EVENT)]) == []
        assert job.run(TimerFunction(), [row("b", event_time=zero)]) == []
        assert job.run(TimerFunction(), []) == [("a", zero)]

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_a_time_of_any_zone_comes_back_in_utc(self, new_job, switch, domain):
        class Zoned(TimerFunction):
            def process_element(self, row, ctx):
                for time in SWITCHES[switch]:
                    register = getattr(ctx.timers, f"register_{domain.value}")
                    register(time.astimezone(BERLIN))

            def on_timer(self, at, ctx):
                mark = ctx.timers.watermark if domain is EVENT else ctx.timers.processing_time
                return [(repr(at), repr(mark))]

        first, second = SWITCHES[switch]
        job = new_job(clock=ManualClock(first - SECOND), event_time=lambda row: row[1])
        last = [("a", (second + SECOND).astimezone(BERLIN))]
        assert job.run(Zoned(), last) == []
        job.clock.set(second)
        fired = job.run(Zoned(), [])
        mark = job.clock.now if domain is PROCESSING else second + SECOND
        assert fired == [(repr(first), repr(mark)), (repr(second), repr(mark))]

    def test_without_a_time_nothing_fires(self, new_job):
        class Early(TimerFunction):
            def open(self, context):
                super().open(context)
                assert context.timers.processing_time == EPOCH

        assert new_job(clock=Timeless()).run(Early(), []) == []


class TestOnHeap(OnHeap, Timers):
    """Synchronous, and with coroutines that wait for their turn."""


class TestOnReference(OnReference, Timers):
    """Awaited, and with callbacks."""

    @pytest.fixture(params=["coroutine", "callback"])
    def manner(self, request):
        return MANNERS[request.param]
