"""Adaptive execution is off for streams with a keyed operator, and for no other (decision 0049)."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import keyed
from forebay_spark_runtime.driver.query_listener import ADAPTIVE

from .functions import Count

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
NODE = "AdaptiveSparkPlan"


@pytest.fixture(autouse=True)
def _known(spark):
    if not spark.conf.isModifiable(ADAPTIVE):
        pytest.skip("this Spark has no adaptive execution of streams")


def physical_plan(stage, df):
    stage.put({"user": "ann", "n": 1}, {"user": "bob", "n": 1})
    query = stage.start(df)
    query.awaitTermination()
    return query._jsq.streamingQuery().lastExecution().executedPlan().toString()


def counts(stage):
    return keyed(stage.source(), "user", uid="counts", parallelism=2).process(Count(), SCHEMA)


def test_a_keyed_operator_runs_without_it(stage, spark):
    assert NODE not in physical_plan(stage, counts(stage))
    assert spark.conf.get(ADAPTIVE) == "true"


def test_a_user_who_has_set_it_keeps_it(stage, spark):
    spark.conf.set(ADAPTIVE, "true")
    try:
        assert NODE in physical_plan(stage, counts(stage))
    finally:
        spark.conf.unset(ADAPTIVE)
    assert stage.rows(SCHEMA) == [("ann", 1), ("bob", 1)]


def test_other_streams_keep_it(stage):
    assert NODE in physical_plan(stage, stage.source().repartition(2, "user"))
