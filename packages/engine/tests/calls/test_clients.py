"""Clients of keyed functions: opened once per process, kept, closed, and opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from forebay_engine.calls.operator_clients import clients_of
from forebay_engine.execution.awaitables import loop_of_thread
from forebay_engine.execution.loop_thread import loop_thread
from forebay_state_api import (
    Clients,
    ConfigurationError,
    FunctionError,
    KeyedProcessFunction,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

ROWS = [{"k": str(number), "fails": False} for number in range(5)]
FAILING = [{"k": "1", "fails": True}]


class Client:
    """Notes the threads and the loop that it is used on."""

    def __init__(self) -> None:
        self.closed = False
        self.loop = asyncio.get_running_loop()

    async def ask(self, value: str) -> str:
        assert asyncio.get_running_loop() is self.loop
        await asyncio.sleep(0)
        return value * 2


OPENED: list[Client] = []
ORDER: list[str] = []


@asynccontextmanager
async def opened() -> AsyncIterator[Client]:
    client = Client()
    OPENED.append(client)
    yield client
    client.closed = True


class Asks(KeyedProcessFunction[str, Any, Any]):
    clients = Clients(http=opened)

    def open(self, context: Any) -> None:
        self.n = context.get_state(ValueStateDescriptor("n", int))
        assert not context.clients.http.closed

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() or 0
        answer = await ctx.clients.http.ask(row["k"])
        await self.n.async_update(count + 1)
        if row["fails"]:
            raise ValueError("no")
        yield answer, count + 1


@pytest.fixture(autouse=True)
def _none_opened() -> Iterator[None]:
    OPENED.clear()
    ORDER.clear()
    yield
    assert all(client.closed for client in OPENED)


def close_all() -> None:
    """Close what the loop thread keeps, as the end of a process does."""
    loop = loop_thread().call(loop_of_thread)
    assert loop is not None
    asyncio.run_coroutine_threadsafe(clients_of(loop).close(), loop).result(100)


def test_clients_outlive_micro_batches_on_the_loop_that_always_turns() -> None:
    async def notebook() -> None:
        with FunctionHarness(Asks(), "k") as h:
            h.process(ROWS)
            assert ("11", 2) in h.process(ROWS)
            assert [client.closed for client in OPENED] == [False]
            OPENED[0].closed = True  # the client reports that it is
            h.process(ROWS)
            assert [client.closed for client in OPENED] == [True, False]
            with pytest.raises(FunctionError):
                h.process(FAILING)
            assert [client.closed for client in OPENED] == [True, True]
            assert ("11", 4) in h.process(ROWS)
            assert len(OPENED) == 3

    asyncio.run(notebook())
    close_all()


def test_clients_end_with_the_micro_batch_where_the_loop_sleeps_afterwards() -> None:
    with FunctionHarness(Asks(), "k", parallelism=2) as h:
        h.process(ROWS)
        assert sorted(h.process(ROWS)) == [(f"{row['k']}{row['k']}", 2) for row in ROWS]
    assert len(OPENED) == 4


@asynccontextmanager
async def noting(name: str) -> AsyncIterator[str]:
    ORDER.append(f"open {name}")
    yield name
    ORDER.append(f"close {name}")


@asynccontextmanager
async def broken() -> AsyncIterator[None]:
    raise OSError("no route")
    yield


def with_clients(clients: Clients) -> FunctionHarness:
    async def call(row: Any, ctx: Any) -> Any:
        return [(ctx.clients.db,)]

    call.clients = clients  # type: ignore[attr-defined] # callables have them, too
    return FunctionHarness(call, "k")


def test_clients_are_closed_in_the_opposite_order() -> None:
    def first() -> Any:
        return noting("db")

    def second() -> Any:
        return noting("http")

    with with_clients(Clients(db=first, http=second)) as h:
        assert h.process(ROWS[:1]) == [("db",)]
    assert ORDER == ["open db", "open http", "close http", "close db"]


def test_what_does_not_open_is_named_and_the_others_are_closed() -> None:
    with (
        with_clients(Clients(http=opened, db=broken)) as h,
        pytest.raises(
            FunctionError, match=r"clients\.db of operator 'test' raised OSError: no route"
        ),
    ):
        h.process(ROWS)
    assert [client.closed for client in OPENED] == [True]


async def _undeclared(row: Any, ctx: Any) -> Any:
    return [ctx.clients.http]


async def _misspelt(row: Any, ctx: Any) -> Any:
    return [ctx.clients.htp]


_misspelt.clients = Clients(http=opened)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (_undeclared, r"declares no clients. Give it .* clients = Clients\(http=\.\.\.\)"),
        (_misspelt, r"ctx\.clients\.htp: the function declares http\. Add htp= to its Clients"),
    ],
    ids=["undeclared", "misspelt"],
)
def test_clients_that_cannot_be_used_are_named(fn: Any, says: str) -> None:
    with FunctionHarness(fn, "k") as h, pytest.raises(ConfigurationError, match=says):
        h.process(ROWS)


def test_declarations_are_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"no factories\. Name one"):
        Clients()
    with pytest.raises(ConfigurationError, match=r"Clients\(http=\.\.\.\) takes a callable"):
        Clients(http=5)  # type: ignore[arg-type]
    with pytest.raises((ConfigurationError, RuntimeError)) as failure:
        type("Misnamed", (Asks,), {"http": Clients(http=opened)})
    named = failure.value.__cause__ or failure.value  # Python before 3.12 wraps it
    assert "Misnamed.http: a function's Clients(...) are its class attribute clients" in str(named)
