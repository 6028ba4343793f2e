"""`Clients`: clients of external services, opened once per worker process."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import AggregateFunction, ReduceFunction


class Clients:
    """Declares clients that are opened once per worker process.

    The class attribute ``clients`` of a function with an asynchronous method::

        class Score(KeyedProcessFunction):
            clients = Clients(http=aiohttp.ClientSession)

            async def process_element(self, row, ctx):
                reply = await ctx.clients.http.get(URL)

    Each argument names a client. Its value is called on the loop on which the function runs, and
    returns a context manager, asynchronous or not, whose value is the client. Clients are open
    before the function's ``open`` and stay open from micro-batch to micro-batch. They are closed
    when they have been unused for 50 s, after a failed micro-batch, and if possible when the
    process ends. One whose ``closed`` or ``is_closed`` is true when a micro-batch begins is opened
    again. Jobs that use the same `Clients` object share its clients in a process.
    """

    def __init__(self, **factories: Callable[[], Any]) -> None:
        """Take the factory of each client, by its name."""
        if not factories:
            raise ConfigurationError(
                "Clients() has no factories. Name one, as in Clients(http=aiohttp.ClientSession)"
            )
        for name, factory in factories.items():
            if not callable(factory):
                raise ConfigurationError(
                    f"Clients({name}=...) takes a callable that returns a context manager, such as "
                    f"a client's class, not {factory!r:.200}"
                )
        self.factories = factories
        self.digest = uuid.uuid4().hex
        """Identifies the declaration in the worker processes, which have copies of it."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse another name than ``clients``, under which nothing would open them."""
        if name != "clients":
            raise ConfigurationError(
                f"{owner.__qualname__}.{name}: a function's Clients(...) are its class attribute "
                "clients. Rename it"
            )
        if issubclass(owner, ReduceFunction | AggregateFunction):
            raise ConfigurationError(
                f"{owner.__qualname__}.clients: a function inside states has no ctx, so nothing "
                "would use its Clients(...). Use .process"
            )


class NoClients:
    """Stands for ``ctx.clients`` where the function declares none."""

    def __init__(self, uid: str) -> None:
        self._uid = uid

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigurationError(
            f"operator {self._uid!r}: ctx.clients.{name}: the function declares no clients. "
            f"Give it the class attribute clients = Clients({name}=...)"
        )
