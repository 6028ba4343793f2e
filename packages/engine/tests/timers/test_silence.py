"""Silence of inputs where subtasks know different times, and the requests that it costs."""

from __future__ import annotations

from types import SimpleNamespace

import attrs
import pytest

from forebay_engine.timers.event_times import EventTimeBounds, EventTimeRules
from forebay_engine.timers.starting_clocks import times_of
from forebay_engine.timers.watermark import ALWAYS, LAST_US, NEVER, TimerClocks
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_testing.backends.subject import SECOND
from forebay_testing.backends.timers import at, row

from ..subjects import OnHeap

RULES = EventTimeRules(lateness_us=[0], idle_after_us=10)
CARRIER = TimerClocks(
    now_us=100, watermark_us=50, seen_us=[50], active=[False], marks_us=[50], silent_us=[8]
)
OTHER = TimerClocks(now_us=100, watermark_us=50, seen_us=[ALWAYS], active=[False])


def after(*parts, now_us=200, rules=RULES, continues=True):
    every = [part.stored() for part in parts]
    making = SimpleNamespace(
        is_restored=True,
        manifests=[SimpleNamespace(times=one) for one in every[:1]],
        every_times=lambda: every,
        continues_run=continues,
    )
    return times_of(making, now_us=now_us, rules=rules)


def test_a_step_is_the_time_that_some_subtask_knows():
    """Under Spark Connect a subtask without rows does not learn the time of its micro-batch."""
    carrier = attrs.evolve(CARRIER, now_us=93, before_us=93)
    found = after(carrier, attrs.evolve(OTHER, now_us=96), now_us=NO_TIME)
    assert (found.silent_us, found.watermark_us) == ([11], 61)
    assert (found.now_us, found.before_us) == (96, 96)


def test_another_run_has_no_micro_batch_before_it():
    found = after(attrs.evolve(CARRIER, before_us=NO_TIME), OTHER, continues=False)
    assert (found.silent_us, found.before_us, found.watermark_us) == ([8], NO_TIME, 50)


def test_silence_ends_with_the_years():
    carrier = attrs.evolve(CARRIER, marks_us=[LAST_US - 1], before_us=98)
    assert after(carrier, OTHER).watermark_us == LAST_US


@pytest.mark.parametrize("times", [TimerClocks(), TimerClocks(watermark_us=7)])
def test_a_version_without_marks(times):
    found = after(attrs.evolve(times, seen_us=[ALWAYS], active=[False]))
    assert (found.marks_us, found.silent_us) == ([times.watermark_us], [0])
    assert found.watermark_us == times.watermark_us


def test_bounds():
    rules = EventTimeRules(lateness_us=[0], max_ahead_us=10)
    assert rules.bounds(watermark_us=5, now_us=100) == EventTimeBounds(5, 110)
    assert rules.bounds(watermark_us=5, now_us=NO_TIME) == EventTimeBounds(5, NEVER)
    bounds = EventTimeBounds(5, 110)
    assert [bounds.excludes(us) for us in (5, 6, 110, 111)] == [True, False, False, True]


class Quiet(KeyedProcessFunction):
    def process_element(self, row, ctx):
        return []


class TestRequests(OnHeap):
    def test_silence_adds_no_request(self, new_job):
        found = []
        for idle_after_us in (None, 10 * 10**6):
            job = new_job(parallelism=4, event_time=lambda row: at(row[1]))
            job.idle_after_us = idle_after_us
            for number in range(4):
                job.clock.advance(5 * SECOND)
                job.run(Quiet(), [row("a", event_time=9)] if number == 0 else [])
            names = ("storage_requests_put", "storage_requests_get", "storage_requests_list")
            found.append([[one.figures.get(name) for name in names] for one in job.reports])
        assert found[0] == found[1]
        assert all(None not in one for one in found[0])
