"""Without ``event_time=`` there is no watermark: what needs one is refused, in every function."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from forebay_state_api import ConfigurationError, KeyedBroadcastProcessFunction, Timers
from forebay_testing import FunctionHarness

AT = datetime(1900, 1, 1, tzinfo=UTC)
OF_WATERMARK = ("watermark", "is_late", "drop_late")
OF_EVENT_TIME = (*OF_WATERMARK, *(name for name in vars(Timers) if "event_time" in name))


class Row(NamedTuple):
    key: str


class Uses(KeyedBroadcastProcessFunction):
    def __init__(self, name):
        self.name = name

    def process_element(self, row, ctx):
        use(ctx.timers, self.name)

    def process_broadcast_element(self, row, ctx):
        use(ctx.timers, self.name)


class UsesAndHasTimers(Uses):
    def on_timer(self, at, ctx):
        pass


def use(timers, name):
    used = getattr(timers, name)
    if callable(used):
        used() if "list" in name else used(AT)


@pytest.mark.parametrize("name", OF_EVENT_TIME)
def test_what_needs_event_times_is_refused(name):
    with FunctionHarness(UsesAndHasTimers(name), "key", uid="visits") as harness:
        with pytest.raises(ConfigurationError, match=r"'visits': .* name their column with event_"):
            harness.process([Row("a")])
        assert harness.version == 0
    refused = pytest.raises(ConfigurationError, match=r"event_time=|has no on_timer")
    with FunctionHarness(lambda row, ctx: use(ctx.timers, name), "key") as harness, refused:
        harness.process([Row("a")])


@pytest.mark.parametrize("name", OF_WATERMARK)
@pytest.mark.parametrize("function", [Uses, UsesAndHasTimers])
def test_so_are_the_clocks_for_a_broadcast_row(name, function):
    refused = pytest.raises(ConfigurationError, match=f"ctx.timers.{name} needs event times")
    with FunctionHarness(function(name), "key") as harness, refused:
        harness.process([], [("rule",)])


def test_processing_time_needs_none():
    with FunctionHarness(lambda row, ctx: [(ctx.timers.processing_time,)], "key") as harness:
        assert len(harness.process([Row("a")])) == 1
