"""Generators of rows: what they return is an error, in every method and form."""

from __future__ import annotations

import dis
import functools
from datetime import UTC, datetime
from typing import NamedTuple

import cloudpickle
import pytest

from forebay_engine.execution.generators import only_yields
from forebay_engine.execution.record_loops import GENERATOR, PLAIN
from forebay_engine.execution.record_methods import (
    flat_map_callable,
    map_callable,
    record_methods,
)
from forebay_state_api import (
    FlatMapFunction,
    FunctionError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness, ManualClock

COUNT = ValueStateDescriptor("count", int)


class Row(NamedTuple):
    key: str
    value: int = 0


def returning(row, ctx=None):
    if row is None:
        yield row
    return [("row", 1)]


def yielding(row, ctx=None):
    if row is None:
        return
    yield "row", 1


def returning_rows_or_none(row, ctx=None):
    yield from ()
    return row.key or None


def returning_futures(row, ctx):
    yield "row", 1
    return ctx.current_key


class Plain(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield from ()
        return [(row.key, 1)]


class Delegating(KeyedProcessFunction):
    """Returns the generator of a method that is no record method."""

    def process_element(self, row, ctx):
        return returning(row)


class DelegatingCoroutine(KeyedProcessFunction):
    async def process_element(self, row, ctx):
        return returning(row)


class Second(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        yield row.key, 1

    def process_element2(self, row, ctx):
        yield from ()
        return [(row.key, 2)]


class Broadcast(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        yield row.key, 1

    def process_broadcast_element(self, row, ctx):
        yield from ()
        return [(row.key, 2)]


class Visiting(KeyedBroadcastProcessFunction):
    def open(self, context):
        self.count = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.count.update(1)

    def process_broadcast_element(self, row, ctx):
        def visited(key, state):
            yield from ()
            return [(key, state.value())]

        ctx.apply_to_keyed_state(COUNT, visited)


class Timed(KeyedProcessFunction):
    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(ctx.timers.processing_time)

    def on_timer(self, at, ctx):
        yield from ()
        return [(ctx.current_key, at)]


class Flat(FlatMapFunction):
    def flat_map(self, row):
        yield from ()
        return [row]


class One(MapFunction):
    def map(self, row):
        yield row
        return row


class Called:
    def __call__(self, row, ctx):
        yield from ()
        return [row]


FAILING = {
    "process_element": Plain(),
    "a generator that it returns": Delegating(),
    "a generator that a coroutine returns": DelegatingCoroutine(),
    "on_timer": Timed(),
    "flat_map": Flat(),
    "map": One(),
    "a function": returning,
    "an object": Called(),
    "a partial function": functools.partial(returning),
    "a function with rows or None": returning_rows_or_none,
    "a function of a row": flat_map_callable(lambda row: [*()] or returning(row)),
    "a generator of a row": flat_map_callable(returning),
    "a generator of one row": map_callable(lambda row: (yield (row,)) or row),
}


@pytest.mark.parametrize("on_error", ["fail", "column"])
@pytest.mark.parametrize("name", FAILING)
def test_rows_that_a_generator_returns_are_an_error(name, on_error):
    clock = ManualClock(datetime(2024, 5, 1, tzinfo=UTC))
    with FunctionHarness(FAILING[name], "key", on_error=on_error, clock=clock) as harness:
        if on_error == "column":
            (failed,) = harness.process([Row("a")])
            assert failed.type == "TypeError"
            assert "yield" in failed.message
            return
        with pytest.raises(FunctionError, match=r"the generator .* returned .*`yield row`"):
            harness.process([Row("a")])
        assert harness.version == 0


def test_so_are_those_of_the_second_input():
    with FunctionHarness(Second(), "key") as harness:
        assert harness.process([Row("a")]) == [("a", 1)]
        with pytest.raises(FunctionError, match=r"Second.process_element2 returned .*`yield row`"):
            harness.process([], [Row("a")])


@pytest.mark.parametrize("function", [Broadcast(), Visiting()])
def test_so_are_those_of_a_broadcast_row_and_of_a_visit(function):
    with FunctionHarness(function, "key") as harness:
        harness.process([Row("a")])
        with pytest.raises(FunctionError, match=r"returned .*`yield row`"):
            harness.process([], [Row("x")])


def test_a_generator_may_return_nothing():
    class Sometimes(KeyedProcessFunction):
        def process_element(self, row, ctx):
            if row.value:
                yield row
                return None
            return self.nothing()

        def nothing(self):
            return None

    assert not only_yields(Sometimes.process_element)
    with FunctionHarness(Sometimes(), "key") as harness:
        assert harness.process([Row("a", 1), Row("a", 0)]) == [("a", 1)]


def with_context(row, ctx):
    with memoryview(b"") as nothing:
        for one in nothing:
            if one:
                return
            yield row
    try:
        yield row
    finally:
        del row


@pytest.mark.parametrize("fn", [yielding, functools.partial(yielding), with_context])
def test_a_generator_that_only_yields_costs_no_look(fn):
    assert [method.form for method in record_methods(fn)] == [GENERATOR]
    assert [method.form for method in record_methods(flat_map_callable(fn))] == [GENERATOR]


def test_the_code_of_a_function_is_read_once_for_all_tasks(monkeypatch):
    def of_this_test(row, ctx):
        yield row
        yield row.key

    pickled = cloudpickle.dumps(of_this_test)
    read, instructions = [], dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: read.append(1) or instructions(code))
    for _ in range(3):
        assert [method.form for method in record_methods(cloudpickle.loads(pickled))] == [GENERATOR]
    assert len(read) == 1


@pytest.mark.parametrize("fn", [returning, returning_futures, lambda row, ctx: [row]])
def test_others_are_looked_at(fn):
    assert [method.form for method in record_methods(fn)] == [PLAIN]
