"""Queries that cannot be taken over, dry runs, and the commands that take one over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime.importing import import_tws
from forebay_spark_runtime.importing.command import import_tws_command
from forebay_spark_runtime.importing.mapping import MappingChoices, taken_states
from forebay_spark_runtime.importing.tws_query import TwsQuery, Variable
from forebay_spark_runtime.importing.tws_tables import TwsTables
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_processor.importing.checkpoint_copy import CheckpointCopy
from forebay_state_processor.importing.declared_states import DeclaredStates

if pyspark.__version__ < "4.0":
    pytest.skip("transformWithState is in Spark 4.0 and newer", allow_module_level=True)


from .taking_over import (
    HOUR,
    HOUR_MS,
    SCHEMA,
    TWS_CONF,
    Count,
    SparkCount,
    Takeover,
    spark_settings,
    transform_with_state,
)

# A very busy machine needs more than the usual two minutes: each test has a dozen micro-batches.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class NullKeys(SparkCount):
    def handleInputRows(self, key, rows, timerValues):
        self.n.update((1,))
        return iter(())


@pytest.fixture(scope="module")
def stopped(spark, tmp_path_factory):
    """The checkpoint of a query that has stopped; its states have a null key and a null value."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text('{"user":"ann","n":1}\n{"n":1}\n')
    df = spark.readStream.schema(SCHEMA).json(str(folder / "in"))
    with_state = transform_with_state(df.groupBy("user"), NullKeys(), "None")
    with spark_settings(spark, TWS_CONF):
        writer = with_state.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        writer.format("noop").trigger(availableNow=True).start().awaitTermination()
    return folder / "checkpoint"


def nothing_written(stage):
    places = (stage.state, stage.folder / "copied")
    return not [path for place in places for path in place.rglob("*") if path.is_file()]


def take(stage, checkpoint, function=None, **options):
    given = {"into": str(stage.folder / "copied"), "uid": "counts", **options}
    return import_tws(stage.spark, str(checkpoint), function or Count(), **given)


@pytest.mark.slow
def test_a_row_that_does_not_fit_is_named_and_nothing_stays(stage, stopped):
    with pytest.raises(ConfigurationError, match="nothing was imported") as caught:
        take(stage, stopped)
    assert "the table of state 'n', key None: a key of operator 'counts'" in str(caught.value)
    assert nothing_written(stage)


class Told(KeyedProcessFunction):
    def open(self, context):
        ttl = StateTtlConfig(HOUR)
        context.get_state(ValueStateDescriptor("one", float, ttl=ttl))
        context.get_list_state(ListStateDescriptor("some", tuple[int, str]))
        context.get_map_state(MapStateDescriptor("by", float, None, ttl=ttl))

    def process_element(self, row, ctx):
        raise AssertionError

    def on_timer(self, at, ctx):
        raise AssertionError


TOLD_KEY = {"a.b": "ann", "key": Decimal("1.50")}
TOLD = {
    "one": ("struct<value: struct<n: int>, ttlExpirationMs: bigint>", [((1,), HOUR_MS + 5)]),
    "some": ("array<struct<n: int, s: string>>", [[(1, "a"), (2, "b")], []]),
    "by": (
        (
            "map<struct<x: double>,"
            " struct<value: struct<m: map<string, int>>, ttlExpirationMs: bigint>>"
        ),
        [{Row(x=0.5): (({},), HOUR_MS), Row(x=-0.5): (({"k": 1},), HOUR_MS + 7)}],
    ),
    "timers": ("bigint", [3, 1 << 62]),
}
"""Variable → its type on Spark, and the content of rows."""


def told(spark):
    """Return the tables of states as Spark's reader gives them."""
    frames = {}
    for name, (kind, contents) in TOLD.items():
        rows = [(tuple(TOLD_KEY.values()), content) for content in contents]
        schema = f"key struct<`a.b`: string, key: decimal(10,2)>, content {kind}"
        frames[name] = spark.createDataFrame(rows, schema)
    shapes = {"one": Shape.POINT, "some": Shape.LIST, "by": Shape.MAP}
    found = TwsQuery(
        stopped=None,
        variables={
            name: Variable(name=name, shape=shape, has_ttl=name != "some", rows=frames[name])
            for name, shape in shapes.items()
        },
        domain=TimeDomain.EVENT_TIME,
        timers=frames["timers"],
        key=frames["one"].schema["key"].dataType,
    )
    key = KeyType.of(tuple[str, Decimal])
    declared = DeclaredStates.of(Told(), key=key, uid="told", backend=HeapBackend)
    return TwsTables(found, taken_states(found, declared, MappingChoices()), declared, timers=True)


def test_spark_makes_the_columns_of_tables(spark):
    found = told(spark).frames
    assert [layout.state for layout in found.layouts] == ["one", "some", "by", None]
    *states, timers = (frame.toArrow() for frame in found.frames)
    one, some, by = (table.to_pylist() for table in states)
    key = {"key_1": "ann", "key_2": Decimal("1.50")}
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert one == [key | {"value": 1, "written": start + timedelta(milliseconds=5)}]
    assert some == [key | {"value": [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]}]  # [] is no content
    (by,) = by
    assert dict(by["value"]) == {0.5: [], -0.5: [("k", 1)]}
    assert dict(by["written"]) == {0.5: start, -0.5: start + timedelta(milliseconds=7)}
    assert found.layouts[2].value["type"] == "dict"
    assert timers.drop(["time"]).to_pylist() == [key | {"domain": "event_time"}] * 2
    # The second one has no datetime: the task refuses it by name.
    assert timers["time"].cast("int64").to_pylist() == [3_000, 9 * 10**18]


@pytest.mark.slow
def test_a_location_that_spark_cannot_read_is_named(stage, stopped):
    moved = shutil.copytree(stopped, stage.folder / "with a blank")
    with pytest.raises(ConfigurationError, match="copy the checkpoint to a place without"):
        take(stage, moved)
    assert nothing_written(stage)


class Text(Count):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", str))


@pytest.mark.slow
def test_a_type_that_does_not_fit_is_named_before_anything_is_written(stage, stopped):
    with pytest.raises(ConfigurationError, match="n: bigint does not fit str"):
        take(stage, stopped, Text())
    assert nothing_written(stage)


@pytest.mark.slow
def test_a_checkpoint_of_something_else_is_refused(stage, stopped):
    with pytest.raises(ConfigurationError, match="metadata is missing or not Spark's"):
        take(stage, stage.folder / "nothing")
    stage.put({"user": "ann", "n": 1})
    counts = stage.source().groupBy("user").count()
    writer = counts.writeStream.outputMode("complete").format("memory").queryName("counted")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    try:
        query.processAllAvailable()
        with pytest.raises(ConfigurationError, match="runs in this session: stop it"):
            take(stage, stage.checkpoint)
    finally:
        query.stop()
    with pytest.raises(ConfigurationError, match="has stateStoreSave: import-tws takes over"):
        take(stage, stage.checkpoint)
    assert nothing_written(stage)


@pytest.mark.slow
def test_a_query_without_a_batch_is_refused(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(fails_at=1), Count())
    with pytest.raises(StreamingQueryException):
        query.on_spark()
    with pytest.raises(ConfigurationError, match="has committed no batch"):
        query.taken()


@pytest.mark.slow
def test_a_dry_run_a_failure_and_an_occupied_place(stage, monkeypatch):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    query.on_spark()
    dry = query.taken(dry_run=True)
    assert (dry.run, dry.rows) == (None, {"n": 1})
    assert nothing_written(stage)

    def ran(self):
        raise StorageError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCopy, "check_unchanged", ran)
        with pytest.raises(StorageError, match="gone"):
            query.taken()
    assert not [path for path in stage.state.rglob("*") if path.is_file()]
    assert not [path for path in query.copied.rglob("*") if path.is_file()]

    assert query.taken().run is not None
    with pytest.raises(ConfigurationError, match="is not empty: name a new location"):
        query.taken()
    with pytest.raises(ConfigurationError, match="has state already"):
        query.taken(into=str(stage.folder / "another"))


@pytest.mark.slow
def test_the_command_takes_a_query_over(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    made = query.on_spark()
    arguments = [str(stage.checkpoint), "--into", str(query.copied), "--uid", "counts"]
    arguments += ["--state-dir", str(stage.state), "--function", f"{__name__}:Count"]
    bad = CliRunner().invoke(import_tws_command, [*arguments, "--ttl", "n"])
    assert "--ttl takes VARIABLE=DURATION, not 'n'" in str(bad.exception)
    done = CliRunner().invoke(import_tws_command, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert (found["query"], found["version"], found["rows"]) == (str(made.id), 1, {"n": 1})
    stage.put({"user": "ann", "n": 2})
    assert query.goes_on() == [("ann", 1), ("ann", 3)]


GOES_ON = """
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        yield row
"""


@pytest.mark.slow
def test_the_program_takes_a_query_over(stage):
    stage.put({"user": "ann", "n": 1})
    query = Takeover(stage, SparkCount(), Count())
    made = query.on_spark()
    (stage.folder / "counting.py").write_text(GOES_ON)
    program = str(Path(sys.executable).with_name("forebay"))
    asked = [program, "import-tws", str(stage.checkpoint), "--into", str(query.copied)]
    asked += ["--uid=counts", "--state-dir", str(stage.state), "--function=counting:Count"]
    how = {"cwd": stage.folder, "timeout": 200, "stdout": subprocess.PIPE}
    found = subprocess.run([*asked, "--json"], check=True, **how)
    done = json.loads(found.stdout)
    assert (done["query"], done["version"], done["rows"]) == (str(made.id), 1, {"n": 1})
    stage.put({"user": "ann", "n": 2})
    assert query.goes_on() == [("ann", 1), ("ann", 3)]
