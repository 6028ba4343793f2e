"""Ticks on Spark: micro-batches of a quiet stream, and checkpoints that get and lose them."""

from __future__ import annotations

from datetime import timedelta

import pyspark
import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver.tick_entries import with_sources
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import ConfigurationError, KeyedProcessFunction, ValueStateDescriptor

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4", reason="sources in Python are of 4.0"),
]

SCHEMA = "user string, what string"
TICKS = "1 day"


class Count(KeyedProcessFunction):
    """Counts the rows of a user, and has a timer a moment after each."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        now = ctx.timers.processing_time
        ctx.timers.register_processing_time(now + timedelta(milliseconds=1))
        yield row.user, str(self.n.value())

    def on_timer(self, at, ctx):
        yield ctx.current_key, f"timer in {ctx.batch_id}"


def counted(df, uid="counts", **options):
    return keyed(df, "user", uid=uid, parallelism=2, **options).process(Count(), SCHEMA)


def offsets(stage, batch):
    """Return the offsets of an entry, and whether each is one of ticks."""
    lines = (stage.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
    return lines, ["forebayTick" in line for line in lines]


def batches(stage):
    return max(int(path.name) for path in (stage.checkpoint / "commits").glob("[0-9]*")) + 1


@pytest.fixture(params=["1", "2"], ids=["v1", "v2"])
def offset_log(spark, request):
    """The format of the offset log of new checkpoints."""
    key = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(key, request.param)
    yield request.param
    spark.conf.unset(key)


def test_a_run_of_what_is_available_has_one_micro_batch_if_no_rows_came(stage):
    stage.put({"user": "a"})
    result = counted(stage.source(), ticks=TICKS)
    stage.run(result)
    assert (batches(stage), stage.rows(SCHEMA)) == (1, [("a", "1")])
    query = stage.run(result)
    assert (batches(stage), stage.rows(SCHEMA)) == (2, [("a", "1"), ("a", "timer in 1")])
    figures = [one.figures for event in query.recentProgress for one in operators_of(event)]
    assert [one["rows_in"] for one in figures] == [0]
    assert [event["numInputRows"] for event in query.recentProgress] == [0]
    stage.run(result)
    assert batches(stage) == 3, "also without anything to do"


def test_a_query_begins_and_ceases_to_have_ticks(stage, offset_log):
    other = stage.folder / "other"

    def run(**options):
        stage.put({"user": "a"})
        stage.put({"user": "third"}, into=other)
        third = stage.source(folder=other).selectExpr("user", "'row' as what")
        # The sources keep what they have read under their numbers.
        stage.run(third.union(counted(stage.source(), **options).repartition(1)))
        return stage.rows(SCHEMA)

    run()
    assert offsets(stage, 0)[1] == [False, False]
    run(ticks=TICKS)
    assert sum(offsets(stage, batches(stage) - 1)[1]) == 1
    run()
    assert offsets(stage, batches(stage) - 1)[1] == [False, False]
    rows = run(ticks=timedelta(days=1))
    assert [what for _, what in rows if what.isdecimal()] == ["1", "2", "3", "4"]
    assert rows.count(("third", "row")) == 4


class Failing(Count):
    def process_element(self, row, ctx):
        raise ValueError(row.user)


def test_a_start_after_a_kill_between_the_two_entries_completes_the_change(stage, offset_log):
    for user in "ab":
        stage.put({"user": user})
    stage.run(counted(stage.source()))
    stage.put({"user": "c"})
    failing = keyed(stage.source(), "user", uid="counts", parallelism=2).process(Failing(), SCHEMA)
    with pytest.raises(Exception, match="c"):
        stage.run(failing)
    entry = stage.checkpoint / "offsets" / "1"
    changed = with_sources(entry.read_text(), [False, True])
    entry.write_text(changed)
    (entry.parent / ".1.crc").unlink(missing_ok=True)
    stage.run(counted(stage.source(), ticks=TICKS))
    assert [what for _, what in stage.rows(SCHEMA) if what == "1"] == ["1"] * 3
    assert [sum(offsets(stage, batch)[1]) for batch in (0, 1, 2)] == [0, 1, 1]


def test_ticks_that_would_move_another_source_are_refused_and_change_nothing(stage, caplog):
    other = stage.folder / "other"

    def united(**options):
        third = stage.source(folder=other).selectExpr("user", "'row' as what")
        return counted(stage.source(), **options).union(third)

    stage.put({"user": "a"})
    stage.put({"user": "third"}, into=other)
    stage.run(united())
    before = offsets(stage, 0)
    with pytest.raises(Exception, match=r"There are \[2\] sources in the checkpoint"):
        stage.run(united(ticks=TICKS))
    assert "put the operator's output last" in caplog.text
    assert offsets(stage, 0) == before
    stage.run(united())
    assert stage.rows(SCHEMA)[0] == ("a", "1")


@pytest.mark.skipif(pyspark.__version__ < "4.3", reason="sources have names from 4.3 on")
def test_sources_with_names_come_and_go_by_spark_s_own_rules(stage, spark):
    settings = {
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
        "spark.sql.streaming.offsetLog.formatVersion": "2",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        for options in ({}, {"ticks": TICKS}, {}, {"ticks": TICKS}):
            stage.put({"user": "a"})
            reader = spark.readStream.name("users").schema("user string, n long")
            stage.run(counted(reader.json(str(stage.input)), **options))
    finally:
        for key in settings:
            spark.conf.unset(key)
    counts = [what for _, what in stage.rows(SCHEMA) if what.isdecimal()]
    assert counts == ["1", "2", "3", "4"]
    assert any(line.startswith("forebay_ticks:") for line in offsets(stage, 3)[0])


def test_a_chain_has_one_source_of_ticks(stage):
    stage.put({"user": "a"})
    above = counted(stage.source(), "above", ticks=TICKS)
    result = counted(above, "below", ticks=timedelta(days=1))
    stage.run(result)
    assert offsets(stage, 0)[1] == [False, True]
    stage.run(result)
    assert stage.rows(SCHEMA) == [
        ("a", "1"),
        ("a", "2"),
        ("a", "timer in 1"),
    ]
    with pytest.raises(ConfigurationError, match="give ticks= once, or the same in all"):
        counted(above, "below", ticks="1 hour")


def test_a_quiet_stream_ticks_by_itself(stage):
    stage.put({"user": "a"})
    writer = counted(stage.source(), ticks="50 milliseconds").writeStream.format("json")
    writer = writer.option("path", str(stage.output))
    writer = writer.option("checkpointLocation", str(stage.checkpoint))
    query = writer.trigger(processingTime="50 milliseconds").start()
    while not query.awaitTermination(0.05) and len(query.recentProgress) < 4:
        pass
    query.stop()
    assert query.exception() is None
    assert stage.rows(SCHEMA)[0] == ("a", "1")
    assert stage.rows(SCHEMA)[1][1].startswith("timer in")


@pytest.mark.parametrize(
    "ticks", ["", "soon", "10", "0 seconds", "1e3 seconds", timedelta(0), 10, True]
)
def test_what_is_no_period(stage, ticks):
    with pytest.raises(ConfigurationError, match="'10 seconds' or timedelta"):
        counted(stage.source(), ticks=ticks)


def test_ticks_are_of_streams(spark, stage):
    with pytest.raises(ConfigurationError, match="before writeStream"):
        counted(spark.createDataFrame([("a",)], "user string"), ticks=TICKS)
    with pytest.raises(ConfigurationError, match="ticks_ms is"):
        keyed(stage.source(), "user", uid="u", ticks=TICKS).connect(
            keyed(stage.source(), "user", uid="u")
        )
