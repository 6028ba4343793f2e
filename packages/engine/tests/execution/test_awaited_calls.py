"""``ctx.call`` gets a function, and each call is awaited before its record ends."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

import pytest

from forebay_state_api import FunctionError, KeyedProcessFunction, StateAccessError
from forebay_testing import FunctionHarness, VirtualClock


async def _plain(row: Any, ctx: Any) -> Any:
    await ctx.call(len, "abc")


def run_once(body: Any, **options: Any) -> Any:
    """Run a function of (row, ctx) for one row."""
    with FunctionHarness(body, "k", clock=VirtualClock(), **options) as running:
        running._job._fresh = lambda _: body
        return running.process([{"k": "0"}])


async def _asked(*_: Any) -> int:
    await asyncio.sleep(1)
    return 1


async def _of_coroutine(row: Any, ctx: Any) -> Any:
    return [(await ctx.call(_asked(row)),)]


async def _of_future(row: Any, ctx: Any) -> Any:
    return [(await ctx.call(asyncio.get_running_loop().create_future()),)]


async def _of_number(row: Any, ctx: Any) -> Any:
    return [(await ctx.call(7),)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (_of_coroutine, "it got what _asked returned. Write ctx.call(fn, x), not ctx.call(fn(x))"),
        (_of_future, "it got a Future. Write ctx.call(fn, x), not ctx.call(fn(x))"),
        (_of_number, "ctx.call(fn, ...) takes an asynchronous function, not int 7"),
    ],
)
def test_what_is_no_function_is_refused_with_the_way_to_write_it(body: Any, says: str) -> None:
    with pytest.raises(FunctionError, match=re.escape(says)):
        run_once(body)


async def _drops(row: Any, ctx: Any) -> Any:
    ctx.call(_asked)
    return [(1,)]


async def _drops_later(row: Any, ctx: Any) -> Any:
    await asyncio.sleep(1)
    for _ in range(40):
        await ctx.call(_asked)
    ctx.call(_asked)
    await asyncio.sleep(1)
    yield (1,)


def _drops_in_plain_code(row: Any, ctx: Any) -> Any:
    ctx.call(_asked)
    return [(1,)]


async def _emits_it(row: Any, ctx: Any) -> Any:
    yield (ctx.call(_asked),)


async def _forgets_one_of_three(row: Any, ctx: Any) -> Any:
    calls = [ctx.call(_asked) for _ in range(3)]
    await asyncio.gather(*calls[:2])
    return []


DROPPED = [_drops, _drops_later, _drops_in_plain_code, _emits_it, _forgets_one_of_three]


@pytest.mark.parametrize("body", DROPPED)
@pytest.mark.parametrize("alone", [False, True])
def test_a_call_that_nobody_awaits_is_an_error(body: Any, *, alone: bool) -> None:
    says = r"ctx.call\(<function _asked .*was not awaited, and so was not made: write `await ctx"
    if alone:
        (failed,) = run_once(body, on_error="column")
        assert failed.type == "TypeError"
        assert re.search(says, failed.message)
        return
    with pytest.raises(FunctionError, match=says):
        run_once(body)


def test_a_call_of_no_record_is_refused_and_leaves_nothing_to_await(
    recwarn: pytest.WarningsRecorder,
) -> None:
    class Opens(KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: Any) -> None:
            context.call(_asked)

        async def process_element(self, row: Any, ctx: Any) -> None: ...

    with (
        FunctionHarness(Opens(), "k") as running,
        pytest.raises(StateAccessError, match=r"calls .* are made per record"),
    ):
        running.process([{"k": "0"}])
    gc.collect()
    assert [str(one.message) for one in recwarn] == []


def test_calls_given_to_asyncio_are_awaited() -> None:
    async def fails() -> None:
        raise ValueError

    async def body(row: Any, ctx: Any) -> Any:
        await asyncio.gather(*(ctx.call(_asked) for _ in range(40)))
        tasks = {asyncio.create_task(ctx.call(_asked)) for _ in range(3)}
        await asyncio.wait(tasks)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.call(_asked), 0)
        with pytest.raises(ExceptionGroup):  # noqa: PT012 - the group is one statement
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                group.create_task(ctx.call(_asked))
        task = asyncio.create_task(ctx.call(_asked))
        task.cancel()
        await asyncio.wait([task])
        return [(row["k"],)]

    assert run_once(body) == [("0",)]


def test_a_function_that_cannot_be_awaited_is_named() -> None:
    with (
        FunctionHarness(_plain, "k") as running,
        pytest.raises(FunctionError, match=r"TypeError: ctx.call.*len.*returned int"),
    ):
        running.process([{"k": "0"}])
