"""Batches that are empty at the operator: every subtask still runs (schedule 6)."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import functions as F

from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver.query_listener import ADAPTIVE

from .functions import Count, CountBoth

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"


@pytest.fixture(
    params=["true", pytest.param("false", marks=pytest.mark.slow)],
    ids=["adaptive", "not adaptive"],
)
def adaptive(spark, request):
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    spark.conf.set(ADAPTIVE, request.param)
    yield request.param == "true"
    spark.conf.set("spark.sql.adaptive.enabled", before)
    spark.conf.unset(ADAPTIVE)


def counts(df):
    return keyed(df, "user", uid="counts", parallelism=2)


def made_by_all(stage, versions):
    """Check that both subtasks made each of these versions, and no others."""
    found = {version: len(names) for version, names in stage.manifests().items()}
    assert found == dict.fromkeys(versions, 2)


@pytest.mark.parametrize(
    "adaptive", ["true", "false"], ids=["adaptive", "not adaptive"], indirect=True
)
def test_a_filter_that_leaves_nothing(stage, adaptive):
    for n in (1, 0, 1):
        stage.put({"user": "ann", "n": n}, {"user": "bob", "n": n})
    stage.run(counts(stage.source().where("n > 0")).process(Count(), SCHEMA))
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 2), ("bob", 1), ("bob", 2)]
    made_by_all(stage, (1, 2, 3))


def test_an_idle_source_of_a_union(stage, adaptive):
    busy, idle = stage.folder / "busy", stage.folder / "idle"
    other = stage.folder / "other"
    for _ in range(2):
        stage.put({"user": "zoe", "n": 0}, into=busy)
    stage.put({"user": "ann"}, into=idle)
    result = counts(stage.source(folder=idle)).process(Count(), SCHEMA)
    union = result.union(stage.source(folder=busy))
    stage.run(union)
    stage.put({"user": "ann"}, into=idle)
    stage.run(union)
    assert [row for row in stage.rows(SCHEMA) if row[0] == "ann"] == [("ann", 1), ("ann", 2)]
    made_by_all(stage, (1, 2, 3))
    assert not other.exists()


def test_an_idle_source_of_connect(stage, adaptive):
    left, right = stage.folder / "left", stage.folder / "right"
    both = (
        counts(stage.source(folder=left))
        .connect(counts(stage.source(folder=right)))
        .process(CountBoth(), SCHEMA)
    )
    stage.put({"user": "ann"}, into=left)
    for _ in range(2):
        stage.put({"user": "ann"}, into=right)
    stage.run(both)
    stage.put({"user": "ann"}, into=left)
    stage.run(both)
    assert stage.rows(SCHEMA) == [("ann", n) for n in (1, 2, 3, 4)]
    made_by_all(stage, (1, 2, 3))


def test_the_no_data_batch_of_a_window_downstream(stage, adaptive, one_partition):
    """The watermark advances, the window closes in a batch without data, and the state is kept."""

    def windows():
        events = stage.source("user string, at timestamp")
        counted = counts(events).process(
            lambda row, ctx: [(row.user, row.at)], "user string, at timestamp"
        )
        stamped = counted.withWatermark("at", "1 second")
        windowed = stamped.groupBy(F.window("at", "10 seconds"), "user").count()
        return windowed.selectExpr("user", "count AS n")

    stage.put({"user": "ann", "at": "2024-01-01T00:00:01Z"})
    stage.put({"user": "bob", "at": "2024-01-01T00:00:30Z"})
    stage.run(windows())
    assert stage.rows(SCHEMA) == [("ann", 1)]
    stage.put({"user": "cyd", "at": "2024-01-01T00:01:30Z"})
    stage.run(windows())
    assert ("bob", 1) in stage.rows(SCHEMA)
    versions = sorted(stage.manifests())
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 3  # batches without data among them
    made_by_all(stage, versions)


def test_foreach_batch_that_skips_and_of_which_a_filter_leaves_nothing(stage, adaptive):
    for n in (0, 1, 1, 1, 0):
        stage.put({"user": "ann", "n": n}, {"user": "bob", "n": n})
    stage.put({"user": "ann", "n": 1})

    def each(df, batch_id):
        if batch_id not in (1, 2):
            result = counts(df.where("n > 0")).process(Count(), SCHEMA)
            result.write.mode("append").json(str(stage.output))

    stage.each_batch(each)
    assert stage.rows(SCHEMA) == [("ann", 1), ("ann", 2), ("bob", 1)]
    made_by_all(stage, (1, 4, 5, 6))


def test_an_empty_bounded_dataframe(stage, adaptive):
    empty = stage.spark.createDataFrame([], "user string, n long").where("n > 0")
    result = keyed(empty, "user", uid="counts", query="q", parallelism=2).process(Count(), SCHEMA)
    assert result.collect() == []
    if adaptive and pyspark.__version__.startswith("3."):
        # Optimised away as a whole: the version is skipped, and equals the previous one.
        assert stage.operators() == {}
    else:
        made_by_all(stage, (1,))
