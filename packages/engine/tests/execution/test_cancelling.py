"""Waits for state end when they are cancelled, as asyncio's own futures do.

Each test runs a coroutine twice on a clock of its own: with futures of asyncio, which is the
oracle, and in a record, with futures of a state whose reads take two seconds. Results, errors and
times agree.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any
from unittest.mock import Mock

import pytest

from forebay_state_api import KeyedProcessFunction, StateFuture, ValueStateDescriptor, combine_all
from forebay_testing import VirtualClock
from forebay_testing.slow_backend import READ_S, slow_job
from forebay_testing.virtual_clock import VirtualTime

V = ValueStateDescriptor("v", int, default=0)
W = ValueStateDescriptor("w", int, default=0)

EARLY_S = 0.5

Make = Callable[[], Awaitable[Any]]
"""Makes what a form awaits: a future, or a coroutine that waits for one."""


class Waits(KeyedProcessFunction[Any, Any, Any]):
    """Emits what ``work(self)`` gives or raises, and when."""

    def __init__(self, work: Callable[[Waits], Awaitable[Any]]) -> None:
        self.work = work

    def open(self, context: Any) -> None:
        self.v = context.get_state(V)
        self.w = context.get_state(W)
        self.tasks: list[Any] = []

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield await observed(self.work(self))


async def observed(work: Awaitable[Any]) -> tuple[Any, float]:
    """Return the result or the error of ``work``, and the seconds that it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        result: Any = await work
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is compared
        result = shown(error)
    return result, round(clock() - began, 3)


def shown(error: Any) -> Any:
    """Return an error, or a result that may be one, so that it can be compared."""
    if isinstance(error, BaseExceptionGroup):
        return [shown(one) for one in error.exceptions]
    return repr(error) if isinstance(error, BaseException) else error


def in_a_record(work: Callable[[Waits], Awaitable[Any]]) -> tuple[Any, float]:
    running = slow_job()
    try:
        (row,) = running.run(Waits(work), [("a",)])
    finally:
        running.close()
    return row


def by_asyncio(work: Callable[[Any], Awaitable[Any]]) -> tuple[Any, float]:
    """Run ``work`` as a task of asyncio's, on a clock of the same kind."""
    time = VirtualTime(VirtualClock())
    try:
        return time.run(lambda: time._runner.run(observed(work(None))))
    finally:
        time.close()


# -- what is waited for -------------------------------------------------------------------------


def _plain(_: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(READ_S, lambda: future.done() or future.set_result(0))
    return future


def _own(f: Any) -> Any:
    future: StateFuture[int] = StateFuture()

    async def completes() -> None:
        await asyncio.sleep(READ_S)
        future.complete(0)

    f.tasks.append(asyncio.ensure_future(completes()))
    return future


async def _slept(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


FUTURES: dict[str, Callable[[Any], Any]] = {
    "a read": lambda f: f.v.async_value(),
    "a chained read": lambda f: f.v.async_value().then_apply(abs),
    "a read chained to a coroutine": lambda f: f.v.async_value().then_apply(_slept),
    "combined reads": lambda f: combine_all([f.v.async_value(), f.w.async_value()]).then_apply(sum),
    "a future of the user's": _own,
}


async def _awaits(make: Make) -> Any:
    return await make()


async def _awaits_children(make: Make) -> Any:
    one, two = await asyncio.gather(_awaits(make), _awaits(make))
    return one + two


WRAPPED: dict[str, Callable[[Make], Make]] = {
    "itself": lambda make: make,
    "in a coroutine": lambda make: partial(_awaits, make),
    "in children of a coroutine": lambda make: partial(_awaits_children, make),
}

# -- how it is waited for -----------------------------------------------------------------------


def _kinds(futures: Any) -> list[Any]:
    return sorted(
        "cancelled" if one.cancelled() else shown(one.exception() or one.result())
        for one in futures
    )


async def _gather(make: Make) -> Any:
    return await asyncio.gather(make(), asyncio.sleep(1))


async def _gather_returned(make: Make) -> Any:
    return [shown(one) for one in await asyncio.gather(make(), make(), return_exceptions=True)]


async def _gather_beside_a_failure(make: Make) -> Any:
    return await asyncio.gather(make(), _fails())


async def _fails() -> None:
    await asyncio.sleep(EARLY_S / 2)
    raise ValueError("beside")


async def _wait_for(make: Make) -> Any:
    return await asyncio.wait_for(make(), 1)


async def _wait_for_at_once(make: Make) -> Any:
    return await asyncio.wait_for(make(), 0)


async def _wait(make: Make) -> Any:
    done, pending = await asyncio.wait([asyncio.ensure_future(make())], timeout=1)
    return len(done), len(pending)


async def _wait_first(make: Make) -> Any:
    waits = {asyncio.ensure_future(make()), asyncio.ensure_future(asyncio.sleep(1, 1))}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel()
    await asyncio.wait(pending)
    return _kinds(done), _kinds(pending)


async def _timeout(make: Make) -> Any:
    async with asyncio.timeout(1):
        return await make()


async def _timeout_past(make: Make) -> Any:
    async with asyncio.timeout(-1):
        return await make()


async def _two_timeouts(make: Make) -> Any:
    try:
        async with asyncio.timeout(1):
            async with asyncio.timeout(1):
                return await make()
    finally:
        await asyncio.sleep(0.25)


async def _again_after_a_timeout(make: Make) -> Any:
    try:
        async with asyncio.timeout(0.25):
            return await make()
    except TimeoutError:
        return "again", await make()


async def _shield(make: Make) -> Any:
    return await asyncio.shield(make())


async def _shield_in_time(make: Make) -> Any:
    inner = asyncio.ensure_future(make())
    try:
        return await asyncio.wait_for(asyncio.shield(inner), 0.25)
    except TimeoutError:
        return "goes on", await inner


async def _group(make: Make) -> Any:
    async with asyncio.TaskGroup() as group:
        one = group.create_task(_awaits(make))
        two = group.create_task(_awaits(make))
    return one.result(), two.result()


async def _group_beside_a_failure(make: Make) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_awaits(make))
        group.create_task(_fails())
        await make()


async def _as_completed(make: Make) -> Any:
    return [await one for one in asyncio.as_completed([make(), asyncio.sleep(1, 1)])]


async def _as_completed_in_time(make: Make) -> Any:
    return [await one for one in asyncio.as_completed([make(), asyncio.sleep(0.5, 1)], timeout=1)]


async def _in_finally(make: Make) -> Any:
    try:
        await asyncio.sleep(10)
    finally:
        await make()


async def _suppressed(make: Make) -> Any:
    try:
        await make()
    except asyncio.CancelledError as error:
        return "suppressed", shown(error), await make()


FORMS: dict[str, Callable[[Make], Awaitable[Any]]] = {
    name.removeprefix("_"): form
    for name, form in {
        "await": _awaits,
        **{
            form.__name__: form
            for form in (
                *(_gather, _gather_returned, _gather_beside_a_failure),
                *(_wait_for, _wait_for_at_once, _wait, _wait_first),
                *(_timeout, _timeout_past, _two_timeouts, _again_after_a_timeout),
                *(_shield, _shield_in_time, _group, _group_beside_a_failure),
                *(_as_completed, _as_completed_in_time, _in_finally, _suppressed),
            )
        },
    }.items()
}

# -- who cancels --------------------------------------------------------------------------------


def _at(call: Callable[..., object], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(EARLY_S, call, *arguments)


async def _nobody(wait: Callable[[], Any]) -> Any:
    return await wait()


async def _a_timeout(wait: Callable[[], Any]) -> Any:
    async with asyncio.timeout(EARLY_S):
        return await wait()


async def _wait_fors_timeout(wait: Callable[[], Any]) -> Any:
    return await asyncio.wait_for(wait(), EARLY_S)


async def _a_timer_the_task(wait: Callable[[], Any]) -> Any:
    task: Any = asyncio.current_task()
    _at(task.cancel, "by a timer")
    return await wait()


async def _a_timer_a_child(wait: Callable[[], Any]) -> Any:
    task = asyncio.ensure_future(wait())
    _at(task.cancel, "by a timer")
    return await task


async def _a_timer_a_gather(wait: Callable[[], Any]) -> Any:
    both = asyncio.gather(wait(), wait())
    _at(both.cancel, "by a timer")
    return await both


async def _a_child_the_task(wait: Callable[[], Any]) -> Any:
    task: Any = asyncio.current_task()

    async def child() -> None:
        await asyncio.sleep(EARLY_S)
        task.cancel("by a child")

    beside = asyncio.ensure_future(child())
    try:
        return await wait()
    finally:
        await beside


async def _itself_before(wait: Callable[[], Any]) -> Any:
    task: Any = asyncio.current_task()
    task.cancel("before")
    return await wait()


async def _a_failing_sibling(wait: Callable[[], Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())
        return await wait()


async def _a_failing_sibling_of_a_child(wait: Callable[[], Any]) -> Any:
    async with asyncio.TaskGroup() as group:
        group.create_task(_fails())
        group.create_task(wait())


CANCELLERS = {
    one.__name__.removeprefix("_"): one
    for one in (
        *(_nobody, _a_timeout, _wait_fors_timeout, _a_timer_the_task, _a_timer_a_child),
        *(_a_timer_a_gather, _a_child_the_task, _itself_before, _a_failing_sibling),
        _a_failing_sibling_of_a_child,
    )
}


def _work(form: Any, canceller: Any, wrap: Any, future: Any) -> Callable[[Any], Awaitable[Any]]:
    return lambda f: canceller(lambda: form(wrap(lambda: future(f))))


@cache
def oracle(form: str, by: str, wrapped: str) -> tuple[Any, float]:
    """Return how the same wait for a future of asyncio's ends; it is the same for all requests."""
    return by_asyncio(_work(FORMS[form], CANCELLERS[by], WRAPPED[wrapped], _plain))


WAITED = {
    f"{waited}, {wrapped}": (wrapped, future)
    for waited, future in FUTURES.items()
    for wrapped in WRAPPED
}
USUAL = {"a read, itself", "a read, in children of a coroutine", "a chained read, in a coroutine"}


@pytest.mark.parametrize(
    "waited",
    [one if one in USUAL else pytest.param(one, marks=pytest.mark.long) for one in WAITED],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_wait_for_state_ends_as_one_for_a_future_of_asyncio(form: str, waited: str) -> None:
    wrapped, future = WAITED[waited]
    differing = {}
    for by, canceller in CANCELLERS.items():
        if form == "timeout_past" and by == "itself_before":
            continue  # both are for the next turn of the loop: which is first is nobody's promise
        expected = oracle(form, by, wrapped)
        got = in_a_record(_work(FORMS[form], canceller, WRAPPED[wrapped], future))
        if got != expected:
            differing[by] = got, expected
    assert differing == {}


async def _a_write_behind_a_read(f: Waits) -> Any:
    async with asyncio.timeout(EARLY_S):
        await asyncio.gather(f.v.async_value(), f.w.async_update(1), f.w.async_value())


def test_requests_behind_a_slow_one_are_cancelled_with_it() -> None:
    assert in_a_record(_a_write_behind_a_read) == ("TimeoutError()", EARLY_S)


async def _await_again(f: Waits) -> Any:
    future = f.v.async_value()
    for wait in (asyncio.wait_for(future, EARLY_S), asyncio.gather(future)):
        try:
            async with asyncio.timeout(EARLY_S):
                await wait
        except (TimeoutError, asyncio.CancelledError):
            continue
    assert future.cancelled()
    return await asyncio.gather(_awaits(lambda: future)), await future


def test_a_later_await_of_a_cancelled_future_gives_its_result() -> None:
    assert in_a_record(_await_again) == (([0], 0), READ_S)


async def _cancels_the_future(f: Waits) -> Any:
    future = f.v.async_value()
    child = asyncio.ensure_future(_awaits(lambda: future))
    _at(future.cancel, "itself")
    try:
        await future
    except asyncio.CancelledError as error:
        return shown(error), future.cancelled(), await asyncio.wait([child]), child.cancelled()


def test_cancelling_a_future_ends_all_waits_for_it() -> None:
    (error, *cancelled), seconds = in_a_record(_cancels_the_future)
    assert (error, cancelled[0], cancelled[2], seconds) == (
        "CancelledError('itself')",
        True,
        True,
        EARLY_S,
    )


async def _cancelled_in_each_turn(f: Waits) -> Any:
    task: Any = asyncio.current_task()

    def cancel() -> None:
        if not ended:
            task.cancel("again")
            asyncio.get_running_loop().call_soon(cancel)

    ended: list[bool] = []
    _at(cancel)
    try:
        await asyncio.gather(f.v.async_value(), asyncio.sleep(30))
    finally:
        ended.append(True)


def test_a_gather_is_not_logged_that_is_cancelled_in_each_turn_as_anyio_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = Mock(v=Mock(async_value=lambda: _plain(None)))
    ended = in_a_record(_cancelled_in_each_turn)
    gc.collect()
    assert ended == by_asyncio(lambda _: _cancelled_in_each_turn(states))
    assert caplog.messages == []


async def _nobodys(f: Any) -> Any:
    return await StateFuture()


async def _alone(_: Any) -> Any:
    async with asyncio.timeout(EARLY_S):
        await StateFuture()


async def _in_a_child(f: Any) -> Any:
    async with asyncio.timeout(EARLY_S):
        await asyncio.ensure_future(_nobodys(f))


async def _in_a_gather(f: Any) -> Any:
    await asyncio.wait_for(asyncio.gather(StateFuture(), _nobodys(f)), EARLY_S)


async def _by_wait_for(_: Any) -> Any:
    await asyncio.wait_for(StateFuture(), EARLY_S)


@pytest.mark.parametrize("work", [_alone, _in_a_child, _in_a_gather, _by_wait_for])
def test_a_record_ends_although_nobody_completes_what_it_gave_up(work: Any) -> None:
    assert in_a_record(work) == ("TimeoutError()", EARLY_S)
