"""Timers (docs/reference/state.md): stored, and fired in the order of their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import FunctionError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import KeyedCoProcessFunction, KeyedProcessFunction
from forebay_state_api.job.timers import TimeDomain
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.kinds import BERLIN, SWITCHES
from forebay_testing.backends.subject import SECOND, BackendSubject, Manner, NewJob, Recorded
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Style

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FIRST: Final = datetime.min.replace(tzinfo=UTC)
START: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""The initial time of a manual clock."""
PROCESSING: Final = TimeDomain.PROCESSING_TIME
EVENT: Final = TimeDomain.EVENT_TIME
DOMAINS: Final = (EVENT, PROCESSING)

Row = tuple[str, int, list[tuple[str, TimeDomain, int]]]
"""Key, event time and (``register`` or ``delete``, domain, time); times in s after `START`."""


def at(seconds: float) -> datetime:
    """Return the time ``seconds`` after the start."""
    return START + seconds * SECOND


def seconds_of(time: datetime) -> int:
    """Inverse of `at`."""
    return (time - START) // SECOND


def change_timer(ctx: RuntimeContext, what: str, domain: TimeDomain, seconds: int) -> None:
    """Register or delete a timer."""
    getattr(ctx.timers, f"{what}_{domain.value}")(at(seconds))


class TimerFunction(KeyedProcessFunction[str, Row, Any]):
    """Carries out the actions of rows; emits ``(key, time)`` for each timer.

    A timer at a time that ends in 9 registers the time ten seconds later.
    """

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        for change in row[2]:
            change_timer(ctx, *change)

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        seconds = seconds_of(at)
        if seconds % 10 == 9:
            change_timer(ctx, "register", ctx.timers.domain or PROCESSING, seconds + 10)
        return [(ctx.current_key, seconds)]


class TimersAndTtl(TimerFunction):
    """Emits with each timer the event time of the key's last row, kept for 100 s."""

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        ttl = StateTtlConfig(100 * SECOND)
        self.recent = context.get_state(ValueStateDescriptor("recent", int, ttl=ttl))

    def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        self.recent.update(row[1])
        return super().process_element(row, ctx)

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        return [(*fired, self.recent.value()) for fired in super().on_timer(at, ctx)]


class CoroutineTimers(TimerFunction):
    """The same as a coroutine that awaits state."""

    async def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        for change in row[2]:
            count = await self.count.async_value()
            self.count.async_update((count or 0) + 1)
            change_timer(ctx, *change)

    async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        await self.count.async_value()
        return super().on_timer(at, ctx)


class CallbackTimers(TimerFunction):
    """The same with callbacks of futures."""

    def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        def go_on(_: Any) -> None:
            for change in row[2]:
                change_timer(ctx, *change)

        self.count.async_value().then_accept(go_on)

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        fire = super().on_timer
        return self.count.async_value().then_apply(lambda _: fire(at, ctx))


FUNCTIONS: Final[dict[Style, type[TimerFunction]]] = {
    Style.SYNCHRONOUS: TimerFunction,
    Style.COROUTINE: CoroutineTimers,
    Style.CALLBACK: CallbackTimers,
    Style.UNCHAINED: CallbackTimers,
}


def row(key: str, *registered: int, event_time: int = 0, domain: TimeDomain = PROCESSING) -> Row:
    """A row that registers timers."""
    return key, event_time, [("register", domain, seconds) for seconds in registered]


class TimerTests(BackendSubject):
    """Timers of both kinds, in every style of function."""

    @pytest.fixture
    def timed(self, new_job: NewJob, some_manner: Manner) -> Any:
        """Return a factory of a job with event times and a function that runs one micro-batch."""

        def make(**more: Any) -> tuple[KeyedJob, Callable[..., list[Any]]]:
            more.setdefault("event_time", lambda row: at(row[1]))
            job = new_job(settings=some_manner.settings, **more)
            function = FUNCTIONS[some_manner.style]()

            def run(
                seconds: float, *rows: Row, crash: bool = False, end: bool = False
            ) -> list[Any]:
                job.clock.advance(at(seconds) - at(job.clock.now_us / 1e6 - START.timestamp()))
                return job.process(function, [*job.keyed(rows)], crash=crash, end=end)

            return job, run

        return make

    def test_a_timer_fires_once_when_its_time_has_come(self, timed: Any) -> None:
        _, run = timed()
        assert run(0, row("a", 5)) == []
        assert run(4.999999) == []
        assert run(5) == [("a", 5)]
        assert run(6) == []

    def test_registering_again_changes_nothing(self, timed: Any) -> None:
        _, run = timed()
        run(0, row("a", 5, 5))
        run(1, row("a", 5))
        assert run(5) == [("a", 5)]

    def test_deleting(self, timed: Any) -> None:
        _, run = timed()
        run(0, row("a", 5, 6), row("b", 5))
        deleting = [("delete", PROCESSING, seconds) for seconds in (5, 7)]
        assert run(1, ("a", 0, deleting)) == []
        assert run(9) == [("b", 5), ("a", 6)]

    def test_they_fire_in_the_order_of_times(self, timed: Any) -> None:
        _, run = timed()
        times = [170, 3, 100000, 66, 67, 4, 68, 1, 60]
        run(0, *(row(f"k{n}", seconds) for n, seconds in enumerate(times)))
        fired = run(200_000)
        assert sorted(fired) == sorted((f"k{n}", s) for n, s in enumerate(times))
        assert [seconds for _, seconds in fired] == sorted(times)

    def test_what_is_due_fires_before_the_rows_and_what_they_register_after_them(
        self, timed: Any
    ) -> None:
        _, run = timed()
        run(0, row("a", 5))
        assert run(10, row("a", 7, 3)) == [("a", 5), ("a", 3), ("a", 7)]

    def test_a_timer_that_is_deleted_by_a_row_before_it_fires(self, timed: Any) -> None:
        _, run = timed()
        changes = [("register", PROCESSING, 3), ("delete", PROCESSING, 3)]
        assert run(10, ("a", 0, changes)) == []
        assert run(20) == []

    def test_what_firing_registers_joins_in_if_it_is_due(self, timed: Any) -> None:
        _, run = timed()
        run(0, row("a", 9), row("b", 25))
        assert sorted(run(40)) == [("a", 9), ("a", 19), ("a", 29), ("a", 39), ("b", 25)]
        assert run(48) == []
        assert run(49) == [("a", 49)]

    def test_what_is_registered_again_while_it_waits_its_turn_fires_once(self, timed: Any) -> None:
        _, run = timed()
        run(0, row("a", 9, 19, 59, domain=EVENT))
        run(0, row("z", event_time=200))
        assert run(0) == [("a", seconds) for seconds in range(9, 201, 10)]
        assert run(0) == []

    def test_what_processing_time_timers_register_and_is_due_fires_after_the_rows(
        self, timed: Any
    ) -> None:
        _, run = timed()
        run(0, row("a", 9, 25, 89))
        found = run(100, row("a", 7))
        before, after = [9, 25, 89], [7, 19, 29, 39, 49, 59, 69, 79, 89, 99]
        assert found == [("a", seconds) for seconds in before + after]
        assert run(109) == [("a", 109)]

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    def test_a_processing_time_timer_that_is_stored_is_not_deferred_by_another(
        self, new_job: NewJob, domain: TimeDomain, some_manner: Manner
    ) -> None:
        base: Any = FUNCTIONS[some_manner.style]

        class Again(base):  # type: ignore[misc]  # which class is known when it runs
            """Registers and deletes timers that may be stored."""

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                if seconds_of(at) == 1:
                    for seconds in (70, 80, 90):
                        change_timer(ctx, "register", PROCESSING, seconds)
                    change_timer(ctx, "delete", PROCESSING, 90)
                return [(ctx.current_key, seconds_of(at))]

            def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
                if row[2]:
                    return super().process_element(row, ctx)
                return [(row[0], "row")]

        job = new_job(event_time=lambda row: at(row[1]))
        first = row("a", 1, domain=domain)
        job.run(Again(), [("a", 1, [*first[2], ("register", PROCESSING, 70)])])
        job.clock.advance(100 * SECOND)
        assert job.run(Again(), [row("a")]) == [("a", 1), ("a", 70), ("a", "row"), ("a", 80)]

    def test_event_time_timers_that_processing_time_timers_register_fire_before_the_rows(
        self, new_job: NewJob
    ) -> None:
        class Both(TimerFunction):
            def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
                super().process_element(row, ctx)
                return [(row[0], "row")]

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                if ctx.timers.domain is PROCESSING:
                    change_timer(ctx, "register", EVENT, 3)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(Both(), [row("a", 5, event_time=4)]) == [("a", "row")]
        job.clock.advance(10 * SECOND)
        assert job.run(Both(), [row("a")]) == [("a", 5), ("a", 3), ("a", "row")]

    def test_a_time_that_is_not_later_waits_for_the_next_batch(self, new_job: NewJob) -> None:
        class Again(TimerFunction):
            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                ctx.timers.register_processing_time(at - SECOND)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job()
        job.clock.advance(10 * SECOND)
        assert job.run(Again(), [row("a", 5)]) == [("a", 5)]
        assert job.run(Again(), []) == [("a", 4)]
        assert job.run(Again(), []) == [("a", 3)]

    def test_a_timer_deletes_another_of_its_key(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        class Deleting(CoroutineTimers):
            async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                await self.count.async_value()
                ctx.timers.delete_processing_time(at + SECOND)
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(settings=engine_settings)
        job.run(Deleting(), [row("a", 5, 6, 7), row("b", 6)])
        job.clock.advance(10 * SECOND)
        assert sorted(job.run(Deleting(), [])) == [("a", 5), ("a", 7), ("b", 6)]

    def test_keys_and_state_are_those_of_records(self, timed: Any) -> None:
        job, run = timed()

        class Counting(TimerFunction):
            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                self.count.update((self.count.value() or 0) + 100)
                return [(ctx.current_key, self.count.value(), ctx.current_namespace)]

        run(0, row("a", 5), row("b", 6))
        job.clock.advance(10 * SECOND)
        counted = {key: value for key, value, _ in job.run(Counting(), [])}
        assert set(counted) == {"a", "b"}
        assert all(value in (100, 101) for value in counted.values())

    def test_a_failure_names_the_timer_and_commits_nothing(self, timed: Any) -> None:
        job, run = timed()

        class Failing(TimerFunction):
            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                raise LookupError("trouble")

        run(0, row("a", 5))
        job.clock.advance(10 * SECOND)
        with pytest.raises(FunctionError, match=r"Failing\.on_timer.*'a'.*trouble"):
            job.run(Failing(), [])
        assert run(10) == [("a", 5)]

    @pytest.mark.parametrize(
        ("parallelisms", "max_parallelism"),
        [([1, 2], 128), ([4, 3], 10), ([2, 1, 8], 10)],
        ids=str,
    )
    def test_a_rescale_finds_every_timer(
        self, timed: Any, parallelisms: list[int], max_parallelism: int
    ) -> None:
        job, run = timed(parallelism=parallelisms[0], max_parallelism=max_parallelism)
        run(0, *(row(f"k{n}", 1, 100 + n) for n in range(40)))
        assert sorted(run(2)) == sorted((f"k{n}", 1) for n in range(40))
        for number, parallelism in enumerate(parallelisms[1:]):
            job.restart(parallelism=parallelism)
            assert run(3 + number, row(f"new {number}", 200)) == []
        expected = [(f"k{n}", 100 + n) for n in range(40)]
        expected += [(f"new {number}", 200) for number in range(len(parallelisms) - 1)]
        expected += [(f"k{n}", 110 + n) for n in range(40) if n % 10 == 9]
        later = [(f"k{n}", s) for n in range(9, 40, 10) for s in range(120 + n, 301, 10)]
        assert sorted(run(300)) == sorted(expected + later)
        job.restart(parallelism=parallelisms[0])
        assert sorted(run(309)) == sorted((f"k{n}", 309) for n in range(9, 40, 10))

    @pytest.mark.parametrize(("before", "after", "max_parallelism"), [(2, 5, 128), (8, 1, 10)])
    def test_a_rescale_keeps_timers_beside_times_to_live(
        self, new_job: NewJob, before: int, after: int, max_parallelism: int
    ) -> None:
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

    def test_a_crash_fires_nothing_twice_and_loses_nothing(self, timed: Any) -> None:
        job, run = timed(parallelism=2)
        run(0, row("a", 5), row("b", 7), row("c", 9))
        assert sorted(run(8, row("d", 8), crash=True)) == [("a", 5), ("b", 7), ("d", 8)]
        assert sorted(run(8, row("d", 8))) == [("a", 5), ("b", 7), ("d", 8)]
        job.restart()
        assert run(9) == [("c", 9)]

    def test_timers_of_a_clock_set_back_wait(self, timed: Any) -> None:
        _, run = timed()
        run(100, row("a", 150))
        assert run(50, row("b", 60)) == []
        assert run(60) == [("b", 60)]
        assert run(150) == [("a", 150)]

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_clock_at_the_epoch_fires_a_timer_for_the_epoch(
        self, new_job: NewJob, some_manner: Manner, *, stored: bool
    ) -> None:
        zero = seconds_of(EPOCH)
        job = new_job(clock=ManualClock(EPOCH - stored * SECOND))
        function = FUNCTIONS[some_manner.style]()
        fired = [job.run(function, [row("a", zero, zero + 1)])]
        job.clock.set(EPOCH)
        fired += [job.run(function, []), job.run(function, [])]
        assert fired == ([[], [("a", zero)], []] if stored else [[("a", zero)], [], []])

    def test_an_event_time_timer_for_the_epoch_fires_at_the_epoch(self, new_job: NewJob) -> None:
        zero = seconds_of(EPOCH)
        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(TimerFunction(), [row("a", zero, event_time=zero - 1, domain=EVENT)]) == []
        assert job.run(TimerFunction(), [row("b", event_time=zero)]) == []
        assert job.run(TimerFunction(), []) == [("a", zero)]

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_a_time_of_any_zone_comes_back_in_utc(
        self, new_job: NewJob, switch: str, domain: TimeDomain
    ) -> None:
        class Zoned(TimerFunction):
            def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
                for time in SWITCHES[switch]:
                    register = getattr(ctx.timers, f"register_{domain.value}")
                    register(time.astimezone(BERLIN))

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
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

    def test_without_a_time_nothing_fires(self, new_job: NewJob) -> None:
        class Early(TimerFunction):
            def open(self, context: RuntimeContext) -> None:
                super().open(context)
                assert context.timers.processing_time == EPOCH

        assert new_job(clock=Timeless()).run(Early(), []) == []

    # -- event time ---------------------------------------------------------------------------

    def test_the_watermark_comes_from_the_batch_before(self, timed: Any) -> None:
        _, run = timed(lateness=3 * SECOND)
        assert run(0, row("a", 10, 20, event_time=5, domain=EVENT)) == []
        assert run(0, row("a", event_time=13)) == []
        assert run(0, row("a", event_time=20)) == [("a", 10)], "the batch before has seen 13"
        assert run(0) == []
        assert run(0, row("a", event_time=23)) == []
        assert run(0) == [("a", 20)]

    def test_the_watermark_is_the_least_of_the_subtasks_that_had_rows(
        self, new_job: NewJob
    ) -> None:
        job = new_job(parallelism=2, event_time=lambda row: at(row[1]))
        first, second = _keys_of_subtasks(job)

        def watermark() -> Any:
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

    def test_without_rows_the_time_is_that_of_the_version(self, new_job: NewJob) -> None:
        state = ValueStateDescriptor("seen", int, ttl=StateTtlConfig(10 * SECOND))

        class Stamping(TimerFunction):
            def open(self, context: RuntimeContext) -> None:
                super().open(context)
                self.seen = context.get_state(state)

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
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
        self, new_job: NewJob, some_manner: Manner, leap: int
    ) -> None:
        base: Any = FUNCTIONS[some_manner.style]

        class Windows(base):  # type: ignore[misc]  # which class is known when it runs
            """Each window registers the next one."""

            def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
                ctx.collect((row[0], f"row at {row[1]}"))
                return super().process_element(row, ctx)

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                change_timer(ctx, "register", EVENT, seconds_of(at) + 60)
                return [(ctx.current_key, f"window to {seconds_of(at)}")]

        job = new_job(settings=some_manner.settings, event_time=lambda row: at(row[1]))
        job.run(Windows(), [row("a", 60, event_time=0, domain=EVENT)])
        job.run(Windows(), [row("b", event_time=60 * leap)])
        found = job.run(Windows(), [row("a", event_time=60 * leap + 30)])
        closed = [("a", f"window to {60 * n}") for n in range(1, leap + 1)]
        assert found == [*closed, ("a", f"row at {60 * leap + 30}")]
        assert job.run(Windows(), []) == []

    def test_the_end_of_the_input_fires_every_event_time_timer(self, timed: Any) -> None:
        _, run = timed(parallelism=2)
        run(0, row("a", 500, 20, event_time=5, domain=EVENT), row("b", 30, domain=EVENT))
        run(0, row("a", 70, event_time=6), row("b", event_time=6))
        fired = run(1, row("c", 10, event_time=7, domain=EVENT), end=True)
        of_keys = {key: [seconds for one, seconds in fired if one == key] for key in "abc"}
        assert of_keys == {"a": [20, 500], "b": [30], "c": [10]}
        assert run(70) == [("a", 70)], "a timer of the other kind stays"

    def test_a_row_that_comes_late_is_a_row(self, timed: Any) -> None:
        _, run = timed()
        run(0, row("a", event_time=100))
        late = row("a", 40, 120, event_time=30, domain=EVENT)
        assert run(0, late) == [("a", 40)], "it may register what is over, which fires at once"

    @pytest.mark.parametrize("lateness", [SECOND, timedelta.max], ids=["1 s", "for ever"])
    def test_the_watermark_is_never_before_the_year_1(
        self, new_job: NewJob, lateness: timedelta
    ) -> None:
        job = new_job(event_time=lambda row: at(row[1]), lateness=lateness)
        first = row("a", event_time=seconds_of(FIRST))
        assert job.run(Watching(), [first]) == [None]
        job.restart()
        assert job.run(Watching(), [row("a", event_time=5)]) == [FIRST]
        later = FIRST if lateness is timedelta.max else at(4)
        assert _watermark_of(job) == later

    def test_both_kinds_at_one_time(self, timed: Any) -> None:
        _, run = timed()
        both = [("register", EVENT, 5), ("register", PROCESSING, 5)]
        run(0, ("a", 0, both))
        assert run(5) == [("a", 5)]
        run(5, row("a", event_time=7))
        assert run(5) == [("a", 5)]

    def test_two_inputs(self, new_job: NewJob) -> None:
        class Two(KeyedCoProcessFunction[str, Row, Row, Any]):
            def process_element1(self, row: Row, ctx: RuntimeContext) -> Any:
                ctx.timers.register_event_time(at(row[1] + 5))

            process_element2 = process_element1

            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                return [(ctx.current_key, seconds_of(at))]

        job = new_job(event_time=lambda row: at(row[1]))
        assert job.run(Two(), [row("a", event_time=10)], [row("b", event_time=1)]) == []
        assert job.run(Two(), [], [row("c", event_time=20)]) == [], "the second input has seen 1"
        assert job.run(Two(), []) == [("b", 6), ("a", 15)]

    def test_a_function_that_drops_its_timers_and_takes_them_up_again(self, timed: Any) -> None:
        job, run = timed()
        run(0, row("a", 5))
        job.clock.advance(10 * SECOND)
        assert job.run(Recorded(lambda *_: None, lambda *_: None), [row("k")]) == []
        assert run(10) == [("a", 5)]


class Timeless(ManualClock):
    """The clock of a subtask without rows, which gets no time from Spark."""

    @property
    def now_us(self) -> int:
        return NO_TIME


class Watching(TimerFunction):
    """Emits the watermark."""

    def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        return [ctx.timers.watermark]


def _watermark_of(job: KeyedJob) -> Any:
    """Return the watermark that the next micro-batch would see."""
    return job.run(Watching(), [row("any")], crash=True)[0]


def _keys_of_subtasks(job: KeyedJob) -> Iterable[str]:
    """Return a key of each subtask."""
    found: dict[int, str] = {}
    for number in range(100):
        group = key_group_of(f"k{number}", job.max_parallelism)
        found.setdefault(subtask_of(group, job.parallelism, job.max_parallelism), f"k{number}")
    return [found[subtask] for subtask in range(job.parallelism)]
