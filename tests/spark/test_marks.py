"""``emits_event_time=``: Spark's operators behind a keyed one have its watermark."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import ConfigurationError, KeyedProcessFunction

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

INPUT = "user string, at timestamp"


class Due(KeyedProcessFunction):
    """Emits the minute of each row when the watermark reaches it; ``behind`` is taken off."""

    def __init__(self, behind=0):
        self.behind = timedelta(minutes=behind)

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def on_timer(self, at, ctx):
        yield ctx.current_key, at - self.behind


TWO_SPEEDS = [
    {"a": 0, "b": 30},
    {"a": 20, "b": 50},
    {"a": 40, "b": 60},
    {"a": 90, "b": 90},
    {"a": 91, "b": 91},
    {"a": 120, "b": 120},
    {"a": 121, "b": 121},
]
"""Two users, in two subtasks, of which one is half an hour ahead: minutes by micro-batch."""


def put(stage, batches):
    for batch in batches:
        stage.put(
            *[
                {"user": user, "at": f"2024-05-01T{10 + minute // 60}:{minute % 60:02}:00Z"}
                for user, minute in batch.items()
            ]
        )


def due(stage, fn=None, **options):
    arguments = {"event_time": "at", "emits_event_time": "at", "parallelism": 2} | options
    return keyed(stage.source(INPUT), "user", uid="due", **arguments).process(fn or Due(), INPUT)


def windows(df):
    counted = df.groupBy(F.window("at", "10 minutes")).count()
    return counted.select(F.date_format("window.start", "HH:mm").alias("start"), "count")


def dropped(query):
    states = [state for event in query.recentProgress for state in event["stateOperators"]]
    return sum(state["numRowsDroppedByWatermark"] for state in states)


def figure(query, name):
    of_all = [one.figures for event in query.recentProgress for one in operators_of(event)]
    return sum(each.get(name, 0) for each in of_all)


def test_no_row_is_lost_where_subtasks_differ_in_speed(stage):
    put(stage, TWO_SPEEDS)
    query = stage.run(windows(due(stage)))
    assert stage.rows("start string, count long") == [
        ("10:00", 1),
        ("10:20", 1),
        ("10:30", 1),
        ("10:40", 1),
        ("10:50", 1),
        ("11:00", 1),
        ("11:30", 4),
    ]
    assert (dropped(query), figure(query, "rows_out_late")) == (0, 0)
    assert figure(query, "rows_out") == 14, "those of 12:00 and later wait for their window's end"
    put(stage, [{"a": 130, "b": 130}, {"a": 131, "b": 131}, {"a": 140, "b": 140}])
    query = stage.run(windows(due(stage)))
    after = stage.rows("start string, count long")[-2:]
    assert after == [("12:00", 4), ("12:10", 4)], "after a restart, with the rows from before it"
    assert dropped(query) == 0


def test_rows_that_the_function_emits_too_late_are_counted(stage):
    put(stage, [{"a": minute, "b": minute} for minute in (0, 30, 60, 61)])
    query = stage.run(due(stage, Due(behind=45)).dropDuplicatesWithinWatermark(["user", "at"]))
    assert figure(query, "rows_out_late") == 6, "three quarters of an hour is more than each step"
    assert 0 < dropped(query) <= 6


@pytest.mark.slow  # a window is the same to Spark
def test_a_left_join_behind_it(stage):
    other = stage.folder / "other"
    stage.put({"user": "a", "at": "2024-05-01T10:02:00Z"}, into=other)
    put(stage, TWO_SPEEDS)
    right = stage.source(INPUT, folder=other).selectExpr("user AS user2", "at AS at2")
    within = F.expr("user = user2 AND at2 >= at AND at2 <= at + INTERVAL 5 MINUTES")
    joined = due(stage).join(right.withWatermark("at2", "0 seconds"), within, "left")
    stage.run(joined.selectExpr("user", "at2 IS NOT NULL AS found"))
    assert ("a", True) in stage.rows("user string, found boolean")


def test_what_cannot_carry_a_watermark_is_refused(stage, spark):
    stream = stage.source(INPUT)
    emits = {"uid": "due", "emits_event_time": "at"}
    with pytest.raises(ConfigurationError, match="emits_event_time= goes with event_time="):
        keyed(stream, "user", **emits)
    emits |= {"event_time": "at"}
    with pytest.raises(ConfigurationError, match="is for streams"):
        keyed(spark.createDataFrame([], INPUT), "user", **emits)
    with pytest.raises(ConfigurationError, match="the output has the columns user, time"):
        keyed(stream, "user", **emits).process(Due(), "user string, time timestamp")
    with pytest.raises(ConfigurationError, match="'at' is of type bigint"):
        keyed(stream, "user", **emits).process(Due(), "user string, at long")
    with pytest.raises(ConfigurationError, match="there is a withWatermark, or another operator"):
        keyed(stream.withWatermark("at", "1 minute"), "user", **emits).process(Due(), INPUT)
    first = windows(keyed(stream, "user", **emits).process(Due(), INPUT))
    after = first.selectExpr("start AS user", "timestamp '2024-05-01' AS at")
    with pytest.raises(ConfigurationError, match="there is a withWatermark, or another operator"):
        keyed(after, "user", **(emits | {"uid": "next"})).process(Due(), INPUT)
    policy = "spark.sql.streaming.multipleWatermarkPolicy"
    spark.conf.set(policy, "max")
    try:
        with pytest.raises(ConfigurationError, match=f"needs {policy}=min"):
            keyed(stream, "user", **emits)
    finally:
        spark.conf.unset(policy)
    spark.conf.set("spark.forebay.progress-figures", "false")
    with pytest.raises(ConfigurationError, match=r"leave spark\.forebay\.progress-fig"):
        keyed(stream, "user", **emits)


def test_update_mode_passes_and_complete_mode_is_spark_s_error(stage):
    put(stage, [{"a": 0}, {"a": 1}])
    rows = keyed(stage.source(INPUT), "user", uid="due", event_time="at", parallelism=1).process(
        Due(), INPUT
    )
    written = []

    def write(batch, _):
        written.extend(row.at.minute for row in batch.collect())

    writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(stage.checkpoint))
    writer.outputMode("update").start().awaitTermination()
    assert written == [0], "each row once, as in append mode"
    with pytest.raises(AnalysisException, match=r"(?i)complete"):
        writer.outputMode("complete").start()


class HalfAnHour(KeyedProcessFunction):
    """Emits each row half an hour of event time later."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(minutes=30))

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"{at:%H:%M}"


def test_the_watermark_goes_on_while_the_operator_before_emits_nothing(stage):
    put(stage, TWO_SPEEDS)
    first = due(stage).where("at = timestamp '2024-05-01T10:00:00Z'")
    second = keyed(first, "user", uid="next", parallelism=3, event_time="at")
    stage.run(second.process(HalfAnHour(), "user string, time string"))
    assert stage.rows("user string, time string") == [("a", "10:30")]


class Marks(KeyedProcessFunction):
    """Emits each row with the watermark that it meets."""

    def process_element(self, row, ctx):
        mark = ctx.timers.watermark
        yield row.user, row.at, None if mark is None else f"{mark.hour}:{mark.minute:02}"


MARKS = "user string, at timestamp, mark string"


def test_the_next_keyed_operator_has_the_watermark_of_the_one_before(stage):
    """Through a filter and a projection, in all subtasks, and on to a window of Spark's."""
    put(stage, TWO_SPEEDS)
    first = due(stage).where("user IN ('a', 'b')").selectExpr("user", "at")
    second = keyed(
        first,
        "user",
        uid="next",
        parallelism=3,
        event_time="at",
        emits_event_time="at",
        late="drop",
    ).process(Marks(), MARKS)
    counted = second.groupBy(F.window("at", "10 minutes")).agg(F.count("*"), F.max("mark"))
    query = stage.run(counted.toDF("window", "count", "mark").selectExpr("count", "mark"))
    assert (dropped(query), figure(query, "late_rows")) == (0, 0)
    assert stage.rows("count long, mark string") == [
        (1, "10:00"),
        (1, "10:20"),
        (1, "10:20"),
        (1, "10:40"),
        (1, "10:40"),
        (1, None),
        (4, "11:30"),
    ]
    plain = due(stage)
    assert "EventTimeWatermark" in plain._jdf.queryExecution().analyzed().toString()
    behind = keyed(plain, "user", uid="next", event_time="at").process(Marks(), MARKS)
    assert "EventTimeWatermark" not in behind._jdf.queryExecution().analyzed().toString()
