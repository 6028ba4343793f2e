"""Futures (docs/reference/state.md), whether the backend answers at once or later."""

from __future__ import annotations

import asyncio
import threading

import attrs
import pytest

from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.futures import (
    StateFuture,
    combine_all,
    completed_future,
    completed_void_future,
)
from forebay_testing.backends.subject import Recorded

from ..subjects import OnBoth


class TestFutures(OnBoth):
    """Each test runs once with the answer in memory and once with it on storage."""

    @pytest.fixture
    def stored_five(self, new_job, engine_settings):
        """A job whose value state ``v`` is 5 under the key ``k``, in an opened version."""
        job = new_job(ValueStateDescriptor("v", int), settings=engine_settings)
        job.do("k", ("v.update", 5))
        job.restart()
        return job

    @pytest.fixture
    def attempt(self, stored_five):
        """Return a function that runs another one over a record of ``k`` and returns its rows."""

        def run(process, rows=(("k",),)):
            return stored_five.run(Recorded(_opened, process), rows)

        return run

    def test_then_apply(self, attempt):
        assert attempt(lambda f, _, ctx: f.v.async_value().then_apply(lambda v: [v + 1])) == [6]

    def test_then_accept(self, attempt):
        assert attempt(lambda f, _, ctx: f.v.async_value().then_accept(ctx.collect)) == [5]

    def test_then_compose(self, attempt):
        def process(f, row, ctx):
            updated = f.v.async_value().then_compose(lambda v: f.v.async_update(v + 1))
            updated.then_compose(lambda _: f.v.async_value()).then_accept(ctx.collect)

        assert attempt(process) == [6]

    def test_then_combine(self, attempt):
        def process(f, row, ctx):
            f.v.async_value().then_combine(completed_future("x"), lambda v, x: ctx.collect((v, x)))

        assert attempt(process) == [(5, "x")]

    @pytest.mark.parametrize("limit", [3, 9])
    def test_the_conditional_forms(self, attempt, limit):
        async def process(f, row, ctx):
            seen = []

            def large(value):
                return value > limit

            asked = f.v.async_value
            applied = await asked().then_conditionally_apply(large, lambda v: v * 10, lambda v: -v)
            alone = await asked().then_conditionally_apply(large, lambda v: v * 10)
            accepted = await asked().then_conditionally_accept(
                large, lambda v: seen.append("large"), lambda v: seen.append("small")
            )
            quiet = await asked().then_conditionally_accept(large, lambda v: seen.append("again"))
            composed = await asked().then_conditionally_compose(
                large, lambda v: completed_future("yes"), lambda v: completed_future("no")
            )
            bare = await asked().then_conditionally_compose(
                large, lambda v: completed_future("yes")
            )
            return [(applied, alone, accepted, quiet, composed, bare, seen)]

        if limit == 3:
            yes = ((True, 50), (True, 50), True, True, (True, "yes"), (True, "yes"))
            assert attempt(process) == [(*yes, ["large", "again"])]
        else:
            no = ((False, -5), (False, None), False, False, (False, "no"), (False, None))
            assert attempt(process) == [(*no, ["small"])]

    def test_a_future_is_awaitable(self, attempt):
        async def process(f, row, ctx):
            first, second = await f.v.async_value(), await f.v.async_value()
            await completed_void_future()
            return [first, second]

        assert attempt(process) == [5, 5]

    def test_callbacks_run_in_the_order_of_registration(self, attempt):
        def process(f, row, ctx):
            future = f.v.async_value()
            for number in range(5):
                future.then_accept(lambda _, number=number: ctx.collect(number))

        assert attempt(process) == [0, 1, 2, 3, 4]

    def test_callbacks_run_on_the_task_thread_with_the_context_of_the_record(self, attempt):
        threads = set()

        def process(f, row, ctx):
            def seen(_):
                threads.add(threading.get_ident())
                ctx.collect((row, ctx.current_key, ctx.current_namespace))

            ctx.set_current_namespace(row[1])
            f.v.async_value().then_compose(lambda _: f.v.async_value()).then_accept(seen)

        rows = [(f"k{n % 3}", f"w{n}") for n in range(9)]
        assert sorted(attempt(process, rows)) == sorted((row, *row) for row in rows)
        assert threads == {threading.get_ident()}

    def test_composing_something_else_than_a_future(self, attempt):
        with pytest.raises(FunctionError, match="then_compose") as failure:
            attempt(lambda f, row, ctx: f.v.async_value().then_compose(lambda v: v))
        assert isinstance(failure.value.__cause__, TypeError)

    def test_combining_all(self, attempt):
        async def process(f, row, ctx):
            mixed = [f.v.async_value(), completed_future("x"), f.v.async_value()]
            return [await combine_all([]), await combine_all(mixed)]

        assert attempt(process) == [[], [5, "x", 5]]

    def test_a_none_among_the_futures(self, attempt):
        with pytest.raises(FunctionError) as failure:
            # The test needs what type checkers refuse.
            attempt(lambda f, row, ctx: combine_all([f.v.async_value(), None]))
        assert isinstance(failure.value.__cause__, ValueError)

    @pytest.mark.parametrize("seconds", [0, 0.001])
    def test_awaiting_a_sleep_in_a_plain_method(self, attempt, seconds):
        async def process(f, row, ctx):
            before = await f.v.async_value()
            await asyncio.sleep(seconds)
            return [before, await f.v.async_value()]

        assert attempt(process) == [5, 5]

    def test_awaiting_a_gather_in_a_plain_method(self, attempt):
        async def process(f, row, ctx):
            return list(await asyncio.gather(f.v.async_value(), asyncio.sleep(0, 7)))

        assert attempt(process) == [5, 7]

    def test_a_future_that_another_thread_completes(self, attempt):
        threads = []

        async def process(f, row, ctx):
            answer = StateFuture()
            threads.append(threading.Thread(target=answer.complete, args=(7,)))
            threads[-1].start()
            value = await answer
            assert threading.current_thread() is threading.main_thread()
            return [(value, await f.v.async_value(), ctx.current_key)]

        rows = [("k",), ("other",), ("k",)]
        assert sorted(attempt(process, rows), key=repr) == [
            (7, 5, "k"),
            (7, 5, "k"),
            (7, None, "other"),
        ]
        for thread in threads:
            thread.join()

    def test_a_future_that_nobody_completes_fails_the_batch(
        self, stored_five, attempt, engine_settings
    ):
        stored_five.settings = attrs.evolve(engine_settings, drain_timeout_s=0.01)

        async def process(f, row, ctx):
            await f.v.async_value()
            await StateFuture()

        with pytest.raises(FunctionError, match=r"Recorded\.process_element.*key 'k'.*nobody"):
            attempt(process)

    @pytest.mark.parametrize("style", ["method", "callback", "coroutine"])
    def test_an_exception_fails_the_task_and_says_where(self, attempt, stored_five, style):
        def fail(_):
            raise LookupError("boom")

        async def coroutine(f, row, ctx):
            f.v.update(6)
            await f.v.async_value()
            fail(row)

        functions = {
            "method": lambda f, row, ctx: f.v.update(6) or fail(row),
            "callback": lambda f, row, ctx: f.v.async_update(6).then_compose(
                lambda _: f.v.async_value().then_accept(fail)
            ),
            "coroutine": coroutine,
        }
        with pytest.raises(FunctionError) as failure:
            attempt(functions[style])
        message = str(failure.value)
        for part in ("Recorded.process_element", "'operator'", "'k'", "batch 1", "partition 0"):
            assert part in message
        assert isinstance(failure.value.__cause__, LookupError)
        assert stored_five.do("k", ("v.value",)) == [5], "nothing was committed"

    def test_there_is_no_way_to_block(self):
        for name in ("get", "join", "wait"):
            assert not hasattr(StateFuture, name)


def _opened(function, context):
    function.v = context.get_state(ValueStateDescriptor("v", int))
