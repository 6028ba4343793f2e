"""Servers on loopback, in temporary folders: PostgreSQL, Redis, and an HTTP server of the tests.

They listen on ports that the system chooses, and end with the session. A missing server fails its
tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

PATIENCE_S = 100


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _program(name, package, *folders):
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *folders]))
    if found is None:
        pytest.fail(f"there is no program {name}; install {package} to run these tests")
    return found


@contextlib.contextmanager
def _running(command, folder, stop, **options):
    """Run a server until the block ends; yield a function that says whether it has exited."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, **options)

    def check():
        assert process.poll() is None, (folder / "log").read_text(errors="replace")

    try:
        yield check
    finally:
        process.send_signal(stop)
        process.wait(PATIENCE_S)


def _wait_until(is_up, check):
    deadline = time.monotonic() + PATIENCE_S
    while not is_up():
        check()
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.05)


def _not_root():
    """Return the user that runs PostgreSQL, which refuses root; `None`: the test's own user."""
    if os.getuid():
        return None
    users = [user.pw_name for user in pwd.getpwall()]
    return "postgres" if "postgres" in users else "nobody"


@pytest.fixture(scope="session")
def postgres():
    """The arguments with which ``asyncpg`` connects to a PostgreSQL of the tests."""
    folders = map(str, Path("/usr/lib/postgresql").glob("*/bin"))
    server = _program("postgres", "PostgreSQL", *folders)
    port, user = _free_port(), _not_root()
    with tempfile.TemporaryDirectory(prefix="forebay-postgres-") as name:
        folder = Path(name)
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        make = [Path(server).resolve().with_name("initdb"), "--username=test", "--auth=trust"]
        made = subprocess.run(
            [*make, "--no-sync", data], user=user, cwd=folder, capture_output=True, check=False
        )
        assert not made.returncode, made.stderr.decode()
        command = [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder]
        options = ["-c", "fsync=off", "-c", "max_connections=40"]
        with _running([*command, *options], folder, signal.SIGINT, user=user, cwd=folder) as check:
            where = {"host": "127.0.0.1", "port": port, "user": "test", "database": "postgres"}
            _wait_until(lambda: _answers(where), check)
            yield where


def _answers(where):
    import asyncpg

    async def connect():
        await (await asyncpg.connect(**where)).close()

    with contextlib.suppress(OSError, asyncpg.CannotConnectNowError):
        asyncio.run(connect())
        return True
    return False


@pytest.fixture
def ask_postgres(postgres):
    """A function that runs statements on the tests' PostgreSQL and returns the last one's rows."""
    import asyncpg

    async def ask(statements):
        connection = await asyncpg.connect(**postgres)
        try:
            for statement in statements:
                rows = await connection.fetch(statement)
            return [tuple(row) for row in rows]
        finally:
            await connection.close()

    return lambda *statements: asyncio.run(ask(statements))


@pytest.fixture(scope="session")
def redis_port():
    """The port of a Redis of the tests."""
    server = _program("redis-server", "Redis")
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="forebay-redis-") as name:
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", name, "--save", ""]
        with _running(command, Path(name), signal.SIGTERM) as check:
            _wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), check)
            yield port


class HttpServer:
    """``/profile/ann`` answers ``ANN`` and ``/never`` does not answer."""

    def __init__(self):
        self.asked = []
        """The users asked for."""
        self.now = self.most = 0
        """The requests that are being answered, now and at most."""
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        assert ready.wait(PATIENCE_S)

    def close(self):
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(PATIENCE_S)

    async def _profile(self, request):
        user = request.match_info["user"]
        self.asked.append(user)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return web.Response(text=user.upper())

    async def _never(self, request):
        await self._closing.wait()
        return web.Response(status=503)

    async def _serve(self, ready):
        app = web.Application()
        app.router.add_get("/profile/{user}", self._profile)
        app.router.add_get("/never", self._never)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await self._closing.wait()
        await runner.cleanup()

    def _run(self, ready):
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()


@pytest.fixture
def http():
    server = HttpServer()
    yield server
    server.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def on_thread(request):
    """A function that runs another one on a thread, whose loop is asyncio's or uvloop's."""
    before = asyncio.get_event_loop_policy()
    if request.param == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with ThreadPoolExecutor(1) as thread:
        yield lambda fn: thread.submit(fn).result(PATIENCE_S)
    asyncio.set_event_loop_policy(before)
