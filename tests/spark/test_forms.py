"""Functions in every form on a real stream: file source, file sink, a restart in between.

All forms but one are tested with the engine by default: Spark has no part in their differences.
"""

from __future__ import annotations

import pytest
from py4j.clientserver import JavaClient

from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver.operator_names import observed_id
from forebay_state_api import (
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ReduceFunction,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark

TOTAL = ValueStateDescriptor("total", int, default=0)
SCHEMA = "user string, total long"


class Totals(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(TOTAL)


class Plain(Totals):
    def process_element(self, row, ctx):
        total = self.total.value() + row.n
        self.total.update(total)
        return [(row.user, total)]


class Generator(Totals):
    def process_element(self, row, ctx):
        total = self.total.value() + row.n
        self.total.update(total)
        yield {"total": total, "user": row.user}


class Coroutine(Totals):
    async def process_element(self, row, ctx):
        total = await self.total.async_value() + row.n
        await self.total.async_update(total)
        return [(row.user, total)]


class AsyncGenerator(Totals):
    async def process_element(self, row, ctx):
        total = await self.total.async_value() + row.n
        await self.total.async_update(total)
        yield ctx.current_key, total


class Callbacks(Totals):
    def process_element(self, row, ctx):
        def add(total):
            return self.total.async_update(total + row.n).then_apply(lambda _: total + row.n)

        self.total.async_value().then_compose(add).then_accept(
            lambda total: ctx.collect((row.user, total))
        )


class Mixed(Totals):
    async def process_element(self, row, ctx):
        total = self.total.value() + row.n
        await self.total.async_update(total)
        ctx.collect((row.user, self.total.value()))


FILES = [
    [{"user": user, "n": n} for n in range(1, 4) for user in ("ann", "bob", "cyd")],
    [{"user": "ann", "n": 10}, {"user": "dan", "n": 5}],
    [{"user": "bob", "n": 100}, {"user": "bob", "n": 1000}],
]


def running_totals(files, start=None):
    totals, rows = dict(start or {}), []
    for row in (row for file in files for row in file):
        totals[row["user"]] = totals.get(row["user"], 0) + row["n"]
        rows.append((row["user"], totals[row["user"]]))
    return sorted(rows)


@pytest.mark.parametrize(
    "function",
    [
        AsyncGenerator,
        *(
            pytest.param(form, marks=pytest.mark.slow)
            for form in (Plain, Callbacks, Generator, Coroutine, Mixed)
        ),
    ],
)
def test_every_form_counts_the_same(stage, function):
    stage.put(*FILES[0])
    stage.put(*FILES[1])
    result = keyed(stage.source(), "user", uid="totals", parallelism=2).process(function(), SCHEMA)
    stage.run(result)
    assert stage.rows(SCHEMA) == running_totals(FILES[:2])
    stage.put(*FILES[2])
    stage.run(result)
    assert stage.rows(SCHEMA) == running_totals(FILES)


class Doubled(MapFunction):
    def map(self, row):
        return row.user, row.n * 2


class Changed(FlatMapFunction):
    """Emits a row if the value of its key has changed."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", int))

    async def flat_map(self, row):
        if await self.last.async_value() != row.n:
            await self.last.async_update(row.n)
            yield row.user, row.n


class Largest(ReduceFunction):
    def reduce(self, first, second):
        return first if first.n >= second.n else second


@pytest.mark.slow  # by default: the callables below, and the classes with the engine
def test_map_and_flat_map(stage):
    stage.put({"user": "ann", "n": 1}, {"user": "ann", "n": 1}, {"user": "bob", "n": 2})
    stage.put({"user": "ann", "n": 1}, {"user": "ann", "n": 3})
    doubled = keyed(stage.source(), "user", uid="doubled").map(Doubled(), "user string, n long")
    stage.run(keyed(doubled, "user", uid="changed").flat_map(Changed(), "user string, n long"))
    assert stage.rows("user string, n long") == [("ann", 2), ("ann", 6), ("bob", 4)]


def test_plain_callables(spark):
    df = spark.createDataFrame([("ann", 1), ("bob", 2)], "user string, n long")
    negative = keyed(df, "user", uid="map").map(lambda row: (row.user, -row.n), SCHEMA)
    twice = keyed(negative, "user", uid="flat").flat_map(
        lambda row: [(row.user, row.total)] * 2, SCHEMA
    )
    keys = keyed(twice, "user", uid="process").process(
        lambda row, ctx: [(ctx.current_key, row.total)], SCHEMA
    )
    assert sorted(keys.collect()) == [("ann", -1), ("ann", -1), ("bob", -2), ("bob", -2)]


def test_reduce_keeps_a_row_for_each_key(stage):
    schema = "`the user` string, n long, tags array<string>"
    stage.put(
        {"the user": "ann", "n": 2, "tags": ["a"]},
        {"the user": "ann", "n": 1, "tags": None},
        {"the user": "bob", "n": 5},
    )
    stage.put({"the user": "ann", "n": 9, "tags": []}, {"the user": "bob", "n": 4})
    stage.run(keyed(stage.source(schema), "the user", uid="largest").reduce(Largest()))
    found = stage.spark.read.schema(schema).json(str(stage.output)).collect()
    assert sorted((row["the user"], row.n, row.tags) for row in found) == [
        ("ann", 2, ["a"]),
        ("ann", 2, ["a"]),
        ("ann", 9, []),
        ("bob", 5, None),
        ("bob", 5, None),
    ]


def test_reduce_by_a_callable_that_gives_dicts(spark):
    df = spark.createDataFrame([("ann", 1), ("ann", 2), ("bob", 3)], "user string, n long")
    sums = keyed(df, "user", uid="sums", parallelism=1).reduce(
        lambda a, b: {"n": a.n + b.n, "user": a.user}
    )
    assert sorted(sums.collect()) == [("ann", 1), ("ann", 3), ("bob", 3)]


class Joined(KeyedCoProcessFunction):
    """Emits each order with its user's current name; orders without a name wait."""

    def open(self, context):
        self.name = context.get_state(ValueStateDescriptor("name", str))
        self.waiting = context.get_list_state(ListStateDescriptor("waiting", int))

    async def process_element1(self, row, ctx):
        name = await self.name.async_value()
        if name is None:
            await self.waiting.async_add(row.amount)
        else:
            yield name, row.amount

    async def process_element2(self, row, ctx):
        await self.name.async_update(row.name)
        async for amount in await self.waiting.async_get():
            yield row.name, amount
        await self.waiting.async_clear()


def test_connect_shares_state_by_key(stage):
    orders, names = stage.folder / "orders", stage.folder / "names"
    joined = (
        keyed(stage.source("id int, amount long", folder=orders), "id", uid="join", parallelism=2)
        .connect(
            keyed(
                stage.source("name string, id long", folder=names), "id", uid="join", parallelism=2
            )
        )
        .process(Joined(), "name string, amount long")
    )
    stage.put(*[{"id": n % 5, "amount": n} for n in range(20)], into=orders)
    stage.put(*[{"id": n, "name": f"user{n}"} for n in range(2)], into=names)
    stage.run(joined)
    stage.put(*[{"id": n, "name": f"user{n}"} for n in range(2, 5)], into=names)
    stage.put({"id": 1, "amount": 100}, into=orders)
    stage.run(joined)
    expected = [(f"user{n % 5}", n) for n in range(20)] + [("user1", 100)]
    assert stage.rows("name string, amount long") == sorted(expected)


class Seen(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_map_state(MapStateDescriptor("seen", int, int))

    async def process_element(self, row, ctx):
        before = await self.seen.async_get(row.n) or 0
        await self.seen.async_put(row.n, before + 1)
        keys = sorted([key async for key in await self.seen.async_keys()])
        yield row.user, f"{before} {keys}"


@pytest.mark.slow  # by default: the kinds of state of test_restarts.py
def test_map_state_on_a_stream(stage):
    stage.put({"user": "ann", "n": 1}, {"user": "ann", "n": 2})
    stage.put({"user": "ann", "n": 1})
    stage.run(keyed(stage.source(), "user", uid="seen").process(Seen(), "user string, what string"))
    assert [what for _, what in stage.rows("user string, what string")] == [
        "0 [1, 2]",
        "0 [1]",
        "1 [1, 2]",
    ]


def test_progress_tells_how_many_rows_came(stage):
    stage.put({"user": "ann", "n": 1}, {"user": "bob", "n": 2})
    query = stage.run(keyed(stage.source(), "user", uid="totals").process(Plain(), SCHEMA))
    (metrics,) = [p["observedMetrics"] for p in query.recentProgress if p["numInputRows"]]
    assert metrics["forebay:totals"]["figures"]["rows_in"] == 2
    (made,) = [name for name in metrics if name.startswith("forebay:totals:")]
    assert observed_id(made), "the node by which versions become final"


def test_order_by_sorts_each_subtask(stage):
    """Several files of one batch come in any order; ``order_by`` sorts their rows."""
    for start in (40, 0, 20):
        stage.put(*[{"user": "ann", "n": n} for n in reversed(range(start, start + 20))])
    source = stage.spark.readStream.schema("user string, n long").json(str(stage.input))

    class Previous(KeyedProcessFunction):
        def open(self, context):
            self.last = context.get_state(ValueStateDescriptor("last", int, default=-1))

        def process_element(self, row, ctx):
            yield row.n, self.last.value()
            self.last.update(row.n)

    ordered = keyed(source, "user", uid="ordered", order_by="n", parallelism=2)
    stage.run(ordered.process(Previous(), "n long, previous long"))
    assert stage.rows("n long, previous long") == [(n, n - 1) for n in range(60)]


def test_order_by_goes_across_both_inputs(spark):
    class Sides(KeyedCoProcessFunction):
        def process_element1(self, row, ctx):
            yield "left", row.t, row.tags

        def process_element2(self, row, ctx):
            yield "right", row.at, {}

    left = spark.createDataFrame(
        [("a", n, {"k": n}) for n in (5, 1, 3)], "k string, t int, tags map<string,int>"
    )
    right = spark.createDataFrame([("a", n) for n in (4, 2, 0)], "k string, at int")
    rows = (
        keyed(left, "k", uid="sides", parallelism=1, order_by=["t"])
        .connect(keyed(right, "k", uid="sides", parallelism=1, order_by=["at"]))
        .process(Sides(), "side string, t int, tags map<string,int>")
        .collect()
    )
    assert [(row.side, row.t) for row in rows] == [
        ("left" if n % 2 else "right", n) for n in range(6)
    ]
    assert [row.tags for row in rows if row.side == "left"] == [{"k": 1}, {"k": 3}, {"k": 5}]


def test_making_an_operator_asks_the_jvm_little(stage, monkeypatch):
    """A query makes its operators at each start, and in ``foreachBatch`` with each micro-batch."""
    asked = []
    send = JavaClient.send_command

    def noting(client, command, *more, **options):
        if not command.startswith("m\n"):  # the end of objects, of earlier tests too
            asked.append(command)
        return send(client, command, *more, **options)

    monkeypatch.setattr(JavaClient, "send_command", noting)
    source = stage.source()
    asked.clear()
    keyed(source, "user", uid="totals", parallelism=2).process(Plain(), SCHEMA)
    assert 10 < len(asked) < 300
