"""The storages of a gateway: what is under way when the gateway closes."""

from __future__ import annotations

import asyncio
import threading

import attrs
from compaction_ray_toys import PATIENCE_S

from forebay_compaction_ray.gateway import storages as module
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.opening import open_storage


def test_a_look_ends_with_the_gateway():
    """Otherwise its task is destroyed with the loop, while it waits for the storage."""
    began, go = threading.Event(), threading.Event()

    def slow(url, options):
        began.set()
        go.wait(PATIENCE_S)

    async def close_meanwhile():
        storages = GatewayStorages({"default": WorkerStorage("/")}, slow)
        looks = [asyncio.create_task(storages.look()) for _ in range(2)]
        await asyncio.to_thread(began.wait, PATIENCE_S)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        go.set()
        return len(asyncio.all_tasks())

    assert asyncio.run(close_meanwhile()) == 1, "only this one is left"


@attrs.define
class SlowLooks:
    """Storages whose looks wait for `go`."""

    count: int = 0
    began: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    go: threading.Event = attrs.field(factory=threading.Event)

    def open(self, url, options):
        self.count += 1
        self.began.release()
        self.go.wait(PATIENCE_S)
        raise StorageError("away")

    async def begun(self):
        """Wait until another look has begun."""
        assert await asyncio.to_thread(self.began.acquire, timeout=PATIENCE_S)

    async def one_and_five_that_wait(self):
        """Return the tasks of six callers; the look of the first one is under way."""
        storages = GatewayStorages({"default": WorkerStorage("/")}, self.open)
        first = asyncio.create_task(storages.look())
        await self.begun()
        others = [asyncio.create_task(storages.look()) for _ in range(5)]
        await asyncio.sleep(0)
        return first, others


def test_callers_share_the_next_look_and_not_the_one_under_way():
    """The one under way may have read the mark before the caller's other side changed it."""
    looks = SlowLooks()

    async def look():
        first, others = await looks.one_and_five_that_wait()
        looks.go.set()
        await asyncio.gather(first, *others)

    asyncio.run(look())
    assert looks.count == 2


def test_a_caller_that_goes_away_takes_the_look_of_nobody_along():
    looks = SlowLooks()

    async def look():
        first, others = await looks.one_and_five_that_wait()
        first.cancel()
        await looks.begun()
        others[0].cancel()  # it is the one that looks
        await looks.begun()
        looks.go.set()
        await asyncio.gather(*others[1:])

    asyncio.run(look())
    assert looks.count == 3


def test_a_storage_that_hangs_does_not_keep_the_others(monkeypatch, tmp_path):
    """A dead mount: its one late answer is taken by a later look, and takes one thread."""
    monkeypatch.setattr(module, "_ANSWER_S", 0.01)
    go, opened = threading.Event(), []

    def open_(url, options):
        opened.append(url)
        if url == "dead":
            go.wait(PATIENCE_S)
        return open_storage(str(tmp_path / url))

    async def look():
        places = {name: WorkerStorage(name) for name in ("dead", "well")}
        storages = GatewayStorages(places, open_)
        while "well" not in storages.marks:
            await storages.look()
        await storages.look()
        assert "it did not answer within 0.01 s" in storages.unusable["dead"]
        assert opened.count("dead") == 1
        go.set()
        while "dead" not in storages.marks or storages.problems:  # a busy machine answers late
            await storages.look()

    asyncio.run(look())
