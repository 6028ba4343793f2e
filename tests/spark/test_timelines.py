"""Copies of a checkpoint on one state directory: each query continues with its own state."""

from __future__ import annotations

import shutil

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


class Add(KeyedProcessFunction):
    """Each row adds ``by``; a row of ``poison`` fails."""

    def __init__(self, by, poison=None):
        self.by, self.poison = by, poison

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        if row.user == self.poison:
            raise ValueError("poisoned")
        self.n.update(self.n.value() + self.by)
        yield row.user, self.n.value()


def put(stage, *users):
    stage.put(*({"user": user} for user in users))


class Copy:
    """A query, its checkpoint and its output; ``by`` identifies the query that made a value."""

    def __init__(self, stage, name, by):
        self.stage, self.by = stage, by
        self.checkpoint, self.output = stage.folder / name, stage.folder / f"{name} output"

    def copied(self, name, by):
        """Copy the checkpoint and the sink with its log, which names the original files."""
        copy = Copy(self.stage, name, by)
        shutil.copytree(self.checkpoint, copy.checkpoint)
        shutil.copytree(self.output, copy.output)
        return copy

    def run(self, *users, poison=None, where="true"):
        """Run the query on a file of these users, if there are any."""
        if users:
            put(self.stage, *users)
        df = keyed(
            self.stage.source().where(where),
            "user",
            uid="counts",
            parallelism=2,
        ).process(Add(self.by, poison), SCHEMA)
        self.stage.run(df, checkpoint=self.checkpoint, output=self.output)

    def rows(self):
        return self.stage.rows(SCHEMA, output=self.output)


@pytest.fixture(params=["2", pytest.param("1", marks=pytest.mark.slow)])
def _log_format(spark, request):
    """Set the format of the offset log; older versions of Spark have only one."""
    key = "spark.sql.streaming.offsetLog.formatVersion"
    spark.conf.set(key, request.param)
    yield
    spark.conf.unset(key)


@pytest.mark.slow  # by default: the next test, where the query fails first
@pytest.mark.usefixtures("_log_format")
def test_a_copy_that_runs_later_does_not_become_productions_state(stage):
    home = Copy(stage, "home", 1)
    home.run("ann", "bob")
    copy = home.copied("copy", 100)
    home.run("ann")
    copy.run()
    home.run("ann")
    copy.run()
    home.run("ann")
    assert home.rows() == [("ann", 1), ("ann", 2), ("ann", 3), ("ann", 4), ("bob", 1)]
    assert copy.rows() == [("ann", 101), ("ann", 201)]


@pytest.mark.usefixtures("_log_format")
def test_a_copy_of_a_failed_query_and_batches_without_rows(stage):
    home = Copy(stage, "home", 1)
    home.run("ann", "bob")
    with pytest.raises(Exception, match="poisoned"):
        home.run("ann", "cat", poison="cat")
    copy = home.copied("copy", 100)
    home.run()
    copy.run()
    put(stage, "nobody")
    home.run("ann", where="user != 'nobody'")
    copy.run(where="user != 'nobody'")
    assert home.rows() == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1), ("cat", 1)]
    assert copy.rows() == [("ann", 101), ("ann", 201), ("cat", 100)]


@pytest.mark.slow  # by default: a stream, above, and the time of a batch in foreachBatch, below
def test_in_foreach_batch_each_copy_goes_on_with_its_own(stage):
    def each(by, into):
        def run(df, batch_id):
            done = keyed(df, "user", uid="counts", parallelism=2).process(Add(by), SCHEMA)
            into.extend(map(tuple, done.collect()))

        return run

    home, copy = [], []
    stage.put({"user": "ann"})
    stage.each_batch(each(1, home))
    other = stage.folder / "copy"
    shutil.copytree(stage.checkpoint, other)
    stage.put({"user": "ann"})
    stage.each_batch(each(1, home))
    stage.each_batch(each(100, copy), checkpoint=other)
    stage.put({"user": "ann"}, {"user": "bob"})
    stage.each_batch(each(1, home))
    stage.each_batch(each(100, copy), checkpoint=other)
    assert sorted(home) == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1)]
    assert sorted(copy) == [("ann", 101), ("ann", 201), ("bob", 100)]


def test_in_foreach_batch_the_time_is_the_batchs_own(stage, spark):
    planned, stored = [], []
    stage.put({"user": "ann"})

    def run(df, batch_id):
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        java = spark._jvm.java.util.UUID.fromString(query)
        execution = spark._jsparkSession.sharedState().activeStreamingQueries().get(java)
        entry = execution.offsetLog().get(batch_id).get()
        planned.append(entry.metadataOpt().get().batchTimestampMs())
        keyed(df, "user", uid="counts", parallelism=2).process(Add(1), SCHEMA).collect()

    stage.each_batch(run)
    for names in stage.manifests().values():
        stored += [int(name.split("-")[10]) for name in names]
    assert stored == 2 * planned, "also in the subtask without rows"
