"""Ordered waits in restarted queries: nothing is stored, so everything may change."""

from __future__ import annotations

import pytest

from forebay_spark_runtime import current_call, ordered_wait

aiohttp = pytest.importorskip("aiohttp", reason="the functions ask by aiohttp")

pytestmark = pytest.mark.spark

ASKED = "id long, answer string"


def test_the_schema_may_change_between_runs_of_one_checkpoint(stage):
    async def fn(row, client):
        return "/".join(f"{name}={value!r}" for name, value in zip(row._fields, row, strict=True))

    def run(schema, output="answer string", **row):
        stage.put(row)
        stage.run(ordered_wait(stage.source(schema), fn, output))

    run("id long, n long", id=1, n=5)
    # One column is added, and one removed.
    run("id long, extra string", id=2, extra="e")
    # Both are retyped and change places, and the output is another.
    run("extra double, id string", "reply string", id=3, extra=2.5)
    assert stage.rows("id string, answer string, reply string") == [
        ("1", "id=1/n=5", None),
        ("2", "id=2/extra='e'", None),
        ("3", None, "extra=2.5/id='3'"),
    ]


def test_the_schema_may_change_while_a_batch_waits_to_be_run_again(stage):
    """The batch that failed under the old schema is run under the new one."""
    stage.put({"id": 1, "n": 5})
    stage.put({"id": 2, "n": 6})

    async def strict(row, client):
        if row.id == 2:
            raise ValueError("cannot")
        return "old"

    async def tolerant(row, client):
        return f"new {row.n}"

    with pytest.raises(Exception, match="raised ValueError: cannot"):
        stage.run(ordered_wait(stage.source("id long"), strict, "answer string"))
    stage.run(ordered_wait(stage.source("id long, n string"), tolerant, "answer string"))
    assert stage.rows("id long, n string, answer string") == [(1, None, "old"), (2, "6", "new 6")]


def test_the_endpoint_may_change_and_nothing_is_lost_or_twice_there(stage, http_service):
    """The first endpoint breaks in batch 1; the second takes over, with all of that batch.

    It is asked for the rows of that batch under the same keys.
    """
    stage.put_ids(3)
    http_service.trouble = {70: [500]}

    def run(path):
        asking = ordered_wait(
            stage.source("id long"),
            http_service.ask(path),
            "answer string",
            resources=aiohttp.ClientSession,
            name="ask",
        )
        stage.run(asking)

    with pytest.raises(Exception, match="ClientResponseError"):
        run("a")
    assert stage.rows(ASKED) == http_service.answers(range(50))
    run("b")
    assert stage.rows(ASKED) == http_service.answers(range(50)) + http_service.answers(
        range(50, 150), "b"
    )
    keys = {(row, key) for _, row, key in http_service.calls}
    assert len(keys) == len({key for _, key in keys}) == 150
    assert len(http_service.calls) > 150


def test_keys_differ_between_the_partitions_of_a_coalesced_and_united_output(spark):
    async def fn(row, client):
        return current_call().key

    def waited(name):
        return ordered_wait(spark.range(0, 20, 1, 4), fn, "key string", name=name)

    keys = [row.key for row in waited("one").union(waited("two")).coalesce(1).collect()]
    assert len(set(keys)) == len(keys) == 40


def test_keys_where_the_user_names_query_and_batch(spark):
    async def fn(row, client):
        return current_call().key

    df = spark.range(0, 2, 1, 1)
    rows = ordered_wait(df, fn, "k string", query="nightly", batch_id=7, name="ask").collect()
    assert [row.k for row in rows] == ["nightly/7/ask/0/0", "nightly/7/ask/0/1"]
