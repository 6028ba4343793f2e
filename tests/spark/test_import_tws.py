"""Queries of Spark's ``transformWithState`` that go on with a keyed function."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)

if pyspark.__version__ < "4.0":
    pytest.skip("transformWithState is in Spark 4.0 and newer", allow_module_level=True)

from pyspark.sql.streaming import StatefulProcessor

from .taking_over import (
    HOUR,
    HOUR_MS,
    NOON,
    Count,
    SparkCount,
    Takeover,
)

# A very busy machine needs more than the usual two minutes: each test has a dozen micro-batches.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("batches", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_query_that_was_taken_over_gives_the_rows_of_one_that_always_ran_on_ours(stage, batches):
    for batch in range(batches + 1):
        stage.put({"user": "ann", "n": 7 + batch}, {"user": f"u{batch % 3}", "n": 1})
    query = Takeover(stage, SparkCount(fails_at=7 + batches), Count())
    with pytest.raises(StreamingQueryException, match="no such n"):
        query.on_spark()
    stage.put({"user": "ann", "n": 100}, {"user": "new", "n": 1})
    done = query.taken()
    users = min(batches, 3) + 1
    assert (done.version, done.rows, done.left) == (batches, {"n": users}, [])
    assert (stage.checkpoint / "offsets" / f"{batches}").exists()
    with query.snapshot(done) as snapshot:
        assert (snapshot.version, snapshot.final) == (batches, True)
        assert snapshot.get("n", "ann") == sum(range(7, 7 + batches))
    assert query.goes_on() == query.throughout()
    assert not (query.copied / "state").exists()


class SparkVisits(StatefulProcessor):
    """Keeps the last rows in a list, counts per kind in a map, and the first row in a value."""

    def init(self, handle):
        self.first = handle.getValueState("first", "kind string, n long", ttlDurationMs=HOUR_MS)
        self.rows = handle.getListState("rows", "n long", ttlDurationMs=HOUR_MS)
        self.kinds = handle.getMapState("kinds", "kind string", "n long", ttlDurationMs=HOUR_MS)
        self.plain = handle.getListState("plain", "kind string, n long")
        self.sums = handle.getMapState("sums", "kind string, day date", "n long, more array<long>")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if not self.first.exists():
                self.first.update((row.kind, row.n))
            self.rows.appendValue((row.n,))
            self.plain.appendValue((row.kind, row.n))
            kind = (row.kind,)
            seen = self.kinds.getValue(kind)[0] if self.kinds.containsKey(kind) else 0
            self.kinds.updateValue(kind, (seen + row.n,))
            self.sums.updateValue((row.kind, date(2024, 5, 1)), (row.n, [row.n, 0]))
            total = sum(one[0] for one in self.rows.get()) + sum(one[1] for one in self.plain.get())
            yield Row(user=key[0], n=total + self.first.get()[1] + seen)

    def close(self):
        pass


class Visit(NamedTuple):
    kind: str
    n: int


class Visits(KeyedProcessFunction):
    def __init__(self, ttl=HOUR):
        self.ttl = StateTtlConfig(ttl)

    def open(self, context):
        ttl = self.ttl
        self.first = context.get_state(ValueStateDescriptor("opening", Visit, ttl=ttl))
        self.rows = context.get_list_state(ListStateDescriptor("rows", int, ttl=ttl))
        self.kinds = context.get_map_state(MapStateDescriptor("kinds", str, int, ttl=ttl))
        self.plain = context.get_list_state(ListStateDescriptor("plain", tuple[str, int]))
        more = "struct<n: long, more: array<long>>"
        sums = MapStateDescriptor("sums", tuple[str, date], more)
        self.sums = context.get_map_state(sums)

    def process_element(self, row, ctx):
        if self.first.value() is None:
            self.first.update(Visit(row.kind, row.n))
        self.rows.add(row.n)
        self.plain.add((row.kind, row.n))
        seen = self.kinds.get(row.kind) or 0
        self.kinds.put(row.kind, seen + row.n)
        self.sums.put((row.kind, date(2024, 5, 1)), (row.n, [row.n, 0]))
        total = sum(self.rows.get()) + sum(n for _, n in self.plain.get())
        yield row.user, total + self.first.value().n + seen


VISIT = "user string, n long, kind string"


def times_of_batches(checkpoint):
    """Return the times of all batches in the checkpoint."""
    times = []
    for file in sorted(checkpoint.glob("offsets/[0-9]*"), key=lambda path: int(path.name)):
        text = file.read_text().splitlines()[1]
        times.append(datetime.fromtimestamp(json.loads(text)["batchTimestampMs"] / 1_000, UTC))
    return times


def columns(reader, *names):
    table = reader.read_all()
    return [table.column(name).to_pylist() for name in names]


def put_visits(stage, batches):
    for batch in batches:
        stage.put(
            {"user": "ann", "n": batch, "kind": "ab"[batch % 2]},
            {"user": f"u{batch}", "n": 1, "kind": "c"},
        )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_lists_maps_and_ttl_go_on(stage, backend):
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    put_visits(stage, range(3))
    query = Takeover(stage, SparkVisits(), Visits(), schema=VISIT, mode="ProcessingTime")
    query.on_spark()
    put_visits(stage, range(3, 5))
    done = query.taken(states={"first": "opening"}, parallelism=3)
    assert done.rows == {"first": 4, "rows": 4, "kinds": 4, "plain": 4, "sums": 4}
    with query.snapshot(done) as snapshot:
        assert snapshot.get("opening", "ann") == ("a", 0)
        assert snapshot.get("sums", "ann") == {
            ("a", date(2024, 5, 1)): (2, [2, 0]),
            ("b", date(2024, 5, 1)): (1, [1, 0]),
        }
    assert query.goes_on() == query.throughout()


@pytest.mark.slow
def test_each_value_was_written_when_spark_wrote_it(stage):
    put_visits(stage, range(3))
    function = Visits(ttl=2 * HOUR)
    query = Takeover(stage, SparkVisits(), function, schema=VISIT, mode="ProcessingTime")
    query.on_spark()
    spark_ttl = dict.fromkeys(("first", "rows", "kinds"), HOUR)
    done = query.taken(states={"first": "opening"}, ttl=spark_ttl)
    first, second, third = times_of_batches(stage.checkpoint)
    with query.snapshot(done) as snapshot:
        written = {
            state: {
                row["key"]: row["written"]
                for row in snapshot.to_arrow(state).read_all().to_pylist()
            }
            for state in ("opening", "rows", "kinds")
        }
    assert written["opening"] == {"ann": first, "u0": first, "u1": second, "u2": third}
    assert written["rows"]["ann"] == [first, second, third]
    assert dict(written["kinds"]["ann"]) == {"a": third, "b": second}


class SparkSessions(StatefulProcessor):
    """Emits the sum of a user's rows ten seconds after each of them, in event time."""

    def init(self, handle):
        self.handle = handle
        self.sum = handle.getValueState("sum", "n long")

    def handleInputRows(self, key, rows, timerValues):
        total = self.sum.get()[0] if self.sum.exists() else 0
        for row in rows:
            total += row.n
            self.handle.registerTimer(int(row.at.timestamp() * 1_000) + 10_000)
        self.sum.update((total,))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(user=key[0], n=self.sum.get()[0])

    def close(self):
        pass


class Sessions(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, row, ctx):
        if ctx.timers.drop_late(row.at):
            return
        self.sum.update(self.sum.value() + row.n)
        ctx.timers.register_event_time(row.at + timedelta(seconds=10))

    def on_timer(self, at, ctx):
        yield ctx.current_key, self.sum.value()


def put_events(stage, *events):
    """Write a batch of (user, n, seconds after noon)."""
    stage.put(
        *[
            {"user": user, "n": n, "at": (NOON + timedelta(seconds=s)).isoformat()}
            for user, n, s in events
        ]
    )


@pytest.mark.slow
def test_timers_and_watermark_go_on_and_late_rows_stay_late(stage):
    put_events(stage, ("ann", 1, 0), ("bob", 1, 3))
    put_events(stage, ("cy", 1, 20))  # the watermark is at 15: both have timers due
    put_events(stage, ("cy", 1, 22))
    put_events(stage, ("ann", 500, 1), ("dee", 1, 24))  # late
    delay = timedelta(seconds=5)
    query = Takeover(
        stage,
        SparkSessions(),
        Sessions(),
        schema="user string, n long, at timestamp",
        mode="EventTime",
        delay=delay,
        parallelism=1,
        event_time="at",
        allowed_lateness=delay,
    )
    query.on_spark()
    put_events(stage, ("ann", 1_000, 19), ("eve", 1, 20))  # the watermark is at 19: late, not late
    put_events(stage, ("bob", 1, 60))
    put_events(stage, ("bob", 1, 61))  # the watermark is at 55
    done = query.taken()
    with query.snapshot(done) as snapshot:
        timers = [(one.key, one.time) for one in snapshot.timers()]
    assert done.rows == {"sum": 4, "timers": 3}
    assert sorted(timers) == [
        (user, NOON + timedelta(seconds=s)) for user, s in (("cy", 30), ("cy", 32), ("dee", 34))
    ]
    found = query.goes_on()
    assert ("eve", 1) in found
    assert found == query.throughout()


class SparkReminders(StatefulProcessor):
    """Counts rows, and emits the negative count an hour after the first row."""

    def init(self, handle):
        self.handle = handle
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = self.n.get()[0] if self.n.exists() else 0
        if not n:
            due = timerValues.getCurrentProcessingTimeInMs() + (1 if key[0] == "soon" else HOUR_MS)
            self.handle.registerTimer(due)
        self.n.update((n + sum(1 for _ in rows),))
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(user=key[0], n=-self.n.get()[0])

    def close(self):
        pass


class Reminders(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)

    def on_timer(self, at, ctx):
        yield ctx.current_key, -self.n.value()


@pytest.mark.slow
def test_timers_of_processing_time_go_on(stage):
    stage.put({"user": "ann"}, {"user": "soon"}, {"user": "soon"})
    how = {"mode": "ProcessingTime", "parallelism": 1}
    query = Takeover(stage, SparkReminders(), Reminders(), **how)
    query.on_spark()
    stage.put({"user": "bob"})
    done = query.taken()
    (made,) = times_of_batches(stage.checkpoint)
    with query.snapshot(done) as snapshot:
        timers = {one.key: one.time for one in snapshot.timers()}
    assert timers == {"ann": made + HOUR, "soon": made + timedelta(milliseconds=1)}
    assert query.goes_on() == [("soon", -2)]


class SparkKinds(StatefulProcessor):
    """Values of many types under a key of several columns."""

    def init(self, handle):
        self.all = handle.getValueState(
            "all",
            "i int, x double, t string, b binary, f boolean, d date, at timestamp, "
            "p decimal(10,2), a array<struct<k:string,n:int>>, m map<string,int>",
        )

    def handleInputRows(self, key, rows, timerValues):
        at = datetime(2024, 5, 1, 12, 30, 15, 123_456)  # noqa: DTZ001 - Spark's, in its zone
        row = next(rows)
        self.all.update(
            (1, 0.5, "é", b"\0", True, date(2024, 5, 1), at, row.price, [("k", 1)], {"m": 2})
        )
        return iter(())

    def close(self):
        pass


class Kinds(KeyedProcessFunction):
    def open(self, context):
        self.all = context.get_state(
            ValueStateDescriptor(
                "all",
                "struct<i: int, x: double, t: string, b: binary, f: boolean, d: date, "
                "at: timestamp, p: decimal(10,2), a: array<struct<k: string, n: int>>, "
                "m: map<string, int>>",
            )
        )

    def process_element(self, row, ctx):
        value = self.all.value()
        yield row.user, -1 if value is None else value.i


@pytest.mark.slow
def test_types_and_keys_of_several_columns(stage):
    stage.put({"user": "ann", "day": "2024-05-01", "price": "1.50"})
    query = Takeover(
        stage,
        SparkKinds(),
        Kinds(),
        schema="user string, day date, price decimal(10,2)",
        key=("user", "day", "price"),
    )
    query.on_spark()
    done = query.taken()
    with query.snapshot(done) as snapshot:
        (row,) = snapshot.to_arrow("all").read_all().to_pylist()
    local = stage.spark.sql("SELECT timestamp '2024-05-01 12:30:15.123456' AS at").collect()
    assert row["key_1"] == "ann"
    assert row["value"]["at"].timestamp() == local[0].at.timestamp()
    assert (row["value"]["a"], row["value"]["m"]) == ([{"k": "k", "n": 1}], [("m", 2)])
    stage.put({"user": "ann", "day": "2024-05-01", "price": "1.50"})
    assert query.goes_on() == [("ann", 1)]


@pytest.mark.slow
def test_a_grouping_column_may_have_any_name(stage):
    schema = "key string, content string, state int"
    stage.put({"key": "a", "content": "b", "state": 1})
    columns = ("key", "content", "state")
    query = Takeover(stage, SparkSeen(), Seen(), schema=schema, key=columns)
    query.on_spark()
    query.taken()
    stage.put({"key": "a", "content": "b", "state": 1})
    assert query.goes_on() == [("a", 1), ("a", 2)]


class SparkSeen(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = (self.n.get()[0] if self.n.exists() else 0) + sum(1 for _ in rows)
        self.n.update((n,))
        yield Row(user=key[0], n=n)

    def close(self):
        pass


class Seen(Count):
    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.key, self.n.value()
