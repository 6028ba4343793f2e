"""Ticks in the harness: micro-batches without rows, in which time goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_spark_runtime.testing import FunctionHarness, HarnessChain, ManualClock
from forebay_state_api import (
    ConfigurationError,
    FunctionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    StateAccessError,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.keys import canonical_key, key_group_of

START = datetime(2024, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
GROUPS = 4
FOREIGN = "foreign"


class Row(NamedTuple):
    key: str
    at: datetime | None = None


class Reminder(KeyedProcessFunction):
    """Emits each key ten seconds after its row, in the order of its timers."""

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time + 10 * SECOND)
        return []

    def on_timer(self, at, ctx):
        yield ctx.current_key, at


SCHEMA = "key string, at timestamp"


def test_a_tick_fires_the_timers_that_are_due_and_moves_the_clock():
    with FunctionHarness(Reminder(), "key", parallelism=2, max_parallelism=GROUPS) as harness:
        harness.process([Row("a"), Row("b")])
        assert harness.tick(START + 9 * SECOND) == []
        fired = harness.tick(START + 12 * SECOND)
        assert sorted(fired) == [(key, START + 10 * SECOND) for key in "ab"]
        assert harness.clock.now == START + 12 * SECOND
        assert harness.metrics.records == 0
        assert harness.tick(START + 12 * SECOND) == []


def test_a_tick_of_a_chain_reaches_the_next_operator_at_once():
    clock = ManualClock(START)
    harnesses = [
        FunctionHarness(Reminder(), "key", schema=SCHEMA, clock=clock, uid=uid) for uid in "xy"
    ]
    with HarnessChain(*harnesses) as chain:
        chain.process([Row("a")])
        assert chain.tick(START + 10 * SECOND) == []
        assert chain.tick(START + 20 * SECOND) == [("a", START + 20 * SECOND)]


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_tick_that_changes_nothing_writes_no_data(tmp_path, backend):
    options = {"parallelism": 2, "max_parallelism": GROUPS, "backend": backend}

    def stored():
        return {path.name for path in tmp_path.rglob("*") if path.is_file()}

    with FunctionHarness(Reminder(), "key", state_dir=tmp_path, **options) as harness:
        harness.process([Row("a"), Row("b")])
        harness.tick(START + SECOND)
        before = stored()
        harness.tick(START + 2 * SECOND)
        new = sorted(name.partition("-")[0] for name in stored() - before)
        assert new == ["manifest"] * 2 + ["marker"] * 2, "one of each for a subtask"


class Fixed:
    now_us = 0


@pytest.mark.parametrize(
    ("clock", "at", "words"),
    [
        (None, START - SECOND, "time does not go back"),
        (None, START.replace(tzinfo=None), "a datetime with a time zone"),
        (None, SECOND, "a datetime with a time zone"),
        (Fixed(), START, "not a ManualClock"),
    ],
)
def test_what_is_no_tick(clock, at, words):
    with (
        FunctionHarness(Reminder(), "key", clock=clock) as harness,
        pytest.raises(ConfigurationError, match=words),
    ):
        harness.tick(at)
    assert harness.version == 0
    with pytest.raises(StateAccessError, match="closed"):
        harness.tick(START)


COUNT = ValueStateDescriptor("count", int, ttl=StateTtlConfig(7 * SECOND))
SEEN = ListStateDescriptor("seen", str)


class Everything(KeyedProcessFunction):
    """Has timers of both kinds, some of which register others, and states with TTL and without."""

    def open(self, context):
        self.count = context.get_state(COUNT)
        self.seen = context.get_list_state(SEEN)

    def process_element(self, row, ctx):
        if row.key.startswith(FOREIGN):
            return
        self.count.update((self.count.value() or 0) + 1)
        ctx.timers.register_processing_time(ctx.timers.processing_time + 3 * SECOND)
        if row.at is not None:
            ctx.timers.register_event_time(row.at + 2 * SECOND)
        yield row.key, "row", self.count.value(), ctx.timers.processing_time, ctx.timers.watermark

    def on_timer(self, at, ctx):
        kind = ctx.timers.domain
        self.seen.add(f"{kind} {at:%M:%S}")
        if kind is TimeDomain.PROCESSING_TIME and at.second % 3 == 0:
            ctx.timers.register_processing_time(at + 4 * SECOND)
        yield ctx.current_key, f"{kind}", self.count.value(), at, ctx.timers.watermark


class Failing(Everything):
    """Fails in the first timer, after its changes."""

    def on_timer(self, at, ctx):
        self.seen.clear()
        ctx.timers.register_processing_time(at + SECOND)
        self.count.update(-1)
        raise ValueError(ctx.current_key)


def foreign_rows():
    """Return a row of each key group, whose event time is null."""
    found = {}
    for number in range(200):
        key = f"{FOREIGN}{number}"
        found.setdefault(key_group_of(canonical_key(key), GROUPS), Row(key))
    assert len(found) == GROUPS
    return list(found.values())


def failed_tick(harness, at):
    """Return the rows of a tick that failed, if a timer was due, and was run again."""
    harness.restart(Failing())
    try:
        rows = harness.tick(at)
    except FunctionError:
        rows = None
    harness.restart(Everything())
    return harness.tick(at) if rows is None else rows


KEYS = "abcd"
ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.none() | st.integers(0, 40)), min_size=1, max_size=4
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), ROWS),
        st.tuples(st.just("tick"), st.integers(0, 6)),
        st.tuples(st.just("failed tick"), st.integers(0, 6)),
        st.tuples(st.just("restart"), st.integers(1, GROUPS)),
    ),
    max_size=14,
)


@pytest.mark.long
@settings(max_examples=settings().max_examples // 4)
@given(steps=STEPS)
def test_ticks_are_what_rows_of_foreign_keys_would_be(steps):
    foreign = foreign_rows()
    options = {
        "parallelism": 2,
        "max_parallelism": GROUPS,
        "event_time": "at",
        "allowed_lateness": 1,
    }
    with (
        FunctionHarness(Everything(), "key", **options) as ticked,
        FunctionHarness(Everything(), "key", **options) as fed,
    ):
        for what, content in steps:
            if what == "rows":
                rows = [
                    Row(key, None if at is None else START + at * SECOND) for key, at in content
                ]
                found = [sorted(one.process(rows), key=repr) for one in (ticked, fed)]
            elif what.endswith("tick"):
                at = ticked.clock.now + content * SECOND
                fed.clock.set(at)
                rows = failed_tick(ticked, at) if what == "failed tick" else ticked.tick(at)
                found = [sorted(rows, key=repr) for rows in (rows, fed.process(foreign))]
            else:
                found = [one.restart(parallelism=content).version for one in (ticked, fed)]
            assert found[0] == found[1]
            for state in (COUNT, SEEN):
                stored = [[one.state(state, key) for key in KEYS] for one in (ticked, fed)]
                assert stored[0] == stored[1]
