"""Late rows on Spark: dropped and counted, or in the column ``late``, before the function."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import ConfigurationError, KeyedBatchFunction, KeyedCoProcessFunction

pytestmark = pytest.mark.spark

INPUT = "user string, at timestamp"
OUTPUT = "user string, minute string"
LATE = "late struct<row: string, input: int, watermark: timestamp>"


def at(user, minute):
    time = None if minute is None else f"2024-05-01T10:{minute:02}:00Z"
    return {"user": user, "at": time}


class Minutes(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        if row.at is not None and row.at.minute == 13:
            raise ValueError("unlucky")
        yield row.user, None if row.at is None else f"{row.at:%M}"

    process_element2 = process_element1


class InColumns(KeyedBatchFunction):
    def process_batch(self, rows, ctx):
        return {
            "user": rows["user"],
            "minute": [at.strftime("%M") for at in rows["at"].to_pylist()],
        }


def figures(query, *names):
    of_all = [one.figures for event in query.recentProgress for one in operators_of(event)]
    return [sum(each.get(name, 0) for each in of_all) for name in names]


@pytest.mark.parametrize("sends", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_late_rows_of_two_inputs_are_in_a_column(stage, sends):
    second = stage.folder / "second"
    stage.put(at("a", 10))
    stage.put(at("b", 20), into=second)
    stage.put(at("a", 5), at("a", 13), at("a", None), at("b", 11))
    stage.put(at("b", 10), at("b", 21), into=second)
    sides = [
        keyed(
            stage.source(INPUT, folder=folder),
            "user",
            uid="minutes",
            parallelism=1,
            event_time="at",
            late="column",
            on_error="column",
            order_by="at",
        )
        for folder in (stage.input, second)
    ]
    if not sends:
        stage.spark.conf.set("spark.forebay.progress-figures", "false")
    query = stage.run(sides[0].connect(sides[1]).process(Minutes(), OUTPUT))
    read = f"{OUTPUT}, error struct<message: string>, {LATE}"
    found = stage.rows_by_spark(read)
    own = sorted(str(minute) for user, minute, _, _ in found if user is not None)
    assert own == ["10", "11", "20", "21", "None"]
    assert [error.message for _, _, error, _ in found if error is not None] == ["unlucky"]
    late = [one for *_, one in found if one is not None]
    assert sorted((json.loads(one.row)["user"], one.input) for one in late) == [("a", 1), ("b", 2)]
    assert {one.watermark.minute for one in late} == {10}
    if sends:
        counted = figures(query, "rows_in", "rows_out", "late_rows", "late_rows_dropped")
        assert counted == [6, 8, 2, 0]


def test_late_rows_are_dropped_before_a_reduce_function(stage):
    for rows in ([at("a", 10)], [at("a", 10), at("b", 5), at("a", 12)], [at("b", 13)]):
        stage.put(*rows)
    side = keyed(
        stage.source(INPUT), "user", uid="last", parallelism=2, event_time="at", late="drop"
    )
    query = stage.run(
        side.reduce(lambda one, other: other).select("user", F.minute("at").alias("n"))
    )
    assert stage.rows("user string, n long") == [("a", 10), ("a", 12), ("b", 13)]
    assert figures(query, "rows_in", "late_rows", "late_rows_dropped") == [3, 2, 2]


def test_slices_have_no_late_rows(stage):
    stage.put(at("a", 10))
    stage.put(at("a", 10))
    stage.put(at("a", 9), at("b", 11))
    side = keyed(
        stage.source(INPUT), "user", uid="batch", parallelism=1, event_time="at", late="column"
    )
    stage.run(side.process_batch(InColumns(), OUTPUT))
    found = stage.rows_by_spark(f"{OUTPUT}, {LATE}")
    assert sorted(minute for _, minute, late in found if late is None) == ["10", "11"]
    late = [json.loads(one.row) for *_, one in found if one is not None]
    assert sorted(one["at"] for one in late) == [
        f"2024-05-01T10:{minute}:00+00:00" for minute in ("09", "10")
    ]


def test_what_cannot_work_is_refused(spark):
    df = spark.createDataFrame([], INPUT)
    late = {"uid": "u", "event_time": "at", "late": "column"}
    with pytest.raises(ConfigurationError, match='late is "process", "drop" or "column"'):
        keyed(df, "user", **(late | {"late": "keep"}))
    with pytest.raises(ConfigurationError, match='late="drop" goes with event_time='):
        keyed(df, "user", uid="u", late="drop")
    with pytest.raises(ConfigurationError, match="'late' is there already; the column for late"):
        keyed(df, "user", **late).process(lambda row, ctx: [], "user string, late long")
    with pytest.raises(
        ConfigurationError, match='late="column" the columns of a late row are null'
    ):
        keyed(df, "user", **late).process(lambda row, ctx: [], "user string not null")
    with pytest.raises(ConfigurationError, match="or let late= decide about rows before"):
        keyed(df, "user", uid="u", event_time="at").map(lambda row: row, INPUT)
    first, other = keyed(df, "user", **late), keyed(df, "user", uid="u", event_time="at")
    with pytest.raises(ConfigurationError, match="late is 'column' on the first"):
        first.connect(other)
