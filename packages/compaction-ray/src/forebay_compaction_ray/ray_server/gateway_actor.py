"""The gateway as a Ray actor: core, server and clock in one process; restarts when it dies."""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from wsgiref.simple_server import WSGIServer

import ray

from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.security import REREAD_S
from forebay_compaction_ray.gateway.server import GatewayServer
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.gateway.workers import POLICIES
from forebay_compaction_ray.ray_server.orders import Orders
from forebay_compaction_ray.ray_server.pool import worker_starter
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.reloaded_value import ReloadedValue
from forebay_state_api.errors import ConfigurationError

_log = logging.getLogger(__name__)

_REBIND_S: Final = 60.0
"""Seconds that a restarted gateway waits for its port and its files."""
_LAST_WORDS_S: Final = 0.2
"""Seconds left for the answer to callers that wait in `stopped`."""


class GatewayActor:
    """Serves until it is stopped. It owns its workers, which end with it."""

    def __init__(self, spec: GatewaySpec) -> None:
        """Start serving; `address` raises any error, because a constructor must not fail."""
        self._spec: Final = spec
        self._stopped: Final = asyncio.Event()
        self._core: Final = GatewayCore(
            worker_starter(spec),
            spec.limits,
            storages=GatewayStorages(spec.storages),
            policy=POLICIES[spec.policy],
        )
        self._orders: Final = Orders()
        self._server: GatewayServer | None = None
        self._metrics: WSGIServer | None = None
        loop = asyncio.get_running_loop()
        self._listening: Final = loop.create_task(self._listen())
        self._life: Final = loop.create_task(self._live())

    async def address(self) -> str:
        """Return the address it listens on; raises `ConfigurationError` if it cannot listen."""
        return await asyncio.shield(self._listening)

    async def stopped(self) -> None:
        """Wait until it has been stopped and has no more jobs."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Stop the gateway, like the request `Stop`."""
        self._core.stopping.set()

    async def _listen(self) -> str:
        self._core.follow(**{"workers": self._spec.workers, **self._orders.read()})
        again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        deadline_s = asyncio.get_running_loop().time() + (_REBIND_S if again else 0.0)
        while True:
            try:
                return await self._serve()
            except ConfigurationError:
                if asyncio.get_running_loop().time() >= deadline_s:
                    raise
                await asyncio.sleep(0.5)

    async def _serve(self) -> str:
        spec = self._spec
        if spec.metrics_port is not None and self._metrics is None:
            self._metrics = self._core.metrics.serve(spec.host, spec.metrics_port)
        security = ReloadedValue(spec.security.read, REREAD_S)
        self._server = GatewayServer(self._core, security, self._orders.write)
        return await self._server.start(spec.host, spec.port)

    async def _live(self) -> None:
        await self._tick_until(self._core.stopping)
        self._core.drain()
        await self._tick_until(self._core.drained)
        if self._server is not None:
            await self._server.close()
        await self._core.close()
        self._orders.clear()
        self._stopped.set()
        if self._spec.detached:
            await asyncio.sleep(_LAST_WORDS_S)
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    async def _tick_until(self, event: asyncio.Event) -> None:
        waiting = asyncio.create_task(event.wait())
        while not waiting.done():
            try:
                self._core.tick()
            except Exception:  # noqa: BLE001 - the loop must continue
                _log.exception("a tick failed")
            await asyncio.wait([waiting], timeout=self._spec.limits.ping_every_s)
