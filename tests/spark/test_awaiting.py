"""A keyed function that reads state, asks an HTTP server and updates state, on a real stream."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import Clients, KeyedProcessFunction, ValueStateDescriptor

aiohttp = pytest.importorskip("aiohttp", reason="the function asks by aiohttp")

pytestmark = pytest.mark.spark

SCHEMA = "user string, total long, answer string"
IDLE_S = 0.1
"""Shorter than the time between two micro-batches."""

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
            total, reply = await asyncio.gather(
                self.total.async_value(),
                ctx.clients.http.post(self.url, data=f"{row.user}{row.n}"),
            )
            answer = await reply.text()
        await self.total.async_update(total + row.n)
        yield row.user, total + row.n, answer


async def _echo(reader, writer):
    """Answer requests with their bodies; close the connection when it has been idle."""
    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
        while True:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            body = await reader.readexactly(length)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body)
    writer.close()


@pytest.fixture
def echo_url():
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(_echo, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(100)
    server.close()
    loop.close()


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_server_that_closes_idle_connections_between_micro_batches(stage, echo_url, backend):
    totals, expected = {}, []
    for batch in range(3):
        rows = [{"user": f"u{n % 7}", "n": n + batch} for n in range(40)]
        stage.put(*rows)
        for row in rows:
            totals[row["user"]] = totals.get(row["user"], 0) + row["n"]
            expected.append((row["user"], totals[row["user"]], f"{row['user']}{row['n']}"))
    stage.spark.conf.set("spark.forebay.state.backend", backend)
    asking = keyed(stage.source(), "user", uid="asking", parallelism=2).process(
        TotalsWithAnswers(echo_url), SCHEMA
    )
    stage.run(asking)
    assert stage.rows(SCHEMA) == sorted(expected)
