"""Timers in every style of function, and jobs with a clock and event times."""

from __future__ import annotations

import pytest

from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.subject import SECOND
from forebay_testing.backends.timers import START, CoroutineTimers, TimerFunction, at, change_timer
from forebay_testing.scripts import Style


class TimersAndTtl(TimerFunction):
    """Emits with each timer the event time of the key's last row, kept for 100 s."""

    def open(self, context):
        super().open(context)
        ttl = StateTtlConfig(100 * SECOND)
        self.recent = context.get_state(ValueStateDescriptor("recent", int, ttl=ttl))

    def process_element(self, row, ctx):
        self.recent.update(row[1])
        return super().process_element(row, ctx)

    def on_timer(self, at, ctx):
        return [(*fired, self.recent.value()) for fired in super().on_timer(at, ctx)]


class CallbackTimers(TimerFunction):
    """The same with callbacks of futures."""

    def process_element(self, row, ctx):
        def go_on(_):
            for change in row[2]:
                change_timer(ctx, *change)

        self.count.async_value().then_accept(go_on)

    def on_timer(self, at, ctx):
        fire = super().on_timer
        return self.count.async_value().then_apply(lambda _: fire(at, ctx))


FUNCTIONS = {
    Style.SYNCHRONOUS: TimerFunction,
    Style.COROUTINE: CoroutineTimers,
    Style.CALLBACK: CallbackTimers,
    Style.UNCHAINED: CallbackTimers,
}


class Timed:
    """Tests with a job whose clock they set."""

    @pytest.fixture
    def timed(self, new_job, manner):
        """Return a factory of a job with event times and a function that runs one micro-batch."""

        def make(**more):
            more.setdefault("event_time", lambda row: at(row[1]))
            job = new_job(settings=manner.settings, **more)
            function = FUNCTIONS[manner.style]()

            def run(seconds, *rows, crash=False, end=False):
                job.clock.advance(at(seconds) - at(job.clock.now_us / 1e6 - START.timestamp()))
                return job.process(function, [*job.keyed(rows)], crash=crash, end=end)

            return job, run

        return make
