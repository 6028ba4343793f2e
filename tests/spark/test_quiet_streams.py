"""Ticks on Spark: micro-batches of a quiet stream, and checkpoints that get and lose them.

Each start with ticks costs several processes of Spark's for its source; so one test of few starts
runs by default, and the others are slow.
"""

from __future__ import annotations

import json
import shutil
from datetime import timedelta

import pyspark
import pytest

from forebay_spark_runtime import broadcast, keyed, why
from forebay_spark_runtime.driver.tick_entries import with_sources
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import (
    ConfigurationError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ValueStateDescriptor,
)

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


class Both(KeyedCoProcessFunction):
    open = Count.open
    process_element1 = process_element2 = Count.process_element
    on_timer = Count.on_timer


class AlsoRules(KeyedBroadcastProcessFunction):
    open = Count.open
    process_element = Count.process_element
    on_timer = Count.on_timer

    def process_broadcast_element(self, row, ctx):
        return []


def operator(df, uid="counts", **options):
    return keyed(df, "user", uid=uid, parallelism=2, **options)


def counted(df, uid="counts", **options):
    return operator(df, uid, **options).process(Count(), SCHEMA)


def entry(stage, batch):
    """Return the metadata of an entry, and the offsets of sources."""
    log = stage.checkpoint / "offsets" / str(batch)
    version, metadata, *lines = log.read_text().splitlines()
    return json.loads(metadata), sorted(lines) if version == "v2" else lines


def offsets(stage, batch):
    """Return for each offset of an entry whether it is one of ticks."""
    return ["forebayTick" in line for line in entry(stage, batch)[1]]


def batches(stage):
    return max(int(path.name) for path in (stage.checkpoint / "commits").glob("[0-9]*")) + 1


def counts(stage):
    """Return the counts in the output, without timers."""
    return [what for _, what in stage.rows(SCHEMA) if what.isdecimal()]


@pytest.fixture(params=[pytest.param("1", marks=pytest.mark.slow), "2"], ids=["v1", "v2"])
def offset_log(spark, request):
    """The format of the offset log of new checkpoints."""
    key = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(key, request.param)
    yield request.param
    spark.conf.unset(key)


class Third:
    """A query of an operator and of another source, before or behind it."""

    def __init__(self, stage, *, behind):
        self.stage = stage
        self.folder = stage.folder / "other"
        self.behind = behind

    def put(self):
        self.stage.put({"user": "a"})
        self.stage.put({"user": "third"}, into=self.folder)

    def run(self, **options):
        third = self.stage.source(folder=self.folder).selectExpr("user", "'row' as what")
        # The sources keep what they have read under their numbers.
        found = counted(self.stage.source(), **options).repartition(1)
        return self.stage.run(found.union(third) if self.behind else third.union(found))

    def check(self, count):
        assert counts(self.stage) == [str(number + 1) for number in range(count)]
        assert self.stage.rows(SCHEMA).count(("third", "row")) == count


def test_a_query_begins_and_ceases_to_have_ticks(stage, offset_log):
    third = Third(stage, behind=True)
    third.put()
    third.run()
    assert offsets(stage, 0) == [False, False]
    query = third.run(ticks=TICKS)
    assert batches(stage) == 2, "one micro-batch if no rows came"
    assert offsets(stage, 0) == offsets(stage, 1) == [False, True, False]
    assert stage.rows(SCHEMA)[1] == ("a", "timer in 1")
    assert sorted(path.name for path in (stage.checkpoint / "sources").iterdir()) == ["0", "2"]
    (event,) = query.recentProgress
    assert event["numInputRows"] == 0
    assert [one.figures["rows_in"] for one in operators_of(event)] == [0]
    third.put()
    third.run()
    assert offsets(stage, batches(stage) - 1) == [False, False]
    third.check(2)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
def test_another_source_is_read_once(stage, behind, offset_log):
    third = Third(stage, behind=behind)
    for number, options in enumerate(
        ({"ticks": TICKS}, {}, {"ticks": timedelta(days=1)}, {"ticks": "1 hour"}, {})
    ):
        third.put()
        third.run(**options)
        third.check(number + 1)
        assert sum(offsets(stage, batches(stage) - 1)) == len(options)


@pytest.mark.slow
def test_a_join_with_a_third_source(stage):
    other = stage.folder / "other"

    def run(**options):
        third = stage.source(folder=other).selectExpr("user as name")
        found = counted(stage.source(), **options)
        stage.run(found.join(third, found.user == third.name).select("user", "what"))

    stage.put({"user": "a"}, into=other)
    for options in ({}, {"ticks": TICKS}, {}):
        stage.put({"user": "a"})
        run(**options)
    assert counts(stage) == ["1", "2", "3"]
    assert any(what.startswith("timer") for _, what in stage.rows(SCHEMA))


@pytest.mark.slow
def test_two_sources_behind_the_operator_refuse_ticks_and_lose_nothing(stage, caplog):
    more = [stage.folder / name for name in ("other", "another")]

    def united(**options):
        found = counted(stage.source(), **options)
        for folder in more:
            third = stage.source(folder=folder).selectExpr("user", "'row' as what")
            found = found.union(third)
        return found

    def put():
        stage.put({"user": "a"})
        for folder in more:
            stage.put({"user": "third"}, into=folder)

    put()
    stage.run(united())
    before = entry(stage, 0)
    with pytest.raises(Exception, match=r"There are \[3\] sources in the checkpoint") as refused:
        stage.run(united(ticks=TICKS))
    error = why(refused.value)
    assert isinstance(error, ConfigurationError)
    assert "a query began or ceased to have ticks=" in str(error)
    assert "2 of them have stored what they have read" in caplog.text
    assert entry(stage, 0) == before
    put()
    stage.run(united())
    assert counts(stage) == ["1", "2"]
    assert stage.rows(SCHEMA).count(("third", "row")) == 4


class Failing(Count):
    def process_element(self, row, ctx):
        raise ValueError(row.user)


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True], ids=["completed", "taken back"])
@pytest.mark.parametrize("killed", ["after the copy", "between the entries"])
def test_a_start_that_was_killed(stage, offset_log, back, killed):
    """With a source behind the ticks, whose files are copied before the entries are replaced."""
    third = Third(stage, behind=True)
    for _ in range(2):
        third.put()
    third.run()
    third.put()
    failing = operator(stage.source()).process(Failing(), SCHEMA)
    other = stage.source(folder=third.folder).selectExpr("user", "'row' as what")
    with pytest.raises(Exception, match="a"):
        stage.run(failing.repartition(1).union(other))
    sources = stage.checkpoint / "sources"
    shutil.copytree(sources / "1", sources / "2")
    if killed == "between the entries":
        path = stage.checkpoint / "offsets" / "1"
        path.write_text(with_sources(path.read_text(), [False, True, False]).text)
        (path.parent / ".1.crc").unlink(missing_ok=True)
    third.run(**({} if back else {"ticks": TICKS}))
    third.check(3)
    assert [sum(offsets(stage, batch)) for batch in (1, 2)] == ([0, 0] if back else [1, 1])
    third.put()
    third.run(ticks=TICKS)
    third.check(4)


@pytest.mark.slow
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
    assert counts(stage) == ["1", "2", "3", "4"]
    assert any(line.startswith("forebay_ticks:") for line in entry(stage, 3)[1])


@pytest.mark.slow
def test_a_chain_has_one_source_of_ticks(stage):
    stage.put({"user": "a"})
    above = counted(stage.source(), "above", ticks=TICKS)
    result = counted(above, "below", ticks=timedelta(days=1))
    stage.run(result)
    assert offsets(stage, 0) == [False, True]
    stage.run(result)
    assert stage.rows(SCHEMA) == [
        ("a", "1"),
        ("a", "2"),
        ("a", "timer in 1"),
    ]
    with pytest.raises(ConfigurationError, match="give ticks= once, or the same in all"):
        counted(above, "below", ticks="1 hour")


@pytest.mark.slow
@pytest.mark.parametrize("second", ["keyed", "broadcast"])
def test_two_inputs(stage, second):
    other = stage.source(folder=stage.folder / "other")
    if second == "keyed":
        pair = [operator(df, ticks=TICKS) for df in (stage.source(), other)]
        result = pair[0].connect(pair[1]).process(Both(), SCHEMA)
    else:
        keyed_df = operator(stage.source(), ticks=TICKS)
        result = keyed_df.connect(broadcast(other)).process(AlsoRules(), SCHEMA)
    stage.put({"user": "a"})
    stage.run(result)
    assert offsets(stage, 0) == [False, False, True]
    stage.run(result)
    assert stage.rows(SCHEMA) == [("a", "1"), ("a", "timer in 1")]


@pytest.mark.slow
def test_side_outputs_in_foreach_batch(stage):
    """The output of a tick reaches the function of foreachBatch, whose tables are written once."""
    stage.put({"user": "a"})
    found = []

    def write(df, batch_id):
        found.append((batch_id, [row.what for row in df.where("what like 'timer%'").collect()]))

    for _ in range(2):
        stage.each_batch(write, counted(stage.source(), ticks=TICKS))
    assert found == [(0, []), (1, ["timer in 1"])]


@pytest.mark.slow
def test_a_run_of_one_batch_is_a_tick_if_no_rows_came(stage):
    def run():
        writer = counted(stage.source(), ticks=TICKS).writeStream.format("json")
        writer = writer.option("path", str(stage.output)).trigger(once=True)
        query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
        assert query.awaitTermination(100)

    stage.put({"user": "a"})
    run()
    run()
    run()
    assert batches(stage) == 3
    assert stage.rows(SCHEMA) == [("a", "1"), ("a", "timer in 1")]


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ["50 milliseconds", "1 second"])
def test_a_quiet_stream_ticks_by_itself_once_in_each_trigger(stage, trigger):
    stage.put({"user": "a"})
    writer = counted(stage.source(), ticks="50 milliseconds").writeStream.format("json")
    writer = writer.option("path", str(stage.output))
    writer = writer.option("checkpointLocation", str(stage.checkpoint))
    query = writer.trigger(processingTime=trigger).start()
    while not query.awaitTermination(0.05) and len(query.recentProgress) < 4:
        pass
    query.stop()
    assert query.exception() is None
    assert stage.rows(SCHEMA)[0] == ("a", "1")
    assert stage.rows(SCHEMA)[1][1].startswith("timer in")
    # Micro-batches begin at whole multiples of the trigger's period, or later in it.
    period_ms = {"50 milliseconds": 50, "1 second": 1_000}[trigger]
    times = [entry(stage, batch)[0]["batchTimestampMs"] for batch in range(4)]
    assert len({at // period_ms for at in times[1:]}) == 3


@pytest.mark.slow
def test_asynchronous_progress_is_refused_with_ticks_too(stage):
    """It cannot start again in this JVM: Spark fails to forget a query with such a source."""
    stage.put({"user": "a"})
    stage.run(counted(stage.source()))
    asynchronous = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": "1",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }
    writer = counted(stage.source(), ticks=TICKS).writeStream.format("json")
    writer = writer.option("path", str(stage.output)).options(**asynchronous)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    with pytest.raises(Exception, match="started with asyncProgressTrackingEnabled=true"):
        query.awaitTermination()
    assert counts(stage) == ["1"]


@pytest.mark.parametrize("ticks", ["", "soon", "1e3 seconds", timedelta(0), 10, True])
def test_what_is_no_period(stage, ticks):
    with pytest.raises(ConfigurationError, match="'10 seconds' or timedelta"):
        counted(stage.source(), ticks=ticks)


def test_ticks_are_of_streams(spark, stage):
    with pytest.raises(ConfigurationError, match="before writeStream"):
        counted(spark.createDataFrame([("a",)], "user string"), ticks=TICKS)
    with pytest.raises(ConfigurationError, match="ticks_ms is"):
        operator(stage.source(), ticks=TICKS).connect(operator(stage.source()))
