"""Ordered waits on streams, ``foreachBatch`` and bounded DataFrames, with an HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import threading
from collections import Counter
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from forebay_spark_runtime import (
    Batch,
    Retry,
    WaitMetrics,
    current_call,
    ordered_wait,
    unordered_wait,
)

aiohttp = pytest.importorskip("aiohttp", reason="the functions ask by aiohttp")

pytestmark = pytest.mark.spark

ASKED = "id long, answer string"


# --- where it works ----------------------------------------------------------------------------


def test_on_a_stream_in_order(stage, http_service):
    stage.put_ids(3)
    df = ordered_wait(
        stage.source("id long"),
        http_service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
    )
    assert df.isStreaming
    stage.run(df)
    assert stage.rows(ASKED) == http_service.answers(range(150))
    for file in stage.output.glob("*.json"):
        ids = [json.loads(line)["id"] for line in file.read_text().splitlines()]
        assert ids == sorted(ids)
    assert len(http_service.calls) == 150


def test_in_foreach_batch(stage, http_service):
    stage.put_ids(3)
    found = []

    def each(df, batch_id):
        asking = ordered_wait(
            df, http_service.ask(), "answer string", resources=aiohttp.ClientSession
        )
        found.extend(tuple(row) for row in asking.collect())

    stage.each_batch(each, stage.source("id long"))
    assert found == http_service.answers(range(150))


def test_on_a_bounded_dataframe_in_order(spark, http_service):
    df = ordered_wait(
        spark.range(0, 300, 1, 3),
        http_service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
    )
    assert [tuple(row) for row in df.collect()] == http_service.answers(range(300))


@pytest.mark.slow  # by default: calls for several rows, below
def test_unordered(spark, http_service):
    df = unordered_wait(
        spark.range(300), http_service.ask(), "answer string", resources=aiohttp.ClientSession
    )
    assert sorted(tuple(row) for row in df.collect()) == http_service.answers(range(300))


def test_plain_functions_run_on_threads(spark):
    def fn(row, client):
        return threading.current_thread().name, current_call().attempt

    rows = ordered_wait(spark.range(50), fn, "thread string, attempt int").collect()
    assert [row.id for row in rows] == list(range(50))
    assert {(row.thread, row.attempt) for row in rows} == {("forebay-call", 1)}


def test_empty_partitions_and_empty_input(spark):
    async def fn(row, client):
        return 1

    assert ordered_wait(spark.range(2).repartition(5), fn, "one int").count() == 2
    assert ordered_wait(spark.range(0), fn, "one int").collect() == []


def test_many_batches_of_input_and_output(spark):
    """More rows than an Arrow batch has, and more answers than rows."""

    async def fn(row, client):
        return [row.id] * (row.id % 3)

    found = [
        tuple(row) for row in ordered_wait(spark.range(0, 25_000, 1, 1), fn, "n long").collect()
    ]
    assert found == [(n, n) for n in range(25_000) for _ in range(n % 3)]


@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
def test_calls_for_several_rows(spark, wait):
    async def fn(rows, client):
        return [ValueError("odd") if row.id % 2 else row.id * 10 for row in rows]

    df = wait(spark.range(0, 100, 1, 2), fn, "n long", batch=Batch(7), on_error="column")
    rows = sorted(df.collect())
    assert [row.n for row in rows] == [None if n % 2 else n * 10 for n in range(100)]
    assert {row.error and tuple(row.error) for row in rows} == {None, ("ValueError", "odd", 1)}


MORE_KEYS = [["user", "n"], lambda row: row.user]
"""Keys of kinds that ``waiting/test_arrow_out.py`` has."""


@pytest.mark.parametrize(
    "key", ["user", *(pytest.param(key, marks=pytest.mark.slow) for key in MORE_KEYS)]
)
def test_calls_of_one_key_come_one_after_another(spark, key):
    async def fn(row, client):
        assert row.user not in busy
        busy.add(row.user)
        await asyncio.sleep(0.001)
        busy.remove(row.user)
        return len(busy)

    busy = set()
    df = spark.range(0, 200, 1, 1).selectExpr("id", "concat('u', id % 5) user", "1 n")
    rows = ordered_wait(df, fn, "others int", key=key).collect()
    assert [row.id for row in rows] == list(range(200))
    assert max(row.others for row in rows) > 1


def test_a_row_limit_downstream(spark):
    async def fn(row, client):
        await asyncio.sleep(0.001)
        return row.id

    rows = ordered_wait(spark.range(0, 50_000, 1, 1), fn, "n long", capacity=10).limit(5).collect()
    assert [row.n for row in rows] == [0, 1, 2, 3, 4]


# --- columns ------------------------------------------------------------------------------------


def test_input_columns_go_through_untouched_whatever_they_are(spark):
    df = spark.range(1).selectExpr(
        *("id", "cast(1.5 as decimal(10,2)) `a.b`", "timestamp '2024-07-01 12:00:00' ts"),
        *("array(struct(1 x, 'y' y), null) nested", "map('k', array(1, null)) m", "x'00ff' raw"),
        *("date '2024-01-31' d", "cast(null as string) nothing", "'twice' same", "'again' same"),
        "named_struct('in', interval '1' day) gap",
    )

    async def fn(row, client):
        return f"{row._fields}"

    out = ordered_wait(df, fn, "answer string", columns=["id", "a.b", "nested", "ts"])
    assert out.columns == [*df.columns, "answer"]
    assert [field.dataType for field in out.schema][:-1] == [field.dataType for field in df.schema]
    (before,), (after,) = df.collect(), out.collect()
    assert tuple(after)[:-1] == tuple(before)
    assert after[-1] == "('id', 'a.b', 'nested', 'ts')"
    assert tuple(before)[1] == Decimal("1.50")
    assert tuple(before)[6] == datetime.date(2024, 1, 31)


def test_a_function_may_want_no_columns_at_all(spark):
    async def fn(row, client):
        return len(row)

    rows = ordered_wait(spark.range(3), fn, "n int", columns=[]).collect()
    assert [tuple(row) for row in rows] == [(0, 0), (1, 0), (2, 0)]


def test_a_watermark_goes_through(stage, one_partition):
    """The watermark that was set before the wait closes windows after it."""

    async def fn(row, client):
        return 1

    at = "2024-01-01 00:{:02}:00".format
    for minutes in ((0, 1), (30,), (59,)):
        stage.put(*[{"at": at(minute), "id": minute} for minute in minutes])
    marked = stage.source("at timestamp, id long").withWatermark("at", "5 minutes")
    waited = ordered_wait(marked, fn, "one int")
    counted = waited.groupBy(F.window("at", "10 minutes")).agg(F.sum("one").alias("n"))
    stage.run(counted.select(F.col("window.start").cast("string").alias("start"), "n"))
    found = stage.rows("start string, n long")
    assert found[:2] == [("2024-01-01 00:00:00", 2), ("2024-01-01 00:30:00", 1)]


# --- failures -----------------------------------------------------------------------------------


def test_a_server_that_is_busy_is_asked_again(spark, http_service):
    http_service.trouble = {3: [429] * 4, 5: [500], 7: [503]}
    retry = Retry(1, 0.001, on=aiohttp.ClientError)
    df = ordered_wait(
        spark.range(0, 10, 1, 1),
        http_service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
        retry=retry,
        timeout=30,
    )
    assert [tuple(row) for row in df.collect()] == http_service.answers(range(10))
    assert Counter(row for _, row, _ in http_service.calls)[3] == 5
    keys = {row: {key for _, one, key in http_service.calls if one == row} for row in (3, 5, 7)}
    assert all(len(found) == 1 for found in keys.values())


def test_errors_go_into_a_column(spark, http_service):
    http_service.trouble = {4: [500]}
    df = ordered_wait(
        spark.range(0, 6, 1, 1),
        http_service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
        on_error="column",
        error_column="fault",
    )
    rows = df.collect()
    assert [row.answer for row in rows] == [None if n == 4 else f"a:{n}" for n in range(6)]
    assert rows[4].fault.type == "ClientResponseError"
    assert "500" in rows[4].fault.message
    assert all(row.fault is None for row in rows if row.id != 4)


@pytest.mark.slow  # by default: waiting/test_tries.py
def test_a_default_takes_the_place_of_an_error(spark):
    async def fn(row, client):
        return 10 // row.id

    df = ordered_wait(spark.range(3), fn, "n int", on_error=lambda row, error: -1)
    assert [row.n for row in df.orderBy("id").collect()] == [-1, 10, 5]


def test_a_failure_names_function_operator_batch_partition_and_row(spark):
    async def divided(row, client):
        return 10 // (row.id - 7)

    df = ordered_wait(spark.range(0, 10, 1, 1), divided, "n long", name="ratio")
    with pytest.raises(Exception, match="raised ZeroDivisionError") as caught:
        df.collect()
    where = "divided (operator 'ratio', batch 0, partition 0, row 7 of it) raised Zero"
    assert where in str(caught.value)


MISFIT = ("text", "column 'n' is declared long; {} gave str 'text'")
MORE_MISFITS = [
    (None, "returned None; return an answer"),
    (2**70, "column 'n'"),
    ({"m": 1}, "missing ['n'], unknown ['m']"),
    ((1, 2), "a row of 2 values"),
    ([1, "text"], "column 'n' is declared long; {} gave str 'text'"),
]
"""Answers of kinds that ``arrow/test_rows_out.py`` and ``waiting/test_arrow_out.py`` have."""
COLUMN = {"on_error": "column"}


@pytest.mark.parametrize(
    ("answer", "says", "policy"),
    [
        *[(*MISFIT, policy) for policy in ({}, COLUMN)],
        *[
            pytest.param(*misfit, policy, marks=pytest.mark.slow)
            for policy in ({}, COLUMN)
            for misfit in MORE_MISFITS
        ],
    ],
    ids=str,
)
def test_an_answer_that_does_not_fit_names_row_column_and_function(spark, answer, says, policy):
    async def answers(row, client):
        return answer if row.id == 3 else row.id

    df = ordered_wait(spark.range(0, 10, 1, 1), answers, "n long", **policy)
    with pytest.raises(Exception, match="row 3 of it") as caught:
        df.collect()
    name = "test_an_answer_that_does_not_fit_names_row_column_and_function.<locals>.answers"
    assert says.format(name) in str(caught.value)
    assert "OutputSchemaError" in str(caught.value)


def test_a_failure_of_the_input_is_the_task_s(spark):
    async def fn(row, client):
        return 1

    df = spark.range(10).selectExpr("assert_true(id < 5, 'input is bad')", "id")
    with pytest.raises(Exception, match="input is bad"):
        ordered_wait(df, fn, "one int").collect()


# --- metrics ------------------------------------------------------------------------------------


def test_what_was_counted_is_known_on_the_driver(stage, http_service):
    stage.put_ids(3)
    http_service.trouble = {7: [500, 429]}
    metrics = WaitMetrics()
    asking = ordered_wait(
        stage.source("id long"),
        http_service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
        retry=Retry(3, 0.001),
        timeout=30,
        metrics=metrics,
    )
    stage.run(asking)
    first, *others = metrics.batches()
    assert [report.batch_id for report in (first, *others)] == [0, 1, 2]
    assert (first.counts.rows, first.counts.tries, first.counts.retries) == (50, 52, 2)
    assert first.counts.laters == 1
    assert 0 < first.p50_s <= first.p99_s < 10
    assert 1 < first.counts.in_flight_max <= 50
    assert all(report.counts.tries == 50 for report in others)


@pytest.mark.parametrize(
    "metrics",
    [
        pytest.param(None, id="without metrics"),
        pytest.param(WaitMetrics(), id="with metrics", marks=pytest.mark.slow),
    ],
)
def test_what_was_counted_is_in_the_driver_s_log(spark, caplog, metrics):
    async def fn(row, client):
        return 1

    def wait():
        df = spark.range(0, 20, 1, 2)
        ordered_wait(df, fn, "n int", name="ask", metrics=metrics).collect()
        return [line for line in caplog.messages if line.startswith("operator ask")]

    assert wait() == []
    caplog.set_level(logging.INFO)
    first, second = sorted(wait(), key=lambda line: line.partition("partition")[2])
    assert "batch 0, partition 0: rows 10, tries 10" in first
    assert "batch 0, partition 1: rows 10, tries 10" in second


def test_workers_log_where_the_job_configures_it(spark, tmp_path):
    log = tmp_path / "log"

    def resources():
        logging.basicConfig(filename=log, level=logging.INFO, force=True)
        return contextlib.nullcontext()

    async def fn(row, client):
        return 1

    def reset():
        logging.basicConfig(level=logging.WARNING, force=True)
        return contextlib.nullcontext()

    df = spark.range(0, 20, 1, 1)
    for configure in (resources, reset):
        ordered_wait(df, fn, "n int", name="ask", resources=configure).collect()
    assert "operator ask, partition 0: rows 20, tries 20" in log.read_text()


def test_what_was_counted_in_files(stage):
    stage.put_ids(2)

    async def fn(row, client):
        return 1

    metrics = WaitMetrics(directory=stage.folder / "metrics")
    stage.run(ordered_wait(stage.source("id long"), fn, "n int", metrics=metrics))
    assert [report.counts.rows for report in metrics.batches()] == [50, 50]
