"""Functions over columns on Spark: streams that change their face, two inputs, types, errors."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import types as T

from forebay_spark_runtime import broadcast, keyed
from forebay_state_api import (
    ConfigurationError,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark

INPUT = "user string, n long"
OUTPUT = "user string, count long, total long"


class Totals(NamedTuple):
    count: int
    total: int


class RunningTotals(KeyedBatchFunction, KeyedProcessFunction):
    """Counts and adds on either face; in columns, a slice with ``n = 13`` fails."""

    def open(self, context):
        descriptor = ValueStateDescriptor("totals", Totals, default=Totals(0, 0))
        self.totals = context.get_state(descriptor)

    def process_batch(self, rows, ctx):
        g, old = ctx.groups, self.totals.get_many(ctx.groups)
        count, total = g.cumcount(old["count"]), g.cumsum(rows["n"], old["total"])
        self.totals.put_many(g, count=g.last(count), total=g.last(total))
        if 13 in rows["n"].to_pylist():
            raise ValueError("thirteen")
        return {"user": rows["user"], "count": count, "total": total}

    def process_element(self, row, ctx):
        old = self.totals.value()
        new = Totals(old.count + 1, old.total + row.n)
        self.totals.update(new)
        return [(row.user, *new)]


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_stream_changes_its_face_at_restarts(stage, backend):
    wanted, totals = [], Counter()
    for run in range(3):
        for n in range(2):
            some = [{"user": user, "n": n + run} for user in "abcde" for _ in range(2)]
            stage.put(*some)
            for row in some:
                totals[row["user"], "n"] += row["n"]
                totals[row["user"], "count"] += 1
                wanted.append((row["user"], totals[row["user"], "count"], totals[row["user"], "n"]))
        stream = keyed(stage.source(INPUT), "user", uid="totals", parallelism=2, backend=backend)
        method = stream.process if run == 1 else stream.process_batch
        stage.run(method(RunningTotals(), OUTPUT))
        assert stage.rows(OUTPUT) == sorted(wanted)


def test_rows_of_a_key_that_fails_go_out_with_the_error(stage):
    stage.put(*[{"user": user, "n": n} for user, n in (("a", 1), ("b", 13), ("b", 2), ("c", 3))])
    stage.put(*[{"user": user, "n": 1} for user in "abc"])
    result = keyed(
        stage.source(INPUT), "user", uid="totals", parallelism=1, on_error="column"
    ).process_batch(RunningTotals(), OUTPUT)
    stage.run(result)
    rows = stage.rows(f"{OUTPUT}, error struct<type: string, key: string, row: string>")
    good = [row[:3] for row in rows if row[3] is None]
    assert good == [("a", 1, 1), ("a", 2, 2), ("b", 1, 1), ("c", 1, 3), ("c", 2, 4)]
    failed = [row[3] for row in rows if row[3] is not None]
    assert sorted((one.type, one.key, json.loads(one.row)["n"]) for one in failed) == [
        ("ValueError", "b", 2),
        ("ValueError", "b", 13),
    ]


class LastPrice(KeyedBatchFunction):
    def open(self, context):
        self.price = context.get_state(ValueStateDescriptor("price", float))

    def process_batch(self, rows, ctx):
        g = ctx.groups
        price = g.ffill(rows.second["price"], self.price.get_many(g))
        self.price.put_many(g, g.last(price), where=g.any(rows.is_second))
        return rows.first.append("price", price)


def test_two_inputs_keep_their_order(spark):
    trades = spark.createDataFrame(
        [("a", 1), ("a", 3), ("a", 5), ("b", 2)], "item string, at int"
    ).coalesce(1)
    prices = spark.createDataFrame(
        [("a", 2, 2.5), ("a", 4, 4.5)], "item string, at int, price double"
    ).coalesce(1)
    first, second = (
        keyed(df, "item", uid="prices", parallelism=1, order_by="at") for df in (trades, prices)
    )
    out = first.connect(second).process_batch(LastPrice(), "item string, at int, price double")
    assert sorted(map(tuple, out.collect())) == [
        ("a", 1, None),
        ("a", 3, 2.5),
        ("a", 5, 4.5),
        ("b", 2, None),
    ]


class CountKeys(KeyedBatchFunction):
    """Counts by key, in state whose keys come from columns of any type."""

    slices = "micro-batch"

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_batch(self, rows, ctx):
        g = ctx.groups
        self.count.put_many(g, g.count())
        first = rows.take(g.first_rows())
        return first.select("k").append("n", self.count.get_many(g))


KEYS = [
    (T.ByteType(), [1, -1]),
    (T.LongType(), [1 << 62, -5]),
    (T.FloatType(), [0.0, 1.5]),
    (T.DoubleType(), [1e300, -2.0]),
    (T.BooleanType(), [True, False]),
    (T.StringType(), ["", "é€"]),
    (T.BinaryType(), [bytearray(b""), bytearray(b"\xff")]),
    (T.DecimalType(20, 3), [Decimal("1.500"), Decimal("-7.000")]),
    (T.DateType(), [date(1, 1, 1), date(2024, 2, 29)]),
    (T.TimestampType(), [datetime(1970, 1, 1, tzinfo=UTC), datetime(2024, 3, 31, 1, tzinfo=UTC)]),
    (T.TimestampNTZType(), [*map(datetime.fromisoformat, ("1970-01-01", "2024-03-31T02:30"))]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[str(kind) for kind, _ in KEYS])
def test_keys_of_every_type(spark, kind, values):
    schema = T.StructType([T.StructField("k", kind)])
    df = spark.createDataFrame([(value,) for value in [*values, values[0]]], schema)
    expected = sorted((str(row.k), n) for row, n in zip(df.collect(), (2, 1), strict=False))
    counts = keyed(df, "k", uid="counts", parallelism=1).process_batch(
        CountKeys(), T.StructType([*schema, T.StructField("n", T.IntegerType())])
    )
    assert sorted((str(row.k), row.n) for row in counts.collect()) == expected


class Returns(KeyedBatchFunction):
    def __init__(self, make):
        self.make = make

    def process_batch(self, rows, ctx):
        return self.make(rows)


def outputs(spark, make, schema, n=2):
    df = spark.createDataFrame([("a", at) for at in range(n)], INPUT).coalesce(1)
    return keyed(df, "user", uid="out", parallelism=1).process_batch(Returns(make), schema)


def pandas_frame(rows):
    frame = rows.to_arrow().to_pandas()
    return frame.assign(at=frame.n.astype("datetime64[s]"), n=frame.n.astype("uint32"))


@pytest.mark.parametrize(
    ("make", "schema", "expected"),
    [
        (lambda rows: rows, INPUT, [("a", 0), ("a", 1)]),
        (lambda rows: rows.to_arrow().filter(pa.array([False, True])), INPUT, [("a", 1)]),
        (lambda rows: pa.table({"n": rows["n"]}), "n int", [(0,), (1,)]),
        (
            lambda rows: {"t": rows["user"].cast(pa.large_string()), "n": [Decimal(7), Decimal(8)]},
            "t string, n long",
            [("a", 7), ("a", 8)],
        ),
        (
            pandas_frame,
            "at timestamp_ntz, n long, user string",
            [(datetime.fromisoformat(f"1970-01-01T00:00:0{n}"), n, "a") for n in (0, 1)],
        ),
        (lambda rows: None, INPUT, []),
    ],
)
def test_output_of_every_library_is_cast(spark, make, schema, expected):
    assert sorted(map(tuple, outputs(spark, make, schema).collect())) == expected


@pytest.mark.parametrize(
    ("make", "schema", "reason"),
    [
        (lambda rows: {"n": rows["user"]}, "n long", "column 'n' is declared long; .* gave string"),
        (lambda rows: {"n": [1, 1 << 40]}, "n int", "in row 1 of its output"),
        (lambda rows: {"n": [1, None]}, "n int not null", "NOT NULL; .* null in row 1"),
        (lambda rows: {"m": [1, 2]}, "n int", r"missing \['n'\], unknown \['m'\]"),
        (lambda rows: {"n": [True, False]}, "n int", "declared int; .* gave bool"),
        (lambda rows: {"n": [0.5]}, "n int", "0.5.* in row 0"),
    ],
)
def test_output_that_does_not_fit_names_column_and_row(spark, make, schema, reason):
    with pytest.raises(Exception, match=f"(?s)OutputSchemaError.*{reason}"):
        outputs(spark, make, schema).collect()


def test_each_method_takes_its_own_functions(spark):
    stream = keyed(spark.createDataFrame([], INPUT), "user", uid="u")
    with pytest.raises(ConfigurationError, match=r"\.process_batch runs a batch function"):
        stream.process(Returns(None), INPUT)
    with pytest.raises(ConfigurationError, match="process_batch takes a KeyedBatchFunction"):
        stream.process_batch(lambda row, ctx: None, INPUT)


class Sizes(KeyedBatchFunction):
    def process_batch(self, rows, ctx):
        return {"user": [None], "n": [len(rows)]}

    def end_batch(self, ctx):
        return {"user": ["end"], "n": [0]}


def test_slices_are_bounded_by_memory(spark):
    df = spark.range(4_000).selectExpr("'a' AS user", "id AS n").coalesce(1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        for limit, sizes in (("1", [1_000] * 4), ("8m", [4_000])):
            out = keyed(df, "user", uid="u", parallelism=1, slice_bytes=limit)
            found = [tuple(row) for row in out.process_batch(Sizes(), INPUT).collect()]
            assert found == [*[(None, size) for size in sizes], ("end", 0)]
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


class Late(KeyedBatchFunction):
    def process_batch(self, rows, ctx):
        mark = None if ctx.watermark is None else ctx.watermark.minute
        return {"minute": pc.minute(rows["at"]), "late": rows.is_late, "mark": [mark] * len(rows)}


def test_event_time_on_a_stream(stage):
    for minutes in ((5,), (5, 6)):
        stage.put(*[{"user": "a", "at": f"2024-05-01T10:{at:02}:00Z"} for at in minutes])
    stream = keyed(
        stage.source("user string, at timestamp"),
        "user",
        uid="late",
        parallelism=1,
        event_time="at",
    )
    output = "minute long, late boolean, mark int"
    stage.run(stream.process_batch(Late(), output))
    assert stage.rows(output) == [(5, False, None), (5, True, 5), (6, False, 5)]


class Gathered(KeyedBatchFunction, KeyedProcessFunction):
    """Gathers numbers in a list until a timer."""

    def open(self, context):
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))

    def process_batch(self, rows, ctx):
        self.numbers.add_many(ctx.groups, rows["n"])
        ctx.timers.register_event_time_many(ctx.groups, pc.add(rows["at"], MINUTE))

    def on_timers(self, at, ctx):
        g = ctx.groups
        total = [sum(one) for one in self.numbers.get_many(g).to_pylist()]
        self.numbers.clear_many(g)
        return {"user": g.keys["user"], "minute": pc.minute(at), "total": total}

    def process_element(self, row, ctx):
        self.numbers.add(row.n)
        ctx.timers.register_event_time(row.at + timedelta(minutes=1))

    def on_timer(self, at, ctx):
        total = sum(self.numbers.get())
        self.numbers.clear()
        yield ctx.current_key, at.minute, total


MINUTE = pa.scalar(timedelta(minutes=1), pa.duration("us"))


@pytest.mark.parametrize("backend", [pytest.param("heap", marks=pytest.mark.slow), "lsm"])
def test_lists_and_timers_at_restarts_that_change_the_face(stage, backend):
    output = "user string, minute int, total long"
    for batch in range(1, 5):
        at = f"2024-05-01T10:{2 * batch - 1:02}:00Z"
        stage.put(*[{"user": user, "n": batch, "at": at} for user in "abcde"])
        stream = keyed(
            stage.source("user string, n long, at timestamp"),
            "user",
            uid="gathered",
            parallelism=1 + batch % 2,
            event_time="at",
            backend=backend,
        )
        method = stream.process if batch == 2 else stream.process_batch
        stage.run(method(Gathered(), output))
    wanted = [(user, minute, 3) for user in "abcde" for minute in (2, 4)]
    assert stage.rows(output) == wanted


class Limited(KeyedBatchFunction):
    def open(self, context):
        self.limit = context.get_broadcast_state(MapStateDescriptor("limit", str, int))
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_broadcast_element(self, row, ctx):
        self.limit.put(row.user, row.n)
        yield row.user, row.n

    def process_batch(self, rows, ctx):
        total = ctx.groups.cumsum(rows["n"], self.total.get_many(ctx.groups))
        self.total.put_many(ctx.groups, ctx.groups.last(total))
        return {"user": rows["user"], "n": pc.min_element_wise(total, self.limit.get("all"))}


@pytest.mark.parametrize("on_error", ["fail", "column"])
def test_a_broadcast_input(spark, on_error):
    df = spark.createDataFrame([("a", 1), ("a", 7), ("b", 2)], INPUT).coalesce(1)
    limits = spark.createDataFrame([("all", 5)], INPUT)
    first = keyed(df, "user", uid="u", parallelism=2, on_error=on_error)
    out = first.connect(broadcast(limits)).process_batch(Limited(), INPUT)
    rows = [("a", 1), ("a", 5), ("all", 5), ("all", 5), ("b", 2)]
    assert sorted((row.user, row.n) for row in out.collect()) == rows
    with pytest.raises(ConfigurationError, match="does not define process_broadcast_element"):
        first.connect(broadcast(limits)).process_batch(Late(), INPUT)


def test_for_each_batch(stage):
    for _ in range(2):
        stage.put(*[{"user": user, "n": n} for user in "ab" for n in (1, 2)])
    found = []

    def handle(df, batch_id):
        out = keyed(df, "user", uid="totals", parallelism=2)
        found.extend(map(tuple, out.process_batch(RunningTotals(), OUTPUT).collect()))

    query = (
        stage.source(INPUT)
        .writeStream.foreachBatch(handle)
        .option("checkpointLocation", str(stage.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(100)
    assert sorted(found) == sorted(
        (user, *pair) for user in "ab" for pair in ((1, 1), (2, 3), (3, 4), (4, 6))
    )
