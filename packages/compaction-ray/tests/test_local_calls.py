"""The way of jobs between a gateway and workers of its node: real sockets, no Ray."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from forebay_compaction_ray.gateway.pool import WorkerLostError
from forebay_compaction_ray.ray_server.local_calls import LocalCalls, answer_calls
from forebay_compaction_ray.wire import MESSAGE_BYTES, MalformedMessageError, pack

NODE = "node"


def with_calls(scenario):
    """Run a scenario with the gateway's side, and its address."""

    async def run():
        calls = LocalCalls()
        try:
            await asyncio.wait_for(scenario(calls, await calls.start(NODE)), 30.0)
        finally:
            calls.close()

    asyncio.run(run())


async def done_by(peer, calls):
    """One job, done by a peer that is worker w0: it is known as such from then on."""
    job = asyncio.create_task(asked(calls, "w0", b"job"))
    assert await asyncio.to_thread(peer.received) == framed(b"job")
    peer.send(b"done")
    assert await job == b"done"


async def asked(calls, worker, data):
    """The answer of a worker that is about to connect."""
    while (answer := await calls.ask(worker, data)) is None:  # noqa: ASYNC110 - no event tells it
        await asyncio.sleep(0)  # lets the loop accept it
    return answer


def framed(data):
    return len(data).to_bytes(4, "big") + data


class Peer:
    """What connects as a worker does, and says what a test wants it to."""

    def __init__(self, address, **greeting):
        self.socket = socket.create_connection(("127.0.0.1", address.port), timeout=20.0)
        self.send(pack({"worker": "w0", "secret": address.secret, **greeting}))

    def send(self, data):
        self.socket.sendall(framed(data))

    def received(self):
        """The next bytes; empty when the gateway has closed."""
        return self.socket.recv(1000)


def test_a_job_is_answered_on_the_same_connection_again_and_again():
    threads = set()

    def run(job):
        threads.add(threading.get_ident())
        return job.upper()

    async def scenario(calls, address):
        answer_calls(address, "w0", run, connections=1)
        assert await asked(calls, "w0", b"one") == b"ONE"
        assert await calls.ask("w0", b"two") == b"TWO"
        assert await calls.ask("w0", b"x" * 100_000) == b"X" * 100_000

    with_calls(scenario)
    assert len(threads) == 1


def test_a_worker_does_as_many_jobs_at_once_as_it_has_connections():
    both = threading.Barrier(2)

    def run(job):
        both.wait(20.0)
        return job

    async def scenario(calls, address):
        answer_calls(address, "w0", run, connections=2)
        answers = await asyncio.gather(asked(calls, "w0", b"a"), asked(calls, "w0", b"b"))
        assert answers == [b"a", b"b"]

    with_calls(scenario)


def test_a_worker_without_a_free_connection_is_not_waited_for():
    begun, go_on = threading.Event(), threading.Event()

    def run(job):
        begun.set()
        assert go_on.wait(20.0)
        return job

    async def scenario(calls, address):
        assert await calls.ask("w0", b"nobody there") is None
        answer_calls(address, "w0", run, connections=1)
        first = asyncio.create_task(asked(calls, "w0", b"long"))
        assert await asyncio.to_thread(begun.wait, 20.0)
        assert await calls.ask("w0", b"too many") is None
        assert await calls.ask("w1", b"another's") is None
        go_on.set()
        assert await first == b"long"

    with_calls(scenario)


def test_a_connection_that_ends_loses_its_job_only():
    async def scenario(calls, address):
        dying = Peer(address)
        job = asyncio.create_task(asked(calls, "w0", b"job"))
        assert await asyncio.to_thread(dying.received) == framed(b"job")
        dying.socket.close()
        with pytest.raises(WorkerLostError, match="its connection ended"):
            await job
        assert await calls.ask("w0", b"next") is None
        answer_calls(address, "w0", bytes.upper, connections=1)
        assert await asked(calls, "w0", b"next") == b"NEXT"

    with_calls(scenario)


def test_half_an_answer_is_none():
    async def scenario(calls, address):
        dying = Peer(address)
        job = asyncio.create_task(asked(calls, "w0", b"job"))
        assert await asyncio.to_thread(dying.received) == framed(b"job")
        dying.socket.sendall(framed(b"answer")[:-1])
        dying.socket.close()
        with pytest.raises(WorkerLostError):
            await job

    with_calls(scenario)


def test_connections_of_a_dead_worker_are_not_used():
    async def scenario(calls, address):
        dead = Peer(address)
        await done_by(dead, calls)
        dead.socket.close()
        answer_calls(address, "w1", bytes.upper, connections=1)
        assert await asked(calls, "w1", b"later than the end of the other") is not None
        assert await calls.ask("w0", b"job") is None

    with_calls(scenario)


def test_an_answer_that_is_too_long_is_a_fault_and_not_read():
    async def scenario(calls, address):
        liar = Peer(address)
        job = asyncio.create_task(asked(calls, "w0", b"job"))
        assert await asyncio.to_thread(liar.received) == framed(b"job")
        liar.socket.sendall((MESSAGE_BYTES + 1).to_bytes(4, "big"))
        with pytest.raises(MalformedMessageError, match="at most"):
            await job
        assert await asyncio.to_thread(liar.received) == b""

    with_calls(scenario)


@pytest.mark.parametrize(
    "greeting",
    [
        {"secret": b"wrong"},
        {"secret": "text"},
        {"secret": None},
        {"secret": 1 << 40},
    ],
)
def test_who_does_not_know_the_secret_gets_no_job(greeting):
    async def scenario(calls, address):
        stranger = Peer(address, **greeting)
        assert await asyncio.to_thread(stranger.received) == b""
        assert await calls.ask("w0", b"job") is None

    with_calls(scenario)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", framed(b"no map"), framed(pack({})), (2000).to_bytes(4, "big")],
)
def test_what_is_no_greeting_is_closed(said):
    async def scenario(calls, address):
        del calls
        with socket.create_connection(("127.0.0.1", address.port), timeout=20.0) as stranger:
            stranger.sendall(said)
            assert await asyncio.to_thread(stranger.recv, 10) == b""

    with_calls(scenario)


def test_a_killed_workers_connections_are_closed():
    async def scenario(calls, address):
        peer = Peer(address)
        await done_by(peer, calls)
        calls.forget("w0")
        assert await asyncio.to_thread(peer.received) == b""
        assert await calls.ask("w0", b"job") is None

    with_calls(scenario)


def test_a_job_that_is_given_up_gives_its_connection_up():
    async def scenario(calls, address):
        peer = Peer(address)
        job = asyncio.create_task(asked(calls, "w0", b"job"))
        assert await asyncio.to_thread(peer.received) == framed(b"job")
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert await asyncio.to_thread(peer.received) == b""

    with_calls(scenario)


def test_a_worker_goes_on_without_a_gateway_that_listens():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = attrs.evolve(asyncio.run(started_and_closed()), port=nobody.getsockname()[1])
        with ThreadPoolExecutor(1) as crowd:
            crowd.submit(answer_calls, address, "w0", bytes.upper, 1).result(20.0)
        for thread in threading.enumerate():
            if thread.name.startswith("forebay-jobs"):
                thread.join(20.0)
                assert not thread.is_alive()


async def started_and_closed():
    calls = LocalCalls()
    address = await calls.start(NODE)
    calls.close()
    return address


def test_the_secret_is_not_shown():
    address = asyncio.run(started_and_closed())
    assert repr(address.secret) not in repr(address)
