"""Hints for mistakes that Python's own errors do not explain."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from forebay_state_api import (
    ConfigurationError,
    FunctionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateAccessError,
    StateFuture,
    ValueStateDescriptor,
    combine_all,
)

VALUE = ValueStateDescriptor("v", int)


class Row(NamedTuple):
    user: str
    n: int


ROWS = [Row("a", 1)]


class Base(KeyedProcessFunction):
    def open(self, context):
        self.v = context.get_state(VALUE)
        self.l = context.get_list_state(ListStateDescriptor("l", int))
        self.m = context.get_map_state(MapStateDescriptor("m", str, int))
        self.r = context.get_reducing_state(ReducingStateDescriptor("r", max, int))

    def process_element(self, row, ctx):
        pass

    def on_timer(self, at, ctx):
        pass


def of(body):
    """A coroutine, and a plain method, of one body."""

    class Plain(Base):
        def process_element(self, row, ctx):
            body(self, row, ctx)

    class Coroutine(Base):
        async def process_element(self, row, ctx):
            body(self, row, ctx)

    return [Plain(), Coroutine()]


async def iterate(future):
    async for _ in future:
        pass


def set_total(future):
    future.total = 1


def said(job, function):
    with pytest.raises(FunctionError) as failure:
        job.run(function, ROWS)
    first, *frames = str(failure.value).splitlines()
    assert any("test_error_hints.py" in line for line in frames)
    return first


@pytest.mark.parametrize(
    "use",
    [
        lambda future: future.total,
        set_total,
        lambda future: future.upper(),
        round,
        lambda future: "-".join(["a", *[future]]),
        json.dumps,
        lambda future: iterate(future).send(None),
        "text".startswith,
    ],
    ids=["attribute", "set", "method", "round", "join", "json", "async for", "argument"],
)
def test_of_a_future_that_it_was_not_awaited(job, use):
    for function in of(lambda self, row, ctx: use(self.v.async_value())):
        assert "was not awaited. Write `await " in said(job, function)


@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda f, row, ctx: f.v.get(), "ValueState has clear, update, value, and async_ twins"),
        (lambda f, row, ctx: f.l.append(1), "ListState has add, add_all, clear, get, "),
        (lambda f, row, ctx: len(f.l), "ListState has add, "),
        (lambda f, row, ctx: f.m.async_update({}), "MapState has clear, contains, "),
        (lambda f, row, ctx: f.m.get("a", 0), "get takes the key alone"),
        (lambda f, row, ctx: f.r + 1, "ReducingState has add, "),
        (lambda f, row, ctx: VALUE.value(), "`self.count = context.get_state(descriptor)` in open"),
        (lambda f, row, ctx: ctx.timestamp(), "RuntimeContext has apply_to_keyed_state, "),
        (lambda f, row, ctx: ctx.timers.register(1), "register_processing_time, "),
        (lambda f, row, ctx: ctx.collect("a", 1), "ctx.collect takes one row"),
        (lambda f, row, ctx: combine_all(f.v.async_value(), 1), "combine_all([...])"),
        (lambda f, row, ctx: row["user"], "as in row.user"),
        (lambda f, row, ctx: row.usr, "its columns are user, n"),
        (lambda f, row, ctx: ctx.timers.register_processing_time(5), "processing_time + timedelta"),
        (lambda f, row, ctx: f.l.merge_namespaces("a", "bc"), "a list of namespaces"),
        (lambda f, row, ctx: None + row.n, "give its descriptor default=, or test for"),
        (lambda f, row, ctx: row.n > None, "None is what state without a value reads as"),
        (lambda f, row, ctx: None.upper(), "None is what state without a value reads as"),
        (lambda f, row, ctx: ctx.set_current_namespace(["a"]), "not ['a']: write a tuple"),
        (lambda f, row, ctx: f.l.merge_namespaces("a", [["b"]]), "not ['b']: write a tuple"),
    ],
)  # fmt: skip
def test_of_what_there_is(job, use, hint):
    for function in of(use):
        assert hint in said(job, function)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (lambda f: f.v.update(1), "a method without async_ has answered already"),
        (lambda f: [f.v.async_value()], "combine_all([...])"),
        (lambda f: (f.v.async_value(), f.r.async_get()), "combine_all([...])"),
    ],
)
def test_of_what_cannot_be_awaited(job, body, hint):
    class Waiting(Base):
        async def process_element(self, row, ctx):
            await body(self)

    assert hint in said(job, Waiting())


@pytest.mark.parametrize(
    "use", [list, len, lambda found: found[0], lambda found: "a" in found, max]
)
def test_of_an_iterator_how_it_is_read(job, use):
    class Reading(Base):
        async def process_element(self, row, ctx):
            await self.l.async_add(1)
            use(await self.l.async_get())

    assert "read it with `async for`" in said(job, Reading())


def test_of_the_users_own_errors_nothing_is_added(job):
    class Failing(Base):
        def process_element(self, row, ctx):
            raise ValueError("the StateFuture of 'StateFuture'")

    assert said(job, Failing()).endswith("ValueError: the StateFuture of 'StateFuture'")


class NoContext(Base):
    def process_element(self, row):
        pass


class NoContextAsync(Base):
    async def process_element(self, row):
        pass


class OpenTakesNothing(Base):
    def open(self):
        pass


class TimerTakesNoContext(Base):
    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(datetime(2024, 1, 1, tzinfo=UTC))

    def on_timer(self, at):
        pass


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (NoContext(), "(row, ctx)"),
        (NoContextAsync(), "(row, ctx)"),
        (lambda row: [], "(row, ctx)"),
        (OpenTakesNothing(), "(context)"),
        (TimerTakesNoContext(), "(at, ctx)"),
    ],
    ids=["method", "coroutine", "callable", "open", "on_timer"],
)
def test_how_a_method_is_called_that_does_not_take_what_it_gets(job, function, called):
    with pytest.raises(FunctionError) as failure:
        job.run(function, ROWS)
    assert str(failure.value).endswith(f" - it is called with {called}")


@pytest.mark.parametrize(
    "use",
    [
        lambda f: bool(f.v),
        lambda f: not f.l,
        lambda f: f.v == 0,
        lambda f: f.m != {},
        lambda f: 1 if f.r else 2,
    ],
    ids=["bool", "not", "eq", "ne", "if"],
)
def test_a_state_is_not_its_content(job, use):
    for function in of(lambda self, row, ctx: use(self)):
        with pytest.raises(StateAccessError, match=r"value\(\), get\(\) or is_empty\(\)"):
            job.run(function, ROWS)


def test_a_state_is_itself(job):
    class Itself(Base):
        def process_element(self, row, ctx):
            yield self.v in {self.v: 1}, self.v == self.v

    assert job.run(Itself(), ROWS) == [(True, True)]


@pytest.mark.parametrize("chain", ["then_apply", "then_accept", "then_compose"])
@pytest.mark.parametrize("given", [None, 5, "future"])
def test_what_is_no_function_is_refused_where_it_is_chained(job, chain, given):
    def body(self, row, ctx):
        getattr(self.v.async_value(), chain)(StateFuture() if given == "future" else given)

    for function in of(body):
        assert "chained by a function of its result, not by" in said(job, function)


def yields(_):
    yield 1


async def yields_later(_):
    yield 1


@pytest.mark.parametrize("callback", [yields, yields_later])
def test_what_then_accept_would_never_run_is_refused(job, callback):
    for function in of(lambda self, row, ctx: self.v.async_value().then_accept(callback)):
        with pytest.raises(
            FunctionError, match=r"would run yields.*Give rows out by ctx.collect\(row\)"
        ):
            job.run(function, ROWS)


@pytest.mark.parametrize("method", ["open", "close"])
@pytest.mark.parametrize("form", ["async", "yields"])
def test_the_life_of_a_function_is_plain(job, method, form):
    if form == "async":

        async def live(self, *context): ...

    else:

        def live(self, *context):
            yield

    live.__name__ = method

    class Living(Base):
        pass

    setattr(Living, method, live)
    with pytest.raises(FunctionError, match=f"{method} is a plain method: it neither awaits nor"):
        job.run(Living(), ROWS)


def test_rows_before_the_first_record_are_refused(job):
    class Early(Base):
        def open(self, context):
            context.collect(("x",))

    with pytest.raises(StateAccessError, match=r"Early emitted \('x',\) before the first record"):
        job.run(Early(), ROWS)


def test_a_default_of_another_type_is_called_one(job):
    class Wrong(Base):
        def open(self, context):
            context.get_state(ValueStateDescriptor("w", int, default="0"))

    with pytest.raises(ConfigurationError, match=r"the default= of state 'w' .*expected int"):
        job.run(Wrong(), ROWS)


@pytest.mark.parametrize(
    ("getter", "descriptor", "said_of_it"),
    [
        ("get_state", MapStateDescriptor("m2"), "which is for context.get_map_state"),
        ("get_map_state", ValueStateDescriptor("v2"), "which is for context.get_state"),
        ("get_state", "count", "expected a ValueStateDescriptor, got 'count'"),
    ],
)
def test_another_kind_of_descriptor_is_told_its_method(job, getter, descriptor, said_of_it):
    class Wrong(Base):
        def open(self, context):
            getattr(context, getter)(descriptor)

    assert said_of_it in said(job, Wrong())


def test_an_error_of_forebays_has_the_lines_of_the_user_too(job):
    class Late(Base):
        def process_element(self, row, ctx):
            ctx.get_state(ValueStateDescriptor("late", int))

    with pytest.raises(ConfigurationError, match=r"in open\(\)") as failure:
        job.run(Late(), ROWS)
    (note,) = failure.value.__notes__
    where, *frames = note.splitlines()
    assert "Late.process_element (operator 'operator', key 'a', batch 0, partition 0)" in where
    assert frames[-1].strip() == 'ctx.get_state(ValueStateDescriptor("late", int))'


def test_the_end_of_the_process_is_blamed_as_an_error_is(job):
    for function in of(lambda self, row, ctx: sys.exit(3)):
        assert "raised SystemExit: 3" in said(job, function)
