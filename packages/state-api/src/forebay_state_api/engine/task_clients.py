"""Opens a function's `Clients` for one subtask, and releases them with it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from forebay_state_api.calls.operator_clients import KeptClient, OperatorClients, clients_of
from forebay_state_api.engine.awaits import loop_of_thread
from forebay_state_api.engine.loop_thread import on_loop_thread
from forebay_state_api.engine.record_methods import awaits_anything, function_name
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import Clients

T = TypeVar("T")


class TaskClients:
    """The open clients of one subtask; ``ctx.clients`` has each under its name.

    They outlive the subtask only on a loop that always turns; elsewhere nothing would notice that
    a server has closed a connection.
    """

    def __init__(self, function: Any, declared: Clients, uid: str) -> None:
        loop = loop_of_thread()
        if loop is None or not awaits_anything(function):
            raise ConfigurationError(
                f"operator {uid!r}: {function_name(function)} has clients, and no method that can "
                "await them. Make a record method or on_timer an async def"
            )
        self._loop = loop
        self._kept_on = on_loop_thread()
        self._pool = clients_of(loop) if self._kept_on else OperatorClients()
        self._uid = uid
        self._digest = declared.digest
        self._acquired: dict[str, tuple[str, KeptClient]] = {}
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
        """End the use of the clients; those of a failed micro-batch are closed."""
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


def open_clients(function: Any, uid: str) -> TaskClients | None:
    """Open the clients that a function declares; ``None`` if it declares none."""
    declared = getattr(function, "clients", None)
    return TaskClients(function, declared, uid) if isinstance(declared, Clients) else None
