"""The storages of a gateway: what is under way when the gateway closes."""

from __future__ import annotations

import asyncio
import threading

from compaction_ray_toys import PATIENCE_S

from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.worker.body import WorkerStorage


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
