"""Functions that await anything, when what they await, or the user's code, goes wrong."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forebay_engine.execution import cancelling
from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateAccessError,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

N = ValueStateDescriptor("n", int, default=0)
NAMES = MapStateDescriptor("names", str, int)
MANY = 100_000

SEEN: dict[str, Any] = {}
"""Notes and events that the functions of a test share; a harness's copies do, too."""


both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])
lsm_by_default = pytest.mark.parametrize(
    "backend", [pytest.param("heap", marks=pytest.mark.slow), "lsm"]
)
"""For long tests: of the two backends lsm has the threads and files."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Counts(KeyedProcessFunction[Any, Any, Any]):
    """Counts a key's rows, and calls the test's coroutine between read and write."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)
        self.names = context.get_map_state(NAMES)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() + 1
        answer = await self.call(self, row)
        await self.n.async_update(count)
        yield row["k"], count, answer


def counting(call: Any, **options: Any) -> FunctionHarness:
    return FunctionHarness(Counts(call), "k", **options)


def rows(keys: int, each: int = 1) -> list[dict[str, str]]:
    return [{"k": str(key)} for _ in range(each) for key in range(keys)]


# -- calls that do not return -------------------------------------------------------------------


async def _asks_a_silent_server(f: Any, row: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_silence())


async def _silence() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_task_that_never_ends_is_named_with_the_lines_where_it_waits() -> None:
    with counting(_asks_a_silent_server, drain_timeout="50ms") as h:
        with pytest.raises(FunctionError, match=r"Counts.*key '0'") as failure:
            h.process(rows(1))
        assert "in _asks_a_silent_server" in str(failure.value)
        assert "in _silence" in str(failure.value)


async def _leaves_a_silent_task(f: Any, row: Any) -> None:
    SEEN["task"] = asyncio.ensure_future(_silence())


def test_a_task_that_outlives_its_method_is_named_too() -> None:
    with counting(_leaves_a_silent_task, drain_timeout="50ms") as h:
        with pytest.raises(FunctionError, match=r"Counts.*key '0'.*its tasks") as failure:
            h.process(rows(1))
        assert "in _silence" in str(failure.value)


# -- cancellation that user code swallows -------------------------------------------------------


async def _swallows(f: Any, row: Any) -> None:
    if row["k"] == "fails":
        await asyncio.sleep(0)
        raise ValueError("bad row")
    await _insists()


async def _insists() -> None:
    while not SEEN.get("calm"):
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            SEEN["swallowed"] = SEEN.get("swallowed", 0) + 1


async def _swallows_in_a_task(f: Any, row: Any) -> None:
    if row["k"] == "fails":
        await _swallows(f, row)
    await asyncio.gather(_insists())


@pytest.mark.parametrize("call", [_swallows, _swallows_in_a_task])
def test_a_record_that_swallows_its_cancellation_does_not_hold_up_the_failure(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "CLOSING_S", 0.05)
    with counting(call) as h:
        with pytest.raises(FunctionError, match=r"key 'fails'.*bad row"):
            h.process([{"k": "insists"}, {"k": "fails"}])
        assert SEEN["swallowed"]
        SEEN["calm"] = True
        assert h.process([{"k": "insists"}]) == [("insists", 1, None)]


# -- threads ------------------------------------------------------------------------------------


async def _asks_a_library_with_threads(f: Any, row: Any) -> int:
    loop = asyncio.get_running_loop()
    answer, told = loop.create_future(), concurrent.futures.Future[int]()

    def library() -> None:
        loop.call_soon_threadsafe(answer.set_result, 1)
        told.set_result(2)
        asyncio.run_coroutine_threadsafe(_note("called back"), loop).result(100)

    threading.Thread(target=library).start()
    return await answer + await asyncio.wrap_future(told)


async def _note(what: str) -> None:
    await asyncio.sleep(0)
    SEEN[what] = SEEN.get(what, 0) + 1


@pytest.mark.long
def test_a_library_that_answers_from_its_own_threads() -> None:
    async def notebook() -> None:  # a loop that always turns answers the thread's coroutine
        with counting(_asks_a_library_with_threads) as h:
            assert sorted(h.process(rows(10))) == [(str(key), 1, 3) for key in range(10)]

    before = set(threading.enumerate())
    asyncio.run(notebook())
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("Thread-"):
            thread.join(100)
    assert SEEN == {"called back": 10}


async def _writes_from_a_pool(f: Any, row: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, f.n.update, 5)


def test_a_write_from_a_pool_is_refused() -> None:
    with counting(_writes_from_a_pool) as h:
        with pytest.raises(StateAccessError, match="task thread"):
            h.process(rows(1))
        assert h.state(N, "0") == 0


# -- many records -------------------------------------------------------------------------------


async def _waits_for_all(f: Any, row: Any) -> None:
    if "all" not in SEEN:
        SEEN["all"], SEEN["left"] = asyncio.Event(), SEEN["count"]
    SEEN["left"] -= 1
    if not SEEN["left"]:
        SEEN["all"].set()
    await SEEN["all"].wait()


@pytest.mark.parametrize("count", [2_000, pytest.param(MANY, marks=pytest.mark.slow)])
def test_all_records_of_a_batch_wait_at_once(count: int) -> None:
    SEEN["count"] = count
    with counting(_waits_for_all, in_flight_limit=count + 1) as h:
        assert len(h.process(rows(count))) == count
        assert h.state(N, str(count - 1)) == 1


async def _yields_to_the_loop(f: Any, row: Any) -> None:
    await asyncio.sleep(0)


@pytest.mark.long
@lsm_by_default
def test_ten_thousand_records_of_one_key_keep_their_order(backend: str) -> None:
    with counting(_yields_to_the_loop, backend=backend) as h:
        got = h.process(rows(1, each=10_000))
        assert [count for _, count, _ in got] == [*range(1, 10_001)]


# -- generators ---------------------------------------------------------------------------------


async def _numbers() -> Any:
    try:
        yield 1
        yield 2
    finally:
        await asyncio.sleep(0)
        SEEN["closed"] = SEEN.get("closed", 0) + 1


async def _leaves_generators(f: Any, row: Any) -> None:
    await asyncio.sleep(0)
    async for _ in _numbers():  # in a later step of the record
        break
    await asyncio.gather(_leaves_one(f))


async def _leaves_one(f: Any) -> None:
    await f.names.async_put("task", 1)
    async for _ in _numbers():  # in a task
        break


class OnTimer(KeyedProcessFunction[Any, Any, Any]):
    async def process_element(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_processing_time(ctx.timers.processing_time)

    async def on_timer(self, at: Any, ctx: Any) -> None:
        async for _ in _numbers():
            break


def test_generators_that_are_left_anywhere_run_their_finally() -> None:
    with counting(_leaves_generators) as h:
        h.process(rows(3))
        assert SEEN == {"closed": 6}
    with FunctionHarness(OnTimer(), "k") as h:
        h.process(rows(3))
        assert SEEN == {"closed": 9}


# -- accesses by two records' tasks -------------------------------------------------------------


async def _interleaves(f: Any, row: Any) -> Any:
    """Wait for a barrier between any two accesses, so that both records' tasks take turns."""
    meet = SEEN.setdefault("meet", asyncio.Barrier(4))

    async def task(name: str) -> None:
        for number in range(5):
            await meet.wait()
            before = await f.names.async_get(name) or 0
            await meet.wait()
            await f.names.async_put(name, before + number)

    await asyncio.gather(task("one"), task("two"))


@both_backends
def test_tasks_of_two_records_write_in_turn_each_under_its_key(backend: str) -> None:
    with counting(_interleaves, backend=backend) as h:
        h.process(rows(2))
        for key in ("0", "1"):
            assert h.state(NAMES, key) == {"one": 10, "two": 10}


# -- nothing is left ----------------------------------------------------------------------------


async def _asks_the_server(f: Any, row: Any) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", SEEN["port"])
    try:
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            writer.write(b"x")
            answer = group.create_task(reader.readexactly(1))
            await asyncio.to_thread(len, "")
        if row["k"] == "fails":
            raise ValueError("bad row")
        return answer.result()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.long
@lsm_by_default
@pytest.mark.parametrize("batches", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_no_task_socket_or_thread_is_left_after_many_batches(
    echo: int, batches: int, backend: str
) -> None:
    SEEN["port"] = echo
    with counting(_asks_the_server, backend=backend) as h:
        for number in range(batches):
            if number == 20:
                before = _alive()
            if number % 10 == 5:
                with pytest.raises(FunctionError, match="bad row"):
                    h.process([*rows(3), {"k": "fails"}])
            else:
                assert len(h.process(rows(3))) == 3
        # The server may still be busy with the last connections, and was with others before.
        deadline = time.monotonic() + 30
        while max(more := _more_than(before)) > 2 and time.monotonic() < deadline:
            pass
        assert max(more) <= 2, f"{more} more tasks, sockets, threads"


def _more_than(before: tuple[int, int, int]) -> list[int]:
    return [now - then for now, then in zip(_alive(), before, strict=True)]


def _alive() -> tuple[int, int, int]:
    """Return the numbers of tasks, open files and threads of this process.

    Threads of pools are left out, which lsm starts when it needs them, up to a bound.
    """
    gc.collect()
    tasks = sum(isinstance(one, asyncio.Task) for one in gc.get_objects())
    pools = ("forebay-lsm-read", "forebay-compaction")
    threads = [one for one in threading.enumerate() if not one.name.startswith(pools)]
    return tasks, len([*Path("/proc/self/fd").iterdir()]), len(threads)
