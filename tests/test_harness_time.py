"""The harness and time: timers, watermarks, the end of an input, and instants of rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from pyspark import sql

from forebay_engine.execution.record_methods import map_callable
from forebay_spark_runtime.testing import FunctionHarness, HarnessChain, ManualClock
from forebay_state_api import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    ConfigurationError,
    StateMigrationError,
)

from .harness_functions import Count


class Visit(NamedTuple):
    user: str
    at: datetime | None


class Quiet(Count):
    """Emits users that were quiet for a minute of event time, and for an hour of the clock."""

    def process_element(self, row, ctx):
        if row.at is not None:
            ctx.timers.register_event_time(row.at + timedelta(minutes=1))
        now = ctx.timers.processing_time
        ctx.timers.register_processing_time(now + timedelta(hours=1))

    def on_timer(self, at, ctx):
        yield ctx.current_key, ctx.timers.domain.value, at


def test_timers_of_both_kinds():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    lateness = timedelta(minutes=2)
    with FunctionHarness(
        Quiet(), "user", event_time="at", allowed_lateness=lateness, parallelism=2
    ) as harness:
        visits = [Visit("a", start), Visit("b", start + timedelta(seconds=5)), Visit("c", None)]
        assert harness.process(visits) == []
        harness.process([Visit("a", start + timedelta(minutes=4))])
        assert sorted(harness.process([])) == [
            ("a", "event_time", start + timedelta(seconds=60)),
            ("b", "event_time", start + timedelta(seconds=65)),
        ]
        harness.clock.advance(timedelta(hours=1))
        fired = harness.restart(parallelism=3).process([])
        assert sorted((user, kind) for user, kind, _ in fired) == [
            (user, "processing_time") for user in "abc"
        ]
        assert harness.metrics.timers_fired == 3


@pytest.mark.parametrize("of", ["heap", "lsm"])
@pytest.mark.parametrize("into", ["heap", "lsm"])
def test_timers_of_a_fork_fire_as_they_would_have(of, into, tmp_path):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    visits = [Visit("a", start), Visit("b", start + timedelta(minutes=30))]
    common = {"key_by": "user", "event_time": "at", "state_dir": tmp_path}
    with FunctionHarness(Quiet(), query="first", backend=of, **common) as first:
        first.process(visits)
        clock = first.clock
    with FunctionHarness(
        Quiet(), query="second", restore_from="first", backend=into, clock=clock, **common
    ) as second:
        assert second.process([]) == [("a", "event_time", start + timedelta(minutes=1))]
        clock.advance(timedelta(hours=1))
        fired = second.process([])
        assert sorted((user, kind) for user, kind, _ in fired) == [
            (user, "processing_time") for user in "ab"
        ]
        second.restart(parallelism=2)
        assert second.process([]) == []


def test_a_fork_without_on_timer_is_refused_where_timers_are_stored(tmp_path):
    with FunctionHarness(Quiet(), "user", query="first", event_time="at", state_dir=tmp_path) as h:
        h.process([Visit("a", datetime(2024, 1, 1, tzinfo=UTC))])
    with (
        FunctionHarness(
            Count(), "user", query="second", restore_from="first", state_dir=tmp_path
        ) as fork,
        pytest.raises(StateMigrationError, match=r"timers \(which on_timer declares"),
    ):
        fork.process([])


def test_event_time_needs_a_context():
    with pytest.raises(ConfigurationError, match="gets rows only"):
        FunctionHarness(map_callable(lambda row: row), "user", event_time="at")


class KeepsTime(KeyedProcessFunction):
    """Has no timers; drops rows that are late."""

    def process_element(self, row, ctx):
        timers = ctx.timers
        if timers.drop_late(row.at):
            return
        yield timers.is_late(row.at - timedelta(hours=1)), timers.watermark


def test_clocks_and_counts_of_late_rows_need_no_timers():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    late, on_time = start - timedelta(minutes=1), start + timedelta(minutes=1)
    with FunctionHarness(KeepsTime(), "user", event_time="at", parallelism=2) as h:
        assert h.process([Visit("a", start)]) == [(False, None)]
        rows = [Visit("a", late), Visit("a", start), Visit("a", on_time)]
        assert h.process(rows) == [(True, start)]
        assert (h.metrics.late_rows, h.metrics.late_rows_dropped) == (2, 2)
        h.restart(parallelism=3)
        assert h.process([Visit("b", late)]) == []
        with pytest.raises(ConfigurationError, match="or KeyedBroadcastProcessFunction"):
            h.restart(lambda row, ctx: ctx.timers.list_event_time()).process([Visit("a", start)])


class ReplacesAndFails(KeyedProcessFunction):
    """Replaces the timer of a window; fails for odd hours, also when they fire."""

    def process_element(self, row, ctx):
        ctx.set_current_namespace("w")
        ctx.timers.replace_event_time(row.at)
        ctx.timers.merge_namespaces("merged", ["w"])
        if row.at.hour % 2:
            raise ValueError("odd")

    def on_timer(self, at, ctx):
        listed = len(ctx.timers.list_event_time())
        if at.minute:
            raise ValueError("fired")
        yield ctx.current_key, ctx.current_namespace, at.hour, listed


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_the_timers_of_a_failed_record_are_put_back_in_their_namespaces(backend):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    hours = [start + timedelta(hours=n) for n in range(6)]
    with FunctionHarness(
        ReplacesAndFails(), "user", event_time="at", on_error="column", backend=backend
    ) as h:
        failed = h.process([Visit("a", hours[n]) for n in (1, 2, 3, 4)])
        assert [one.message for one in failed] == ["odd", "odd"]
        fired = h.process([Visit("b", hours[4] + timedelta(minutes=1))])
        assert fired == [("a", "merged", 2, 1), ("a", "merged", 4, 0)]
        [of_timer] = h.process([], end=True)
        assert (of_timer.method, of_timer.timer) == ("on_timer", hours[4] + timedelta(minutes=1))


class Ending(KeyedProcessFunction):
    """Registers a timer an hour after each row, and each timer one for a day later, once."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(hours=1))
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(hours=1))

    def on_timer(self, at, ctx):
        if ctx.timers.domain is TimeDomain.EVENT_TIME and (at.hour, at.day) == (1, 1):
            ctx.timers.register_event_time(at + timedelta(days=1))
        yield ctx.current_key, at.day, at.hour, ctx.timers.domain, ctx.timers.is_late(at)


def test_the_end_of_a_bounded_input_fires_all_event_time_timers():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    event = TimeDomain.EVENT_TIME
    with FunctionHarness(Ending(), "user", event_time="at", parallelism=2) as h:
        assert h.process([Visit("a", start), Visit("c", start + timedelta(hours=4))]) == []
        fired = h.process([Visit("b", start)], end=True)
        expected = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("b", 2, 1), ("c", 1, 5)]
        assert sorted(one[:3] for one in fired) == expected
        assert {one[3:] for one in fired} == {(event, True)}
        # The watermark is that of the rows again.
        assert h.process([Visit("a", start + timedelta(days=9))]) == []
        h.clock.advance(timedelta(hours=1))
        assert {one[3] for one in h.process([])} == {TimeDomain.PROCESSING_TIME}


class Repeating(KeyedProcessFunction):
    """Registers a timer for each row; a timer that fires registers itself again."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def on_timer(self, at, ctx):
        ctx.timers.register_event_time(at)
        yield ctx.current_key, at


def test_what_a_timer_registers_for_its_own_time_at_the_end_waits_for_a_later_batch():
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    with FunctionHarness(Repeating(), "user", event_time="at") as h:
        assert h.process([Visit("a", noon)], end=True) == [("a", noon)]
        assert h.process([]) == [("a", noon)]


def test_the_end_fires_the_timers_of_both_inputs():
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    event = Event("ann", noon, [{"at": noon}])
    later = event._replace(at=noon + timedelta(hours=1))
    with FunctionHarness(CoGaps(), "user", event_time="at") as h:
        assert h.process([event], [later], end=True)[2:] == [
            (noon + timedelta(minutes=10),),
            (noon + timedelta(minutes=70),),
        ]
        assert h.process([]) == []


BERLIN = ZoneInfo("Europe/Berlin")
SWITCHES = {
    "spring": (datetime(2024, 3, 31, 0, 59, 50, tzinfo=UTC), timedelta(seconds=20)),
    "autumn": (datetime(2024, 10, 27, 0, 45, tzinfo=UTC), timedelta(minutes=30)),
}


class Event(NamedTuple):
    user: str
    at: datetime
    seen: list[dict[str, datetime]]


class Gaps(KeyedProcessFunction):
    """Emits the seconds since a key's last row; registers a timer ten minutes after each row."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", datetime))

    def process_element(self, row, ctx):
        assert row.seen[0]["at"].tzinfo is row.at.tzinfo is UTC
        last = self.last.value()
        self.last.update(row.at)
        ctx.timers.register_event_time(row.at + timedelta(minutes=10))
        yield (None if last is None else (row.at - last).total_seconds(),)

    def on_timer(self, at, ctx):
        yield (at,)


class CoGaps(KeyedCoProcessFunction):
    open = Gaps.open
    process_element1 = process_element2 = Gaps.process_element
    on_timer = Gaps.on_timer


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("fn", [Gaps(), CoGaps()], ids=["one input", "two inputs"])
def test_rows_of_a_dst_switch_are_instants(fn, backend, switch):
    first, gap = SWITCHES[switch]

    def event(at):
        here = at.astimezone(BERLIN)
        return Event("ann", here, [{"at": here}])

    with FunctionHarness(fn, "user", backend=backend, event_time="at") as harness:
        assert harness.process([event(first)]) == [(None,)]
        second = [event(first + gap)]
        given = (second, None) if isinstance(fn, Gaps) else ([], second)
        assert harness.process(*given) == [(gap.total_seconds(),)]
        due = first + timedelta(minutes=10)
        out = [*harness.process([event(max(due, first + gap))]), *harness.process([])]
        assert [(at, at.tzinfo) for (at,) in out if isinstance(at, datetime)] == [(due, UTC)]


@pytest.mark.parametrize("make", [Event, sql.Row, dict], ids=["named", "Row", "dict"])
def test_rows_of_any_kind_and_keys_are_instants(make):
    first, gap = SWITCHES["autumn"]
    times = [first, first + gap]

    def seen(row, ctx):
        return [(row.user, ctx.current_key, row.at, row.seen[0][1])]

    rows = [
        make(user="ann", at=at.astimezone(BERLIN), seen=[(1, at.astimezone(BERLIN))])
        for at in times
    ]
    with FunctionHarness(seen, "at") as harness:
        out = harness.process(rows)
    assert out == [("ann", at, at, at) for at in times]
    assert all(at.tzinfo is UTC for row in out for at in row[1:])


def test_a_row_before_the_year_1_of_utc_is_refused():
    early = datetime(1, 1, 1, tzinfo=BERLIN)
    with (
        FunctionHarness(lambda row, ctx: [], "user") as harness,
        pytest.raises(ConfigurationError, match=r"outside the years 1 to 9999.*filter such rows"),
    ):
        harness.process([Event("ann", early, [])])


class ToTheMinute(KeyedProcessFunction):
    """Emits each row when the watermark reaches it, with the watermark."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def on_timer(self, at, ctx):
        yield ctx.current_key, at, ctx.timers.watermark


def test_an_operator_in_a_chain_has_the_watermark_of_the_one_before():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    minutes = [start + timedelta(minutes=n) for n in range(5)]
    schema = "user string, at timestamp, mark timestamp"
    clock = ManualClock()
    common = {"event_time": "at", "schema": schema, "clock": clock, "parallelism": 2}
    with HarnessChain(
        FunctionHarness(ToTheMinute(), "user", emits_event_time="at", **common),
        FunctionHarness(ToTheMinute(), "user", late="drop", **common),
    ) as chain:
        first, second = chain._harnesses
        out = [chain.process([Visit("a", at), Visit("b", at)]) for at in minutes]
        assert [len(rows) for rows in out] == [0, 0, 2, 2, 2]
        assert {(row.at, row.mark) for row in out[3]} == {(minutes[1], minutes[1])}
        assert (first.metrics.rows_out_late, second.metrics.late_rows) == (0, 0)
        assert [first.mark_us, second.mark_us] == [
            (one - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            for one in (minutes[3], minutes[2])
        ]
        ended = [{row.at for row in chain.process([])} for _ in range(3)]
        assert ended == [{minutes[3]}, {minutes[4]}, set()], "the watermark goes on without rows"
    with pytest.raises(ConfigurationError, match="is the name of a column of schema="):
        FunctionHarness(ToTheMinute(), "user", event_time="at", emits_event_time="at")


class FirstMinute(KeyedProcessFunction):
    """Emits the rows of minute 0 at once, and no others."""

    def process_element(self, row, ctx):
        if not row.at.minute:
            yield row.user, row.at, None


def test_the_watermark_goes_on_while_the_operator_before_emits_nothing():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    clock = ManualClock()
    common = {"event_time": "at", "schema": "user string, at timestamp, mark timestamp"}
    common |= {"clock": clock, "parallelism": 2}
    with HarnessChain(
        FunctionHarness(FirstMinute(), "user", emits_event_time="at", **common),
        FunctionHarness(Quiet(), "user", event_time="at", parallelism=3, clock=clock),
    ) as chain:
        minutes = [start + timedelta(minutes=n) for n in range(4)]
        out = [chain.process([Visit("a", at), Visit("b", at)]) for at in minutes]
        assert [len(rows) for rows in out] == [0, 0, 0, 2], "10:01 has passed in the batch before"
