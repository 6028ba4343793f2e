"""`VirtualClock`: what functions wait for takes no time; and clients that a test gives."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from forebay_state_api import (
    Clients,
    ConfigurationError,
    FunctionError,
    KeyedProcessFunction,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness, VirtualClock

HOUR = timedelta(hours=1)
N = ValueStateDescriptor("n", int)
ROWS = [{"k": str(number % 10)} for number in range(30)]


class Worked(KeyedProcessFunction[Any, Any, Any]):
    """Counts a key's rows, and runs ``work(row, ctx)`` between read and write."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() or 0
        result = await self.work(row, ctx)
        await self.n.async_update(count + 1)
        yield row["k"], count + 1, result

    def on_timer(self, at: datetime, ctx: Any) -> Any:
        yield ctx.current_key, at


def harness(work: Any, **options: Any) -> FunctionHarness:
    return FunctionHarness(Worked(work), "k", clock=VirtualClock(), **options)


async def _sleeps(row: Any, ctx: Any) -> None:
    await asyncio.sleep(3_600 * (1 + int(row["k"])))


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("late", [None, 1])
def test_waits_take_no_time_and_move_the_clock(backend: str, late: int | None) -> None:
    with harness(_sleeps, backend=backend, late_answers=late) as h:
        before, started = h.clock.now, time.monotonic()
        h.process(ROWS)
        got = h.process(ROWS)
        assert time.monotonic() - started < 100
        assert h.clock.now - before == 2 * 3 * 10 * HOUR  # the slowest key has three rows
        assert [count for key, count, _ in got if key == "9"] == [4, 5, 6]


async def _in_the_order_of_time(row: Any, ctx: Any) -> Any:
    loop = asyncio.get_running_loop()
    started = loop.time()
    waits = [asyncio.create_task(asyncio.sleep(pause, pause)) for pause in (30, 10, 20)]
    ended: list[float] = [await one for one in asyncio.as_completed(waits)]
    try:
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    except TimeoutError:
        ended.append(loop.time() - started)
    return ended


def test_timers_end_in_the_order_of_their_times() -> None:
    with harness(_in_the_order_of_time) as h:
        assert h.process(ROWS[:1]) == [("0", 1, [10, 20, 30, 35])]


async def _beside_a_thread(row: Any, ctx: Any) -> Any:
    async with asyncio.timeout(0.001):
        return await asyncio.to_thread(time.sleep, 0.05)


def test_the_clock_stands_still_while_a_thread_works() -> None:
    with harness(_beside_a_thread) as h:
        before = h.clock.now
        assert h.process(ROWS[:1]) == [("0", 1, None)]
        assert h.clock.now == before


async def _connects(row: Any, ctx: Any) -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def _starts_a_process(row: Any, ctx: Any) -> None:
    await asyncio.create_subprocess_exec("true")


async def _reads_a_name(row: Any, ctx: Any) -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


@pytest.mark.parametrize(
    ("work", "method"),
    [
        (_connects, "create_connection"),
        (_starts_a_process, "subprocess_exec"),
        (_reads_a_name, "getaddrinfo"),
    ],
)
def test_real_io_is_an_error_that_says_so(work: Any, method: str) -> None:
    said = f"VirtualClock called {method} of its loop"
    with (
        harness(work, on_error="column") as h,  # fails the batch also there
        pytest.raises(ConfigurationError, match=said),
    ):
        h.process(ROWS[:1])


async def _never(row: Any, ctx: Any) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("limit", [None, "2h"])
def test_what_never_ends_is_found_at_once(limit: str | None) -> None:
    with harness(_never, drain_timeout=limit) as h:
        before = h.clock.now
        with pytest.raises(FunctionError, match="did not end within the drain timeout"):
            h.process(ROWS)
        assert h.clock.now - before >= 2 * HOUR


async def _sets_a_timer(row: Any, ctx: Any) -> None:
    await asyncio.sleep(60)
    ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(seconds=60))


def test_timers_of_keys_see_the_time_that_waits_have_taken() -> None:
    with harness(_sets_a_timer) as h:
        began = h.clock.now
        h.process(ROWS[:1])
        assert h.process([]) == [("0", began + timedelta(seconds=60))]


def test_plain_functions_take_a_virtual_clock() -> None:
    with FunctionHarness(lambda row, ctx: [(row["k"],)], "k", clock=VirtualClock()) as h:
        assert h.process(ROWS[:2]) == [("0",), ("1",)]


@pytest.mark.parametrize("clock", [VirtualClock, type(None)])
def test_in_a_test_that_is_a_coroutine(clock: Any) -> None:
    async def test() -> None:
        waits = asyncio.create_task(asyncio.sleep(0.01))
        with FunctionHarness(Worked(_sleeps_a_little), "k", clock=clock()) as h:
            assert len(h.process(ROWS)) == 30
            assert h.state(N, "3") == 3
            with pytest.raises(FunctionError, match="no"):
                h.process([{"k": "bad"}])
        await waits

    asyncio.run(test())


async def _sleeps_a_little(row: Any, ctx: Any) -> None:
    await asyncio.sleep(0.001)
    if row["k"] == "bad":
        raise ValueError("no")


# -- clients ----------------------------------------------------------------------------------


@asynccontextmanager
async def _opened() -> Any:
    raise AssertionError("a test opens no client")
    yield


class Scores(KeyedProcessFunction[Any, Any, Any]):
    clients = Clients(model=_opened)

    def open(self, context: Any) -> None:
        self.risk = context.get_state(ValueStateDescriptor("risk", float))

    async def process_element(self, row: Any, ctx: Any) -> Any:
        for attempt in range(3):
            try:
                async with asyncio.timeout(10):
                    risk = await ctx.clients.model.score(row["k"])
            except (TimeoutError, ConnectionError):
                await asyncio.sleep(60 * 2**attempt)
            else:
                await self.risk.async_update(risk)
                yield row["k"], risk
                return


def test_failures_and_delays_of_a_clients_calls() -> None:
    async def answers(_: str) -> float:
        if model.score.await_count == 1:
            raise ConnectionResetError
        if model.score.await_count == 2:
            await asyncio.sleep(11)
        return 0.5

    model = Mock(score=AsyncMock(side_effect=answers))
    clock = VirtualClock()
    began = clock.now
    with FunctionHarness(Scores(), "k", clients={"model": model}, clock=clock) as h:
        assert h.process([{"k": "a"}]) == [("a", 0.5)]
    assert model.score.await_count == 3
    assert clock.now - began == timedelta(seconds=60 + 10 + 120)


def test_a_client_that_the_function_does_not_declare() -> None:
    for clients in ({"modle": Mock()}, {"model": Mock(), "other": Mock()}):
        with (
            FunctionHarness(Scores(), "k", clients=clients) as h,
            pytest.raises(ConfigurationError, match="declares model"),
        ):
            h.process([{"k": "a"}])


async def _the_batchs_time(row: Any, ctx: Any) -> datetime:
    await asyncio.sleep(10)
    ctx.timers.register_processing_time(ctx.timers.processing_time)
    time: datetime = ctx.timers.processing_time
    return time


def test_a_micro_batch_has_one_processing_time_in_all_subtasks() -> None:
    with harness(_the_batchs_time, parallelism=3) as h:
        for _ in range(2):
            began = h.clock.now
            got = h.process(ROWS[:10])
            assert h.clock.now >= began + timedelta(seconds=20)  # one subtask after the other
            assert {time for *_, time in got} == {began}
