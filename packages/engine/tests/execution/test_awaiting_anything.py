"""Functions that await more than state: asyncio's own tools, clients, children."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from threading import Event
from time import monotonic
from typing import Any

import pytest

from forebay_backend_heap import HeapBackend
from forebay_engine.execution.loop_thread import loop_thread
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api import (
    ForebayError,
    FunctionError,
    KeyedProcessFunction,
    MapStateDescriptor,
    StateAccessError,
    ValueStateDescriptor,
)
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import FunctionHarness
from forebay_testing.job import KeyedJob

N = ValueStateDescriptor("n", int)
M = MapStateDescriptor("m", str, int)
ROWS = [{"k": str(number % 10)} for number in range(30)]


class Recorded(KeyedProcessFunction[Any, Any, Any]):
    """Counts a key's rows in ``n``, and runs ``work(self, row, ctx)`` between read and write."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)
        self.m = context.get_map_state(M)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() or 0
        result = await self.work(self, row, ctx)
        await self.n.async_update(count + 1)
        yield row["k"], count + 1, result


def harness(work: Any, **options: Any) -> FunctionHarness:
    return FunctionHarness(Recorded(work), "k", **options)


async def slowly(value: Any, seconds: float = 0.001) -> Any:
    await asyncio.sleep(seconds)
    return value


# -- what can be awaited ----------------------------------------------------------------------


async def _all_tools(f: Any, row: Any, ctx: Any) -> Any:
    async with asyncio.timeout(100):  # on heap still in the record's first step
        await f.n.async_value()
    one, two, three = await asyncio.gather(f.n.async_value(), slowly(2), f.m.async_get("x"))
    four = await asyncio.wait_for(f.n.async_value(), 100)
    five = await asyncio.shield(f.n.async_value())
    done, _ = await asyncio.wait({f.n.async_value(), asyncio.ensure_future(slowly(6))})
    async with asyncio.TaskGroup() as group:
        six = group.create_task(slowly(6))
    async with asyncio.timeout(100):
        seven = await asyncio.to_thread(lambda: 7)
    await asyncio.sleep(0)
    return one, two, three, four, five, len(done), six.result(), seven


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_asyncios_tools_take_state_futures_and_others(backend: Any) -> None:
    with harness(_all_tools, backend=backend) as h:
        h.process(ROWS[:10])
        got = sorted(h.process(ROWS[:20]))
    assert got[0] == ("0", 2, (1, 2, None, 1, 1, 2, 6, 7))
    assert got[1] == ("0", 3, (2, 2, None, 2, 2, 2, 6, 7))


SEEN: dict[str, Any] = {}
"""The notes that functions of a test make; a harness's copies share them."""


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


async def _call_the_echo(f: Any, row: Any, ctx: Any) -> bytes:
    SEEN["open"] = SEEN.get("open", 0) + 1
    SEEN["most"] = max(SEEN.get("most", 0), SEEN["open"])
    async with asyncio.timeout(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", SEEN["port"])
        writer.write(row["k"].encode())
        answer = await reader.read(100)
        writer.close()
        await writer.wait_closed()
    SEEN["open"] -= 1
    return answer


def test_calls_of_many_records_are_in_flight_together(echo: int) -> None:
    SEEN["port"] = echo
    with harness(_call_the_echo) as h:
        got = h.process(ROWS)
    assert sorted(got)[:3] == [("0", count, b"0") for count in (1, 2, 3)]
    assert len(got) == len(ROWS)
    assert SEEN["most"] == 10  # one for each key: a key's next row waits


async def _timeout(f: Any, row: Any, ctx: Any) -> str:
    try:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    except TimeoutError:
        return "timeout"
    return "no timeout"


def test_a_timeout_ends_a_wait_and_nothing_else() -> None:
    with harness(_timeout) as h:
        assert h.process(ROWS[:1]) == [("0", 1, "timeout")]


async def _cancelled_read(f: Any, row: Any, ctx: Any) -> Any:
    update = f.m.async_put("x", 5)
    task = asyncio.ensure_future(_awaits(update))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return await f.m.async_get("x")


async def _awaits(future: Any) -> Any:
    return await future


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_cancelling_a_wait_does_not_undo_the_access(backend: Any) -> None:
    with harness(_cancelled_read, backend=backend) as h:
        assert h.process(ROWS[:1]) == [("0", 1, 5)]
        assert h.state(M, "0") == {"x": 5}


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def _cancels_its_task(f: Any, row: Any, ctx: Any) -> str:
    if row["k"] == "0":
        _current_task().cancel()  # and ends without waiting for anything
        return "not interrupted"
    async with asyncio.timeout(100):
        await asyncio.sleep(0)
    _current_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return "interrupted"
    return "not interrupted"


def test_cancelling_its_own_task_ends_a_records_next_wait_and_no_others() -> None:
    with harness(_cancels_its_task) as h:
        assert [answer for _, _, answer in sorted(h.process(ROWS[:3]))] == [
            "not interrupted",
            "interrupted",
            "interrupted",
        ]


async def _result_of_a_read(f: Any, row: Any, ctx: Any) -> Any:
    return await asyncio.wait_for(f.n.async_value(), 0)  # done: its result is taken at once


async def _error_of_a_read(f: Any, row: Any, ctx: Any) -> Any:
    return f.n.async_value().exception() or 1  # as asyncio.gather does with one that is done


@pytest.mark.parametrize("work", [_result_of_a_read, _error_of_a_read])
def test_a_read_whose_result_is_taken_is_no_dropped_read(work: Any) -> None:
    with harness(work) as h:
        h.process(ROWS[:10])
        assert h.process(ROWS[:1]) == [("0", 2, 1)]  # a warning would be an error here


async def _children(f: Any, row: Any, ctx: Any) -> Any:
    async def child(number: int) -> str:
        await asyncio.sleep(0)
        before = await f.m.async_get(f"{number}") or 0
        await asyncio.sleep(0)
        await f.m.async_put(f"{number}", before + 1)
        return ctx.current_key

    keys = await asyncio.gather(*map(child, range(3)))
    return set(keys) == {row["k"]}


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_children_of_records_write_under_their_own_keys(backend: Any) -> None:
    with harness(_children, backend=backend) as h:
        got = h.process(ROWS)
        assert all(own for _, _, own in got)
        assert h.state(M, "3") == {"0": 3, "1": 3, "2": 3}


async def _leaves_a_child(f: Any, row: Any, ctx: Any) -> None:
    async def child() -> None:
        await asyncio.sleep(0.001)
        seen = await f.n.async_value()
        await f.m.async_put("count", seen)

    SEEN["task"] = asyncio.ensure_future(child())


def test_a_record_ends_when_its_children_have() -> None:
    rows = [{"k": "a"}] * 3
    with harness(_leaves_a_child) as h:
        assert [count for _, count, _ in h.process(rows)] == [1, 2, 3]
        assert h.state(M, "a") == {"count": 3}


async def _semaphore(f: Any, row: Any, ctx: Any) -> None:
    limit = SEEN.setdefault("limit", asyncio.Semaphore(2))
    async with limit:
        SEEN["open"] = SEEN.get("open", 0) + 1
        assert SEEN["open"] <= 2
        await f.m.async_put("x", 1)
        await asyncio.sleep(0)
        await f.m.async_get("x")
        SEEN["open"] -= 1


def test_a_semaphore_around_state_accesses() -> None:
    with harness(_semaphore, backend="lsm") as h:
        assert len(h.process(ROWS)) == len(ROWS)


async def _broken_generator(f: Any, row: Any, ctx: Any) -> None:
    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            SEEN["closed"] = True

    async for _ in numbers():
        break


def test_a_generator_that_is_left_runs_its_finally() -> None:
    with harness(_broken_generator) as h:
        h.process(ROWS[:1])
    assert SEEN == {"closed": True}


# -- failures ---------------------------------------------------------------------------------


async def _fails_beside(f: Any, row: Any, ctx: Any) -> None:
    try:
        SEEN[row["k"]] = "begun"
        if len(SEEN) == 10:
            await asyncio.sleep(0)
            raise ValueError("bad row")
        await asyncio.sleep(1_000)
    finally:
        await asyncio.sleep(0)
        SEEN[row["k"]] = "finally"


def test_a_failed_batch_cancels_what_is_in_flight_and_commits_nothing() -> None:
    with harness(_fails_beside) as h:
        with pytest.raises(FunctionError, match=r"key '9'.*bad row"):
            h.process(ROWS)
        assert {str(key): "finally" for key in range(10)} == SEEN
        assert h.version == 0
        assert h.state(N, "1") is None


async def _fails_alone(f: Any, row: Any, ctx: Any) -> int:
    await f.m.async_put("x", 1)
    if row["k"] == "2":
        async with asyncio.TaskGroup() as group:
            group.create_task(_raises(f))
            group.create_task(slowly(1, 1_000))
    return await slowly(1)


async def _raises(f: Any) -> None:
    await f.m.async_put("child", 1)
    await asyncio.sleep(0)
    raise ValueError("bad row")


def test_a_record_that_fails_alone_leaves_nothing_of_its_children() -> None:
    with harness(_fails_alone, on_error="column") as h:
        got = h.process(ROWS[:10])
        failed = [row for row in got if isinstance(row, FailedRecord)]
        assert [(one.key, one.type) for one in failed] == [("2", "ExceptionGroup")]
        assert len(got) == 10
        assert h.state(M, "2") == {}
        assert h.state(M, "3") == {"x": 1}


async def _forgets_a_child(f: Any, row: Any, ctx: Any) -> None:
    SEEN["task"] = asyncio.ensure_future(_raises(f))


def test_the_error_of_a_child_that_nobody_awaits_fails_its_record() -> None:
    with harness(_forgets_a_child) as h, pytest.raises(FunctionError, match="bad row"):
        h.process(ROWS[:1])


async def _never(f: Any, row: Any, ctx: Any) -> None:
    await asyncio.get_running_loop().create_future()


def test_a_call_that_never_returns_is_named_with_its_stack() -> None:
    names = r"key '0'.*Future pending"
    with (
        harness(_never, drain_timeout="50ms") as h,
        pytest.raises(FunctionError, match=names) as failure,
    ):
        h.process(ROWS[:1])
    assert "in _never" in str(failure.value)


async def _cancels_itself(f: Any, row: Any, ctx: Any) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    with harness(_cancels_itself) as h, pytest.raises(FunctionError, match="was cancelled"):
        h.process(ROWS[:1])


async def _from_a_thread(f: Any, row: Any, ctx: Any) -> None:
    await asyncio.to_thread(f.n.value)


async def _runs_a_loop(f: Any, row: Any, ctx: Any) -> None:
    asyncio.run(slowly(1))


@pytest.mark.parametrize(
    ("work", "message"),
    [(_from_a_thread, "task thread"), (_runs_a_loop, "asyncio.run")],
)
@pytest.mark.filterwarnings("ignore:coroutine 'slowly' was never awaited")
def test_what_stays_an_error(work: Any, message: str) -> None:
    with harness(work) as h, pytest.raises(ForebayError, match=message):
        h.process(ROWS[:1])


async def _from_a_task_of_no_record(f: Any, row: Any, ctx: Any) -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def callback() -> None:
        try:
            f.n.value()
        except StateAccessError as error:
            done.set_exception(error)

    loop.call_soon(callback)
    await done


def test_an_access_outside_its_record_is_an_error() -> None:
    with harness(_from_a_task_of_no_record) as h, pytest.raises(StateAccessError, match="record"):
        h.process(ROWS[:1])


# -- loops ------------------------------------------------------------------------------------


def test_a_loop_that_runs_in_the_tests_thread() -> None:
    async def test() -> None:
        with harness(_all_tools) as h:
            assert len(h.process(ROWS)) == len(ROWS)

    asyncio.run(test())


async def _answer_in_time(f: Any, row: Any, ctx: Any) -> str:
    async with asyncio.timeout(1):
        return await slowly("in time", 0.01)


def test_records_go_on_while_nobody_runs_the_engine() -> None:
    """Rows pause longer than the calls' timeouts: the loop's thread goes on meanwhile."""
    job = KeyedJob(HeapBackend, MemoryStorage("memory://pauses"), descriptors=[N, M])
    call = loop_thread().call
    running = job.subtask(Recorded(_answer_in_time))
    call(running.begin)
    [row] = job.keyed([("a",)])
    call(running.process, [{"k": "a"}], [row.key], [row.group])
    waited = Event()
    deadline = monotonic() + 100
    while not running.rows_ready and monotonic() < deadline:
        waited.wait(0.01)
    assert running.rows_ready == 1  # without any call of the engine
    call(running.drain)
    assert call(running.take_rows) == [("a", 1, "in time")]
    call(running.close)


@pytest.mark.long
def test_nothing_is_left_after_many_batches() -> None:
    with harness(_all_tools) as h:
        h.process(ROWS)
        gc.collect()
        threads, tasks = threading.active_count(), _count(asyncio.Task)
        for _ in range(30):
            h.process(ROWS[:10])
        gc.collect()
        assert _count(asyncio.Task) <= tasks
        assert threading.active_count() <= threads + 4  # asyncio's pool grows to its size


def _count(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())
