"""Errors show the lines of user code, on every backend, also if their text is not UTF-8."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import pytest

from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import FunctionError
from forebay_state_api.plugins import Plugins
from forebay_testing.reference import ReferenceBackend

COUNT = ValueStateDescriptor("n", int, default=0)
PRICES = {"b": 1}


class Row(NamedTuple):
    user: str


def price(user):
    return PRICES[user]  # the line


class Function(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)


class Plain(Function):
    def process_element(self, row, ctx):
        return [(price(row.user),)]


class Generator(Function):
    def process_element(self, row, ctx):
        yield (price(row.user),)


class Coroutine(Function):
    async def process_element(self, row, ctx):
        await self.n.async_value()
        return [(price(row.user),)]


class AsyncGenerator(Function):
    async def process_element(self, row, ctx):
        await self.n.async_value()
        yield (price(row.user),)


class Callback(Function):
    def process_element(self, row, ctx):
        self.n.async_value().then_accept(lambda _: price(row.user))


class Open(Function):
    def open(self, context):
        price("a")

    def process_element(self, row, ctx):
        return []


class Close(Open):
    def open(self, context):
        pass

    def close(self):
        price("a")


class Timer(Function):
    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(hours=1))

    async def on_timer(self, time, ctx):
        await self.n.async_value()
        price("a")


class Reducer(KeyedProcessFunction):
    def open(self, context):
        reducer = lambda a, b: price("a")
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", reducer, int))

    def process_element(self, row, ctx):
        self.sum.add(1)
        self.sum.add(2)
        self.sum.get()


class AsyncReducer(Reducer):
    async def process_element(self, row, ctx):
        await self.sum.async_add(1)
        await self.sum.async_add(2)
        await self.sum.async_get()


class Prices(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return price("a")

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Aggregator(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_aggregating_state(AggregatingStateDescriptor("s", Prices(), int))

    async def process_element(self, row, ctx):
        await self.sum.async_add(1)


FUNCTIONS = [
    Plain,
    Generator,
    Coroutine,
    AsyncGenerator,
    Callback,
    Open,
    Close,
    Timer,
    Reducer,
    AsyncReducer,
    Aggregator,
]
BACKENDS = {
    "heap": {"backend": "heap"},
    "lsm": {"backend": "lsm"},
    "reference": {"backend": "reference", "backend_options": {"read-latency": "1ms"}},
    "late": {"late_answers": 1},
}


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    installed = Plugins.backend

    def backend(self, name):
        return ReferenceBackend if name == "reference" else installed(self, name)

    monkeypatch.setattr(Plugins, "backend", backend)
    return BACKENDS[request.param]


def run(function, **options):
    with FunctionHarness(function, "user", **options) as harness:
        harness.process([Row("a")])
        harness.clock.advance(timedelta(hours=2))
        harness.process([Row("a")])


def failure(function, **options):
    with pytest.raises(FunctionError) as caught:
        run(function, **options)
    return caught.value


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_text_ends_with_the_users_lines(function, backend):
    error = failure(function(), **backend)
    first, *frames = str(error).splitlines()
    assert first.endswith("raised KeyError: 'a'")
    assert any(f'File "{__file__}", line' in line and "in price" in line for line in frames)
    assert "return PRICES[user]  # the line" in str(error)
    assert "forebay_state_api" not in str(error)
    assert isinstance(error.__cause__, KeyError)


class Chained(Function):
    def process_element(self, row, ctx):
        try:
            price(row.user)
        except KeyError as error:
            raise ValueError("no price") from error


def test_the_lines_of_causes_follow():
    text = str(failure(Chained()))
    assert text.index("raised ValueError: no price") < text.index("in process_element")
    assert text.index("in process_element") < text.index("caused by KeyError: 'a'")
    assert text.index("caused by KeyError: 'a'") < text.index("in price")


class Endless(Function):
    def process_element(self, row, ctx):
        self.process_element(row, ctx)


def test_a_deep_recursion_is_cut_short():
    text = str(failure(Endless()))
    assert "RecursionError" in text
    assert "self.process_element(row, ctx)" in text
    assert len(text.splitlines()) < 50


class WrongType(Function):
    def process_element(self, row, ctx):
        self.n.update("text")  # the wrong type


def test_a_misuse_of_state_names_the_line_that_misused_it(backend):
    text = str(failure(WrongType(), **backend))
    assert "TypeError" in text.splitlines()[0]
    assert 'self.n.update("text")  # the wrong type' in text.splitlines()[-1]


class Torn(Function):
    def process_element(self, row, ctx):
        raise ValueError("cannot parse \ud83d")


def test_half_a_character_in_the_text_is_escaped():
    error = failure(Torn())
    assert "raised ValueError: cannot parse \\ud83d" in str(error)
    str(error).encode()


class Keeps(KeyedProcessFunction):
    def open(self, context):
        self.texts = context.get_map_state(MapStateDescriptor("texts", str, str))

    async def process_element(self, row, ctx):
        yield (await self.texts.async_get("\ud83d"),)
        await self.texts.async_put("\ud83d", "cut \ud83d")


def test_state_keeps_half_a_character(backend, tmp_path):
    with FunctionHarness(Keeps(), "user", state_dir=tmp_path, **backend) as harness:
        harness.process([Row("a")])
        harness.restart(parallelism=2)
        assert harness.process([Row("a")]) == [("cut \ud83d",)]
