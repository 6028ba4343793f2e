"""Rows around DST switches: their times are instants in every session time zone.

By default a stream of one input and a stream of an ordered wait: how rows are read does not depend
on more. The harness has two inputs and keys, both switches and both backends by default, and
``test_types.py`` has keys of an hour that the session's clocks show twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api import KeyedCoProcessFunction, KeyedProcessFunction, ValueStateDescriptor

pytestmark = pytest.mark.spark

HALF_HOUR = timedelta(minutes=30)
EVENTS = "user string, at timestamp"
OUT = "what string, at timestamp, gap double, ends timestamp"
SHAPES = [
    "user",
    "at",
    "struct(at) AS part",
    "array(at, NULL) AS list",
    "map('k', at) AS entries",
    "map(at, 1) AS times",
    "cast(at AS timestamp_ntz) AS wall",
]
SWITCHES = {
    "spring": (datetime(2024, 3, 31, 0, 59, 50, tzinfo=UTC), timedelta(seconds=20)),
    "autumn": (datetime(2024, 10, 27, 0, 45, tzinfo=UTC), HALF_HOUR),
}


@pytest.fixture(params=["autumn", pytest.param("spring", marks=pytest.mark.slow)])
def pair(request):
    """Two times in the hour in which the clocks of Berlin change."""
    first, gap = SWITCHES[request.param]
    here = [at.astimezone(ZoneInfo("Europe/Berlin")) for at in (first, first + gap)]
    assert here[0].utcoffset() != here[1].utcoffset()
    return first, first + gap


@pytest.fixture(autouse=True)
def in_berlin(spark):
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def kind_of(row):
    """Return ``instants`` if a row's times are in UTC, and its time without zone is naive."""
    times = [row.at, row.part.at, row.list[0], row.entries["k"], *row.times]
    is_right = all(at.tzinfo is UTC for at in times) and row.wall.tzinfo is None
    return "instants" if is_right else "something else"


class Gaps(KeyedProcessFunction):
    """Emits the time since a key's last row; registers a timer half an hour after each row."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", datetime))

    def process_element(self, row, ctx):
        last = self.last.value()
        self.last.update(row.at)
        ctx.timers.register_event_time(row.at + HALF_HOUR)
        gap = None if last is None else (row.at - last).total_seconds()
        yield kind_of(row), row.at, gap, row.at + HALF_HOUR

    def on_timer(self, at, ctx):
        yield "timer", at, None, None


class CoGaps(KeyedCoProcessFunction):
    open = Gaps.open
    process_element1 = process_element2 = Gaps.process_element
    on_timer = Gaps.on_timer


async def wait(outer, client):
    row = outer.row
    gap = (row.at - row.before).total_seconds()
    return kind_of(row), row.at, gap, row.at + HALF_HOUR


def at_text(at):
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def bounded(spark, *times):
    values = ", ".join(f"('ann', timestamp'{at_text(at)}')" for at in times)
    return spark.sql(f"SELECT * FROM VALUES {values} AS events(user, at)").selectExpr(*SHAPES)


def seen(df):
    """Return rows as the JVM has them: in µs instead of Python's datetimes."""
    rows = df.selectExpr("what", "unix_micros(at)", "gap", "unix_micros(ends)").collect()
    return sorted(map(tuple, rows), key=lambda row: row[1])


def us(at):
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def row_of(at, gap):
    return "instants", us(at), gap, us(at + HALF_HOUR)


def expected(first, second):
    return [row_of(first, None), row_of(second, (second - first).total_seconds())]


def expected_at_the_end(first, second):
    """Return the rows of a bounded input, whose end fires the timers."""
    timers = [("timer", us(at + HALF_HOUR), None, None) for at in (first, second)]
    return sorted([*expected(first, second), *timers], key=lambda row: row[1])


@pytest.mark.slow
def test_bounded(spark, pair):
    df = bounded(spark, *pair)
    gaps = keyed(df, "user", uid="gaps", order_by="at", event_time="at")
    assert seen(gaps.process(Gaps(), OUT)) == expected_at_the_end(*pair)


@pytest.mark.slow
def test_keys(spark, pair):
    def shown(row, ctx):
        yield ctx.current_key.tzinfo is UTC, (ctx.current_key - pair[0]).total_seconds()

    keys = keyed(bounded(spark, *pair), "at", uid="keys").process(shown, "utc boolean, gap double")
    gap = (pair[1] - pair[0]).total_seconds()
    assert sorted(map(tuple, keys.collect())) == [(True, 0.0), (True, gap)]


@pytest.mark.slow
def test_two_inputs(spark, pair):
    sides = [
        keyed(bounded(spark, at), "user", uid="gaps", order_by="at", event_time="at") for at in pair
    ]
    found = seen(sides[0].connect(sides[1]).process(CoGaps(), OUT))
    assert found == expected_at_the_end(*pair)


def test_a_stream(stage, pair):
    first, second = pair
    due = first + HALF_HOUR
    after = max(due, second) + timedelta(seconds=1)
    for at in (first, second, after, after):
        stage.put({"user": "ann", "at": at_text(at)})
    df = stage.source(EVENTS).selectExpr(*SHAPES)
    stage.run(keyed(df, "user", uid="gaps", event_time="at").process(Gaps(), OUT))
    found = seen(stage.spark.read.schema(OUT).json(str(stage.output)))
    assert [row for row in found if row[0] != "timer"][:2] == expected(first, second)
    assert [row for row in found if row[0] == "timer"] == [("timer", us(due), None, None)]


@pytest.mark.slow
def test_a_stream_of_two_inputs(stage, pair):
    for at, side in zip(pair, ("left", "right"), strict=True):
        stage.put({"user": "ann", "at": at_text(at)}, into=stage.folder / side)
    sides = [
        keyed(
            stage.source(EVENTS, folder=stage.folder / side).selectExpr(*SHAPES),
            "user",
            uid="gaps",
            order_by="at",
            event_time="at",
        )
        for side in ("left", "right")
    ]
    stage.run(sides[0].connect(sides[1]).process(CoGaps(), OUT))
    assert seen(stage.spark.read.schema(OUT).json(str(stage.output))) == expected(*pair)


@pytest.mark.parametrize("form", [pytest.param("bounded", marks=pytest.mark.slow), "stream"])
def test_ordered_wait(stage, pair, form):
    first, second = pair
    if form == "stream":
        stage.put({"user": "ann", "at": at_text(second)})
        df = stage.source(EVENTS).selectExpr(*SHAPES)
    else:
        df = bounded(stage.spark, second)
    df = df.selectExpr("*", f"timestamp'{at_text(first)}' AS before")
    answers = ordered_wait(df.selectExpr("struct(*) AS row"), wait, OUT, timeout=60).drop("row")
    if form == "stream":
        stage.run(answers)
        answers = stage.spark.read.schema(OUT).json(str(stage.output))
    assert seen(answers) == expected(first, second)[1:]
