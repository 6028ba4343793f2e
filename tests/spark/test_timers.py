"""Timers on Spark: event time from a column, the batch's own time, changed parallelism."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import (
    ConfigurationError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ReducingStateDescriptor,
)

pytestmark = pytest.mark.spark

SCHEMA = "user string, what string"
EVENTS = "user string, at timestamp"


class Sessions(KeyedProcessFunction):
    """Emits a user that has been quiet for ten minutes of event time."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(minutes=10))

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"{at:%H:%M}"


class OrNone(Sessions):
    def process_element(self, row, ctx):
        if row.at is not None:
            super().process_element(row, ctx)


class CoSessions(KeyedCoProcessFunction):
    process_element1 = process_element2 = Sessions.process_element
    on_timer = Sessions.on_timer


class Marks(KeyedProcessFunction):
    """Emits the watermark; it has no timers."""

    def process_element(self, row, ctx):
        yield row.user, str(ctx.timers.watermark)


def events(*pairs):
    return [{"user": user, "at": f"2024-05-01T{time}:00Z"} for user, time in pairs]


def sessions(stage, parallelism, fn, allowed_lateness):
    operator = keyed(
        stage.source(EVENTS),
        "user",
        uid="sessions",
        parallelism=parallelism,
        event_time="at",
        allowed_lateness=allowed_lateness,
    )
    return operator.process(fn, SCHEMA)


def test_a_row_of_the_year_1_holds_nothing_up(stage):
    stage.put({"user": "a", "at": "0001-01-01T00:00:00Z"})
    stage.put(*events(("b", "10:00")))
    stage.put(*events(("c", "10:01")))
    stage.run(sessions(stage, 2, Marks(), timedelta(seconds=5)))
    assert stage.rows(SCHEMA) == [
        ("a", "None"),
        ("b", "0001-01-01 00:00:00+00:00"),
        ("c", "2024-05-01 09:59:55+00:00"),
    ]


def test_event_time_goes_on_over_restarts_and_rescales(stage):
    users = [f"user{n}" for n in range(12)]
    stage.put(*events(*[(user, "10:00") for user in users]))
    stage.put(*events(*[(user, "10:14") for user in users]))
    stage.run(sessions(stage, 2, Sessions(), timedelta(minutes=5)))
    assert stage.rows(SCHEMA) == [], "the second batch saw the watermark of the first one: 09:55"
    stage.put(*events(("late", "09:00")), {"user": "no time", "at": None})
    stage.run(sessions(stage, 3, OrNone(), 300))
    assert stage.rows(SCHEMA) == [("late", "09:10")], "10:09 is the watermark"
    stage.put(*events(*[(user, "10:16") for user in users]))
    stage.put(*events(("other", "10:16")))
    stage.run(sessions(stage, 1, OrNone(), 300))
    assert stage.rows(SCHEMA) == [("late", "09:10"), *sorted((user, "10:10") for user in users)]


def test_two_inputs_have_event_times_of_their_own(stage):
    first, second = stage.folder / "first", stage.folder / "second"
    stage.put(*events(("a", "10:00")), into=first)
    stage.put(*events(("b", "09:00")), into=second)
    stage.put(*events(("a", "10:20")), into=first)
    stage.put(*events(("b", "10:20")), into=second)
    stage.put(*events(("a", "10:21")), into=first)
    stage.put(*events(("b", "10:21")), into=second)
    sides = [
        keyed(
            stage.source(EVENTS, folder=folder),
            "user",
            uid="both",
            parallelism=1,
            event_time="at",
        )
        for folder in (first, second)
    ]
    stage.run(sides[0].connect(sides[1]).process(CoSessions(), SCHEMA))
    assert stage.rows(SCHEMA) == [("a", "10:10"), ("b", "09:10")]


def test_the_end_of_two_bounded_inputs_fires_the_timers_of_both(spark):
    sides = [
        keyed(
            spark.createDataFrame([(user, at)], "user string, at timestamp"),
            "user",
            uid="both",
            parallelism=2,
            event_time="at",
        )
        for user, at in (
            ("a", datetime(2024, 5, 1, 10, tzinfo=UTC)),
            ("b", datetime(2024, 5, 1, 9, tzinfo=UTC)),
        )
    ]
    rows = sides[0].connect(sides[1]).process(CoSessions(), SCHEMA).collect()
    assert sorted(map(tuple, rows)) == [("a", "10:10"), ("b", "09:10")]


class Quiet(KeyedProcessFunction):
    """Has one timer for each user, and in another namespace one for each row that is not late."""

    def process_element(self, row, ctx):
        if ctx.timers.drop_late(row.at):
            return
        ctx.timers.replace_event_time(row.at + timedelta(minutes=10))
        ctx.set_current_namespace("row")
        ctx.timers.register_event_time(row.at + timedelta(minutes=1))
        ctx.timers.merge_namespaces("rows", ["row"])
        ctx.set_current_namespace("rows")
        yield row.user, ",".join(f"{at:%H:%M}" for at in ctx.timers.list_event_time())

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"{ctx.current_namespace} {at:%H:%M}"


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_timers_are_listed_replaced_and_merged_over_a_rescale(stage, backend):
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    stage.put(*events(("a", "10:00")))
    stage.put(*events(("a", "10:05")))
    stage.run(sessions(stage, 2, Quiet(), None))
    assert stage.rows(SCHEMA) == [("a", "10:01"), ("a", "10:01,10:06")]
    stage.put(*events(("a", "10:30")))
    stage.put(*events(("a", "10:00")))
    stage.put(*events(("b", "11:00")))
    stage.put(*events(("b", "11:00")))
    query = stage.start(sessions(stage, 3, Quiet(), None))
    query.processAllAvailable()
    query.stop()
    fired = {row for row in stage.rows(SCHEMA) if row[0] == "a"}
    assert fired - {("a", "10:01"), ("a", "10:01,10:06")} == {
        ("a", "rows 10:01"),
        ("a", "10:06,10:31"),
        ("a", "rows 10:06"),
        ("a", "rows 10:31"),
        ("a", "None 10:40"),
    }
    figures = [one.figures for event in query.recentProgress for one in operators_of(event)]
    for name, counted in (("late_rows", 2), ("late_rows_dropped", 2)):
        assert sum(each.get(name, 0) for each in figures) == counted


WINDOWS = "user string, at timestamp, n long, mark timestamp"


class Windows(KeyedProcessFunction):
    """Sums ``n`` in windows of some minutes; emits each with its end and the watermark."""

    def __init__(self, minutes):
        self.size = timedelta(minutes=minutes)

    def open(self, context):
        self.sum = context.get_reducing_state(
            ReducingStateDescriptor("sum", lambda one, other: one + other, int)
        )

    def process_element(self, row, ctx):
        # An end belongs to the window before it.
        before = row.at - timedelta(microseconds=1)
        end = before - (before - datetime(2024, 1, 1, tzinfo=UTC)) % self.size + self.size
        ctx.set_current_namespace(end)
        self.sum.add(row.n)
        ctx.timers.register_event_time(end)

    def on_timer(self, at, ctx):
        assert ctx.current_namespace == at
        yield ctx.current_key, at, self.sum.get(), ctx.timers.watermark
        self.sum.clear()


@pytest.mark.parametrize(
    ("column", "closed"),
    [("mark", [("a", "10:02")]), pytest.param("at", [], marks=pytest.mark.slow)],
)
def test_the_watermark_of_an_operator_reaches_the_next_in_a_column(stage, column, closed):
    source = stage.source("user string, at timestamp, n long")

    def run(parallelism, *times):
        for time in times:
            stage.put({"user": "a", "at": f"2024-05-01T{time}Z", "n": 1})
        minutes = keyed(source, "user", uid="minutes", parallelism=parallelism, event_time="at")
        windows = minutes.process(Windows(1), WINDOWS)
        pairs = keyed(windows, "user", uid="pairs", parallelism=parallelism, event_time=column)
        closing = pairs.process(Windows(2), WINDOWS)
        stage.run(closing.selectExpr("user", "date_format(at, 'HH:mm') as what"))

    run(2, "10:00:10", "10:02:30")
    assert stage.rows(SCHEMA) == []
    run(3, "10:09:00", "10:20:00")
    assert stage.rows(SCHEMA) == closed


class Batches(KeyedProcessFunction):
    """Is called once for all rows of a user in a micro-batch."""

    def open(self, context):
        self.rows = {}

    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time)
        self.rows.setdefault(ctx.current_key, []).append(row)

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"{len(self.rows.pop(ctx.current_key))} in {ctx.batch_id}"


def test_a_timer_of_the_batch_s_own_time_fires_once_after_its_rows(stage):
    stage.put({"user": "a"}, {"user": "b"}, {"user": "a"})
    stage.put({"user": "a"})
    batches = keyed(stage.source(), "user", uid="batches", parallelism=2)
    # The rows of a micro-batch come to a subtask one by one.
    stage.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1)
    try:
        stage.run(batches.process(Batches(), SCHEMA))
    finally:
        stage.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert stage.rows(SCHEMA) == [("a", "1 in 1"), ("a", "2 in 0"), ("b", "1 in 0")]


def test_the_end_of_a_bounded_dataframe_fires_event_time_timers_if_its_state_ends(spark, tmp_path):
    rows = [("a", datetime(2024, 5, 1, 10, 1, tzinfo=UTC), 1)]
    df = spark.createDataFrame(rows, "user string, at timestamp, n long")

    def closed(**options):
        operator = keyed(df, "user", uid="ends", event_time="at", parallelism=2, **options)
        return [row.n for row in operator.process(Windows(5), WINDOWS).collect()]

    stored = {"state_dir": str(tmp_path), "query": "bounded"}
    assert closed() == [1]
    assert closed(**stored, batch_id=0) == []
    assert closed(**stored, batch_id=1, fire_at_end=True) == [2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"event_time": "nowhere"}, "no column 'nowhere'"),
        ({"event_time": "user"}, "timestamp"),
        ({"event_time": "at", "allowed_lateness": -1}, "negative"),
        ({"event_time": "at", "allowed_lateness": "1h"}, "allowed_lateness"),
        ({"allowed_lateness": 5}, "event_time="),
        ({"event_time": "at", "fire_at_end": True}, "a stream has no end"),
        ({"event_time": "at", "fire_at_end": "yes"}, "True or False"),
    ],
)
def test_what_cannot_be_event_time(stage, arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        keyed(stage.source(EVENTS), "user", uid="u", **arguments)


def test_event_time_is_for_functions_with_a_context(stage):
    operator = keyed(stage.source(EVENTS), "user", uid="u", event_time="at")
    with pytest.raises(ConfigurationError, match="gets rows only"):
        operator.flat_map(lambda row: [], SCHEMA)
    other = keyed(stage.source(EVENTS), "user", uid="u")
    with pytest.raises(ConfigurationError, match="event_time"):
        operator.connect(other)
