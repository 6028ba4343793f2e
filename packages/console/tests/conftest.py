"""A state directory with two operators, as a job leaves it, and the console that shows it."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import httpx
import pytest

from forebay_console.pages import Access, application
from forebay_console.watching import StateDirectory
from forebay_engine.execution.counted_storage import CountedStorage, RequestCounts
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage.opening import open_storage
from forebay_testing.harness import FunctionHarness

QUERY = "clicks"
HEAP = f"/operators/{QUERY}/visits"
LSM = f"/operators/{QUERY}/sessions"
BATCHES = 12
TTL = StateTtlConfig(timedelta(hours=2))


@pytest.fixture
def no_rest(monkeypatch):
    """Let each look see what is stored now, also right after one that took long."""
    monkeypatch.setattr("forebay_console.watching.refreshed_value._REST", 0.0)


class Visits(KeyedProcessFunction):
    """Counts visits, in states of several kinds."""

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))
        self.pages = context.get_map_state(MapStateDescriptor("pages", str, int, ttl=TTL))
        self.recent = context.get_list_state(ListStateDescriptor("recent", float))

    async def process_element(self, row, ctx):
        await self.count.async_update(await self.count.async_value() + 1)
        await self.pages.async_put(row["page"], 1)
        yield row["user"], await self.count.async_value()


class Job:
    """An operator on a state directory, micro-batch by micro-batch; ``user-7`` is hot."""

    def __init__(self, state_dir, uid: str = "visits", backend: str = "heap", seed: int = 7):
        given = {"uid": uid, "backend": backend, "state_dir": state_dir, "query": QUERY}
        self._drawn = random.Random(seed)
        self._harness = FunctionHarness(Visits(), "user", key_type=str, parallelism=3, **given)

    def run(self, batches: int) -> None:
        for _ in range(batches):
            users = [f"user-{self._drawn.randrange(200)}" for _ in range(60)] + ["user-7"] * 20
            found = [{"user": user, "page": f"/{self._drawn.randrange(5)}"} for user in users]
            self.process(found)

    def process(self, found: list[dict[str, str]]) -> None:
        self._harness.process(found)

    def rescale(self, parallelism: int) -> None:
        self._harness.restart(parallelism=parallelism)


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory):
    """Two operators after `BATCHES` micro-batches."""
    found = tmp_path_factory.mktemp("state")
    for uid, backend in (("visits", "heap"), ("sessions", "lsm")):
        Job(found, uid, backend).run(BATCHES)
    return found


@pytest.fixture(scope="session")
def new_job():
    """Makes jobs."""
    return Job


class Viewer:
    """A browser without script: it keeps cookies, and follows no redirects."""

    def __init__(self, app):
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090")

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._client.request(method, path, **more))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, form: dict[str, str]) -> httpx.Response:
        return self.request("POST", path, data=form)


class Console:
    """A console over a state directory, without a socket."""

    def __init__(
        self, state_dir, *, ttl_s: float = 60.0, access: Access | None = None, **more: Any
    ):
        self.counts = RequestCounts()
        opened = state_dir if isinstance(state_dir, ObjectStorage) else open_storage(state_dir)
        storage = CountedStorage(opened, self.counts)
        settings = resolve_settings({})
        self.directory = StateDirectory(storage, settings, ttl_s=ttl_s, operators_s=ttl_s)
        self.app = application(self.directory, access or Access(), **more)
        self.client = self.viewer()

    def viewer(self) -> Viewer:
        """Another browser."""
        return Viewer(self.app)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, **headers)

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.fixture(scope="session")
def new_console():
    """Makes consoles."""
    return Console


@pytest.fixture
def console(state_dir):
    """A console over `state_dir`, which lists it once."""
    return Console(state_dir)
