"""A keyed function that reads state, asks an HTTP server and updates state, on a real stream."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time

import pytest
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime import keyed
from forebay_spark_runtime.demo.kill import end, workers
from forebay_spark_runtime.keyed_operator import keyed_dataframe
from forebay_spark_runtime.keyed_operator.task import SubtaskJob
from forebay_state_api import Clients, KeyedProcessFunction, ValueStateDescriptor

aiohttp = pytest.importorskip("aiohttp", reason="the function asks by aiohttp")

pytestmark = pytest.mark.spark

SCHEMA = "user string, total long, answer string"
TOTAL = ValueStateDescriptor("total", int, default=0)


class TotalsWithAnswers(KeyedProcessFunction):
    """Adds up, and asks the server for each row."""

    clients = Clients(http=aiohttp.ClientSession)

    def __init__(self, url):
        self.url = url

    def open(self, context):
        self.total = context.get_state(TOTAL)

    async def process_element(self, row, ctx):
        async with asyncio.timeout(100):
            total, answer = await asyncio.gather(
                self.total.async_value(),
                ctx.call(self.ask, row, ctx),
            )
        await self.total.async_update(total + row.n)
        yield row.user, total + row.n, answer

    async def ask(self, row, ctx):
        headers = {"Idempotency-Key": ctx.idempotency_key}
        data = f"{row.user}{row.n}"
        async with ctx.clients.http.post(self.url, data=data, headers=headers) as reply:
            return await reply.text()


class Echo:
    """An HTTP server that answers requests with their bodies, as many as ``answers``."""

    answers = 1_000_000

    def __init__(self):
        self.waits = threading.Event()
        """Whether a request gets no answer."""
        self.keys = []
        """The idempotency key of each request."""
        self._connections = set()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        assert started.wait(100)

    async def _serve(self, started):
        self._loop = asyncio.get_running_loop()
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            started.set()
            await self._stop.wait()
            await self._close_connections()

    async def _answer(self, reader, writer):
        self._connections.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
                body = await reader.readexactly(length)
                self.keys += re.findall(rb"(?i)idempotency-key: (.+)\r", head)
                self.answers -= 1
                if self.answers < 0:
                    self.waits.set()
                    await reader.read()  # until its caller is gone
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)
        self._connections.discard(writer)
        writer.close()

    async def _close_connections(self):
        closed = list(self._connections)
        for writer in closed:
            writer.close()
        for writer in closed:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        return len(closed)

    def close_connections(self):
        """Close the connections, which are idle; return how many there were."""
        closing = self._close_connections()
        return asyncio.run_coroutine_threadsafe(closing, self._loop).result(100)

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(100)


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])


def asking(source, echo, **options):
    return keyed(source, "user", uid="asking", parallelism=2, **options).process(
        TotalsWithAnswers(echo.url), SCHEMA
    )


def put_batches(stage, count, rows=40):
    """Put files of rows; return the rows that the function makes of them."""
    totals, expected = {}, []
    for batch in range(count):
        put = [{"user": f"u{n % 7}", "n": n + batch} for n in range(rows)]
        stage.put(*put)
        for row in put:
            totals[row["user"]] = totals.get(row["user"], 0) + row["n"]
            expected.append((row["user"], totals[row["user"]], f"{row['user']}{row['n']}"))
    return sorted(expected)


def test_on_a_bounded_dataframe_and_in_foreach_batch(stage, echo):
    expected = put_batches(stage, 2)
    rows = stage.spark.read.schema("user string, n long").json(str(stage.input)).coalesce(1)
    assert len(asking(rows, echo).collect()) == len(expected)
    found = []

    def each(df, batch_id):
        found.extend(map(tuple, asking(df, echo).collect()))

    stage.each_batch(each)
    assert sorted(found) == expected


# -- kills --------------------------------------------------------------------------------------


KILLED_WORKER = re.compile("Broken pipe|Connection reset|Python worker exited unexpectedly")


def repeated(run):
    """Return what ``run`` returns; call it again if its query met an idle worker that was killed.

    pyspark 3.5 gives such a worker to a task, and learns from the task's failure alone.
    """
    for _ in range(4):
        try:
            return run()
        except StreamingQueryException as error:
            if not KILLED_WORKER.search(str(error)):
                raise
    return pytest.fail("queries met more killed workers than there were")


@pytest.mark.slow
@pytest.mark.timeout(300)
@both_backends
def test_workers_killed_while_calls_are_out(stage, echo, backend):
    expected = put_batches(stage, 5)
    asked = asking(stage.source(), echo, backend=backend)

    def start():
        query = stage.start(asked)
        while not echo.waits.is_set():
            assert not query.awaitTermination(0.1), "a call waits before the query ends"
        return query

    for answers in (0, 55, 30):
        echo.answers = answers
        echo.waits.clear()
        query = repeated(start)
        end(workers(stage.spark._jvm))
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
    echo.answers = 1_000_000
    repeated(lambda: stage.run(asked))
    assert stage.rows(SCHEMA) == expected
    assert len(echo.keys) > len(expected), "calls are at least once"
    assert len(set(echo.keys)) == len(expected), "a record has the same key in each attempt"


# -- uvloop -------------------------------------------------------------------------------------


class AnswersWithItsLoop(TotalsWithAnswers):
    """Adds up, asks the server, and answers with the module of the running loop."""

    async def ask(self, row, ctx):
        assert await super().ask(row, ctx) == f"{row.user}{row.n}"
        return type(asyncio.get_running_loop()).__module__


def with_uvloop(url):
    uvloop = pytest.importorskip("uvloop")
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    return AnswersWithItsLoop(url)


class OnUvloop(AnswersWithItsLoop):
    """Chooses uvloop in the process that unpickles it, as a module of the user's does."""

    def __reduce__(self):
        return with_uvloop, (self.url,)


@pytest.mark.slow
def test_on_uvloop_where_the_user_chooses_it(stage, echo):
    pytest.importorskip("uvloop", reason="it is the loop")
    expected = put_batches(stage, 2)
    policy = asyncio.get_event_loop_policy()
    end(workers(stage.spark._jvm))  # which may have a loop already
    try:
        asked = keyed(stage.source(), "user", uid="asking", parallelism=2)
        stage.run(asked.process(OnUvloop(echo.url), SCHEMA))
    finally:
        asyncio.set_event_loop_policy(policy)
    rows = stage.rows(SCHEMA)
    assert [row[:2] for row in rows] == [row[:2] for row in expected]
    assert {row[2] for row in rows} == {"uvloop"}
    end(workers(stage.spark._jvm))  # whose loops the next functions would get


# -- pauses of Spark ----------------------------------------------------------------------------

PAUSE_S = 5


class PausedJob(SubtaskJob):
    """A subtask whose next Arrow batch comes late."""

    def __call__(self, batches):
        return super().__call__(self._late(batches))

    @staticmethod
    def _late(batches):
        for batch in batches:
            yield batch
            time.sleep(PAUSE_S)


class OneSecond(KeyedProcessFunction):
    """Makes calls of 100 ms, and fails if one takes a second."""

    async def process_element(self, row, ctx):
        started = time.monotonic()
        async with asyncio.timeout(1):
            await asyncio.sleep(0.1)
        yield row.user, time.monotonic() - started


@pytest.mark.slow
def test_calls_in_flight_while_the_next_arrow_batch_is_late(stage, monkeypatch):
    monkeypatch.setattr(keyed_dataframe, "SubtaskJob", PausedJob)
    stage.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        stage.put(*[{"user": f"u{n}", "n": n} for n in range(30)])
        paused = keyed(stage.source(), "user", uid="paused", parallelism=1)
        stage.run(paused.process(OneSecond(), "user string, took double"))
    finally:
        stage.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    rows = stage.rows("user string, took double")
    assert len(rows) == 30
    assert max(took for _, took in rows) < 1


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_server_that_closes_idle_connections_between_micro_batches(stage, echo, backend):
    asked = asking(stage.source(), echo, backend=backend)
    writer = asked.writeStream.format("json").option("path", str(stage.output))
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    try:
        for batch in range(2):
            stage.put(*[{"user": f"u{n % 7}", "n": n} for n in range(40)])
            query.processAllAvailable()
            assert echo.close_connections(), "clients keep connections between micro-batches"
            assert len(stage.rows(SCHEMA)) == 40 * (batch + 1)
    finally:
        query.stop()
    assert stage.rows(SCHEMA)[-1] == ("u6", 2 * sum(range(6, 40, 7)), "u634")
