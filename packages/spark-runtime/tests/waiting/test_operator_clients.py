"""Clients: opened once, kept between tasks, replaced, closed when idle."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest

from forebay_engine.calls.operator_clients import OperatorClient, OperatorClients
from forebay_state_api.calls.errors import ClientBrokenError
from forebay_state_api.calls.policies import Batch, Retry
from forebay_state_api.errors import ConfigurationError, FunctionError


class Client:
    def __init__(self, number):
        self.number = number
        self.closed = False


class Opener:
    """Counts the clients that it opened and closed."""

    def __init__(self, takes_s=0):
        self.opened = []
        self.tasks = []
        self.opening = False
        self._takes_s = takes_s

    @asynccontextmanager
    async def __call__(self):
        self.opening = True
        await asyncio.sleep(self._takes_s)
        self.opening = False
        client = Client(len(self.opened))
        self.opened.append(client)
        self.tasks.append(asyncio.current_task())
        yield client
        client.closed = True
        assert asyncio.current_task() is self.tasks[client.number]

    @property
    def closed(self):
        return [client.closed for client in self.opened]


@pytest.fixture
def run(virtual_loop):
    def run(scenario):
        with asyncio.Runner(loop_factory=virtual_loop) as runner:
            return runner.run(scenario)

    return run


def test_one_client_for_task_after_task(run):
    opener = Opener()

    async def scenario():
        clients = OperatorClients(idle_s=50)
        for _ in range(3):
            kept = await clients.acquire("ask", "digest", opener)
            assert kept.current is opener.opened[0]
            await clients.release("ask", kept, keep=True)
            await asyncio.sleep(49)
        assert opener.closed == [False]
        await asyncio.sleep(2)
        assert opener.closed == [True]
        kept = await clients.acquire("ask", "digest", opener)
        assert kept.current is opener.opened[1]

    run(scenario())


def test_a_client_in_use_does_not_idle(run):
    opener = Opener()

    async def scenario():
        clients = OperatorClients(idle_s=50)
        first = await clients.acquire("ask", "digest", opener)
        second = await clients.acquire("ask", "digest", opener)
        assert first is second
        await clients.release("ask", first, keep=True)
        await asyncio.sleep(1000)
        assert opener.closed == [False]

    run(scenario())


def test_other_resources_of_the_operator_close_the_former_ones(run):
    old, new = Opener(), Opener()

    async def scenario():
        clients = OperatorClients()
        kept = await clients.acquire("ask", "old", old)
        await clients.release("ask", kept, keep=True)
        kept = await clients.acquire("ask", "new", new)
        assert kept.current is new.opened[0]
        assert old.closed == [True]
        other = await clients.acquire("tell", "new", new)
        assert other.current is new.opened[1]

    run(scenario())


def test_the_client_of_a_failed_task_is_closed(run):
    opener = Opener()

    async def scenario():
        clients = OperatorClients()
        kept = await clients.acquire("ask", "digest", opener)
        await clients.release("ask", kept, keep=False)
        assert opener.closed == [True]
        kept = await clients.acquire("ask", "digest", opener)
        assert kept.current is opener.opened[1]

    run(scenario())


def test_a_broken_client_is_replaced_once_and_closed_with_the_task(run):
    opener = Opener()

    async def scenario():
        clients = OperatorClients()
        kept = await clients.acquire("ask", "digest", opener)
        broken = kept.current
        await asyncio.gather(*(kept.replace(broken) for _ in range(10)))
        assert kept.current is opener.opened[1]
        assert opener.closed == [False, False]
        await clients.release("ask", kept, keep=True)
        assert opener.closed == [True, False]

    run(scenario())


@pytest.mark.parametrize(
    "policy",
    [{}, {"ordered": False}, {"batch": Batch(2)}, {"hedge": 0.5}, {"try_timeout": 4.0}],
    ids=["ordered", "unordered", "batch", "hedge", "time limit"],
)
def test_no_call_begins_while_a_broken_client_is_replaced(drive, policy):
    opener, begun = Opener(takes_s=7), []

    async def fn(row, client):
        begun.append(opener.opening)
        await asyncio.sleep(1 + (row if isinstance(row, int) else row[0]) % 3)
        if client.number == 0 and row != 1:
            raise ClientBrokenError
        return row

    kept = OperatorClient(opener, "digest", "ask")
    retry = Retry(1, 0, on=KeyError)
    driven = drive(fn, range(40), retry=retry, timeout=60.0, engine={"client": kept}, **policy)
    assert driven.error is None
    assert len(driven.out) == 40
    assert not any(begun)
    assert opener.closed == [True, True]
    assert driven.took_s < 30


def test_calls_without_limits_have_the_former_client_until_the_new_one_is_open(run):
    """They do not wait, and another task's call may have found the client broken."""
    opener = Opener(takes_s=7)

    async def scenario():
        kept = await OperatorClients().acquire("ask", "digest", opener)
        broken = kept.current
        replacing = asyncio.create_task(kept.replace(broken))
        await asyncio.sleep(1)
        assert kept.current is broken
        await replacing
        assert kept.current is opener.opened[1]

    run(scenario())


def test_a_call_that_finds_a_client_broken_after_it_was_replaced_leaves_the_new_one(drive):
    opener = Opener()

    async def fn(row, client):
        if client.number == 0:
            await asyncio.sleep(1 + row)
            raise ClientBrokenError
        await asyncio.sleep(100)
        return client.number

    kept = OperatorClient(opener, "digest", "ask")
    driven = drive(fn, range(5), retry=Retry(1, 0), timeout=900.0, engine={"client": kept})
    assert driven.out == [1] * 5
    assert len(opener.opened) == 2


def test_a_client_that_cannot_be_replaced_fails_the_batch_and_is_not_called_with(drive):
    opener, called = Opener(), []

    def once():
        if opener.opened:
            raise OSError("no route")
        return opener()

    async def fn(row, client):
        called.append(row)
        await asyncio.sleep(1)
        raise ClientBrokenError

    kept = OperatorClient(once, "digest", "ask")
    policy = {"retry": Retry(1, 0), "timeout": 60.0, "on_error": lambda *_: "failed"}
    driven = drive(fn, range(40), engine={"client": kept}, **policy)
    assert "resources of ask raised OSError: no route" in str(driven.error)
    assert called == list(range(10))
    assert opener.closed == [True]


def test_a_client_that_reports_that_it_is_closed_is_opened_again(run):
    opener = Opener()

    async def scenario():
        clients = OperatorClients()
        kept = await clients.acquire("ask", "digest", opener)
        kept.current.closed = True
        await clients.release("ask", kept, keep=True)
        kept = await clients.acquire("ask", "digest", opener)
        assert kept.current is opener.opened[1]

    run(scenario())


def test_a_plain_context_manager_will_do(run):
    log = []

    @contextmanager
    def plain():
        log.append("opened")
        yield "client"
        log.append("closed")

    async def scenario():
        clients = OperatorClients()
        kept = await clients.acquire("ask", "digest", plain)
        assert kept.current == "client"
        await clients.close()
        assert log == ["opened", "closed"]

    run(scenario())


def test_what_cannot_be_opened_is_named_and_tried_again_by_the_next_task(run):
    opener = Opener()

    def failing():
        raise OSError("no route")

    async def undecorated():
        return object()

    async def generator():
        yield object()

    async def scenario():
        clients = OperatorClients()
        with pytest.raises(FunctionError, match="resources of ask raised OSError: no route"):
            await clients.acquire("ask", "digest", failing)
        with pytest.raises(ConfigurationError, match="which is not a context manager"):
            await clients.acquire("ask", "other", lambda: 5)
        with pytest.raises(ConfigurationError, match=r"coroutine, .* contextlib\.asynccontextman"):
            await clients.acquire("ask", "undecorated", undecorated)
        with pytest.raises(ConfigurationError, match=r"async_generator, .* contextlib\.asyncc"):
            await clients.acquire("ask", "generator", generator)
        kept = await clients.acquire("ask", "third", opener)
        assert kept.current is opener.opened[0]

    run(scenario())


@pytest.mark.parametrize(
    "ending", [asyncio.CancelledError("gone"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_an_opening_that_ends_without_an_error_proper_is_named_too(run, ending):
    @asynccontextmanager
    async def resources():
        raise ending
        yield

    async def scenario():
        clients = OperatorClients()
        says = f"resources of ask raised {type(ending).__name__}"
        with pytest.raises(FunctionError, match=says):
            await clients.acquire("ask", "digest", resources)

    run(scenario())


def test_an_opening_that_hangs_is_given_up(run):
    log = []

    @asynccontextmanager
    async def resources():
        try:
            await asyncio.Event().wait()
            yield
        finally:
            log.append("left")

    async def scenario():
        began = asyncio.get_running_loop().time()
        with pytest.raises(FunctionError, match="of ask did not open a client within 120 s"):
            await OperatorClients().acquire("ask", "digest", resources)
        assert asyncio.get_running_loop().time() - began == 120
        assert log == ["left"]

    run(scenario())


def test_a_replacement_that_hangs_fails_the_batch(drive):
    opener = Opener()

    @asynccontextmanager
    async def hanging():
        await asyncio.Event().wait()
        yield

    async def fn(row, client):
        raise ClientBrokenError

    kept = OperatorClient(lambda: hanging() if opener.opened else opener(), "digest", "ask")
    policy = {"retry": Retry(1, 0), "timeout": 60.0}
    driven = drive(fn, range(40), engine={"client": kept}, **policy)
    assert "did not open a client within 120 s" in str(driven.error)
    assert driven.took_s == pytest.approx(120)
    assert driven.left == 0


def test_what_a_task_that_was_cancelled_began_to_open_is_closed(run):
    opener = Opener(takes_s=7)

    async def scenario():
        clients = OperatorClients()
        acquiring = asyncio.create_task(clients.acquire("ask", "digest", opener))
        await asyncio.sleep(1)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await asyncio.sleep(10)
        assert opener.closed == []
        kept = await clients.acquire("ask", "digest", opener)
        assert kept.current is opener.opened[0]

    run(scenario())


def test_a_client_that_fails_to_close_or_does_not_end_is_left(run, caplog):
    @asynccontextmanager
    async def bad():
        yield 1
        raise OSError("not now")

    @asynccontextmanager
    async def endless():
        yield 2
        await asyncio.Event().wait()

    async def scenario():
        clients = OperatorClients()
        for operator, resources in (("bad", bad), ("endless", endless)):
            kept = await clients.acquire(operator, "digest", resources)
            await clients.release(operator, kept, keep=False)

    run(scenario())
    assert "closing the client of bad failed" in caplog.text
    assert "the client of endless did not close within 5 s" in caplog.text
