"""Silent inputs and the bound on event times on Spark: steps of a millisecond between batches.

A start with ticks costs processes of Spark's: one test of a single start runs by default.
"""

from __future__ import annotations

import pyspark
import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import ConfigurationError, KeyedCoProcessFunction, KeyedProcessFunction

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4", reason="sources in Python are of 4.0"),
]

SCHEMA = "batch int, mark string"
EVENTS = "user string, at timestamp"
OFTEN = {"ticks": "1 millisecond", "idle_after": "1 millisecond"}
NINE = "09:00:00.000000"
OUTAGE = "cannot distinguish an outage upstream from a pause: after 0:05:00 without event times"


class Marks(KeyedProcessFunction):
    """Emits the watermark."""

    def process_element(self, row, ctx):
        mark = ctx.timers.watermark
        yield ctx.batch_id, "none" if mark is None else f"{mark:%H:%M:%S.%f}"


class CoMarks(KeyedCoProcessFunction):
    process_element1 = process_element2 = Marks.process_element


def operator(df, **options):
    return keyed(df, "user", uid="marks", parallelism=2, event_time="at", **options)


def event(at, user="a"):
    return {"user": user, "at": at and f"{at}Z"}


def marks(stage):
    return dict(sorted(stage.rows(SCHEMA)))


def run(stage, df, files):
    """Run a stream until it has read ``files`` files, one in a micro-batch, and ticked.

    Return its first micro-batch.
    """
    writer = df.writeStream.format("json").option("path", str(stage.output))
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    while not query.awaitTermination(0.05) and len(query.recentProgress) < files + 1:
        pass
    query.stop()
    assert query.exception() is None
    return query.recentProgress[0]["batchId"]


@pytest.mark.parametrize(
    ("idle_after", "third"),
    [("1 millisecond", "10:20:00.000000"), pytest.param("1 hour", NINE, marks=pytest.mark.slow)],
)
def test_an_input_without_rows_holds_the_watermark_until_it_is_idle(stage, idle_after, third):
    first, second = stage.folder / "first", stage.folder / "second"
    for time in ("10:00", "10:20", "10:40"):
        stage.put(event(f"2024-05-01T{time}:00"), into=first)
    stage.put(event("2024-05-01T09:00:00"), into=second)
    options = {"ticks": "1 millisecond", "idle_after": idle_after}
    sides = [operator(stage.source(EVENTS, folder=one), **options) for one in (first, second)]
    run(stage, sides[0].connect(sides[1]).process(CoMarks(), SCHEMA), 3)
    assert list(marks(stage).values()) == ["none", NINE, third]


@pytest.mark.slow
def test_time_goes_on_while_all_is_silent_and_a_restart_adds_nothing(stage):
    stage.put(event("2024-05-01T10:00:00"))
    first = []
    for files in (3, 2):
        for _ in range(files):
            stage.put(event(None))
        df = operator(stage.source(EVENTS), **OFTEN).process(Marks(), SCHEMA)
        first.append(run(stage, df, 4))
    found = marks(stage)
    assert found.pop(0) == "none"
    assert len(found) == 5
    for batch, mark in found.items():
        steps = batch - 1 - (batch > first[1])
        assert mark == f"10:00:00.{steps:03}000", "a millisecond for each silent micro-batch"


def test_a_row_of_the_future_is_dropped_as_a_late_one_is(stage):
    stage.put(event("2024-05-01T10:00:00"), event("2931-01-01T00:00:00", "b"))
    stage.put(event("2024-05-01T10:01:00"), event("2024-05-01T09:00:00", "b"))
    options = {"max_event_time_ahead": "1 hour", "late": "drop"}
    query = stage.run(operator(stage.source(EVENTS), **options).process(Marks(), SCHEMA))
    assert stage.rows(SCHEMA) == [(0, "none"), (1, "10:00:00.000000")]
    figures = [one.figures for event in query.recentProgress for one in operators_of(event)]
    found = [
        [one[name] for one in figures] for name in ("rows_ahead", "late_rows", "late_rows_dropped")
    ]
    assert found == [[1, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"idle_after": "5 minutes"}, r"idle_after= needs ticks=.*ticks=\"10 seconds\""),
        ({"idle_after": "5 minutes", "ticks": "1 hour"}, r"ticks= are 3,600,000 ms apart"),
        ({"idle_after": "soon", "ticks": "1 hour"}, r"such as '5 minutes'"),
    ],
)
def test_refused_silence(stage, options, words):
    with pytest.raises(ConfigurationError, match=words):
        operator(stage.source(EVENTS), **options)


def test_silence_is_of_streams_and_of_an_operator_as_a_whole(spark, stage):
    with pytest.raises(ConfigurationError, match="before writeStream"):
        operator(spark.createDataFrame([], EVENTS), idle_after="5 minutes")
    for options in ({"idle_after": "5 minutes"}, {"max_event_time_ahead": "1 hour"}):
        with pytest.raises(ConfigurationError, match="connected inputs are one operator"):
            operator(stage.source(EVENTS), ticks="1 second", **options).connect(
                operator(stage.source(EVENTS), ticks="1 second")
            )


def test_the_ticks_of_an_operator_before_it_are_enough(stage):
    above = operator(stage.source(EVENTS), ticks="1 second").process(Marks(), EVENTS)
    keyed(above, "user", uid="below", event_time="at", idle_after="5 minutes")


def test_a_warning_at_the_start(stage, caplog):
    options = {"ticks": "1 second", "idle_after": "5 minutes"}
    operator(stage.source(EVENTS), **options)
    assert OUTAGE in caplog.text
    assert "drops them" not in caplog.text
    operator(stage.source(EVENTS), late="drop", **options)
    assert 'are late, and late="drop" drops them' in caplog.text
