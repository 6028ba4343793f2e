"""Queries that begin with the state of others: of streams, savepoints and bounded DataFrames."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta

import click
import pytest
from click.testing import CliRunner

from forebay_cli.upkeep.savepoint import savepoint
from forebay_spark_runtime import RestoreFrom, broadcast, keyed
from forebay_state_api import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
FIRST = [{"user": user, "n": n} for n in range(1, 4) for user in ("ann", "bob")]
LATER = [{"user": "ann", "n": 10}, {"user": "cyd", "n": 5}]


class Totals(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, row, ctx):
        self.total.update(self.total.value() + row.n)
        yield row.user, self.total.value()


class Renamed(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, row, ctx):
        yield row.user, self.sum.value()


class Kept(KeyedProcessFunction):
    """Keeps a user's numbers in order, and a timer in a namespace for each of them."""

    ttl = None

    def open(self, context):
        self.numbers = context.get_sorted_map_state(SortedMapStateDescriptor("numbers", int, bool))
        last = ValueStateDescriptor("last", int, ttl=self.ttl, switch_ttl=self.ttl is not None)
        self.last = context.get_state(last)

    def process_element(self, row, ctx):
        yield row.user, self.last.value()
        self.last.update(row.n)
        self.numbers.put(row.n, value=True)
        ctx.set_current_namespace(row.n)
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(milliseconds=1))

    def on_timer(self, at, ctx):
        of_timer = ctx.current_namespace
        ctx.set_current_namespace(None)
        yield f"{ctx.current_key} has {list(self.numbers.keys())}", of_timer


class Forgetful(Kept):
    ttl = StateTtlConfig(timedelta(days=1))


def totals(stage, df=None, function=None, **options):
    options.setdefault("parallelism", 2)
    source = stage.source() if df is None else df
    return keyed(source, "user", uid="totals", **options).process(function or Totals(), SCHEMA)


def query_id(checkpoint):
    return json.loads((checkpoint / "metadata").read_text())["id"]


def later(stage, name, **options):
    """Return the output of a new query that reads only `LATER` and begins with other state."""
    folder = stage.folder / f"input {name}"
    if not folder.exists():
        stage.put(*LATER, into=folder)
    output = stage.folder / f"output {name}"
    result = totals(stage, stage.source(folder=folder), **options)
    stage.run(result, checkpoint=stage.folder / f"checkpoint {name}", output=output)
    return stage.rows(SCHEMA, output=output)


def test_a_stream_goes_on_from_another_ones_state(stage):
    stage.put(*FIRST)
    stage.run(totals(stage))
    source = query_id(stage.checkpoint)
    assert later(stage, "fork", restore_from=source, parallelism=3) == [("ann", 16), ("cyd", 5)]
    create_savepoint(stage, source)
    stage.put({"user": "ann", "n": 100})
    stage.run(totals(stage))
    assert later(stage, "newest", restore_from=source)[0] == ("ann", 116)
    saved = RestoreFrom(source, savepoint="mine")
    assert later(stage, "lsm", restore_from=saved, backend="lsm")[0] == ("ann", 16)
    with pytest.raises(Exception, match="does not declare the stored states 'total'"):
        later(stage, "renamed", restore_from=source, function=Renamed())
    renamed = {"restore_from": source, "function": Renamed(), "allow_non_restored": True}
    assert later(stage, "renamed", **renamed) == [("ann", 0), ("cyd", 0)]


def test_a_savepoint_has_sorted_maps_and_timers_and_its_ttl_may_be_switched_on(stage):
    stage.put(*FIRST)
    stage.run(totals(stage, function=Kept()))
    source = query_id(stage.checkpoint)
    create_savepoint(stage, source)
    saved = RestoreFrom(source, savepoint="mine")
    found = later(stage, "saved", restore_from=saved, parallelism=3, function=Forgetful())
    fired = [(f"{user} has [1, 2, 3]", n) for user in ("ann", "bob") for n in (1, 2, 3)]
    assert sorted(found, key=str) == sorted([("ann", 3), ("cyd", None), *fired], key=str)


class Capped(KeyedBroadcastProcessFunction):
    """Adds up a user's numbers, but of each row not more than the newest rule says."""

    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))
        self.most = context.get_broadcast_state(MapStateDescriptor("most", str, int))

    def process_element(self, row, ctx):
        self.sum.update(self.sum.value() + min(row.n, self.most.get("any") or 0))
        yield row.user, self.sum.value()

    def process_broadcast_element(self, row, ctx):
        self.most.put("any", row.n)


def capped(stage, name, rows, rule=None, **options):
    """Run a query on rows, and perhaps a rule; return all its output."""
    folder = stage.folder / name
    stage.put(*[{"user": user, "n": n} for user, n in rows], into=folder / "rows")
    if rule is not None:
        stage.put({"n": rule}, into=folder / "rules")
    operator = keyed(
        stage.source(folder=folder / "rows"), "user", uid="totals", state_dir=stage.state, **options
    )
    rules = broadcast(stage.source("n long", folder=folder / "rules"))
    found = operator.connect(rules).process(Capped(), SCHEMA)
    stage.run(found, checkpoint=folder / "checkpoint", output=folder / "output")
    return stage.rows(SCHEMA, output=folder / "output")


@pytest.mark.slow  # by default: test_savepoint_commands.py of cli, with the harness
def test_a_savepoint_has_broadcast_state(stage):
    users = [f"user{n}" for n in range(6)]
    capped(stage, "source", [(user, 100) for user in users], rule=10, parallelism=2)
    source = query_id(stage.folder / "source" / "checkpoint")
    create_savepoint(stage, source)
    capped(stage, "source", [("user0", 100)], rule=20, parallelism=2)
    rows = [(user, 100) for user in [*users, "new"]]
    saved = RestoreFrom(source, savepoint="mine")
    found = capped(stage, "saved", rows, restore_from=saved, parallelism=5)
    assert found == [("new", 10), *((user, 20) for user in users)]
    found = capped(stage, "newest", rows, restore_from=source, parallelism=1)
    assert found == [("new", 20), ("user0", 50), *((user, 30) for user in users[1:])]


def create_savepoint(stage, source):
    command = click.Group(commands={"savepoint": savepoint})
    made = CliRunner().invoke(
        command,
        ["savepoint", "create", "mine", "--query", source, "--state-dir", str(stage.state)],
    )
    assert (made.exit_code, "totals: version 1" in made.output) == (0, True)


def test_a_stream_goes_on_from_what_a_bounded_dataframe_left(stage, spark):
    rows = [(row["user"], row["n"]) for row in FIRST]
    history = spark.createDataFrame(rows, SCHEMA)
    totals(stage, history, query="history").write.mode("overwrite").format("noop").save()
    assert later(stage, "stream", restore_from="history") == [("ann", 16), ("cyd", 5)]


def test_a_copy_of_the_checkpoint_reads_on_with_a_fork(stage):
    stage.put(*FIRST)
    stage.put(*LATER)
    stage.run(totals(stage))
    copy = stage.folder / "copied checkpoint"
    shutil.copytree(stage.checkpoint, copy)
    stage.put({"user": "ann", "n": 1000})
    stage.run(totals(stage))
    asked = RestoreFrom(query_id(stage.checkpoint), version=2)
    output = stage.folder / "copied output"
    for _ in range(2):
        forked = totals(stage, query="copy", new_state=True, restore_from=asked)
        stage.run(forked, checkpoint=copy, output=output)
        assert written(output)[0] == ("ann", 1016)
        stage.put({"user": "bob", "n": 1})
    assert written(output) == [("ann", 1016), ("bob", 7)]


def written(output):
    """Return the rows of a file sink whose log does not begin with batch 0, which Spark refuses."""
    lines = [line for path in output.glob("*.json") for line in path.read_text().splitlines()]
    return sorted((row["user"], row["n"]) for row in map(json.loads, lines))


def test_what_keyed_refuses(stage, spark):
    stage.put(*FIRST)
    bounded = spark.createDataFrame([("ann", 1)], SCHEMA)
    with pytest.raises(ConfigurationError, match="restore_from= needs query="):
        totals(stage, bounded, restore_from="x")
    with pytest.raises(ConfigurationError, match="only applies together with restore_from="):
        totals(stage, allow_non_restored=True)
    with pytest.raises(ConfigurationError, match="a query's id or name, or a RestoreFrom, not 3"):
        totals(stage, restore_from=3)
