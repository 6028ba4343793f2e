"""The order of a key's calls, as they arrive at a server on loopback."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_state_api.calls.policies import CallPolicy, Retry

pytestmark = pytest.mark.long

DEFAULTS = (100, 10_000)
SEGMENT = 250
"""Rows; every window gets several segments. The default window is slow, as it takes 10,700 rows."""
RETRIES = {"retry": Retry(2, 0.001), "timeout": 600.0}
HEDGES = {"hedge": 0.005}


class Server:
    """Answers a row when it arrives; some rows only when the window behind them is full."""

    def __init__(self, rows, limit, *, refuses):
        self.rows = rows
        self.limit = limit
        self.refuses = refuses
        self.came = {}
        """Key → rows, in the order in which their first calls arrived."""
        self.seen = set()
        self.answered = 0
        self.moved = asyncio.Event()
        self.held = {*range(0, rows, limit + 1)}
        self.serving = set()

    def key_of(self, row):
        return f"held {row}" if row in self.held else row // 2 % 20

    async def serve(self, reader, writer):
        self.serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):  # a second call whose connection is dropped
            await self.answer(reader, writer)
        await closed(writer)

    async def answer(self, reader, writer):
        while line := await reader.readline():
            row = int(line)
            refused = self.refuses and row % 7 == 3 and row not in self.seen
            if row not in self.seen:
                self.seen.add(row)
                self.came.setdefault(self.key_of(row), []).append(row)
            if row in self.held:
                await self.window_is_full(row)
            self.count(refused=refused)
            writer.write(b"503\n" if refused else b"200\n")

    def count(self, *, refused):
        self.answered += not refused
        self.moved.set()

    async def window_is_full(self, row):
        while self.answered < min(row + self.limit, self.rows) - 1:
            self.moved.clear()
            await self.moved.wait()


class Connections:
    """Uses a free connection for each call, and drops the connections of cancelled calls."""

    def __init__(self, port):
        self.port = port
        self.free = []
        self.all = []

    async def __call__(self, row, client):
        reader, writer = self.free.pop() if self.free else await self.opened()
        try:
            writer.write(b"%d\n" % row)
            answer = await reader.readline()
        except BaseException:
            writer.close()
            raise
        self.free.append((reader, writer))
        if answer == b"503\n":
            raise OSError("refused")
        return row

    async def opened(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.all.append(writer)
        return reader, writer

    async def close(self):
        for writer in self.all:
            await closed(writer)


async def closed(writer):
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def called(rows, capacity, buffer, policy):
    """Make the calls of all rows; return the server, and the answers as they were emitted."""
    server = Server(rows, capacity + buffer, refuses="retry" in policy)
    answers = []

    def emit(segment, positions):
        positions = range(len(segment.rows)) if positions is None else positions
        answers.extend(segment.answers[position] for position in positions)

    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        connections = Connections(listening.sockets[0].getsockname()[1])
        asked = CallPolicy(capacity=capacity, buffer=buffer, keyed=True, **policy)
        engine = CallEngine(connections, asked, emit=emit)
        for first in range(0, rows, SEGMENT):
            part = range(first, min(first + SEGMENT, rows))
            engine.input_queue.push(
                RowSegment(first, list(part), keys=[server.key_of(one) for one in part])
            )
        engine.input_queue.end()
        await engine.run()
        await connections.close()
        await asyncio.gather(*server.serving)
    return server, answers


@pytest.mark.parametrize(
    ("window", "policy"),
    [
        pytest.param(
            window,
            policy,
            marks=pytest.mark.slow if window == DEFAULTS else (),
        )
        for window in [(1, 0), (2, 0), (2, 1), (4, 8), (20, 200), DEFAULTS]
        for policy in [{}, RETRIES, HEDGES, {**RETRIES, **HEDGES}]
    ],
    ids=str,
)
def test_calls_of_a_key_come_in_order_when_the_window_was_full(window, policy):
    capacity, buffer = window
    rows = capacity + buffer + 600
    server, answers = asyncio.run(called(rows, capacity, buffer, policy))
    assert answers == list(range(rows))
    assert sum(map(len, server.came.values())) == rows
    assert {key: rows for key, rows in server.came.items() if rows != sorted(rows)} == {}
