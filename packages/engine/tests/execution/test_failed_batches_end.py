"""A failed micro-batch ends its other records at once, whatever they wait for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from forebay_backend_heap import HeapBackend
from forebay_backend_lsm import LsmBackend
from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateFuture,
    ValueStateDescriptor,
    combine_all,
    completed_future,
)
from forebay_state_api.contract.backend import StateBackend
from forebay_testing.late_reads import LateTable
from forebay_testing.reference import ReferenceBackend
from forebay_testing.slow_backend import READ_S, slow_job

V = ValueStateDescriptor("v", int, default=0)
W = ValueStateDescriptor("w", int, default=0)
M = MapStateDescriptor("m", str, int)

FAILS_S = 0.3
"""When one record fails while the others wait."""

SEEN: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Beside(KeyedProcessFunction[Any, Any, Any]):
    """Runs the test's coroutine for each row but the one that fails."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def open(self, context: Any) -> None:
        self.v = context.get_state(V)
        self.w = context.get_state(W)
        self.m = context.get_map_state(M)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        if row[0] == "fails":
            SEEN["loop"] = asyncio.get_running_loop()
            await asyncio.sleep(FAILS_S)
            raise ValueError("bad row")
        await self.work(self)
        yield row

    async def read(self) -> Any:
        return await self.v.async_value()


async def _state(f: Any) -> None:
    await f.v.async_value()


async def _map(f: Any) -> None:
    await f.m.async_items()


async def _own_future(f: Any) -> None:
    await StateFuture()


async def _callbacks(f: Any) -> None:
    await f.v.async_value().then_apply(lambda _: f.read()).then_apply(abs)


async def _combined(f: Any) -> None:
    await combine_all([f.v.async_value(), f.w.async_value()])


async def _sleep(f: Any) -> None:
    await asyncio.sleep(30)


async def _room(f: Any) -> None:
    async with SEEN.setdefault("room", asyncio.Semaphore(1)):
        await f.v.async_value()


async def _gather(f: Any) -> None:
    await asyncio.gather(asyncio.sleep(30), f.v.async_value())


async def _gather_states(f: Any) -> None:
    await asyncio.gather(f.v.async_value(), f.w.async_value(), return_exceptions=True)


async def _gather_coroutines(f: Any) -> None:
    await asyncio.gather(f.read(), asyncio.sleep(30))


async def _wait(f: Any) -> None:
    await asyncio.wait([asyncio.ensure_future(f.read()), asyncio.ensure_future(f.v.async_value())])


async def _shield(f: Any) -> None:
    await asyncio.shield(f.v.async_value())


async def _shielded_child(f: Any) -> None:
    await asyncio.shield(f.read())


async def _timeout(f: Any) -> None:
    async with asyncio.timeout(30):
        await f.v.async_value()


async def _group(f: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(f.read())
        group.create_task(asyncio.sleep(30))


async def _group_and_state(f: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(f.read())
        await f.w.async_value()


async def _child_beside(f: Any) -> None:
    SEEN["child"] = asyncio.ensure_future(f.read())
    await f.w.async_value()


async def _child_in_its_finally(f: Any) -> None:
    async def child() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            chained = completed_future(0).then_apply(lambda _: asyncio.sleep(30))
            await chained.then_apply(abs)

    task = asyncio.ensure_future(child())
    await asyncio.sleep(FAILS_S / 2)
    task.cancel()
    await asyncio.wait([task])


async def _child_left(f: Any) -> None:
    SEEN["child"] = asyncio.ensure_future(asyncio.sleep(30))


AT_ONCE = [
    *(_state, _map, _own_future, _callbacks, _combined, _sleep, _room, _gather, _gather_states),
    *(_gather_coroutines, _wait, _shield, _shielded_child, _timeout, _group, _group_and_state),
    *(_child_beside, _child_in_its_finally, _child_left),
]


async def _reads_in_finally(f: Any) -> None:
    try:
        await asyncio.sleep(30)
    finally:
        SEEN["read"] = await f.v.async_value()


async def _reads_in_finally_of_a_child(f: Any) -> None:
    await asyncio.gather(_reads_in_finally(f))


async def _reads_after_a_read(f: Any) -> None:
    try:
        await f.w.async_value()
    finally:
        SEEN["read"] = await f.v.async_value()


def _failed(work: Any, backend_class: type[StateBackend]) -> float:
    """Run a micro-batch that fails; return the seconds that it took on its clock."""
    job = slow_job(backend_class)
    try:
        with pytest.raises(FunctionError, match="bad row"):
            job.run(Beside(work), [("a",), ("b",), ("a",), ("fails",)])
        seconds: float = SEEN["loop"].time()
    finally:
        job.close()
    return seconds


@pytest.mark.parametrize("work", AT_ONCE)
def test_what_catches_nothing_ends_when_the_batch_fails(
    work: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert _failed(work, ReferenceBackend) == pytest.approx(FAILS_S, abs=0.01)
    assert caplog.messages == []


@pytest.mark.parametrize("backend_class", [HeapBackend, LsmBackend])
@pytest.mark.parametrize("work", [_state, _group_and_state, _gather_states])
def test_it_ends_on_every_backend(
    work: Any, backend_class: type[StateBackend], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert _failed(work, backend_class) == pytest.approx(FAILS_S, abs=0.01)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "work", [_reads_in_finally, _reads_in_finally_of_a_child, _reads_after_a_read]
)
def test_a_finally_block_reads_state(work: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert _failed(work, ReferenceBackend) == pytest.approx(FAILS_S + READ_S, abs=0.01)
    assert SEEN["read"] == 0
    assert caplog.messages == []


async def _fails_in_finally(f: Any) -> None:
    try:
        await asyncio.sleep(30)
    finally:
        await f.v.async_value().then_apply(_raise)


async def _fails_in_finally_of_a_child(f: Any) -> None:
    await asyncio.gather(_fails_in_finally(f))


def _raise(_: Any) -> None:
    raise ValueError("once more")


@pytest.mark.parametrize("work", [_fails_in_finally, _fails_in_finally_of_a_child])
def test_a_finally_block_whose_callback_fails_ends(
    work: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert _failed(work, ReferenceBackend) == pytest.approx(FAILS_S + READ_S, abs=0.01)
    assert caplog.messages == []


async def _reads_and_starts_a_coroutine(f: Any) -> None:
    f.v.async_value().then_apply(lambda _: asyncio.sleep(30))
    await _reads_in_finally(f)


def test_what_is_chained_to_a_read_does_not_begin_after_the_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        took = _failed(_reads_and_starts_a_coroutine, ReferenceBackend)
    assert took == pytest.approx(FAILS_S + READ_S, abs=0.01)
    assert caplog.messages == []


async def _waits_for_nobody_in_finally(f: Any) -> None:
    try:
        await asyncio.sleep(30)
    finally:
        try:
            await StateFuture()
        finally:
            SEEN["closed"] = True


def test_a_finally_block_that_waits_for_nobody_is_cancelled_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        took = _failed(_waits_for_nobody_in_finally, ReferenceBackend)
    assert took == pytest.approx(FAILS_S, abs=0.01)
    assert SEEN["closed"]
    assert caplog.messages == []


async def _insists_on_nobody(f: Any) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await StateFuture()


def test_code_that_insists_on_what_nobody_completes_is_closed_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert _failed(_insists_on_nobody, ReferenceBackend) == pytest.approx(FAILS_S, abs=0.01)
    assert "of key 'a' was cancelled and awaits what nobody completes; it is closed" in caplog.text
    assert "in _insists_on_nobody" in caplog.text


async def _spins(f: Any) -> None:
    while not SEEN.get("calm"):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def _spins_in_a_child(f: Any) -> None:
    await asyncio.gather(_spins(f))


@pytest.mark.parametrize("work", [_spins, _spins_in_a_child])
def test_code_that_spins_on_a_clock_that_stands_still_is_closed(
    work: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay_engine.execution.cancelling.CLOSING_S", 0.05)
    monkeypatch.setattr(f"{__name__}.FAILS_S", 0.0)  # no timer fires while code spins
    with caplog.at_level(logging.WARNING):
        _failed(work, ReferenceBackend)
    assert "did not end within 0.05 s" in caplog.text
    assert "in _spins" in caplog.text


# -- storage that fails -------------------------------------------------------------------------


async def _fails_to_read(f: Any) -> None:
    await f.v.async_value()


async def _fails_to_read_in_finally(f: Any) -> None:
    try:
        await f.v.async_value()
    finally:
        await f.w.async_value()


async def _fails_to_read_in_children(f: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(f.read())
        group.create_task(asyncio.sleep(30))


@pytest.mark.parametrize(
    "work", [_fails_to_read, _fails_to_read_in_finally, _fails_to_read_in_children]
)
def test_reads_that_fail_end_the_batch_at_once(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_many(self: Any, namespace: Any, keys: Any) -> Any:
        raise OSError("storage is gone")

    monkeypatch.setattr(LateTable, "get_many", get_many)
    job, began = slow_job(), time.monotonic()
    try:
        with pytest.raises(Exception, match="storage is gone"):
            job.run(Beside(work), [("a",), ("b",)])
    finally:
        job.close()
    assert time.monotonic() - began < 100


# -- who waits for nobody -----------------------------------------------------------------------


class WaitsForNobody(KeyedProcessFunction[Any, Any, Any]):
    async def process_element(self, row: Any, ctx: Any) -> Any:
        future: StateFuture[str] = StateFuture()
        try:
            async with asyncio.timeout(5):
                await future
        except TimeoutError:
            future.complete("timeout")
        yield await future


def test_a_time_limit_ends_a_wait_for_what_nobody_else_completes() -> None:
    job = slow_job()
    try:
        assert job.run(WaitsForNobody(), [("a",), ("b",)]) == ["timeout"] * 2
    finally:
        job.close()
