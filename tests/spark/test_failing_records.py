"""``on_error="column"`` on Spark: bad rows go out with their errors, also where workers die."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed
from forebay_state_api import (
    ConfigurationError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_of, subtask_of

pytestmark = pytest.mark.spark

INPUT = "user string, n long"
OUTPUT = "user string, count long"
WRITTEN = f"{OUTPUT}, error struct<type: string, key: string, row: string, line: string>"
USERS = [f"user{n}" for n in range(6)]
BATCHES = 4


class Fragile(KeyedProcessFunction):
    """Counts; a row with ``n = 0`` fails after it has counted, in batch 2 its worker dies once."""

    def __init__(self, once):
        self.once = once

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.seen = context.get_list_state(ListStateDescriptor("seen", int))

    async def process_element(self, row, ctx):
        count = await self.count.async_value() + 1
        await self.count.async_update(count)
        await self.seen.async_add(row.n)
        yield row.user, count
        if row.n == 0:
            raise ValueError(row.user)
        if ctx.batch_id == 2 and self.once.exists():
            self.once.unlink()
            os._exit(17)
        if row.n < 0:
            yield row.user, "many"


def rows_of(batch):
    """Three rows of each user: the middle one fails, or does not fit the columns."""
    return [{"user": u, "n": n} for u in USERS for n in (1, 0 if batch % 2 else -1, 2)]


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_bad_rows_go_out_with_their_errors_and_leave_nothing(stage, backend):
    for batch in range(BATCHES):
        stage.put(*rows_of(batch))
    once = stage.folder / "once"
    once.touch()
    result = keyed(
        stage.source(INPUT), "user", uid="counts", parallelism=2, backend=backend, on_error="column"
    ).process(Fragile(once), OUTPUT)
    with pytest.raises(Exception, match=r"crash|exited|Python worker"):
        stage.run(result)
    stage.run(result)
    rows = stage.rows(WRITTEN)
    good = [row[:2] for row in rows if row[2] is None]
    assert good == sorted((user, n) for user in USERS for n in range(1, 2 * BATCHES + 1))
    failed = [row[2] for row in rows if row[2] is not None]
    assert sorted((one.type, json.loads(one.row)["n"]) for one in failed) == sorted(
        [("OutputSchemaError", -1), ("ValueError", 0)] * len(USERS) * (BATCHES // 2)
    )
    assert {one.key for one in failed} == set(USERS)
    lines = {one.line for one in failed if one.type == "ValueError"}
    assert len(lines) == 1
    assert "test_failing_records.py:" in lines.pop()


class Closes(KeyedProcessFunction):
    """Emits each user ten minutes after a row; the timer of ``bad`` fails."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(minutes=10))

    def on_timer(self, at, ctx):
        if ctx.current_key == "bad":
            raise LookupError("gone")
        yield ctx.current_key, at.minute


def test_a_timer_that_fails_goes_out_with_its_time(stage):
    for minute in (0, 20, 21):
        users = ("bad", "good") if minute == 0 else ("last",)
        stage.put(*[{"user": user, "at": f"2024-05-01T10:{minute:02}:00Z"} for user in users])
    source = stage.source("user string, at timestamp")
    result = keyed(
        source, "user", uid="closed", parallelism=1, event_time="at", on_error="column"
    ).process(Closes(), OUTPUT)
    stage.run(result)
    error = "type: string, method: string, key: string, row: string, timer: timestamp"
    good, (*nothing, failed) = stage.rows(f"{OUTPUT}, error struct<{error}>")
    assert good == ("good", 10, None)
    assert nothing == [None, None]
    assert failed[:-1] == ("LookupError", "on_timer", "bad", None)
    assert failed.timer.astimezone(UTC) == datetime(2024, 5, 1, 10, 10, tzinfo=UTC)


class Sides(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        return [(row.user, 1 // row.n)]

    def process_element2(self, row, ctx):
        raise LookupError


def test_a_bounded_dataframe_has_the_column_and_its_name(spark):
    rows = spark.createDataFrame([("a", 1), ("a", 0)], INPUT)
    inputs = [
        keyed(df, "user", uid="u", parallelism=1, on_error="column", error_column="wrong")
        for df in (rows, rows.where("n = 1"))
    ]
    out = inputs[0].connect(inputs[1]).process(Sides(), OUTPUT)
    assert out.columns == ["user", "count", "wrong"]
    found = out.select("user", "wrong.type", "wrong.method", F.from_json("wrong.row", INPUT).n)
    assert sorted(map(tuple, found.collect()), key=repr) == [
        ("a", None, None, None),
        (None, "LookupError", "process_element2", 1),
        (None, "ZeroDivisionError", "process_element1", 0),
    ]


@pytest.mark.parametrize(
    "method",
    ["map_with_state", pytest.param("map", marks=pytest.mark.slow), "reduce"],  # map: the next test
)
def test_the_short_forms_take_part(spark, method):
    rows = spark.createDataFrame([("a", 1), ("a", 0), ("a", 2)], INPUT)
    side = keyed(rows.coalesce(1), "user", uid="u", parallelism=1, on_error="column")
    if method == "map_with_state":
        out = side.map_with_state(lambda row, n: ((row.user, row.n // row.n), n), INPUT)
    elif method == "map":
        out = side.map(lambda row: (row.user, row.n // row.n), INPUT)
    else:
        out = side.reduce(lambda one, two: (one.user, one.n * two.n // two.n))
    found = [(row.n, row.error and row.error.type) for row in out.collect()]
    assert found == [(1, None), (None, "ZeroDivisionError"), (1, None)]


def test_a_subtask_with_too_many_failures_in_a_batch_fails_it(stage):
    assert [subtask_of(key_group_of(user, 128), 2, 128) for user in "ab"] == [1, 0]
    limits = {"on_error": "column", "error_limit": 2}
    side = keyed(stage.source(), "user", uid="u", parallelism=2, max_parallelism=128, **limits)
    out = side.map(lambda row: (row.user, 1 // row.n), INPUT)
    for users in ("abab", "abab", "aaa"):
        stage.put(*[{"user": user, "n": 0} for user in users])
    with pytest.raises(Exception, match="more than error_limit=2 records") as caught:
        stage.run(out)
    assert "operator 'u', " in str(caught.value)
    assert "key a: ZeroDivisionError" in str(caught.value)
    assert len(stage.rows(INPUT)) == 8, "two in each subtask and batch"


@pytest.mark.parametrize(
    ("arguments", "schema", "says"),
    [
        ({"on_error": "skip"}, OUTPUT, 'on_error is "fail" or "column", not \'skip\''),
        ({"error_limit": 3}, OUTPUT, "error_limit= goes with"),
        ({"on_error": "column", "error_limit": -1}, OUTPUT, "error_limit is a number"),
        ({"error_column": "wrong"}, OUTPUT, "error_column= goes with"),
        ({"on_error": "column", "error_column": "User"}, OUTPUT, "'User' is there already"),
        ({"on_error": "column"}, "user string, n long not null", "declare n without NOT NULL"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(spark, arguments, schema, says):
    rows = spark.createDataFrame([], INPUT)
    with pytest.raises(ConfigurationError, match=says):
        keyed(rows, "user", uid="u", parallelism=1, **arguments).map(lambda row: row, schema)
