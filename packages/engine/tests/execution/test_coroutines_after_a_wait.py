"""Coroutines that begin while earlier records wait: each then runs without the engine's driver."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from forebay_backend_heap import HeapBackend
from forebay_state_api import FunctionError, KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import FunctionHarness, KeyedJob

N = ValueStateDescriptor("n", int, default=0)
Work = Callable[[Any], Coroutine[Any, Any, Any]]


class Counted(KeyedProcessFunction[Any, Any, Any]):
    """Counts a key's rows; every row but the key ``last``'s waits, and that one does ``work``."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() + 1
        if row["k"] == "last":
            return await self.work(row)
        await asyncio.sleep(row["seconds"])
        await self.n.async_update(count)
        return [(row["k"], count)]


def rows_of(work: Work, *keys: str) -> list[Any]:
    with FunctionHarness(Counted(work), "k") as harness:
        return harness.process([{"k": key, "seconds": 0.001} for key in keys])


async def one_row(row: Any) -> Any:
    return [(row["k"], 0)]


async def nothing(_: Any) -> None:
    return None


async def bare_tuple(row: Any) -> Any:
    return row["k"], 0


async def bare_tuple_after_a_wait(row: Any) -> Any:
    await asyncio.sleep(0)
    return row["k"], 0


async def raises(_: Any) -> Any:
    raise LookupError("no such card")


async def cancels_itself(_: Any) -> Any:
    raise asyncio.CancelledError("enough")


class Unawaitable:
    def __await__(self) -> Any:
        yield 5


async def awaits_a_number(_: Any) -> Any:
    await Unawaitable()


def test_rows_of_a_key_keep_their_order_around_one_that_does_not_wait() -> None:
    keys = ["a", "b", "last", "a", "last", "b", "a"]
    found = rows_of(one_row, *keys)
    assert [row for row in found if row[0] == "a"] == [("a", 1), ("a", 2), ("a", 3)]
    assert [row for row in found if row[0] == "b"] == [("b", 1), ("b", 2)]
    assert found.count(("last", 0)) == 2
    assert len(found) == len(keys)


def test_a_record_may_return_no_rows() -> None:
    assert sorted(rows_of(nothing, "a", "b", "last", "c")) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (raises, "key 'last'.*LookupError: no such card"),
        (cancels_itself, "key 'last'.*was cancelled.*enough"),
        (bare_tuple, "key 'last'.*bare tuple"),
        (bare_tuple_after_a_wait, "key 'last'.*bare tuple"),
        (awaits_a_number, "key 'last'.*TypeError"),
    ],
)
def test_an_error_names_the_record(work: Work, message: str) -> None:
    with pytest.raises(FunctionError, match=f"(?s){message}"):
        rows_of(work, "a", "b", "last", "c")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="markcoroutinefunction is of Python 3.12")
def test_a_marked_function_may_return_any_awaitable() -> None:
    class Marked(Counted):
        pass

    def process_element(self: Any, row: Any, ctx: Any) -> Any:
        return asyncio.ensure_future(Counted.process_element(self, row, ctx))

    marked: Any = Marked
    marked.process_element = inspect.markcoroutinefunction(process_element)  # type: ignore[attr-defined, unused-ignore]
    # Without the harness, which pickles the function by value, and so without its mark.
    job = KeyedJob(HeapBackend, MemoryStorage("memory://marked"), max_parallelism=1, key_type=str)
    subtask = job.subtask(Marked(one_row))
    subtask.begin()
    try:
        subtask.process([{"k": key, "seconds": 0.001} for key in "abc"], list("abc"), [0, 0, 0])
        subtask.drain()
        assert sorted(subtask.take_rows()) == [("a", 1), ("b", 1), ("c", 1)]
    finally:
        subtask.close()
