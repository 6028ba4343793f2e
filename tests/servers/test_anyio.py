"""Waits for state end in anyio's scopes and groups as those for futures of asyncio's do."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_testing import VirtualClock
from forebay_testing.slow_backend import READ_S, slow_job
from forebay_testing.virtual_clock import VirtualTime

pytestmark = pytest.mark.servers

V = ValueStateDescriptor("v", int, default=0)


async def _move_on(make):
    with anyio.move_on_after(0.5) as scope:
        await make()
    return scope.cancelled_caught


async def _fail(make):
    with anyio.fail_after(0.5):
        await asyncio.gather(make(), make())


async def _group(make):
    async with anyio.create_task_group() as group:
        group.start_soon(_awaits, make)
        await anyio.sleep(0.5)
        group.cancel_scope.cancel()
        await make()


async def _failing_group(make):
    async with anyio.create_task_group() as group:
        group.start_soon(_awaits, make)
        await anyio.sleep(0.5)
        raise ValueError("in a group")


async def _shielded(make):
    with anyio.move_on_after(0.5) as outer:
        with anyio.CancelScope(shield=True):
            await make()
        await anyio.sleep(1)
    return outer.cancelled_caught


async def _cleaning_up(make):
    with anyio.move_on_after(0.5) as scope:
        try:
            await anyio.sleep(10)
        finally:
            with anyio.move_on_after(1, shield=True) as inner:
                await make()
    return scope.cancelled_caught, inner.cancelled_caught


async def _cancelled_by_a_child(make):
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel():
                await anyio.sleep(0.5)
                scope.cancel()

            group.start_soon(cancel)
            await make()
    return scope.cancelled_caught


async def _nested(make):
    with anyio.move_on_after(1) as outer:
        with anyio.move_on_after(0.5) as inner:
            await make()
        with anyio.move_on_after(5) as other:
            await make()
    return outer.cancelled_caught, inner.cancelled_caught, other.cancelled_caught


async def _swallowed(make):
    with anyio.move_on_after(0.5) as scope:
        for _ in range(3):
            try:
                await make()
            except asyncio.CancelledError:
                continue
    return scope.cancelled_caught


FORMS = [
    *(_move_on, _fail, _group, _failing_group, _shielded, _cleaning_up, _cancelled_by_a_child),
    *(_nested, _swallowed),
]


async def _awaits(make):
    return await make()


class Scoped(KeyedProcessFunction):
    """Emits what ``form`` gives, with reads or with coroutines that read."""

    def __init__(self, form, wrapped):
        self.form, self.wrapped = form, wrapped

    def open(self, context):
        self.v = context.get_state(V)

    async def process_element(self, row, ctx):
        yield await _observed(self.form, self.wrapped, self.v.async_value)


async def _observed(form, wrapped, make):
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        result = await form((lambda: _awaits(make)) if wrapped else make)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is compared
        found = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        result = [type(one).__name__ for one in found]
    return result, round(clock() - began, 3)


def _plain():
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(READ_S, lambda: future.done() or future.set_result(0))
    return future


@pytest.mark.parametrize("wrapped", [False, True], ids=["read", "coroutine"])
@pytest.mark.parametrize("form", FORMS)
def test_scopes_end_waits_for_state(form, wrapped):
    time = VirtualTime(VirtualClock())
    oracle = time.run(lambda: time._runner.run(_observed(form, wrapped, _plain)))
    time.close()
    job = slow_job()
    assert job.run(Scoped(form, wrapped), [("a",)]) == [oracle]
    job.close()
