"""Ordered waits on Spark: streams, foreachBatch, bounded DataFrames, against a real HTTP server."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from forebay_spark_runtime import (
    Batch,
    Rate,
    Retry,
    WaitMetrics,
    current_call,
    ordered_wait,
    unordered_wait,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins

web = pytest.importorskip("aiohttp.web")
aiohttp = pytest.importorskip("aiohttp")

pytestmark = pytest.mark.spark

ASKED = "id long, answer string"


class Service:
    """An HTTP server on loopback; ``/path/n`` answers ``path:n``, unless told otherwise."""

    def __init__(self):
        self.calls = []
        """(path, row, idempotency key) of each request."""
        self.trouble = {}
        """Row → statuses to answer first."""
        self.loop = asyncio.new_event_loop()
        self.port = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def answer(self, request):
        path, row = request.match_info["path"], int(request.match_info["row"])
        self.calls.append((path, row, request.headers.get("Idempotency-Key")))
        if self.trouble.get(row):
            headers = {"Retry-After": "0"}
            return web.Response(status=self.trouble[row].pop(0), headers=headers)
        await asyncio.sleep(0.002 * (row % 4))
        return web.Response(text=f"{path}:{row}")

    async def _serve(self):
        app = web.Application()
        app.router.add_get("/{path}/{row}", self.answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._ready.set()

    def _run(self):
        self.loop.run_until_complete(self._serve())
        self.loop.run_forever()
        self.loop.run_until_complete(self._runner.cleanup())
        self.loop.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    def ask(self, path="a"):
        """The function that calls this service."""
        url = f"http://127.0.0.1:{self.port}/{path}"

        async def ask(row, client):
            headers = {"Idempotency-Key": current_call().key}
            async with client.get(f"{url}/{row.id}", headers=headers) as response:
                response.raise_for_status()
                return await response.text()

        return ask


@pytest.fixture
def service():
    service = Service()
    yield service
    service.close()


def put_ids(stage, batches, size=50):
    for batch in range(batches):
        stage.put(*[{"id": batch * size + n} for n in range(size)])


def asked(ids, path="a"):
    return [(n, f"{path}:{n}") for n in ids]


# --- where it works ----------------------------------------------------------------------------


def test_on_a_stream_in_order(stage, service):
    put_ids(stage, 3)
    df = ordered_wait(
        stage.source("id long"), service.ask(), "answer string", resources=aiohttp.ClientSession
    )
    assert df.isStreaming
    stage.run(df)
    assert stage.rows(ASKED) == asked(range(150))
    for file in stage.output.glob("*.json"):
        ids = [json.loads(line)["id"] for line in file.read_text().splitlines()]
        assert ids == sorted(ids)
    assert len(service.calls) == 150


def test_in_foreach_batch(stage, service):
    put_ids(stage, 3)
    found = []

    def each(df, batch_id):
        asking = ordered_wait(df, service.ask(), "answer string", resources=aiohttp.ClientSession)
        found.extend(tuple(row) for row in asking.collect())

    stage.each_batch(each, stage.source("id long"))
    assert found == asked(range(150))


def test_on_a_bounded_dataframe_in_order(spark, service):
    df = ordered_wait(
        spark.range(0, 300, 1, 3), service.ask(), "answer string", resources=aiohttp.ClientSession
    )
    assert [tuple(row) for row in df.collect()] == asked(range(300))


def test_unordered(spark, service):
    df = unordered_wait(
        spark.range(300), service.ask(), "answer string", resources=aiohttp.ClientSession
    )
    assert sorted(tuple(row) for row in df.collect()) == asked(range(300))


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


@pytest.mark.parametrize("key", ["user", ["user", "n"], lambda row: row.user])
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


def test_a_watermark_goes_through(stage):
    """Windows after the wait are closed by the watermark that was set before it."""

    async def fn(row, client):
        return 1

    at = "2024-01-01 00:{:02}:00".format
    for minute in (0, 1, 30, 59):
        stage.put({"at": at(minute), "id": minute})
    marked = stage.source("at timestamp, id long").withWatermark("at", "5 minutes")
    waited = ordered_wait(marked, fn, "one int")
    counted = waited.groupBy(F.window("at", "10 minutes")).agg(F.sum("one").alias("n"))
    stage.run(counted.select(F.col("window.start").cast("string").alias("start"), "n"))
    found = stage.rows("start string, n long")
    assert found[:2] == [("2024-01-01 00:00:00", 2), ("2024-01-01 00:30:00", 1)]


# --- failures -----------------------------------------------------------------------------------


def test_a_server_that_is_busy_is_asked_again(spark, service):
    service.trouble = {3: [429] * 4, 5: [500], 7: [503]}
    retry = Retry(1, 0.001, on=aiohttp.ClientError)
    df = ordered_wait(
        spark.range(0, 10, 1, 1),
        service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
        retry=retry,
        timeout=30,
    )
    assert [tuple(row) for row in df.collect()] == asked(range(10))
    assert Counter(row for _, row, _ in service.calls)[3] == 5
    keys = {row: {key for _, one, key in service.calls if one == row} for row in (3, 5, 7)}
    assert all(len(found) == 1 for found in keys.values())


def test_errors_go_into_a_column(spark, service):
    service.trouble = {4: [500]}
    df = ordered_wait(
        spark.range(0, 6, 1, 1),
        service.ask(),
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


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("text", "column 'n' is declared int64; {} gave str 'text'"),
        (None, "returned None; return an answer"),
        ({"m": 1}, "missing ['n'], unknown ['m']"),
        ((1, 2), "a row of 2 values"),
        ([1, "text"], "column 'n' is declared int64; {} gave str 'text'"),
        (2**70, "column 'n'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [{}, {"on_error": "column"}])
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


# --- restarts -----------------------------------------------------------------------------------


def test_the_schema_may_change_between_runs_of_one_checkpoint(stage):
    async def fn(row, client):
        return "/".join(f"{name}={value!r}" for name, value in zip(row._fields, row, strict=True))

    def run(schema, output="answer string", **row):
        stage.put(row)
        stage.run(ordered_wait(stage.source(schema), fn, output))

    run("id long, n long", id=1, n=5)
    run("id long, n long, extra string", id=2, n=6, extra="e")  # added
    run("id long, extra string", id=3, extra="f")  # removed
    run("id string, extra double", id=4, extra=1.5)  # retyped
    run("extra double, id string", "reply string", id=5, extra=2.5)  # the output too
    assert stage.rows("id string, answer string, reply string") == [
        ("1", "id=1/n=5", None),
        ("2", "id=2/n=6/extra='e'", None),
        ("3", "id=3/extra='f'", None),
        ("4", "id='4'/extra=1.5", None),
        ("5", None, "extra=2.5/id='5'"),
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


def test_the_endpoint_may_change_and_nothing_is_lost_or_twice_there(stage, service):
    """The first endpoint breaks in batch 2; the second takes over, with all of that batch."""
    put_ids(stage, 5)
    service.trouble = {120: [500]}

    def run(path):
        asking = ordered_wait(
            stage.source("id long"),
            service.ask(path),
            "answer string",
            resources=aiohttp.ClientSession,
        )
        stage.run(asking)

    with pytest.raises(Exception, match="ClientResponseError"):
        run("a")
    assert stage.rows(ASKED) == asked(range(100))
    run("b")
    assert stage.rows(ASKED) == asked(range(100)) + asked(range(100, 250), "b")


def test_keys_of_a_batch_that_is_run_again_are_the_same(stage, service):
    put_ids(stage, 3)
    service.trouble = {149: [500]}
    asking = ordered_wait(
        stage.source("id long"),
        service.ask(),
        "answer string",
        resources=aiohttp.ClientSession,
        name="ask",
    )
    with pytest.raises(Exception, match="ClientResponseError"):
        stage.run(asking)
    stage.run(asking)
    assert stage.rows(ASKED) == asked(range(150))
    keys = {(row, key) for _, row, key in service.calls}
    assert len(keys) == len({key for _, key in keys}) == 150
    assert len(service.calls) > 150


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


# --- clients ------------------------------------------------------------------------------------


def opened(folder):
    """An async context manager that leaves a file for each time it is opened and closed."""
    from contextlib import asynccontextmanager
    from uuid import uuid4

    @asynccontextmanager
    async def client():
        name = f"{os.getpid()}-{uuid4()}"
        leave(f"opened-{name}")
        yield name
        leave(f"closed-{name}")

    def leave(name):
        Path(folder, name).touch()

    return client


def test_one_client_for_all_batches_of_a_worker(stage):
    put_ids(stage, 6)
    folder = stage.folder / "clients"
    folder.mkdir()

    async def fn(row, client):
        return client

    stage.run(ordered_wait(stage.source("id long"), fn, "client string", resources=opened(folder)))
    used = {row[1] for row in stage.rows("id long, client string")}
    assert {path.name for path in folder.glob("opened-*")} == {f"opened-{name}" for name in used}
    workers = {name.partition("-")[0] for name in used}
    assert len(used) == len(workers) <= 2
    assert not list(folder.glob("closed-*"))


def test_one_client_for_all_calls_of_foreach_batch(stage):
    put_ids(stage, 6)
    folder = stage.folder / "clients"
    folder.mkdir()
    resources = opened(folder)

    async def fn(row, client):
        return client

    def each(df, batch_id):
        waited = ordered_wait(df, fn, "client string", resources=resources)
        waited.write.format("noop").mode("append").save()

    stage.each_batch(each, stage.source("id long"))
    pids = [path.name.split("-")[1] for path in folder.glob("opened-*")]
    assert len(pids) == len(set(pids)) <= 2


def test_the_client_of_a_failed_task_is_closed(stage):
    folder = stage.folder / "clients"
    folder.mkdir()

    async def fn(row, client):
        raise ValueError("no")

    df = ordered_wait(stage.spark.range(0, 1, 1, 1), fn, "n int", resources=opened(folder))
    with pytest.raises(Exception, match="raised ValueError"):
        df.collect()
    assert len(list(folder.glob("closed-*"))) == len(list(folder.glob("opened-*"))) == 1


def test_resources_that_cannot_be_opened_are_named(spark):
    def resources():
        raise OSError("no route")

    async def fn(row, client):
        return 1

    df = ordered_wait(spark.range(1), fn, "n int", resources=resources, name="ask")
    with pytest.raises(Exception, match=r"resources of ask .* raised OSError: no route"):
        df.collect()


# --- metrics ------------------------------------------------------------------------------------


def test_what_was_counted_is_known_on_the_driver(stage, service):
    put_ids(stage, 3)
    service.trouble = {7: [500, 429]}
    metrics = WaitMetrics()
    asking = ordered_wait(
        stage.source("id long"),
        service.ask(),
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


def test_what_was_counted_in_files(stage):
    put_ids(stage, 2)

    async def fn(row, client):
        return 1

    metrics = WaitMetrics(directory=stage.folder / "metrics")
    stage.run(ordered_wait(stage.source("id long"), fn, "n int", metrics=metrics))
    assert [report.counts.rows for report in metrics.batches()] == [50, 50]


# --- arguments ----------------------------------------------------------------------------------


async def two(row, client):
    return 1


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
]


@pytest.mark.parametrize(("bad", "says"), BAD, ids=[says[:40] for _, says in BAD])
@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
def test_bad_arguments_are_errors_when_the_pipeline_is_built(spark, wait, bad, says):
    arguments = {"fn": two, "output": "n int", **bad}
    with pytest.raises(ConfigurationError) as caught:
        wait(spark.range(1), **arguments)
    assert says in str(caught.value)


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
