"""How records end early: ``record_timeout``, and failures of records with code under way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta
from typing import Any

import pytest

from forebay_engine.execution import cancelling
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness, VirtualClock

N = ValueStateDescriptor("n", int, default=0)
LIST = ListStateDescriptor("list", str, ttl=StateTtlConfig(ttl=timedelta(days=30)))
SEEN: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Writes(KeyedProcessFunction[Any, Any, Any]):
    """Writes, emits, registers a timer, and then runs the test's coroutine."""

    def __init__(self, then: Any) -> None:
        self.then = then

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)
        self.list = context.get_list_state(LIST)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield row["k"], "began"
        await self.n.async_update(await self.n.async_value() + 1)
        await self.list.async_add(row["k"])
        ctx.timers.register_processing_time(ctx.timers.processing_time)
        if row["n"]:
            await self.then(self, row, ctx)
        yield row["k"], "ended"

    def on_timer(self, at: Any, ctx: Any) -> Any:
        yield ctx.current_key, "timer"


def harness(then: Any, **options: Any) -> FunctionHarness:
    return FunctionHarness(Writes(then), "k", clock=VirtualClock(), **options)


ROWS = [{"k": "a", "n": 1}, {"k": "b", "n": 0}, {"k": "a", "n": 0}]


async def _too_long(f: Any, row: Any, ctx: Any) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_in_a_child(f))
            await asyncio.sleep(10_000)
    finally:
        await f.n.async_update(-1)
        await asyncio.sleep(1)
        SEEN["finally"] = True


async def _in_a_child(f: Any) -> None:
    await f.list.async_add("child")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(1)
        await f.list.async_add("child's finally")
        SEEN["child"] = True


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_record_past_its_time_leaves_nothing_behind(backend: str) -> None:
    options: Any = {"record_timeout": 60, "on_error": "column", "backend": backend}
    with harness(_too_long, **options) as running:
        out = running.process(ROWS)
        failed = [one for one in out if isinstance(one, FailedRecord)]
        assert [(one.type, one.key, one.row) for one in failed] == [
            ("RecordTimeoutError", "a", '{"k": "a", "n": 1}')
        ]
        assert "longer than record_timeout=60 s" in failed[0].message
        assert "in _too_long" in failed[0].message
        ends = sorted(one for one in out if not isinstance(one, FailedRecord))
        assert ends == [(k, what) for k in "ab" for what in ("began", "ended", "timer")]
        assert [running.state(N, key) for key in "ab"] == [1, 1]
        assert running.state(LIST, "a") == ["a"]
        assert running.process([]) == []
    assert SEEN == {"finally": True, "child": True}


def test_a_record_past_its_time_fails_the_batch_and_is_named() -> None:
    with harness(_too_long, record_timeout=60) as running:
        with pytest.raises(FunctionError) as raised:
            running.process(ROWS)
        message = str(raised.value)
        assert "Writes.process_element (operator 'test', key 'a'" in message
        assert "took longer than record_timeout=60 s: it waits for" in message
        assert "in _too_long" in message
        assert "in _in_a_child" in message
        assert type(raised.value.__cause__).__name__ == "RecordTimeoutError"
        assert running.version == 0
    assert SEEN == {"finally": True, "child": True}


async def _just_in_time(f: Any, row: Any, ctx: Any) -> None:
    await asyncio.sleep(59)


def test_each_record_has_its_own_time() -> None:
    rows = [{"k": "a", "n": 1}] * 5
    with harness(_just_in_time, record_timeout=60) as running:
        assert running.process(rows).count(("a", "ended")) == 5


async def _swallows(f: Any, row: Any, ctx: Any) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10_000)


async def _child_swallows(f: Any, row: Any, ctx: Any) -> None:
    await asyncio.gather(_swallows(f, row, ctx))


@pytest.mark.parametrize("swallows", [_swallows, _child_swallows])
def test_a_record_that_swallows_its_cancellation_is_closed(
    swallows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "forebay_engine"),
        harness(swallows, record_timeout=60, on_error="column", drain_timeout=100) as running,
    ):
        out = running.process(ROWS)
        assert [one.type for one in out if isinstance(one, FailedRecord)] == ["RecordTimeoutError"]
        assert running.state(N, "a") == 1
    (logged,) = caplog.messages
    assert "did not end within 10 s: its code catches asyncio.CancelledError" in logged
    assert "in _swallows" in logged


def test_a_failed_batch_names_what_swallows_its_cancellation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "CLOSING_S", 5)
    with (
        caplog.at_level(logging.WARNING, "forebay_engine"),
        harness(_child_swallows, record_timeout=60) as running,
        pytest.raises(FunctionError, match="record_timeout=60"),
    ):
        running.process(ROWS)
    assert "did not end within 5 s" in caplog.text
    assert "in _swallows" in caplog.text


async def _fails_beside(f: Any, row: Any, ctx: Any) -> None:
    """Waits, while a callback of another access fails the record."""
    f.n.async_value().then_apply(lambda _: asyncio.sleep(1)).then_apply(_raise)
    try:
        async with _resource():
            await asyncio.sleep(10_000)
    finally:
        await asyncio.sleep(1)
        SEEN["finally"] = True


def _raise(_: Any) -> None:
    raise ValueError("in a callback")


@contextlib.asynccontextmanager
async def _resource() -> Any:
    yield
    SEEN["not reached"] = True


@contextlib.asynccontextmanager
async def _session() -> Any:
    try:
        yield
    finally:
        await asyncio.sleep(1)
        SEEN["closed"] = True


async def _fails_with_a_child(f: Any, row: Any, ctx: Any) -> None:
    SEEN["task"] = asyncio.ensure_future(_holds_a_session(f))
    await asyncio.sleep(1)
    raise ValueError("beside a child")


async def _holds_a_session(f: Any) -> None:
    async with _session():
        await f.n.async_update(7)
        await asyncio.sleep(10_000)


@pytest.mark.parametrize(
    ("then", "seen"),
    [(_fails_beside, "finally"), (_fails_with_a_child, "closed")],
)
def test_a_record_that_fails_alone_runs_what_ends_asynchronously(then: Any, seen: str) -> None:
    with harness(then, on_error="column") as running:
        out = running.process(ROWS)
        assert [one.type for one in out if isinstance(one, FailedRecord)] == ["ValueError"]
        assert [running.state(N, key) for key in "ab"] == [1, 1]
        assert ("a", "ended") in out
    assert SEEN[seen]
    assert "not reached" not in SEEN


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", pytest.param("lsm", marks=pytest.mark.slow)])
def test_a_batch_after_records_that_ended_early_is_as_any_other(backend: str) -> None:
    """Twenty keys, each record of which fails in another way or not at all."""
    ways = [_too_long, _fails_beside, _fails_with_a_child, _just_in_time]

    async def one_of(f: Any, row: Any, ctx: Any) -> None:
        await ways[int(row["k"]) % 4](f, row, ctx)

    options: Any = {"record_timeout": 60, "on_error": "column", "backend": backend}
    with harness(one_of, **options) as running:
        rows = [{"k": str(key), "n": n} for n in (0, 1, 0) for key in range(20)]
        for batch in (1, 2):
            out = running.process(rows)
            failed = [one for one in out if isinstance(one, FailedRecord)]
            assert len(failed) == 15
            for key in range(20):
                good = 3 if key % 4 == 3 else 2
                assert running.state(N, str(key)) == good * batch
                assert running.state(LIST, str(key)) == [str(key)] * good * batch
