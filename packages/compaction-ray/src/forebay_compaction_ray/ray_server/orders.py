"""Keeps an operator's orders in Ray, so that they outlast the gateway's process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray.experimental import internal_kv

_NAMESPACE: Final = b"forebay"


class Orders:
    """The orders to one gateway actor, by name; a restart of the actor does not change its id."""

    def __init__(self) -> None:
        """Use the key of the actor that runs this."""
        self._key: Final = f"orders-{ray.get_runtime_context().get_actor_id()}".encode()
        self._given: dict[str, Any] = {}

    def read(self) -> Mapping[str, Any]:
        """Return the last order of each name."""
        found = internal_kv._internal_kv_get(self._key, namespace=_NAMESPACE)  # noqa: SLF001 - see `write`
        if found:
            self._given = json.loads(found)
        return self._given

    async def write(self, **orders: Any) -> None:
        """Replace the orders of these names; they are durable when this returns."""
        given = {**self._given, **orders}
        await asyncio.to_thread(
            internal_kv._internal_kv_put,  # noqa: SLF001 - Ray has no public store
            self._key,
            json.dumps(given).encode(),
            namespace=_NAMESPACE,
        )
        self._given = given

    def clear(self) -> None:
        """Forget all orders."""
        internal_kv._internal_kv_del(self._key, namespace=_NAMESPACE)  # noqa: SLF001 - see `write`
