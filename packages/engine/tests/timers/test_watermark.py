"""The clocks with which a micro-batch begins, from the versions before it."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

from forebay_engine.timers.event_times import EventTimeRules
from forebay_engine.timers.instants import us_of
from forebay_engine.timers.starting_clocks import times_of
from forebay_engine.timers.watermark import ALWAYS, TimerClocks

FIRST_US = us_of(datetime.min.replace(tzinfo=UTC))


def opened(*parts):
    manifests = [SimpleNamespace(times=part.stored()) for part in parts]
    every = [part.stored() for part in parts]
    return SimpleNamespace(
        is_restored=True, manifests=manifests, every_times=lambda: every, continues_run=True
    )


def watermark_after(*parts, lateness_us=5):
    rules = EventTimeRules(lateness_us=[lateness_us])
    return times_of(opened(*parts), now_us=1, rules=rules).watermark_us


def test_a_stored_watermark_before_the_year_1_is_mended():
    poisoned = TimerClocks(watermark_us=FIRST_US - 5, seen_us=[FIRST_US], active=[False])
    assert watermark_after(poisoned) == FIRST_US
    assert watermark_after(poisoned, TimerClocks(seen_us=[100], active=[True])) == 95


def test_without_event_times_there_is_no_watermark():
    assert watermark_after(TimerClocks(seen_us=[ALWAYS], active=[False])) == ALWAYS
