"""Opens a function's `Clients` for one subtask, and releases them with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from forebay_engine.calls.operator_clients import (
    OperatorClient,
    OperatorClients,
    clients_of,
    is_closed,
)
from forebay_engine.execution.awaitables import loop_of_thread
from forebay_engine.execution.declared_attributes import declared_clients
from forebay_engine.execution.loop_thread import on_loop_thread
from forebay_engine.execution.record_methods import function_name
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import Clients
from forebay_state_api.job.record_scope import enter_scheduler

T = TypeVar("T")


class TaskClients:
    """The open clients of one subtask; ``ctx.clients`` has each under its name.

    They outlive the subtask only on a loop that always turns; elsewhere nothing would notice that
    a server has closed a connection.
    """

    def __init__(self, function: Any, declared: Clients, uid: str) -> None:
        loop = loop_of_thread()
        if loop is None:
            raise ConfigurationError(
                f"operator {uid!r}: {function_name(function)} has clients, and another loop runs "
                "in its thread. Run the subtask on a thread of its own"
            )
        self._loop = loop
        self._kept_on = on_loop_thread()
        self._pool = clients_of(loop) if self._kept_on else OperatorClients()
        self._uid = uid
        self._digest = declared.digest
        self._acquired: dict[str, tuple[str, OperatorClient]] = {}
        self._run(self._open(declared))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._acquired:
            raise ConfigurationError(
                f"operator {self._uid!r}: ctx.clients.{name}: the function declares "
                f"{', '.join(self._acquired)}. Add {name}= to its Clients(...)"
            )
        return self._acquired[name][1].current

    def release(self, *, failed: bool) -> None:
        """End the use of the clients; after a failed micro-batch they are closed."""
        self._run(self._release(keep=self._kept_on and not failed))

    async def _open(self, declared: Clients) -> None:
        try:
            for name, factory in declared.factories.items():
                source = f"clients.{name} of operator {self._uid!r}"
                key = f"{source} ({self._digest[:8]})"
                kept = await self._pool.acquire(key, self._digest, factory, source)
                self._acquired[name] = key, kept
        except BaseException:
            await self._release(keep=False)
            raise

    async def _release(self, *, keep: bool) -> None:
        acquired, self._acquired = self._acquired, {}
        for key, kept in reversed(acquired.values()):
            await self._pool.release(key, kept, keep=keep)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop, which something else may stop meanwhile."""
        task = self._loop.create_task(work)
        task.add_done_callback(lambda _: self._loop.stop())
        while not task.done():
            self._loop.run_forever()
        return task.result()


class ClientSet:
    """The clients that one try of a call may use."""

    def __init__(self, clients: list[tuple[OperatorClient, Any]]) -> None:
        self.clients = clients

    @property
    def closed(self) -> bool:
        """Whether a client reports that it is closed."""
        return any(is_closed(client) for _, client in self.clients)

    def broken(self) -> list[tuple[OperatorClient, Any]]:
        """Return the closed clients.

        If no client is closed, return all, since a call found one of them broken.
        """
        closed = [(kept, client) for kept, client in self.clients if is_closed(client)]
        return closed or self.clients


class CallClients:
    """Represents all clients of a subtask as the one replaceable client that calls expect."""

    def __init__(self, clients: TaskClients) -> None:
        self._loop = clients._loop
        self._kept = [kept for _, kept in clients._acquired.values()]

    @property
    def current(self) -> ClientSet:
        """The clients for a try that begins now."""
        return ClientSet([(kept, kept.current) for kept in self._kept])

    @property
    def opening(self) -> bool:
        """Whether a client is being replaced."""
        return any(kept.opening for kept in self._kept)

    async def opened(self) -> None:
        """Wait until the replacements are open."""
        for kept in self._kept:
            await kept.opened()

    async def replace(self, broken: ClientSet) -> None:
        """Replace broken clients in a task of the loop, since clients outlive records."""
        scope = enter_scheduler(None)
        task = self._loop.create_task(_replace(broken))
        enter_scheduler(scope)
        await asyncio.shield(task)


async def _replace(broken: ClientSet) -> None:
    for kept, client in broken.broken():
        await kept.replace(client)


def open_clients(function: Any, uid: str) -> TaskClients | None:
    """Open the clients that a function declares; ``None`` if it declares none."""
    declared = declared_clients(function)
    return None if declared is None else TaskClients(function, declared, uid)
