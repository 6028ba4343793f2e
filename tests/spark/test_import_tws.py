"""Queries of Spark's ``transformWithState`` that go on with a keyed function."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import import_tws
from forebay_spark_runtime.importing.command import import_tws_command
from forebay_spark_runtime.importing.mapping import MappingChoices, taken_states
from forebay_spark_runtime.importing.tws_query import TwsQuery, Variable
from forebay_spark_runtime.importing.tws_tables import TwsTables
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_processor.importing.checkpoint_copy import CheckpointCopy
from forebay_state_processor.importing.declared_states import DeclaredStates
from forebay_state_processor.reading import open_state

if pyspark.__version__ < "4.0":
    pytest.skip("transformWithState is in Spark 4.0 and newer", allow_module_level=True)

from pyspark.sql.streaming import StatefulProcessor

# A very busy machine needs more than the usual two minutes: each test has a dozen micro-batches.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = "user string, n long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TWS_CONF = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class InPandas(StatefulProcessor):
    """Runs a processor of rows on Spark 4.0, which passes and takes pandas' DataFrames."""

    def __init__(self, processor):
        self.processor = processor

    def init(self, handle):
        self.processor.init(handle)

    def handleInputRows(self, key, rows, timerValues):
        given = (Row(**row) for frame in rows for row in frame.to_dict("records"))
        return self._frames(self.processor.handleInputRows(key, given, timerValues))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self._frames(self.processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self):
        self.processor.close()

    @staticmethod
    def _frames(rows):
        import pandas as pd

        if found := [row.asDict() for row in rows]:
            yield pd.DataFrame(found)


def transform_with_state(grouped, processor, mode):
    """Run Spark's operator; its form for rows is in Spark 4.1 and newer."""
    if not hasattr(grouped, "transformWithState"):
        processor = InPandas(processor)
        return grouped.transformWithStateInPandas(processor, SCHEMA, "Append", mode)
    return grouped.transformWithState(processor, SCHEMA, "Append", mode)


class Takeover:
    """A query that runs on Spark's operator first and then on ours."""

    def __init__(self, stage, processor, function, *, schema=SCHEMA, key=("user",), **how):
        self.stage = stage
        self.processor, self.function = processor, function
        self.schema, self.key = schema, key
        self.mode = how.pop("mode", "None")
        self.delay = how.pop("delay", None)
        self.how = {"parallelism": 2, **how}
        self.copied = stage.folder / "copied"

    def on_spark(self):
        df = self.stage.source(self.schema)
        if self.delay is not None:
            df = df.withWatermark("at", f"{self.delay.seconds} seconds")
        with_state = transform_with_state(df.groupBy(*self.key), self.processor, self.mode)
        with spark_settings(self.stage.spark, TWS_CONF):
            return self.stage.run(with_state)

    def taken(self, **options):
        given = {"into": str(self.copied), "uid": "counts", **options}
        return import_tws(self.stage.spark, str(self.stage.checkpoint), self.function, **given)

    def ours(self, uid="counts", **where):
        df = keyed(self.stage.source(self.schema), *self.key, uid=uid, **self.how)
        return self.stage.run(df.process(self.function, SCHEMA), **where)

    def goes_on(self):
        """Run the copy; return all rows, those of Spark's operator too."""
        self.ours(checkpoint=self.copied)
        return self.stage.rows(SCHEMA)

    def throughout(self):
        """Return the rows of a query that runs on ours only."""
        folder = self.stage.folder
        self.ours("whole", checkpoint=folder / "whole", output=folder / "whole-out")
        return self.stage.rows(SCHEMA, output=folder / "whole-out")

    def snapshot(self, done):
        return open_state(str(self.stage.state), query=done.query, uid=done.uid)


class spark_settings:
    """Change settings of the session for a while."""

    def __init__(self, spark, settings):
        self.spark, self.settings = spark, settings

    def __enter__(self):
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)

    def __exit__(self, *_):
        for name in self.settings:
            self.spark.conf.unset(name)


class SparkCount(StatefulProcessor):
    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = self.n.get()[0] if self.n.exists() else 0
        for row in rows:
            if row.n == self.fails_at:
                raise ValueError("no such n")
            n += row.n
            yield Row(user=key[0], n=n)
        self.n.update((n,))

    def close(self):
        pass


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + row.n)
        yield row.user, self.n.value()


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


class NullKeys(SparkCount):
    def handleInputRows(self, key, rows, timerValues):
        self.n.update((1,))
        return iter(())


@pytest.fixture(scope="module")
def stopped(spark, tmp_path_factory):
    """The checkpoint of a query that has stopped; its states have a null key and a null value."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text('{"user":"ann","n":1}\n{"n":1}\n')
    df = spark.readStream.schema(SCHEMA).json(str(folder / "in"))
    with_state = transform_with_state(df.groupBy("user"), NullKeys(), "None")
    with spark_settings(spark, TWS_CONF):
        writer = with_state.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer.format("noop").trigger(availableNow=True).start().awaitTermination()
    return folder / "checkpoint"


def nothing_written(stage):
    places = (stage.state, stage.folder / "copied")
    return not [path for place in places for path in place.rglob("*") if path.is_file()]


def take(stage, checkpoint, function=None, **options):
    given = {"into": str(stage.folder / "copied"), "uid": "counts", **options}
    return import_tws(stage.spark, str(checkpoint), function or Count(), **given)


@pytest.mark.slow
def test_a_row_that_does_not_fit_is_named_and_nothing_stays(stage, stopped):
    with pytest.raises(ConfigurationError, match="nothing was imported") as caught:
        take(stage, stopped)
    assert "the table of state 'n', key None: a key of operator 'counts'" in str(caught.value)
    assert nothing_written(stage)


class Told(KeyedProcessFunction):
    def open(self, context):
        ttl = StateTtlConfig(HOUR)
        context.get_state(ValueStateDescriptor("one", float, ttl=ttl))
        context.get_list_state(ListStateDescriptor("some", tuple[int, str]))
        context.get_map_state(MapStateDescriptor("by", float, None, ttl=ttl))

    def process_element(self, row, ctx):
        raise AssertionError

    def on_timer(self, at, ctx):
        raise AssertionError


TOLD_KEY = {"a.b": "ann", "key": Decimal("1.50")}
TOLD = {
    "one": ("struct<value: struct<n: int>, ttlExpirationMs: bigint>", [((1,), HOUR_MS + 5)]),
    "some": ("array<struct<n: int, s: string>>", [[(1, "a"), (2, "b")], []]),
    "by": (
        (
            "map<struct<x: double>,"
            " struct<value: struct<m: map<string, int>>, ttlExpirationMs: bigint>>"
        ),
        [{Row(x=0.5): (({},), HOUR_MS), Row(x=-0.5): (({"k": 1},), HOUR_MS + 7)}],
    ),
    "timers": ("bigint", [3, 1 << 62]),
}
"""Variable → its type on Spark, and the content of rows."""


def told(spark):
    """Return the tables of states as Spark's reader gives them."""
    frames = {}
    for name, (kind, contents) in TOLD.items():
        rows = [(tuple(TOLD_KEY.values()), content) for content in contents]
        schema = f"key struct<`a.b`: string, key: decimal(10,2)>, content {kind}"
        frames[name] = spark.createDataFrame(rows, schema)
    shapes = {"one": Shape.POINT, "some": Shape.LIST, "by": Shape.MAP}
    found = TwsQuery(
        stopped=None,
        variables={
            name: Variable(name=name, shape=shape, has_ttl=name != "some", rows=frames[name])
            for name, shape in shapes.items()
        },
        domain=TimeDomain.EVENT_TIME,
        timers=frames["timers"],
        key=frames["one"].schema["key"].dataType,
    )
    key = KeyType.of(tuple[str, Decimal])
    declared = DeclaredStates.of(Told(), key=key, uid="told", backend=HeapBackend)
    return TwsTables(found, taken_states(found, declared, MappingChoices()), declared, timers=True)


def test_spark_makes_the_columns_of_tables(spark):
    found = told(spark).frames
    assert [layout.state for layout in found.layouts] == ["one", "some", "by", None]
    *states, timers = (frame.toArrow() for frame in found.frames)
    one, some, by = (table.to_pylist() for table in states)
    key = {"key_1": "ann", "key_2": Decimal("1.50")}
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert one == [key | {"value": 1, "written": start + timedelta(milliseconds=5)}]
    assert some == [key | {"value": [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]}]  # [] is no content
    (by,) = by
    assert dict(by["value"]) == {0.5: [], -0.5: [("k", 1)]}
    assert dict(by["written"]) == {0.5: start, -0.5: start + timedelta(milliseconds=7)}
    assert found.layouts[2].value["type"] == "dict"
    assert timers.drop(["time"]).to_pylist() == [key | {"domain": "event_time"}] * 2
    # The second one has no datetime: the task refuses it by name.
    assert timers["time"].cast("int64").to_pylist() == [3_000, 9 * 10**18]


@pytest.mark.slow
def test_a_location_that_spark_cannot_read_is_named(stage, stopped):
    moved = shutil.copytree(stopped, stage.folder / "with a blank")
    with pytest.raises(ConfigurationError, match="copy the checkpoint to a place without"):
        take(stage, moved)
    assert nothing_written(stage)


class Text(Count):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", str))


@pytest.mark.slow
def test_a_type_that_does_not_fit_is_named_before_anything_is_written(stage, stopped):
    with pytest.raises(ConfigurationError, match="n: bigint does not fit str"):
        take(stage, stopped, Text())
    assert nothing_written(stage)


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(stage, stopped):
    with pytest.raises(ConfigurationError, match="metadata is missing or not Spark's"):
        take(stage, stage.folder / "nothing")
    stage.put({"user": "ann", "n": 1})
    counts = stage.source().groupBy("user").count()
    writer = counts.writeStream.outputMode("complete").format("memory").queryName("counted")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    try:
        query.processAllAvailable()
        with pytest.raises(ConfigurationError, match="runs in this session: stop it"):
            take(stage, stage.checkpoint)
    finally:
        query.stop()
    with pytest.raises(ConfigurationError, match="has stateStoreSave: import-tws takes over"):
        take(stage, stage.checkpoint)
    assert nothing_written(stage)


@pytest.mark.slow
def test_a_query_without_a_batch_is_refused(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(fails_at=1), Count())
    with pytest.raises(StreamingQueryException):
        query.on_spark()
    with pytest.raises(ConfigurationError, match="has committed no batch"):
        query.taken()


@pytest.mark.slow
def test_a_dry_run_a_failure_and_an_occupied_place(stage, monkeypatch):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    query.on_spark()
    dry = query.taken(dry_run=True)
    assert (dry.run, dry.rows) == (None, {"n": 1})
    assert nothing_written(stage)

    def ran(self):
        raise StorageError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCopy, "check_unchanged", ran)
        with pytest.raises(StorageError, match="gone"):
            query.taken()
    assert not [path for path in stage.state.rglob("*") if path.is_file()]
    assert not [path for path in query.copied.rglob("*") if path.is_file()]

    assert query.taken().run is not None
    with pytest.raises(ConfigurationError, match="is not empty: name a new location"):
        query.taken()
    with pytest.raises(ConfigurationError, match="has state already"):
        query.taken(into=str(stage.folder / "another"))


@pytest.mark.slow
def test_the_command_takes_a_query_over(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    made = query.on_spark()
    arguments = [str(stage.checkpoint), "--into", str(query.copied), "--uid", "counts"]
    arguments += ["--state-dir", str(stage.state), "--function", f"{__name__}:Count"]
    bad = CliRunner().invoke(import_tws_command, [*arguments, "--ttl", "n"])
    assert "--ttl takes VARIABLE=DURATION, not 'n'" in str(bad.exception)
    done = CliRunner().invoke(import_tws_command, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (found["query"], found["version"], found["rows"]) == (str(made.id), 1, {"n": 1})
    stage.put({"user": "ann", "n": 2})
    assert query.goes_on() == [("ann", 1), ("ann", 3)]


GOES_ON = """
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        yield row
"""


@pytest.mark.slow
def test_the_program_takes_a_query_over(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    made = query.on_spark()
    (stage.folder / "counting.py").write_text(GOES_ON)
    program = str(Path(sys.executable).with_name("forebay"))
    asked = [program, "import-tws", str(stage.checkpoint), "--into", str(query.copied)]
    asked += ["--uid=counts", "--state-dir", str(stage.state), "--function=counting:Count"]
    how = {"cwd": stage.folder, "timeout": 200, "stdout": subprocess.PIPE}
    found = subprocess.run([*asked, "--json"], check=True, **how)
    done = json.loads(found.stdout)
    assert (done["query"], done["version"], done["rows"]) == (str(made.id), 1, {"n": 1})
    stage.put({"user": "ann", "n": 2})
    assert query.goes_on() == [("ann", 1), ("ann", 3)]
