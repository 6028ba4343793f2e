"""Broadcast inputs on Spark: every subtask gets every row, whatever runs, stops or is rescaled.

By default ``packages/engine/tests/execution/test_broadcast.py`` has timers that fire before the
rules of their batch, and at the end of a bounded DataFrame.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from forebay_spark_runtime import broadcast, keyed
from forebay_state_api import (
    ConfigurationError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)

pytestmark = pytest.mark.spark

EVENTS = "user string, kind string, n long"
RULES = "kind string, most long, at long"
SCHEMA = "what string, user string, n long"
MOST = MapStateDescriptor("most", str, int)
TOTAL = ValueStateDescriptor("total", int, default=0)


class Limits(KeyedBroadcastProcessFunction):
    """Adds up each user's numbers, but of each row not more than the rule of its kind says."""

    def open(self, context):
        self.most = context.get_broadcast_state(MOST)
        self.total = context.get_state(TOTAL)

    async def process_element(self, row, ctx):
        most = await self.most.async_get(row.kind) or 0
        total = await self.total.async_value() + min(row.n, most)
        await self.total.async_update(total)
        yield "total", row.user, total

    async def process_broadcast_element(self, row, ctx):
        if row.kind is None:
            await ctx.async_apply_to_keyed_state(TOTAL, self.reset)
        else:
            # The order shows in the state.
            await self.most.async_put(row.kind, (await self.most.async_get(row.kind) or 0) * 10)
            await self.most.async_put(row.kind, await self.most.async_get(row.kind) + row.most)
            yield "rules", row.kind, self.most.get(row.kind)

    async def reset(self, key, total):
        yield "reset", key, await total.async_value()
        await total.async_clear()


class Crashing(Limits):
    def close(self):
        message = "trouble"
        raise ValueError(message)


def limited(stage, function, parallelism, *, events=None, rules=None):
    events = stage.source(EVENTS, folder=stage.folder / "events") if events is None else events
    rules = stage.source(RULES, folder=stage.folder / "rules") if rules is None else rules
    operator = keyed(events, "user", uid="limits", parallelism=parallelism)
    return operator.connect(broadcast(rules, order_by="at")).process(function, SCHEMA)


def put(stage, events=(), rules=()):
    names = [["user", "kind", "n"], ["kind", "most", "at"]]
    for folder, columns, rows in zip(("events", "rules"), names, (events, rules), strict=True):
        if rows:
            dicts = [dict(zip(columns, row, strict=True)) for row in rows]
            stage.put(*dicts, into=stage.folder / folder)


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_every_subtask_has_the_rules_over_batches_failures_and_rescales(stage, backend):
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    users = [f"user{n}" for n in range(9)]
    found = []

    def run(function, parallelism):
        before = stage.rows(SCHEMA) if stage.output.exists() else []
        stage.run(limited(stage, function, parallelism))
        after = stage.rows(SCHEMA)
        for row in before:
            after.remove(row)
        found.append(after)

    # Rules arrive out of order, and before the events of the same batch.
    put(stage, [(user, "a", 500) for user in users], [("a", 2, 2), ("a", 1, 1), ("b", 7, 3)])
    run(Limits(), 2)
    # A batch of rules alone; it fails once, and is repeated in more subtasks than before.
    put(stage, (), [("a", 3, 4)])
    with pytest.raises(Exception, match="trouble"):
        stage.run(limited(stage, Crashing(), 2))
    # Then all of them read these rules and those of the earlier run.
    put(stage, [(user, kind, 500) for user in users for kind in "ab"])
    run(Limits(), 5)
    # A row that visits every key, in fewer subtasks.
    put(stage, [("user0", "b", 1)], [(None, None, 5)])
    run(Limits(), 1)

    rules = [("rules", "a", 1), ("rules", "a", 12), ("rules", "b", 7)]
    assert found[0] == sorted(rules * 2 + [("total", user, 12) for user in users])
    assert found[1][:5] == [("rules", "a", 123)] * 5
    totals = found[1][5:]
    assert len(totals) == 18
    last = {user: n for _, user, n in totals}
    assert sorted(last) == users
    assert max(totals, key=lambda row: row[2])[2] == 12 + 123 + 7
    assert found[2] == sorted(
        [("reset", user, 12 + 123 + 7) for user in users] + [("total", "user0", 1)]
    )


class Moments(Limits):
    """Sets a timer at each row's time, which emits the rule of that moment."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def on_timer(self, at, ctx):
        yield "timer", ctx.current_key, self.most.get("a")

    def process_broadcast_element(self, row, ctx):
        self.most.put(row.kind, row.most)


def test_in_foreach_batch_timers_fire_before_the_rules_of_their_batch(stage):
    times = {"ann": "10:00", "bob": "11:00", "cy": "12:00"}
    for most, (user, time) in enumerate(times.items()):
        at = f"2024-05-01T{time}:00Z"
        stage.put({"user": user, "at": at}, {"kind": "a", "most": most})

    def each(df, batch_id):
        events = keyed(
            df.where("user IS NOT NULL"), "user", uid="limits", parallelism=2, event_time="at"
        )
        rows = events.connect(broadcast(df.where("user IS NULL"))).process(Moments(), SCHEMA)
        rows.write.mode("append").json(str(stage.output))

    stage.each_batch(each, stage.source("user string, at timestamp, kind string, most long"))
    assert stage.rows(SCHEMA) == [("timer", "ann", 0), ("timer", "bob", 1)]


@pytest.mark.slow
def test_the_end_of_a_bounded_dataframe_fires_timers_that_see_the_rules(spark):
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    events = spark.createDataFrame([("ann", noon), ("bob", noon)], "user string, at timestamp")
    rules = spark.createDataFrame([("a", 3)], "kind string, most long")
    operator = keyed(events, "user", uid="ends", parallelism=2, event_time="at")
    rows = operator.connect(broadcast(rules)).process(Moments(), SCHEMA).collect()
    assert sorted(map(tuple, rows)) == [("timer", "ann", 3), ("timer", "bob", 3)]


def test_bounded_dataframes_and_bad_arguments(stage):
    spark = stage.spark
    events = spark.createDataFrame([(f"u{n}", "a", n) for n in range(6)], EVENTS)
    rules = spark.createDataFrame([("a", 3, 1)], RULES)
    rows = limited(stage, Limits(), 3, events=events, rules=rules).collect()
    expected = [("total", f"u{n}", min(n, 3)) for n in range(6)] + [("rules", "a", 3)] * 3
    assert sorted(map(tuple, rows)) == sorted(expected)
    # Without any rule the operator runs all the same.
    none = limited(stage, Limits(), 3, events=events, rules=rules.limit(0)).collect()
    assert sorted(map(tuple, none)) == [("total", f"u{n}", 0) for n in range(6)]

    side = keyed(events, "user", uid="limits")
    with pytest.raises(ConfigurationError, match="takes a KeyedBroadcastProcessFunction"):
        side.connect(broadcast(rules)).process(Both(), SCHEMA)
    with pytest.raises(ConfigurationError, match="takes a KeyedCoProcessFunction"):
        side.connect(side).process(Limits(), SCHEMA)
    with pytest.raises(ConfigurationError, match="takes a KeyedProcessFunction"):
        side.process(Limits(), SCHEMA)
    with pytest.raises(ConfigurationError, match=r"broadcast\(...\) of forebay_spark_runtime"):
        side.connect(rules)
    with pytest.raises(ConfigurationError, match="no column 'when' to order by"):
        side.connect(broadcast(rules, order_by="when"))
    with pytest.raises(ConfigurationError, match="two streams, or two bounded"):
        side.connect(broadcast(stage.source(RULES)))
    with pytest.raises(ConfigurationError, match=r"broadcast\(\) takes a DataFrame"):
        broadcast([("a", 3, 1)])


class Picky(Limits):
    """Fails for a rule without a number, and for a row of a kind without a rule."""

    def process_element(self, row, ctx):
        if self.most.get(row.kind) is None:
            raise LookupError(row.kind)
        yield "total", row.user, self.total.value()

    async def process_broadcast_element(self, row, ctx):
        await self.most.async_put(row.kind, row.most + 0)


def test_where_records_fail_alone_a_broadcast_row_fails_the_batch(stage):
    events = stage.spark.createDataFrame([("ann", "a", 1), ("bob", "b", 1)], EVENTS)

    def rows(*rules):
        operator = keyed(events, "user", uid="limits", parallelism=2, on_error="column")
        found = operator.connect(broadcast(stage.spark.createDataFrame([*rules], RULES)))
        return found.process(Picky(), SCHEMA).collect()

    good, bad = sorted(rows(("a", 3, 1)), key=lambda row: row.user is None)
    assert (tuple(good)[:3], good.error) == (("total", "ann", 0), None)
    assert (bad.user, bad.error.type, bad.error.message) == (None, "LookupError", "b")
    with pytest.raises(Exception, match=r"process_broadcast_element .*TypeError"):
        rows(("a", 3, 1), ("b", None, 2))


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        """Do nothing."""

    def process_element2(self, row, ctx):
        """Do nothing."""
