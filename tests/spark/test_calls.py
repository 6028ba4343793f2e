"""``ctx.call``, idempotency keys, time limits and coroutines of plain functions, on Spark."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime import keyed
from forebay_state_api import Calls, KeyedProcessFunction, Retry, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long, answer string"
N = ValueStateDescriptor("n", int, default=0)


class Asks(KeyedProcessFunction):
    """Asks a service that fails at the first try, and notes the key under which it asked."""

    calls = Calls(timeout=100, retry=Retry(2, delay=0))

    def __init__(self, notes, *, hangs=None):
        self.notes = Path(notes)
        self.hangs = hangs

    def open(self, context):
        self.n = context.get_state(N)
        self.tried = set()

    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        answer = await ctx.call(self.ask, row, ctx)
        if (self.notes / "fails").exists():
            raise RuntimeError("after all calls")
        yield row.user, n, answer

    async def ask(self, row, ctx):
        if row.user == self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        key = ctx.idempotency_key
        with (self.notes / "asked").open("a") as notes:
            notes.write(f"{row.user},{row.n},{key}\n")
        if key not in self.tried:
            self.tried.add(key)
            raise ConnectionError("first try")
        return f"{row.user} {row.n}"


def keys_asked(notes):
    """Return (user, n) → the keys under which the service was asked for it."""
    found = defaultdict(list)
    for line in (notes / "asked").read_text().split():
        user, n, key = line.split(",")
        found[user, n].append(key)
    return found


@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_batch_that_is_repeated_asks_under_the_same_keys(stage, tmp_path, backend):
    rows = [{"user": f"u{n % 7}", "n": n} for n in range(40)]
    stage.put(*rows)

    def asking(parallelism):
        source = keyed(
            stage.source(), "user", uid="asking", parallelism=parallelism, backend=backend
        )
        return source.process(Asks(tmp_path), SCHEMA)

    (tmp_path / "fails").touch()
    with pytest.raises(StreamingQueryException):
        stage.run(asking(2))
    (tmp_path / "fails").unlink()
    stage.run(asking(3))
    assert len(stage.rows(SCHEMA)) == len(rows)
    found = keys_asked(tmp_path)
    assert len(found) == len(rows)
    assert all(len(keys) >= 2 and len(set(keys)) == 1 for keys in found.values())
    assert len({keys[0] for keys in found.values()}) == len(rows)


@pytest.mark.slow  # by default: test_record_ends.py of engine, and a record alone in test_connect
def test_a_record_past_its_time_becomes_an_error_row(stage, tmp_path):
    # One row waits for ever; five seconds are more than any other needs.
    stage.put(*[{"user": f"u{n % 7}", "n": n} for n in range(21) if n % 7 != 3 or n == 3])
    rows = stage.spark.read.schema("user string, n long").json(str(stage.input))
    source = keyed(
        rows,
        "user",
        uid="late",
        parallelism=2,
        calls_in_flight=3,
        record_timeout=5,
        on_error="column",
    )
    out = source.process(Asks(tmp_path, hangs="u3"), SCHEMA).collect()
    failed = [row.error for row in out if row.error is not None]
    assert [error.type for error in failed] == ["RecordTimeoutError"]
    assert "longer than record_timeout=5 s" in failed[0].message
    assert sorted(row.n for row in out if row.error is None) == sorted([1, 2, 3] * 6)


async def answer(row):
    async with asyncio.timeout(100):
        await asyncio.sleep(0.001)
        # The others may end while the first batch is read, where the machine is busy.
        while row.n == 0 and threading.current_thread().name != "forebay-loop":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return row.user, row.n, threading.current_thread().name


def plain_function(row):
    return answer(row)


@pytest.mark.parametrize("records", [10, 10_000])
def test_a_plain_function_returns_coroutines(stage, records):
    """The first Arrow batch borrows the loop, whose thread runs the later ones."""
    stage.put(*[{"user": f"u{n}", "n": n} for n in range(60)])
    rows = stage.spark.read.schema("user string, n long").json(str(stage.input))
    stage.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", records)
    try:
        plain = keyed(rows, "user", uid="plain", parallelism=1).map(plain_function, SCHEMA)
        out = plain.collect()
    finally:
        stage.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(row.n for row in out) == [*range(60)]
    threads = {row.answer for row in out}
    assert "forebay-loop" in threads
