"""The forms in which functions are written, and the rows that they may emit."""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest

from forebay_engine.execution.record_methods import flat_map_callable, map_callable
from forebay_state_api import (
    ConfigurationError,
    FlatMapFunction,
    FunctionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ValueStateDescriptor,
    completed_future,
)

ROWS = [(key, number) for number in range(3) for key in "ab"]
COUNTED = sorted((key, number + 1) for key, number in ROWS)


class Counting(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))


class Plain(Counting):
    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        return [(row[0], self.n.value())]


class Tuples(Counting):
    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        return {(row[0], self.n.value())}


class Generator(Counting):
    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row[0], self.n.value()


class Coroutine(Counting):
    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        return [(row[0], n)]


class CoroutineThatCollects(Counting):
    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        ctx.collect((row[0], n))


class AsyncGenerator(Counting):
    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        yield row[0], n


class Callbacks(Counting):
    def process_element(self, row, ctx):
        def counted(n):
            return self.n.async_update(n).then_accept(lambda _: ctx.collect((row[0], n)))

        self.n.async_value().then_apply(lambda n: n + 1).then_compose(counted)


class ReturnedFuture(Counting):
    def process_element(self, row, ctx):
        added = self.n.async_value().then_apply(lambda n: n + 1)
        return added.then_compose(
            lambda n: self.n.async_update(n).then_apply(lambda _: [(row[0], n)])
        )


class Mixed(Counting):
    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        self.n.update(n)
        assert self.n.value() == n
        yield row[0], n


class Disguised(Counting):
    """Returns a coroutine, which its signature does not show."""

    def process_element(self, row, ctx):
        return Coroutine.process_element(self, row, ctx)


class DisguisedGenerator(Counting):
    def process_element(self, row, ctx):
        return AsyncGenerator.process_element(self, row, ctx)


FORMS = [
    Plain,
    Tuples,
    Generator,
    Coroutine,
    CoroutineThatCollects,
    AsyncGenerator,
    Callbacks,
    ReturnedFuture,
    Mixed,
    Disguised,
    DisguisedGenerator,
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limits", [{}, {"in_flight_limit": 1, "batch_size": 1}], ids=["", "tight"])
@pytest.mark.parametrize("read_ahead", [True, False])
def test_every_form_counts_alike(new_job, form, limits, read_ahead):
    job = new_job(read_ahead=read_ahead, uid=form.__name__, **limits)
    assert sorted(job.run(form(), ROWS)) == COUNTED
    job.restart()
    assert sorted(job.run(form(), ROWS)) == sorted((key, n + 3) for key, n in COUNTED)


class Left(NamedTuple):
    key: str
    value: int


class Joined(KeyedCoProcessFunction):
    """The left side in coroutines, the right side in callbacks."""

    def open(self, context):
        self.left = context.get_state(ValueStateDescriptor("left", int))

    async def process_element1(self, row, ctx):
        before = await self.left.async_value()
        await self.left.async_update(row.value)
        return [("left", row.key, before)]

    def process_element2(self, row, ctx):
        self.left.async_value().then_accept(lambda v: ctx.collect(("right", row[0], v)))


def test_two_inputs_share_their_state_by_key(job):
    out = job.run(Joined(), [Left("a", 1), Left("b", 2), Left("a", 3)], [("a",), ("c",)])
    assert sorted(out, key=repr) == [
        ("left", "a", 1),
        ("left", "a", None),
        ("left", "b", None),
        ("right", "a", 3),
        ("right", "c", None),
    ]


def coroutine_map(row):
    async def mapped():
        return (row[0], "mapped")

    return mapped()


async def async_map(row):
    return (row[0], "mapped")


async def async_generator_map(row):
    yield (row[0], "mapped")


def generator_map(row):
    yield (row[0], "mapped")


class Callable:
    async def __call__(self, row):
        return (row[0], "mapped")


@pytest.mark.parametrize(
    "fn",
    [
        lambda row: (row[0], "mapped"),
        lambda row: completed_future((row[0], "mapped")),
        coroutine_map,
        async_map,
        async_generator_map,
        generator_map,
        Callable(),
        functools.partial(async_map),
    ],
)
def test_a_map_function_gives_one_row(job, fn):
    assert job.run(map_callable(fn), [("a",), ("b",)]) == [("a", "mapped"), ("b", "mapped")]

    class Mapped(MapFunction):
        def map(self, row):
            return fn(row)

    assert job.run(Mapped(), [("a",)]) == [("a", "mapped")]


@pytest.mark.parametrize("row", [{"a": 1}, Left("a", 1)])
def test_a_row_may_be_a_dict_or_a_named_tuple(job, row):
    assert job.run(map_callable(lambda _: row), [("a",)]) == [row]
    assert job.run(lambda _, ctx: [row], [("a",)]) == [row]


async def two_rows(row):
    yield row
    yield row


@pytest.mark.parametrize(
    "fn",
    [lambda row: None, lambda row: [row], lambda row: (r for r in (row, row)), two_rows],
    ids=["none", "list", "generator of two", "asynchronous generator of two"],
)
def test_a_map_function_gives_exactly_one_row(job, fn):
    with pytest.raises(FunctionError, match="one") as failure:
        job.run(map_callable(fn), [("a",)])
    assert isinstance(failure.value.__cause__, TypeError)


def test_flat_map(job):
    assert (
        job.run(flat_map_callable(lambda row: [row] * row[1]), [("a", 2), ("b", 0)])
        == [("a", 2)] * 2
    )
    assert job.run(flat_map_callable(two_rows), [("a", 1)]) == [("a", 1)] * 2

    class Doubled(FlatMapFunction):
        async def flat_map(self, row):
            return [row, row]

    assert job.run(Doubled(), [("a", 1)]) == [("a", 1)] * 2


@pytest.mark.parametrize("bare", [("a", 1), {"a": 1}, Left("a", 1), "text", b"bytes", 5, object()])
@pytest.mark.parametrize("form", ["plain", "coroutine"])
def test_a_bare_row_says_what_to_write(job, bare, form):
    async def coroutine(row, ctx):
        return bare

    function = coroutine if form == "coroutine" else lambda row, ctx: bare
    with pytest.raises(FunctionError, match=r"\[row\].*yield.*ctx\.collect") as failure:
        job.run(function, [("a",)])
    assert isinstance(failure.value.__cause__, TypeError)


def test_none_and_empty_results_give_nothing_out(job):
    assert job.run(lambda row, ctx: None, [("a",)]) == []
    assert job.run(lambda row, ctx: [], [("a",)]) == []


@pytest.mark.parametrize("wrong", [5, "text", Plain, None])
def test_what_is_no_function_is_refused(job, wrong):
    with pytest.raises(ConfigurationError, match="callable"):
        job.run(wrong, [("a",)])


def test_adapters_are_named_after_the_users_function(job):
    def explode(row):
        raise LookupError(row)

    with pytest.raises(FunctionError, match=r"explode\.map \("):
        job.run(map_callable(explode), [("a",)])
    with pytest.raises(FunctionError, match=r"explode\.flat_map \("):
        job.run(flat_map_callable(explode), [("a",)])
