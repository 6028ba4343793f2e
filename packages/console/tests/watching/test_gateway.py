"""The gateway of remote compaction on a page: real gRPC, a worker that does not come up."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading

import pytest

from forebay_console.watching.gateway import WatchedGateway
from forebay_state_api.errors import ConfigurationError

pytest.importorskip("grpc_health", reason="the gateway needs compaction-ray's extra server")

from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.server import GatewayServer
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_state_api.storage.opening import open_storage

PAGE = "/operators/clicks/sessions/compaction"
PATIENCE_S = 100


class StartingWorker:
    """A worker that never comes up."""

    async def describe(self, marks):
        await asyncio.Event().wait()

    def kill(self):
        pass


class RunningGateway(threading.Thread):
    """A gateway on a thread."""

    def __init__(self):
        super().__init__(daemon=True)
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.address = ""
        self.calls = 0

    def run(self):
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self):
        self._end = asyncio.Event()
        storages = GatewayStorages({}, lambda name, options: open_storage(f"memory://{name}"))
        core = GatewayCore(StartingWorker, GatewayLimits(), storages=storages)
        describe = core.describe

        def counted():
            self.calls += 1
            return describe()

        core.describe = counted
        server = GatewayServer(core, Credentials)
        core.worker_set.scale(1)
        self.address = await server.start("127.0.0.1", 0)
        self._up.set()
        await self._end.wait()
        await server.close(0)
        await core.close()

    def __enter__(self):
        self.start()
        assert self._up.wait(PATIENCE_S)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._end.set)
        self.join(PATIENCE_S)


def watched(address: str) -> WatchedGateway:
    return WatchedGateway.at(address, token_file=None, tls_ca=None, ttl_s=60)


def test_workers_and_queue_are_shown_and_asked_for_once(state_dir, new_console):
    with RunningGateway() as running:
        gateway = watched(running.address)
        console = new_console(state_dir, gateway=gateway)
        for _ in range(3):
            page = console.page(PAGE)
        gateway.close()
        assert running.calls == 1
    assert running.address in page
    assert "serving" in page
    assert "starting" in page


def test_a_gateway_that_does_not_answer_costs_its_part_of_the_page_alone(state_dir, new_console):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    gateway = watched(address)
    page = new_console(state_dir, gateway=gateway).page(PAGE)
    gateway.close()
    assert address in page
    assert "Deepest key group" in page


def test_without_the_client_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "forebay_compaction_ray.client.gateway", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'forebay-console\[gateway\]'"):
        watched("127.0.0.1:1")
