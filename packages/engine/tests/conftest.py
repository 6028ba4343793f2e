"""Run functions for the tests of the engine, on the reference backend, whose reads wait; a server
that they ask."""

from __future__ import annotations

import asyncio
import threading

import attrs
import pytest

from forebay_state_api.settings import EngineSettings
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

SETTINGS = EngineSettings(read_ahead=False)


@pytest.fixture
def new_job():
    """Makes a job; keyword arguments of `EngineSettings` too."""

    def make(backend=ReferenceBackend, *, storage=None, uid="operator", **settings):
        return KeyedJob(
            backend,
            storage or memory_storage(),
            settings=attrs.evolve(SETTINGS, **settings),
            uid=uid,
        )

    return make


@pytest.fixture
def job(new_job):
    return new_job()


@pytest.fixture
def echo():
    """A server that sends back what it gets, and its port."""
    ready = []
    started, stop = threading.Event(), threading.Event()

    async def serve():
        async def answer(reader, writer):
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.append(server.sockets[0].getsockname()[1])
        started.set()
        await asyncio.to_thread(stop.wait)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="forebay-test-server")
    thread.start()
    assert started.wait(100)
    yield ready[0]
    stop.set()
    thread.join()
