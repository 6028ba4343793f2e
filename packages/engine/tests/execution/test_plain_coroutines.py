"""Plain methods, callables and callbacks that return coroutines, which await anything."""

from __future__ import annotations

import asyncio
import functools
import threading
from datetime import timedelta
from typing import Any

import pytest

from forebay_backend_heap import HeapBackend
from forebay_engine.execution.loop_thread import lend_loop, loop_thread
from forebay_engine.execution.record_methods import flat_map_callable, map_callable
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api import (
    Clients,
    FlatMapFunction,
    FunctionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    StateFuture,
    ValueStateDescriptor,
)
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import FunctionHarness
from forebay_testing.job import KeyedJob

N = ValueStateDescriptor("n", int, default=0)
ROWS = [{"k": str(number % 10)} for number in range(30)]
THREADS: set[str] = set()


@pytest.fixture(autouse=True)
def _no_threads_seen() -> None:
    THREADS.clear()


async def calls(row: Any, ctx: Any = None) -> Any:
    """Use asyncio's tools that need a loop, a task and a turn."""
    THREADS.add(threading.current_thread().name)
    async with asyncio.timeout(100):
        await asyncio.sleep(0.001)
        one, two = await asyncio.gather(asyncio.sleep(0, 1), asyncio.to_thread(lambda: 2))
    return (row["k"], one + two)


async def many(row: Any, ctx: Any = None) -> Any:
    return [await calls(row)]


class Process(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.answers(row, ctx)

    async def answers(self, row: Any, ctx: Any) -> Any:
        return [await ctx.call(calls, row)]


class Rows(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.answers(row)

    async def answers(self, row: Any) -> Any:
        yield await calls(row)


class Both(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, row: Any, ctx: Any) -> Any:
        return many(row)

    def process_element2(self, row: Any, ctx: Any) -> Any:
        return many(row)


class OnTimer(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_processing_time(ctx.timers.processing_time)

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return many({"k": ctx.current_key})


class Callbacks(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    def process_element(self, row: Any, ctx: Any) -> Any:
        read = self.n.async_value()
        called = read.then_compose(lambda n: self.answer(row, n))
        return called.then_apply(lambda answer: [answer])

    async def answer(self, row: Any, n: int) -> Any:
        await self.n.async_update(n + 1)
        return await calls(row)


class Maps(MapFunction[Any, Any]):
    def map(self, row: Any) -> Any:
        return calls(row)


class FlatMaps(FlatMapFunction[Any, Any]):
    def flat_map(self, row: Any) -> Any:
        return many(row)


class CallableObject:
    async def __call__(self, row: Any, ctx: Any) -> Any:
        return await many(row)


FUNCTIONS = {
    "process_element": Process(),
    "generator": Rows(),
    "on_timer": OnTimer(),
    "callback": Callbacks(),
    "map": Maps(),
    "flat_map": FlatMaps(),
    "lambda": lambda row, ctx: many(row),
    "partial": functools.partial(many),
    "callable": CallableObject(),
    "map_callable": map_callable(lambda row: calls(row, None)),
    "flat_map_callable": flat_map_callable(lambda row: many(row, None)),
}


def run(function: Any, *inputs: Any, **options: Any) -> list[Any]:
    with FunctionHarness(function, "k", **options) as harness:
        return sorted(harness.process(*inputs))


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_coroutine_of_a_plain_function_awaits_anything(form: str, backend: str) -> None:
    each = 1 if form == "on_timer" else 3
    expected = sorted([(str(key), 3) for key in range(10)] * each)
    assert run(FUNCTIONS[form], ROWS, backend=backend) == expected


def test_both_methods_of_two_inputs_return_coroutines() -> None:
    assert len(run(Both(), ROWS, ROWS)) == 60


def test_a_lent_loop_goes_on_with_its_thread() -> None:
    """As on Spark: the first piece of work borrows the loop, the others run on its thread."""
    subtask = KeyedJob(HeapBackend, MemoryStorage("memory://lent")).subtask(Process())
    subtask._lend_loop = lend_loop
    subtask.begin()
    assert not subtask.awaits_anything
    keys, groups, own = [row["k"] for row in ROWS], [0] * len(ROWS), loop_thread().call
    subtask.process(ROWS, keys, groups)
    assert subtask.awaits_anything
    assert {threading.current_thread().name} == THREADS
    subtask.give_loop_back()
    own(subtask.process, ROWS, keys, groups)
    own(subtask.drain)
    assert sorted(own(subtask.take_rows)) == sorted([(str(key), 3) for key in range(10)] * 6)
    own(subtask.commit)
    own(subtask.close)
    assert "forebay-loop" in THREADS


class TimersFirst(KeyedProcessFunction[Any, Any, Any]):
    """Its timers return coroutines, before the rows of the batch run."""

    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(seconds=1))

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return self.answer(ctx)

    async def answer(self, ctx: Any) -> Any:
        for _ in range(100):
            await asyncio.sleep(0)
            THREADS.add(threading.current_thread().name)
        return [(ctx.current_key,)]


def test_a_loop_is_lent_for_the_whole_piece_of_work() -> None:
    """A timer returns the first coroutine, before rows of the same piece of work run."""
    job = KeyedJob(HeapBackend, MemoryStorage("memory://pieces"))
    job.run(TimersFirst(), [("a",)])
    job.clock.advance(timedelta(seconds=2))
    subtask, own = job.subtask(TimersFirst()), loop_thread().call
    subtask._lend_loop = lend_loop
    subtask.begin()
    subtask.process([{"k": "b"}], ["b"], [0])
    assert subtask.awaits_anything
    assert subtask.engine._lent is not None, "the loop's thread would run records meanwhile"
    subtask.drain()
    assert subtask.take_rows() == [("a",)]
    assert {threading.current_thread().name} == THREADS
    subtask.give_loop_back()
    own(subtask.commit)
    own(subtask.close)


class Mixed(Callbacks):
    async def answer(self, row: Any, n: int) -> Any:
        await self.n.async_update(n + 1)
        await asyncio.sleep(0.001)
        if row["k"] == "3":
            raise ValueError("no")
        return row["k"], n


def test_a_callbacks_coroutine_that_fails_takes_its_writes_back() -> None:
    with FunctionHarness(Mixed(), "k", on_error="column") as harness:
        out = harness.process(ROWS)
        assert sum(isinstance(one, FailedRecord) for one in out) == 3
        assert [harness.state(N, key) for key in "234"] == [3, 0, 3]


def test_a_timeout_cancels_a_callbacks_coroutine() -> None:
    async def waits(row: Any) -> None:
        await asyncio.Event().wait()

    with (
        FunctionHarness(lambda row, ctx: waits(row), "k", record_timeout=0.01) as harness,
        pytest.raises(FunctionError, match=r"record_timeout=0\.01 s: it waits for <Future"),
    ):
        harness.process(ROWS)


def test_where_a_loop_runs_the_subtask_has_a_thread_of_its_own() -> None:
    async def in_a_notebook() -> list[Any]:
        return run(lambda row, ctx: many(row), ROWS)

    assert len(asyncio.run(in_a_notebook())) == 30
    assert {"forebay-loop"} == THREADS


class Nested(KeyedProcessFunction[Any, Any, Any]):
    """A method whose callbacks' coroutines keep the current task while it has a time limit."""

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        async with asyncio.timeout(100):
            slow = self.n.async_value().then_compose(lambda n: self.limited(n, 100))
            quick = self.n.async_value().then_compose(lambda n: self.limited(n, 0.001))
            yield row["k"], await slow, await quick

    async def limited(self, n: int, seconds: float) -> str:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(0.05)
        except TimeoutError:
            return "timeout"
        return "answer"


def test_each_coroutine_of_a_record_has_its_own_time_limit() -> None:
    assert run(Nested(), ROWS[:10]) == [(str(key), "answer", "timeout") for key in range(10)]


class Client:
    """A client of the loop on which it is opened."""

    async def __aenter__(self) -> Any:
        self.loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)

    async def ask(self, key: str) -> tuple[str, bool]:
        await asyncio.sleep(0)
        return key, self.loop is asyncio.get_running_loop()


class UsesClient(KeyedProcessFunction[Any, Any, Any]):
    clients = Clients(one=Client)

    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.ask(row, ctx)

    async def ask(self, row: Any, ctx: Any) -> Any:
        yield await ctx.clients.one.ask(row["k"])


def test_a_plain_method_has_clients() -> None:
    assert run(UsesClient(), ROWS[:3]) == [("0", True), ("1", True), ("2", True)]


# -- what goes wrong ----------------------------------------------------------------------------


async def waits_for_ever(row: Any) -> None:
    await asyncio.Event().wait()


def test_the_drain_timeout_names_where_a_coroutine_waits() -> None:
    with (
        FunctionHarness(lambda row, ctx: waits_for_ever(row), "k", drain_timeout=0.05) as harness,
        pytest.raises(FunctionError, match=r"key '0'.*waits for <Future") as raised,
    ):
        harness.process(ROWS[:1])
    assert "in waits_for_ever" in str(raised.value)


def answers_by_a_loop_of_its_own(row: Any, ctx: Any) -> Any:
    return asyncio.run(many(row))


def test_a_plain_function_may_run_a_loop_of_its_own() -> None:
    assert len(run(answers_by_a_loop_of_its_own, ROWS)) == 30


class Unanswered(KeyedProcessFunction[Any, Any, Any]):
    """Plain methods alone: writes, and returns a future that no thread completes in time."""

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.n.async_update(5)
        answer: StateFuture[Any] = StateFuture()
        return answer.then_apply(lambda _: [(row["k"],)])


def test_a_record_without_a_loop_has_a_time_limit_too() -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)  # may complete it, as far as the engine knows
    other.start()
    try:
        options: Any = {"record_timeout": 0.05, "drain_timeout": 100}
        with FunctionHarness(Unanswered(), "k", on_error="column", **options) as harness:
            out = harness.process(ROWS[:3])
            assert [one.type for one in out] == ["RecordTimeoutError"] * 3
            assert harness.state(N, "0") == 0
        with (
            FunctionHarness(Unanswered(), "k", **options) as harness,
            pytest.raises(FunctionError, match=r"took longer than record_timeout=0\.05 s"),
        ):
            harness.process(ROWS[:3])
    finally:
        ended.set()
        other.join(100)
