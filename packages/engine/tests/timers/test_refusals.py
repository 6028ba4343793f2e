"""Timers that are refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_testing.backends.subject import Recorded
from forebay_testing.backends.timers import EVENT, TimerFunction, at, row

from ..subjects import OnReference


class TestRefusals(OnReference):
    def test_a_function_without_on_timer_has_no_timers(self, new_job):
        def register(function, row, ctx):
            ctx.timers.register_processing_time(at(5))

        with pytest.raises(ConfigurationError, match="on_timer"):
            new_job().run(Recorded(lambda *_: None, register), [("k",)])

    def test_event_time_needs_a_column(self, new_job):
        with pytest.raises(ConfigurationError, match="event_time="):
            new_job().run(TimerFunction(), [row("a", 5, domain=EVENT)])

    @pytest.mark.parametrize(
        ("time", "error"),
        [(datetime(2024, 1, 1), ValueError), (5, TypeError)],  # noqa: DTZ001 - refused
    )
    def test_a_time_is_an_instant(self, new_job, time, error):
        class Wrong(TimerFunction):
            def process_element(self, row, ctx):
                with pytest.raises(error, match="time zone"):
                    ctx.timers.register_processing_time(time)

        new_job().run(Wrong(), [row("a")])

    @pytest.mark.parametrize("method", ["register", "replace", "async_replace"])
    @pytest.mark.parametrize(
        "time",
        [
            datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12))),
            datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
        ],
        ids=str,
    )
    def test_a_time_that_on_timer_cannot_have_is_refused(self, new_job, time, method):
        class Wrong(TimerFunction):
            def process_element(self, row, ctx):
                with pytest.raises(ValueError, match="in the years 1 to 9999 in UTC"):
                    getattr(ctx.timers, f"{method}_processing_time")(time)

        new_job().run(Wrong(), [row("a")])

    def test_no_key_is_current_in_open(self, new_job):
        class Early(TimerFunction):
            def open(self, context):
                context.timers.register_processing_time(at(5))

        with pytest.raises(StateAccessError, match="no current key"):
            new_job().run(Early(), [row("a")])

    def test_the_names_of_their_tables_are_taken(self, new_job):
        def opened(function, context):
            context.get_state(ValueStateDescriptor("__timers__", int))

        with pytest.raises(ConfigurationError, match="__timers__"):
            new_job().run(Recorded(opened, lambda *_: None), [("k",)])
