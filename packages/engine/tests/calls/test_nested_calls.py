"""Calls made within calls: they never wait for a permit that a call around them holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api import (
    Calls,
    ClientBrokenError,
    Clients,
    FunctionError,
    KeyedProcessFunction,
    Rate,
    Retry,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness, VirtualClock

ROWS = [{"k": str(number)} for number in range(4)]
ALL_TAKEN = [1, 2, 4]
"""Limits at which the calls of `ROWS` can take every permit."""


class Server:
    """Answers after a second, and knows how many questions it had at one time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.asked: dict[str, int] = {}

    async def ask(self, question: str, *, failures: int = 0, hangs: int = 0) -> str:
        self.asked[question] = asked = self.asked.get(question, 0) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(1 if asked > hangs else 1_000)
        finally:
            self.now -= 1
        if asked <= failures:
            raise ConnectionError(question)
        return question


Body = Callable[[Server, Any, str], Any]


def run(body: Body, limit: int | None, calls: Calls | None = None, **options: Any) -> Any:
    """Run ``await body(server, ctx, key)`` for each row; return the answers and the server."""
    server = Server()

    class Asks(KeyedProcessFunction[Any, Any, Any]):
        async def process_element(self, row: Any, ctx: Any) -> Any:
            yield row["k"], await body(server, ctx, row["k"])

    Asks.calls = calls or Calls()  # type: ignore[attr-defined]
    with FunctionHarness(
        Asks(), "k", clock=VirtualClock(), calls_in_flight=limit, drain_timeout=10_000, **options
    ) as running:
        running._job._fresh = lambda _: Asks()
        return sorted(running.process(ROWS), key=str), server


async def refreshed(server: Server, ctx: Any, key: str) -> Any:
    """Ask for a token inside of the call that needs it."""

    async def request() -> Any:
        await server.ask(f"stale {key}")
        return await ctx.call(server.ask, f"token {key}")

    return await ctx.call(request)


async def deep(server: Server, ctx: Any, key: str) -> Any:
    """Make calls in calls in calls."""

    async def request(depth: int) -> Any:
        await server.ask(f"{depth} {key}")
        return await ctx.call(request, depth - 1) if depth else f"token {key}"

    return await ctx.call(request, 5)


async def gathered(server: Server, ctx: Any, key: str) -> Any:
    """Make several calls at one time in a call."""

    async def request() -> Any:
        calls = [ctx.call(server.ask, f"token {key}") for _ in range(6)]
        return (await asyncio.gather(*calls))[5]

    return await ctx.call(request)


async def grouped(server: Server, ctx: Any, key: str) -> Any:
    """Make calls in tasks of a call, each of which makes another one."""

    async def inner() -> Any:
        return await ctx.call(server.ask, f"token {key}")

    async def request() -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.call(inner)) for _ in range(6)]
        return tasks[5].result()

    return await ctx.call(request)


async def locked(server: Server, ctx: Any, key: str) -> Any:
    """Make the call of all keys that need it one after another."""

    async def request() -> Any:
        async with server.__dict__.setdefault("lock", asyncio.Lock()):
            return await ctx.call(server.ask, f"token {key}")

    return await ctx.call(request)


@pytest.mark.parametrize("limit", [*ALL_TAKEN, 100, None])
@pytest.mark.parametrize("body", [refreshed, deep, gathered, grouped, locked])
def test_calls_within_calls_end_and_keep_the_limit(body: Body, limit: int | None) -> None:
    rows, server = run(body, limit)
    assert rows == [(row["k"], f"token {row['k']}") for row in ROWS]
    assert limit is None or server.most <= limit


def test_calls_within_a_call_use_the_places_that_are_free() -> None:
    _, server = run(gathered, 10)
    assert server.most == 10


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_both_calls_are_tried_again(limit: int) -> None:
    async def body(server: Server, ctx: Any, key: str) -> Any:
        async def request() -> Any:
            token = await ctx.call(server.ask, f"token {key}", failures=2)
            return token, await server.ask(f"request {key}", failures=1)

        return await ctx.call(request)

    retry = Calls(timeout=1_000, retry=Retry(3, delay=1))
    rows, server = run(body, limit, retry)
    assert rows == [(k, (f"token {k}", f"request {k}")) for k in "0123"]
    assert (
        server.asked["token 0"] == 4
    )  # three tries in the outer call's first one, one in its second
    assert server.most <= limit


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_time_limits_end_the_inner_or_the_outer_call(limit: int) -> None:
    async def body(server: Server, ctx: Any, key: str) -> Any:
        async def request() -> Any:
            try:
                return await ctx.call(server.ask, f"token {key}", hangs=9)
            except TimeoutError:
                return await ctx.call(server.ask, f"again {key}")

        with pytest.raises(TimeoutError):
            await ctx.call(request)
        return await ctx.call(server.ask, f"after {key}")

    rows, server = run(body, limit, Calls(try_timeout=5))
    assert rows == [(k, f"after {k}") for k in "0123"]
    assert server.now == 0


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_the_rate_holds_for_calls_within_calls(limit: int) -> None:
    rows, _ = run(deep, limit, Calls(rate=Rate(1)))
    assert rows == [(k, f"token {k}") for k in "0123"]


def test_a_hedge_within_a_call_needs_a_free_place() -> None:
    async def body(server: Server, ctx: Any, key: str) -> Any:
        async def request() -> Any:
            return await ctx.call(server.ask, f"token {key}", hangs=1)

        return await ctx.call(request)

    calls = Calls(hedge=5, timeout=2_000)
    rows, server = run(body, 8, calls)
    assert rows == [(k, f"token {k}") for k in "0123"]
    assert server.most <= 8
    rows, server = run(body, 4, Calls(hedge=5, try_timeout=10, timeout=99, retry=Retry(1)))
    assert rows == [(k, f"token {k}") for k in "0123"]
    assert server.most <= 4


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_a_failed_call_gives_its_place_back(limit: int) -> None:
    async def body(server: Server, ctx: Any, key: str) -> Any:
        async def request() -> Any:
            calls = [ctx.call(server.ask, f"{n} {key}", failures=n) for n in range(3)]
            return await asyncio.gather(*calls)

        if key != "3":
            return await ctx.call(request)
        with pytest.raises(ConnectionError):
            await ctx.call(request)
        return None

    rows, server = run(body, limit, on_error="column")
    assert [(row.key, row.type) for row in rows if not isinstance(row, tuple)] == [
        (key, "ConnectionError") for key in "012"
    ]
    assert ("3", None) in rows
    assert server.most <= limit


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_a_task_that_outlives_its_call_makes_calls_in_its_place_or_another(limit: int) -> None:
    async def body(server: Server, ctx: Any, key: str) -> Any:
        async def later() -> Any:
            first = await ctx.call(server.ask, f"first {key}")
            return first, await ctx.call(server.ask, f"second {key}")

        async def request() -> Any:
            return [asyncio.create_task(later()) for _ in range(3)]

        tasks = await ctx.call(request)
        return (await asyncio.gather(*tasks))[2]

    rows, server = run(body, limit)
    assert rows == [(k, (f"first {k}", f"second {k}")) for k in "0123"]
    assert server.most == limit


class Connection:
    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.broken = self.opened == 1


@asynccontextmanager
async def connection() -> Any:
    await asyncio.sleep(0)
    yield Connection()


class UsesClient(KeyedProcessFunction[Any, Any, Any]):
    clients = Clients(db=connection)
    calls = Calls(timeout=100, retry=Retry(1))

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield row["k"], await ctx.call(self.outer, ctx)

    async def outer(self, ctx: Any) -> Any:
        return await ctx.call(self.inner, ctx)

    async def inner(self, ctx: Any) -> int:
        await asyncio.sleep(0)
        if ctx.clients.db.broken:
            raise ClientBrokenError
        return 1


@pytest.mark.parametrize("limit", ALL_TAKEN)
def test_a_client_is_replaced_by_a_call_within_a_call(limit: int) -> None:
    Connection.opened = 0
    with FunctionHarness(UsesClient(), "k", calls_in_flight=limit) as running:
        assert sorted(running.process(ROWS)) == [(k, 1) for k in "0123"]
    assert Connection.opened == 2


def test_state_is_read_and_written_within_calls() -> None:
    class Counts(KeyedProcessFunction[Any, Any, Any]):
        def open(self, context: Any) -> None:
            self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

        async def process_element(self, row: Any, ctx: Any) -> Any:
            yield row["k"], await ctx.call(self.outer, ctx)

        async def outer(self, ctx: Any) -> Any:
            await self.n.async_update(await self.n.async_value() + 1)
            return await ctx.call(self.inner)

        async def inner(self) -> Any:
            await asyncio.sleep(1)
            return await self.n.async_value()

    options: Any = {"late_answers": 1, "calls_in_flight": 1, "backend": "lsm"}
    with FunctionHarness(Counts(), "k", clock=VirtualClock(), **options) as running:
        running._job._fresh = lambda _: Counts()
        assert sorted(running.process(ROWS)) == [(k, 1) for k in "0123"]
        assert sorted(running.process(ROWS)) == [(k, 2) for k in "0123"]


# -- any shape of calls --------------------------------------------------------------------------

Tree = list[Any]
"""Calls to make in a call: a tree for each, made at one time where the list begins with a 1."""

TREES = st.recursive(
    st.just([]), lambda inner: st.tuples(st.booleans(), st.lists(inner, max_size=4)).map(list)
)


@given(st.lists(TREES, min_size=4, max_size=4), st.integers(1, 5), st.sampled_from([0, 3]))
def test_calls_of_any_shape_end_and_keep_the_limit(
    trees: list[Tree], limit: int, failures: int
) -> None:
    async def made(server: Server, ctx: Any, name: str, tree: Tree) -> int:
        await server.ask(name, failures=failures * (len(name) % 2))
        at_once, inner = tree or (False, [])
        calls = [ctx.call(made, server, ctx, f"{name}{n}", each) for n, each in enumerate(inner)]
        if at_once:
            return 1 + sum(await asyncio.gather(*calls))
        return 1 + sum([await call for call in calls])

    async def body(server: Server, ctx: Any, key: str) -> Any:
        return await ctx.call(made, server, ctx, key, trees[int(key)])

    rows, server = run(body, limit, Calls(timeout=5_000, retry=Retry(99, delay=1)))
    assert rows == [(str(n), _size(tree)) for n, tree in enumerate(trees)]
    assert server.most <= limit


def _size(tree: Tree) -> int:
    return 1 + sum(map(_size, tree[1] if tree else ()))


# -- errors --------------------------------------------------------------------------------------


async def never(server: Server, ctx: Any, key: str) -> Any:
    async def hangs() -> None:
        await asyncio.Event().wait()

    return await asyncio.gather(ctx.call(hangs), ctx.call(hangs))


def test_the_drain_timeout_says_who_has_the_permits() -> None:
    with pytest.raises(FunctionError) as raised:
        run(never, 3)
    text = str(raised.value)
    assert "; 3 call(s) wait for a permit, and all 3 of calls_in_flight are taken, by\n" in text
    assert text.count("ctx.call(<function never.<locals>.hangs") == 3
    assert "of the key '0' at " in text
    assert "locks.py" in text.rpartition(" at ")[2]


def test_the_drain_timeout_speaks_of_places_only_where_calls_wait_for_them() -> None:
    with pytest.raises(FunctionError) as raised:
        run(never, 8)
    assert "permit" not in str(raised.value).replace(__file__, "")


def test_a_record_that_takes_too_long_says_who_has_the_permits() -> None:
    rows, _ = run(never, 3, on_error="column", record_timeout=5)
    assert [row.type for row in rows] == ["RecordTimeoutError"] * 4
    assert "; 3 call(s) wait for a permit, and all 3 of calls_in_flight" in rows[0].message
