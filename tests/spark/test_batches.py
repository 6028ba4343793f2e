"""Keyed functions on bounded DataFrames and in ``foreachBatch``.

Batches that the function skips are in ``test_empty.py``.
"""

from __future__ import annotations

import threading

import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError

from .functions import Count

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


@pytest.fixture
def users(spark):
    return spark.createDataFrame([("ann", 1), ("bob", 1), ("ann", 2)], SCHEMA)


def counted(df, **options):
    return keyed(df, "user", uid="counts", **options).process(Count(), SCHEMA)


ONCE = [("ann", 1), ("ann", 2), ("bob", 1)]
TWICE = [("ann", 3), ("ann", 4), ("bob", 2)]


def test_state_of_a_bounded_dataframe_is_dropped_at_its_end(stage, users):
    assert sorted(counted(users).collect()) == ONCE
    assert not stage.state.exists()
    stage.spark.conf.unset("spark.forebay.state.dir")  # it needs none
    result = counted(users)
    assert sorted(result.collect()) == ONCE
    assert sorted(result.collect()) == ONCE


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_query_name_keeps_the_state(stage, users, backend):
    """A harness opens what Spark has stored."""
    options = {"parallelism": 2, "backend": backend}
    result = counted(users, query="nightly", **options)
    assert sorted(result.collect()) == ONCE
    assert sorted(result.collect()) == ONCE  # a second evaluation makes the same version again
    assert list(stage.manifests()) == [1]
    assert stage.operators()["counts"].parent.name == "nightly"
    of = {"uid": "counts", "state_dir": stage.state, "backend": backend, "key_type": str}
    count = ValueStateDescriptor("n", int, default=0)
    with FunctionHarness(Count(), "user", query="nightly", **of) as harness:
        assert [harness.state(count, user) for user in ("ann", "bob", "eve")] == [2, 1, 0]
    with FunctionHarness(Count(), "user", query="try", restore_from="nightly", **of) as harness:
        assert harness.state(count, "ann") == 2
        assert harness.process([{"user": "ann"}]) == [("ann", 3)]
    assert sorted(counted(users, query="nightly", **options, batch_id=1).collect()) == TWICE
    assert sorted(counted(users, query="other", **options).collect()) == ONCE


def test_two_operators_of_one_uid_in_one_plan(stage, users):
    both = [counted(users, query="nightly", parallelism=1) for _ in range(2)]
    plan = both[0].repartition(1).union(both[1].repartition(1))
    with pytest.raises(Exception, match="operator 'counts': the query has two operators"):
        plan.collect()


def test_a_batch_id_alone_means_nothing(stage, users):
    with pytest.raises(ConfigurationError, match="pass query= with it"):
        counted(users, batch_id=1)


@pytest.mark.slow  # by default: streams in test_restarts.py, with the same check
def test_a_batch_that_expects_state_and_finds_none(stage, users):
    with pytest.raises(Exception, match="may be mistyped or renamed") as caught:
        counted(users, query="nightly", batch_id=3).collect()
    assert "ConfigurationError" in str(caught.value)
    assert "new_state=True" in str(caught.value)
    started = counted(users, query="nightly", batch_id=3, new_state=True)
    assert sorted(started.collect()) == ONCE


def put_two(stage):
    for _ in range(2):
        stage.put({"user": "ann"}, {"user": "ann"}, {"user": "bob"})


def test_in_foreach_batch(stage):
    """The job group is the user's to set."""
    put_two(stage)

    def each(df, batch_id):
        df.sparkSession.sparkContext.setJobGroup("mine", "my jobs")
        counted(df, parallelism=2).write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    assert stage.rows(SCHEMA) == sorted(ONCE + TWICE)
    stage.put({"user": "bob"})
    stage.each_batch(each)
    assert stage.rows(SCHEMA) == sorted([*ONCE, *TWICE, ("bob", 3)])
    assert sorted(stage.manifests()) == [1, 2, 3]


def test_two_actions_of_one_batch_see_the_same_version(stage):
    """The first one is on another thread, and belongs to the batch all the same."""
    put_two(stage)
    found = []

    def each(df, batch_id):
        result = counted(df, parallelism=2)
        thread = threading.Thread(target=lambda: found.append(sorted(result.collect())))
        thread.start()
        thread.join()
        found.append(sorted(result.collect()))

    stage.each_batch(each)
    assert [[tuple(row) for row in rows] for rows in found] == [ONCE, ONCE, TWICE, TWICE]
    assert sorted(stage.manifests()) == [1, 2]


@pytest.mark.slow  # by default: test_side_outputs.py, with three tables
def test_a_batch_that_stops_between_two_writes_writes_the_same_again(stage):
    stop = {1}

    def write(batch, batch_id):
        batch.persist()
        try:
            for parity in (1, 0):
                rows = batch.where(f"n % 2 = {parity}")
                rows.write.mode("overwrite").json(f"{stage.folder}/{parity}/batch={batch_id}")
                if batch_id in stop:
                    stop.remove(batch_id)
                    raise ConnectionError
        finally:
            batch.unpersist()

    def run():
        stage.each_batch(write, counted(stage.source()))

    stage.put({"user": "ann"}, {"user": "ann"})
    run()
    stage.put({"user": "ann"}, {"user": "ann"})
    with pytest.raises(Exception, match="ConnectionError"):
        run()
    run()
    tables = [stage.spark.read.schema(SCHEMA).json(f"{stage.folder}/{one}") for one in (1, 0)]
    assert [sorted(row.n for row in table.collect()) for table in tables] == [[1, 3], [2, 4]]


def test_a_second_operator_of_one_uid_is_refused(stage):
    """A loop over tenants with one uid would keep only the last tenant."""
    put_two(stage)
    said = []

    def each(df, batch_id):
        counted(df.where("user = 'ann'")).write.mode("append").json(str(stage.output))
        try:
            counted(df.where("user = 'bob'"))
        except ConfigurationError as error:
            said.append(str(error))
        own = keyed(df.where("user = 'bob'"), "user", uid="counts of bob")
        own.process(Count(), SCHEMA).write.mode("append").json(str(stage.folder / "bob"))

    stage.each_batch(each)
    twice = "keyed() was called twice for operator 'counts' in batch"
    assert [text[: len(twice) + 2] for text in said] == [f"{twice} 0", f"{twice} 1"]
    assert stage.rows(SCHEMA) == [("ann", n) for n in (1, 2, 3, 4)]
    assert stage.rows(SCHEMA, output=stage.folder / "bob") == [("bob", 1), ("bob", 2)]


def test_the_batch_id_that_spark_gives_is_the_one(stage):
    put_two(stage)
    said = []

    def each(df, batch_id):
        try:
            counted(df, batch_id=7)
        except ConfigurationError as error:
            said.append(str(error))
        counted(df, query="mine", batch_id=batch_id).write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    assert stage.rows(SCHEMA) == sorted(ONCE + TWICE)
    assert stage.operators()["counts"].parent.name == "mine"
    assert [text.partition(";")[0] for text in said] == [
        f"operator 'counts': this is batch {n}, and batch_id=7 was passed" for n in (0, 1)
    ]
