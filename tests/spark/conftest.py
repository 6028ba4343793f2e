"""What several tests on Spark need: an HTTP service on loopback, and jobs under Spark Connect."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading

import pytest
from pyspark import cloudpickle

from forebay_spark_runtime import current_call


class Service:
    """An HTTP server; ``/path/n`` answers ``path:n``, unless told otherwise."""

    def __init__(self, web):
        """``web`` is the module ``aiohttp.web``, which not every environment has."""
        self.calls = []
        """(path, row, idempotency key) of each request."""
        self.trouble = {}
        """Row → statuses to answer first."""
        self.delay_s = lambda row: 0.002 * (row % 4)
        """How long the answer to a row takes."""
        self.port = None
        self._web = web
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def url(self, path="a"):
        """What the number of a row is appended to, after a slash."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def ask(self, path="a"):
        """A function for ordered waits that calls this service."""
        url = self.url(path)

        async def ask(row, client):
            headers = {"Idempotency-Key": current_call().key}
            async with client.get(f"{url}/{row.id}", headers=headers) as response:
                response.raise_for_status()
                return await response.text()

        return ask

    @staticmethod
    def answers(ids, path="a"):
        """The rows that an ordered wait makes of ``ids``."""
        return [(n, f"{path}:{n}") for n in ids]

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _answer(self, request):
        path, row = request.match_info["path"], int(request.match_info["row"])
        self.calls.append((path, row, request.headers.get("Idempotency-Key")))
        if self.trouble.get(row):
            headers = {"Retry-After": "0"}
            return self._web.Response(status=self.trouble[row].pop(0), headers=headers)
        await asyncio.sleep(self.delay_s(row))
        return self._web.Response(text=f"{path}:{row}")

    async def _serve(self):
        app = self._web.Application()
        app.router.add_get("/{path}/{row}", self._answer)
        self._runner = self._web.AppRunner(app)
        await self._runner.setup()
        site = self._web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._ready.set()

    def _run(self):
        self._loop.run_until_complete(self._serve())
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()


@pytest.fixture
def http_service():
    web = pytest.importorskip("aiohttp.web", reason="the service needs aiohttp")
    # What `Service.ask` gives travels to workers, which cannot import this module.
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    service = Service(web)
    yield service
    service.close()
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="session")
def run_connected(tmp_path_factory):
    """Runs a job under Spark Connect, in a process tree of its own; gives what it has found."""

    def run(job):
        pytest.importorskip("grpc", reason="the extra [connect] brings it")
        folder = tmp_path_factory.mktemp("connect")
        done = subprocess.run(
            [sys.executable, str(job), str(folder)],
            env={**os.environ, "SPARK_TESTING": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        return json.loads((folder / "found.json").read_text())

    return run
