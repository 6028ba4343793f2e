"""Timers (docs/reference/state.md): stored, and fired in the order of their times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.timers import TimeDomain
from forebay_testing.backends.subject import SECOND, BackendSubject, Manner, NewJob
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Style

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
    """Return the seconds after the start of a time from `at`."""
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


class CoroutineTimers(TimerFunction):
    """`TimerFunction`, written as a coroutine that awaits state."""

    async def process_element(self, row: Row, ctx: RuntimeContext) -> Any:
        for change in row[2]:
            count = await self.count.async_value()
            self.count.async_update((count or 0) + 1)
            change_timer(ctx, *change)

    async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        await self.count.async_value()
        return super().on_timer(at, ctx)


FUNCTIONS: Final[dict[Style, type[TimerFunction]]] = {
    Style.SYNCHRONOUS: TimerFunction,
    Style.COROUTINE: CoroutineTimers,
}


def row(key: str, *registered: int, event_time: int = 0, domain: TimeDomain = PROCESSING) -> Row:
    """A row that registers timers."""
    return key, event_time, [("register", domain, seconds) for seconds in registered]


class TimerTests(BackendSubject):
    """The tables in which the engine keeps timers, after a restart and a rescale."""

    @pytest.fixture
    def timed(self, new_job: NewJob, manner: Manner) -> Any:
        """Return a factory of a job with event times and a function that runs one micro-batch."""

        def make(**more: Any) -> tuple[KeyedJob, Callable[..., list[Any]]]:
            more.setdefault("event_time", lambda row: at(row[1]))
            job = new_job(settings=manner.settings, **more)
            function = FUNCTIONS[manner.style]()

            def run(seconds: float, *rows: Row, crash: bool = False) -> list[Any]:
                job.clock.advance(at(seconds) - at(job.clock.now_us / 1e6 - START.timestamp()))
                return job.process(function, [*job.keyed(rows)], crash=crash)

            return job, run

        return make

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

    def test_a_crash_fires_nothing_twice_and_loses_nothing(self, timed: Any) -> None:
        job, run = timed(parallelism=2)
        run(0, row("a", 5), row("b", 7), row("c", 9))
        assert sorted(run(8, row("d", 8), crash=True)) == [("a", 5), ("b", 7), ("d", 8)]
        assert sorted(run(8, row("d", 8))) == [("a", 5), ("b", 7), ("d", 8)]
        job.restart()
        assert run(9) == [("c", 9)]
