"""Invalid arguments of ordered waits are errors when the pipeline is built."""

from __future__ import annotations

import threading

import pytest

from forebay_spark_runtime import Batch, Rate, Retry, keyed, ordered_wait, unordered_wait
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins

pytestmark = pytest.mark.spark


async def two(row, client):
    return 1


KEPT = {"keep_answers": "a", "uid": "u", "query": "q", "batch_id": 1, "state_dir": "/nowhere"}
BAD = [
    ({"fn": 3}, "the function is async def fn(row, client)"),
    ({"fn": lambda row: row}, "does not take these two"),
    ({"fn": dict}, "the function is async def"),
    ({"output": "n lng"}, "the output schema 'n lng' does not parse"),
    ({"output": ""}, "the output schema"),
    ({"output": "ID int"}, "the output column 'ID' is there already; the columns are id"),
    ({"output": "n int, n int"}, "two columns of one name"),
    ({"on_error": "column", "error_column": "id"}, "the output column 'id' is there already"),
    ({"on_error": "column", "output": "n int not null"}, "without NOT NULL"),
    ({"on_error": "ignore"}, 'on_error is "fail", "column" or a function'),
    ({"on_error": lambda row: row}, "on_error is"),
    ({"on_error": "column", "error_column": ""}, "error_column is a name, not ''"),
    ({"error_column": 5}, "error_column is a name, not 5"),
    ({"error_column": "fault"}, 'error_column= goes with on_error="column"'),
    ({"columns": 5}, "columns is a column or several of them, not 5"),
    ({"columns": {"id"}}, "columns is a column or several of them, not {'id'}"),
    ({"columns": [5]}, "columns: there is no column 5"),
    ({"columns": ["name"]}, "columns: there is no column 'name'; the columns are id"),
    ({"key": "name"}, "key: there is no column 'name'"),
    ({"key": 5}, "key is a column, several of them or a function"),
    ({"key": "id", "batch": Batch(2)}, "they do not go together"),
    ({"capacity": 0}, "capacity is a whole number from 1, not 0"),
    ({"capacity": 1.5}, "capacity is a whole number"),
    ({"buffer": -1}, "buffer is a whole number from 0, not -1"),
    ({"try_timeout": 0}, "try_timeout is above 0"),
    ({"timeout": "1s"}, "timeout is seconds or a timedelta"),
    ({"timeout": 1, "try_timeout": 2}, "try_timeout is longer than timeout"),
    ({"hedge": 3, "try_timeout": 2}, "hedge is longer than try_timeout"),
    ({"hedge": 3, "fn": lambda row, client: 1}, "hedge= needs an async function"),
    ({"retry": Retry(3)}, "retry= needs timeout="),
    ({"retry": 3, "timeout": 3}, "retry is a Retry(...), not 3"),
    ({"rate": 10}, "rate is a Rate(...), not 10"),
    ({"batch": 10}, "batch is a Batch(...), not 10"),
    ({"resources": 10}, "resources is a function without arguments"),
    ({"resources": threading.Lock()}, "resources is a function without arguments"),
    ({"name": ""}, "name= is a word"),
    ({"query": "q"}, "query= and batch_id= are passed together"),
    ({"metrics": 3}, "metrics is a WaitMetrics()"),
    ({"keep_answers": ""}, "keep_answers= is a name of your own for the answers"),
    ({"keep_answers": "a"}, "keep_answers= needs uid=, a name under which the answers"),
    ({"keep_answers": "a", "uid": "u"}, "keep_answers= needs query= and batch_id= on a bounded"),
    ({"keep_answers": "a", "pending": "carry"}, "does not go with pending='carry'"),
    ({"keep_answers": "a", "pending": "late"}, "pending is 'wait' or 'carry', not 'late'"),
    ({**KEPT, "state_dir": "memory://a"}, "would be a process's own"),
    ({**KEPT, "carry_after": 3}, "carry_after= go with pending='carry'"),
    ({"uid": "u"}, "uid= go with pending='carry'"),
]


@pytest.mark.parametrize(("bad", "says"), BAD, ids=[says[:40] for _, says in BAD])
@pytest.mark.parametrize(
    "wait", [ordered_wait, pytest.param(unordered_wait, marks=pytest.mark.slow)]
)
def test_bad_arguments_are_errors_when_the_pipeline_is_built(spark, wait, bad, says):
    arguments = {"fn": two, "output": "n int", **bad}
    with pytest.raises(ConfigurationError) as caught:
        wait(spark.range(1), **arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "of", ["interval '1-2' year to month", "make_interval(1, 2, 3)", "array()", "map()"]
)
@pytest.mark.parametrize("columns", [None, ["id"]])
def test_a_type_that_spark_cannot_hand_to_python_is_said_when_the_pipeline_is_built(
    spark, of, columns
):
    df = spark.range(1).selectExpr("id", f"{of} AS x")
    with pytest.raises(ConfigurationError, match=r"; cast it to .*, or drop it"):
        ordered_wait(df, two, "n int", columns=columns)
    with pytest.raises(ConfigurationError, match=r"; cast it to .*, or drop it"):
        keyed(df, "id", uid="u")


def test_two_columns_of_one_name_cannot_be_in_a_row(spark):
    twice = spark.range(2).selectExpr("id", "id AS x", "id + 1 AS x")
    with pytest.raises(ConfigurationError, match=r"more than one column 'x': .* with columns="):
        ordered_wait(twice, two, "n int")
    named = ordered_wait(twice, two, "n int", columns="id")
    assert named.columns == ["id", "x", "x", "n"]
    assert [tuple(row) for row in named.collect()] == [(0, 0, 1, 1), (1, 1, 2, 1)]


def test_what_cannot_travel_is_said_when_the_pipeline_is_built(spark):
    lock = threading.Lock()

    async def fn(row, client):
        with lock:
            return 1

    with pytest.raises(ConfigurationError, match="Open clients in resources="):
        ordered_wait(spark.range(1), fn, "n int")


def test_a_stream_s_query_is_named_by_spark(stage):
    stage.put({"id": 1})
    with pytest.raises(ConfigurationError, match="leave query= and batch_id= out"):
        ordered_wait(stage.source("id long"), two, "n int", query="q", batch_id=1)


def test_a_total_rate_over_fewer_partitions_than_there_are(spark):
    df = ordered_wait(spark.range(0, 9, 1, 3), two, "n int", rate=Rate(1000, partitions=2))
    with pytest.raises(Exception, match=r"Rate\.partitions is 2, and there is a partition 2"):
        df.collect()


def test_the_operators_are_found_by_name(spark):
    for name in ("ordered_wait", "unordered_wait"):
        df = plugins().operator(name).apply(spark.range(3), two, "n int")
        assert sorted(tuple(row) for row in df.collect()) == [(0, 1), (1, 1), (2, 1)]
