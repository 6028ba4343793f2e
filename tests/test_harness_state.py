"""The harness sets state, moves the watermark, and runs chains, as a test needs it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from forebay_spark_runtime.testing import FunctionHarness, HarnessChain, ManualClock, VirtualClock
from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ConfigurationError,
    FunctionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateAccessError,
    StateTtlConfig,
    ValueStateDescriptor,
)

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Row(NamedTuple):
    key: str
    n: int = 0
    at: datetime = NOON


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


VALUE = ValueStateDescriptor("v", int, default=7)
LIST = ListStateDescriptor("l", int)
MAP = MapStateDescriptor("m", str, int)
REDUCING = ReducingStateDescriptor("r", max, int)
AGGREGATING = AggregatingStateDescriptor("a", Sum(), int)
SET = [(VALUE, 1), (LIST, [1, 2]), (MAP, {"a": 1}), (REDUCING, 5)]
EMPTY = {"v": 7, "l": [], "m": {}, "r": None}


class Everything(KeyedProcessFunction):
    def open(self, context):
        self.v = context.get_state(VALUE)
        self.l = context.get_list_state(LIST)
        self.m = context.get_map_state(MAP)
        self.r = context.get_reducing_state(REDUCING)
        self.a = context.get_aggregating_state(AGGREGATING)

    def process_element(self, row, ctx):
        if row.n < 0:
            raise ValueError("negative")
        self.a.add(row.n)
        yield self.v.value(), self.l.get(), dict(self.m.items()), self.r.get()


@pytest.fixture(params=["heap", "lsm"])
def run(request):
    with FunctionHarness(Everything(), "key", backend=request.param, parallelism=2) as harness:
        yield harness


def contents(harness, key):
    return [harness.state(descriptor, key) for descriptor, _ in SET]


def test_set_state_is_read_at_once_and_by_the_next_batch(run):
    run.process([Row("a", 1), Row("b", 1)])
    for descriptor, content in SET:
        run.set_state(descriptor, "a", content)
    assert contents(run, "a") == [content for _, content in SET]
    assert contents(run, "b") == [*EMPTY.values()]
    assert run.version == 1
    assert run.process([Row("a")]) == [(1, [1, 2], {"a": 1}, 5)]
    run.restart(parallelism=3)
    assert contents(run, "a") == [content for _, content in SET]


def test_set_state_replaces_and_the_last_one_counts(run):
    for number in (1, 2):
        for descriptor, content in SET:
            run.set_state(descriptor, "a", content)
        run.set_state(MAP, "a", {"b": number})
        run.set_state(VALUE, "a", number)
        assert run.process([Row("a")]) == [(number, [1, 2], {"b": number}, 5)]


def test_deleted_state_reads_as_unset(run):
    for descriptor, content in SET:
        run.set_state(descriptor, "a", content)
    run.process([Row("a", 3)])
    for descriptor in (VALUE, LIST, MAP, REDUCING, AGGREGATING):
        run.delete_state(descriptor, "a")
    assert contents(run, "a") == [*EMPTY.values()]
    assert run.state(AGGREGATING, "a") is None
    assert run.process([Row("a", 1)]) == [(7, [], {}, None)]
    assert run.state(AGGREGATING, "a") == 1


def test_state_in_a_namespace(run):
    run.set_state(VALUE, "a", 3, namespace="w")
    run.process([])
    assert (run.state(VALUE, "a", "w"), run.state(VALUE, "a")) == (3, 7)


def test_a_batch_that_fails_keeps_what_was_set(run):
    run.set_state(VALUE, "a", 3)
    with pytest.raises(FunctionError):
        run.process([Row("a", -1)])
    assert run.process([Row("a")])[0][0] == 3


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_record_that_fails_alone_does_not_undo_what_was_set(backend):
    with FunctionHarness(Everything(), "key", backend=backend, on_error="column") as harness:
        for descriptor, content in SET:
            harness.set_state(descriptor, "a", content)
        harness.process([Row("a", -1)])
        assert contents(harness, "a") == [content for _, content in SET]


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_sorted_map_is_set_and_its_ttl_is_switched(backend):
    plain = SortedMapStateDescriptor("s", int, str)
    ttl = SortedMapStateDescriptor("s", int, str, ttl=StateTtlConfig(MINUTE), switch_ttl=True)

    class Read(KeyedProcessFunction):
        def __init__(self, descriptor):
            self.descriptor = descriptor

        def open(self, context):
            self.s = context.get_sorted_map_state(self.descriptor)

        def process_element(self, row, ctx):
            yield ([*self.s.range(2, 9)],)

    with FunctionHarness(Read(plain), "key", backend=backend) as harness:
        harness.set_state(plain, "a", {3: "c", 1: "a", 2: "b"})
        assert harness.state(plain, "a") == {1: "a", 2: "b", 3: "c"}
        assert harness.process([Row("a")]) == [([(2, "b"), (3, "c")],)]
        harness.restart(Read(ttl))
        assert harness.process([Row("a")]) == [([(2, "b"), (3, "c")],)]
        harness.clock.advance(MINUTE)
        assert harness.process([Row("a")]) == [([],)]


def test_going_back_forgets_what_was_set(run):
    run.process([])
    run.set_state(VALUE, "a", 3)
    run.restart(version=0)
    assert run.state(VALUE, "a") == 7


@pytest.mark.parametrize(
    ("descriptor", "content", "message"),
    [
        (LIST, 5, "a list state is set to a list, not to 5"),
        (MAP, [1], r"a map state is set to a dict, not to \[1\]"),
        (AGGREGATING, 5, "the content of aggregating state cannot be set"),
        ("v", 5, "takes the descriptor"),
    ],
)
def test_contents_that_cannot_be_set(run, descriptor, content, message):
    with pytest.raises(ConfigurationError, match=message):
        run.set_state(descriptor, "a", content)


def test_what_does_not_fit_the_function_fails_the_batch(run):
    run.set_state(ValueStateDescriptor("unknown", int), "a", 1)
    with pytest.raises(
        ConfigurationError, match="the value state 'unknown', which the function does not"
    ):
        run.process([])
    run.restart(version=0)
    run.set_state(VALUE, "a", "text")
    with pytest.raises((ConfigurationError, FunctionError), match="text"):
        run.process([])


def test_a_closed_harness_sets_nothing(run):
    run.close()
    with pytest.raises(StateAccessError):
        run.set_state(VALUE, "a", 1)


def test_state_with_a_ttl_counts_as_written_in_the_batch():
    ttl = ValueStateDescriptor("v", int, ttl=StateTtlConfig(MINUTE))

    class Read(KeyedProcessFunction):
        def open(self, context):
            self.v = context.get_state(ttl)

        def process_element(self, row, ctx):
            yield (self.v.value(),)

    with FunctionHarness(Read(), "key") as harness:
        harness.set_state(ttl, "a", 1)
        harness.clock.advance(2 * MINUTE)
        assert harness.process([Row("a")]) == [(1,)]
        harness.clock.advance(MINUTE)
        assert harness.process([Row("a")]) == [(None,)]


# -- the watermark ------------------------------------------------------------------------------


class Late(KeyedProcessFunction):
    """Registers a timer for each row, and emits it when it fires."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)
        return []

    def on_timer(self, at, ctx):
        yield ctx.current_key, at


def test_timers_fire_when_the_test_moves_the_watermark():
    with FunctionHarness(
        Late(), "key", event_time="at", allowed_lateness=10 * MINUTE, parallelism=3
    ) as harness:
        harness.process([Row("a", at=NOON), Row("b", at=NOON + MINUTE)])
        assert harness.advance_watermark(NOON - MINUTE) == []
        assert harness.advance_watermark(NOON) == [("a", NOON)]
        assert harness.advance_watermark(NOON - MINUTE) == []
        assert harness.advance_watermark(NOON + MINUTE) == [("b", NOON + MINUTE)]


def test_what_a_watermark_needs():
    with (
        FunctionHarness(Late(), "key") as harness,
        pytest.raises(ConfigurationError, match="event_time="),
    ):
        harness.advance_watermark(NOON)
    with (
        FunctionHarness(Late(), "key", event_time="at") as harness,
        pytest.raises(ConfigurationError, match="with a time zone"),
    ):
        harness.advance_watermark(NOON.replace(tzinfo=None))


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        ctx.timers.register_event_time(row.at)
        return []

    process_element2 = process_element1

    def on_timer(self, at, ctx):
        yield (at,)


def test_each_input_has_its_lateness():
    both = (MINUTE, 10 * MINUTE)
    with FunctionHarness(Both(), "key", event_time="at", allowed_lateness=both) as harness:
        first = [Row("a", at=NOON), Row("a", at=NOON + 2 * MINUTE)]
        harness.process(first, [Row("a", at=NOON + 5 * MINUTE)])
        assert harness.process([]) == [], "the second input is at five to twelve"
        harness.process(first, [Row("a", at=NOON + 12 * MINUTE)])
        assert harness.process([]) == [(NOON,)]


@pytest.mark.parametrize(
    ("lateness", "message"),
    [
        (-MINUTE, "not negative"),
        ((MINUTE, -1), "not negative"),
        ((MINUTE,), "one for both inputs, or a pair"),
        ("soon", "a timedelta or a number of seconds"),
    ],
)
def test_a_lateness_that_cannot_be(lateness, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(Both(), "key", event_time="at", allowed_lateness=lateness)


# -- plain functions and chains -----------------------------------------------------------------


def test_a_function_of_a_row_and_a_value():
    with FunctionHarness.map_with_state(
        lambda row, value: ((row.key, (value or 0) + row.n), (value or 0) + row.n),
        "key",
        state_type=int,
    ) as harness:
        assert harness.process([Row("a", 1), Row("a", 2)]) == [("a", 1), ("a", 3)]
        assert harness.state(ValueStateDescriptor("value", int), "a") == 3


def test_a_function_that_returns_several_rows():
    with FunctionHarness.flat_map_with_state(
        lambda row, value: ([(row.key,)] * row.n, None), "key"
    ) as harness:
        assert harness.process([Row("a", 2), Row("b", 0)]) == [("a",), ("a",)]


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_function_of_a_row_and_a_value_that_fails_leaves_the_value(backend):
    def counted(row, value):
        count = (value or 0) + 1
        return ([(row.key, count)] * row.n if row.n >= 0 else [row.missing], count)

    with FunctionHarness.flat_map_with_state(
        counted, "key", state_type=int, on_error="column", backend=backend
    ) as harness:
        first, failed, *last = harness.process([Row("a", 1), Row("a", -1), Row("a", 2)])
        assert (first, last) == (("a", 1), [("a", 2)] * 2)
        assert (failed.type, failed.method) == ("AttributeError", "flat_map_with_state")
        assert harness.state(ValueStateDescriptor("value", int), "a") == 2


class Delayed(Late):
    """Emits rows with their time, a minute later."""

    def on_timer(self, at, ctx):
        yield ctx.current_key, at + MINUTE


def test_a_chain_passes_rows_and_the_watermark():
    clock = ManualClock()
    shared = {
        "clock": clock,
        "event_time": "at",
        "allowed_lateness": 10 * MINUTE,
        "schema": "key string, at timestamp",
    }
    with HarnessChain(
        FunctionHarness(Delayed(), "key", **shared), FunctionHarness(Late(), "key", **shared)
    ) as chain:
        assert chain.process([Row("a")]) == []
        assert chain.advance_watermark(NOON) == []
        assert chain.advance_watermark(NOON + MINUTE) == [("a", NOON + MINUTE)]


def test_the_end_fires_the_timers_of_every_operator_of_a_chain():
    clock = ManualClock()
    shared = {"clock": clock, "event_time": "at", "schema": "key string, at timestamp"}
    with HarnessChain(
        FunctionHarness(Delayed(), "key", **shared), FunctionHarness(Late(), "key", **shared)
    ) as chain:
        assert chain.process([Row("a")]) == []
        ended = chain.process([Row("b")], end=True)
        assert sorted(ended) == [("a", NOON + MINUTE), ("b", NOON + MINUTE)]
        assert chain.process([], end=True) == []


class TakesTime(KeyedProcessFunction):
    async def process_element(self, row, ctx):
        await asyncio.sleep(60)
        yield row.key, ctx.timers.processing_time


def test_the_operators_of_a_chain_see_the_same_processing_time():
    clock = VirtualClock()
    shared = {"clock": clock, "schema": "key string, at timestamp", "parallelism": 2}
    with HarnessChain(*(FunctionHarness(TakesTime(), "key", **shared) for _ in range(2))) as chain:
        began = clock.now
        assert {row.at for row in chain.process([Row(key) for key in "abcd"])} == {began}
        assert clock.now > began


def test_a_chain_of_nothing_or_with_two_clocks():
    with pytest.raises(ConfigurationError, match="at least one"):
        HarnessChain()
    with (
        FunctionHarness(Late(), "key") as one,
        FunctionHarness(Late(), "key") as other,
        pytest.raises(ConfigurationError, match="share a clock"),
    ):
        HarnessChain(one, other)


# -- rows of pandas ---------------------------------------------------------------------------


class Latest(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.at = context.get_map_state(MapStateDescriptor("at", datetime, int))
        self.took = context.get_list_state(ListStateDescriptor("took", timedelta))

    def process_element(self, row, ctx):
        assert type(row.at) is datetime or row.at is None
        self.n.update(self.n.value() + row.n)
        if row.at is not None:
            self.at.put(row.at, row.n)
        self.took.add(row.took)
        yield row.key, self.n.value(), row.at, row.took


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_rows_of_a_pandas_dataframe(zone, backend):
    pd = pytest.importorskip("pandas", reason="pyspark does not need it")
    at = pd.to_datetime(pd.Series(["2024-01-01 12:00:00.000001234", None, "2024-07-01 13:00:00.0"]))
    df = pd.DataFrame(
        {
            "key": pd.Categorical(["a", "b", "a"]),
            "n": pd.array([1, 2, 3], dtype="Int64"),
            "at": at if zone is None else at.dt.tz_localize(zone),
            "took": pd.to_timedelta([1, 2, 3], unit="s"),
        }
    )
    hours = (12, 13) if zone is None else (11, 11)
    tz = None if zone is None else UTC
    first, last = (
        datetime(2024, 1, 1, hours[0], 0, 0, 1, tz),
        datetime(2024, 7, 1, hours[1], tzinfo=tz),
    )
    kind = "timestamp_ntz" if zone is None else "timestamp"
    schema = f"key string, n long, at {kind}, took interval day to second"
    more = {} if zone is None else {"event_time": "at"}
    with FunctionHarness(Latest(), "key", schema=schema, backend=backend, **more) as harness:
        out = harness.process(df.itertuples(index=False))
        seconds = [timedelta(seconds=n) for n in (1, 2, 3)]
        assert out == [
            ("a", 1, first, seconds[0]),
            ("b", 2, None, seconds[1]),
            ("a", 4, last, seconds[2]),
        ]
        assert harness.state(MapStateDescriptor("at", datetime, int), "a") == {first: 1, last: 3}
        took = ListStateDescriptor("took", timedelta)
        assert harness.state(took, "a") == [seconds[0], seconds[2]]
    with FunctionHarness(Latest(), "n", backend=backend) as harness:
        harness.process(df.itertuples(index=False))
        assert harness.state(ValueStateDescriptor("n", int), 3) == 3


def test_event_times_of_pandas_need_a_zone():
    pd = pytest.importorskip("pandas", reason="pyspark does not need it")
    df = pd.DataFrame({"key": ["a"], "n": [1], "at": pd.to_datetime(["2024-01-01 12:00"])})
    with FunctionHarness(Everything(), "key", event_time="at") as harness:
        with pytest.raises(ConfigurationError, match="event times are datetimes with a time zone"):
            harness.process(df.itertuples(index=False))
        df["at"] = df["at"].dt.tz_localize("UTC")
        harness.process(df.itertuples(index=False))
        harness.process([])
        assert harness.state(VALUE, "a") == 7
