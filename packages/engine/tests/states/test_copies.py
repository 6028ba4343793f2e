"""Copies (docs/reference/state.md): values passed to or from a state never alias stored ones."""

from __future__ import annotations

import attrs
import pytest

from forebay_state_api.job.aggregation import AggregateFunction
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_testing.backends.subject import Recorded
from forebay_testing.scripts import Style, declared

from ..subjects import OnBoth


@attrs.define
class Basket:
    """A mutable value, which can be changed after it was stored."""

    items: list[str] = attrs.field(factory=list)


class Collected(AggregateFunction[list[int], list[list[int]], list[list[int]]]):
    """Keeps the added values, and changes the accumulator in place."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return accumulator

    def merge(self, first, second):
        return first + second


EXPECTED = [Basket(["apple"]), [[1], [2]], {"q": {"p": [1]}}, [1], [[1]]]
"""The contents of the five states after `_pass_and_change`."""


class TestCopies(OnBoth):
    @pytest.fixture
    def mutable(self, new_job, engine_settings):
        """A job whose states hold mutable values."""
        return new_job(
            ValueStateDescriptor("v", Basket),
            ListStateDescriptor("l", list[int]),
            MapStateDescriptor("m", str, dict[str, list[int]]),
            ReducingStateDescriptor("r", lambda first, second: first + second, list[int]),
            AggregatingStateDescriptor("a", Collected(), list[list[int]]),
            style=Style.SYNCHRONOUS,
            settings=engine_settings,
        )

    def test_changing_what_was_passed_changes_nothing(self, mutable):
        function = Recorded(_declare(mutable), _pass_and_change)
        mutable.run(function, [("k",)])
        assert _read_all(mutable) == EXPECTED

    @pytest.mark.parametrize("crash", [False, True], ids=["committed", "killed"])
    def test_changing_what_was_handed_out_changes_nothing(self, mutable, *, crash):
        mutable.run(Recorded(_declare(mutable), _pass_and_change), [("k",)])
        mutable.run(Recorded(_declare(mutable), _read_and_change), [("k",)], crash=crash)
        assert _read_all(mutable) == EXPECTED

    def test_asynchronous_reads_are_copies_too(self, mutable):
        mutable.run(Recorded(_declare(mutable), _pass_and_change), [("k",)])

        async def read(function, row, ctx):
            (await function.v.async_value()).items.append("x")
            iterator = await function.l.async_get()
            first = [element async for element in iterator]
            first[0].append(9)
            assert [element async for element in iterator] == EXPECTED[1], "consumed again"
            async for _, entry in await function.m.async_items():
                entry["p"].append(9)
            (await function.m.async_get("q"))["p"].append(9)
            (await function.r.async_get()).append(9)
            (await function.a.async_get())[0].append(9)
            assert (await function.v.async_value()).items == ["apple"]
            assert await function.m.async_get("q") == {"p": [1]}

        mutable.run(Recorded(_declare(mutable), read), [("k",)])
        assert _read_all(mutable) == EXPECTED

    def test_changing_what_was_passed_to_an_addition_that_waits(self, mutable):
        mutable.run(Recorded(_declare(mutable), _pass_and_change), [("k",)])

        async def add_and_change(function, row, ctx):
            reduced, aggregated = [2], [2]
            waiting = function.r.async_add(reduced), function.a.async_add(aggregated)
            reduced.append(9)
            aggregated.append(9)
            for one in waiting:
                await one

        mutable.run(Recorded(_declare(mutable), add_and_change), [("k",)])
        assert _read_all(mutable)[3:] == [[1, 2], [[1], [2]]]


def _declare(job):
    def opened(function, context):
        for descriptor in job.descriptors:
            setattr(function, descriptor.name, declared(context, descriptor))

    return opened


def _pass_and_change(function, row, ctx):
    value, elements, entry, number = Basket(["apple"]), [[1], [2]], {"p": [1]}, [1]
    function.v.update(value)
    function.l.add_all(elements)
    function.m.put("q", entry)
    function.r.add(number)
    function.a.add(number)
    value.items.append("pear")
    elements[0].append(9)
    elements.append([9])
    entry["p"].append(9)
    entry["r"] = [9]
    number.append(9)


def _read_and_change(function, row, ctx):
    function.v.value().items.append("x")
    function.l.get()[0].append(9)
    function.l.get().append([9])
    function.m.get("q")["p"].append(9)
    function.m.items()[0][1]["p"].append(9)
    function.m.values()[0].clear()
    function.r.get().append(9)
    function.a.get()[0].append(9)
    assert function.v.value() == EXPECTED[0]
    assert function.m.get("q") == {"p": [1]}


def _read_all(job):
    def read(function, row, ctx):
        states = function.v.value(), function.l.get(), dict(function.m.items())
        return [(*states, function.r.get(), function.a.get())]

    return list(job.run(Recorded(_declare(job), read), [("k",)])[0])
