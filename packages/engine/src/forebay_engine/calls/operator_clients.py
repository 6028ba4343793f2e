"""Clients that are opened once per worker process and used by its tasks, batch after batch.

A client is the value of the context manager that ``resources()`` returns. The context manager is
entered and left in the same dedicated task. A client is replaced when the ordered wait finds it
broken, and when it reports at the start of a task that it is closed. A client is closed when it has
been unused for `IDLE_S`, when the operator's ``resources`` change, after a failed task, and if
possible when the process ends. A worker may be killed at any time, and then nothing is closed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import logging
import os
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeAlias

from forebay_state_api.errors import ConfigurationError, FunctionError
from forebay_state_api.user_frames import encodable

_log = logging.getLogger(__name__)

IDLE_S: Final = 50.0
"""Seconds after which an unused client is closed; Spark ends idle worker processes after 60 s."""

OPENING_S: Final = 120.0
"""Seconds that a client may take to open."""

CLOSING_S: Final = 5.0
"""Seconds that a client may take to close."""

Resources: TypeAlias = Callable[[], Any]
"""Returns a context manager, asynchronous or not, whose value is the client."""


class _Opened:
    """One client, and the task that entered its context manager and will leave it."""

    def __init__(self, resources: Resources, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(resources))

    async def client(self) -> Any:
        """Return the client; raises the error of opening it, or `FunctionError` if it was late."""
        try:
            await asyncio.wait([self._ready], timeout=OPENING_S)
        finally:
            if self._ready.cancel():
                self._keeper.cancel()
        if self._ready.cancelled():
            raise FunctionError(f"{self._source} did not open a client within {OPENING_S:g} s")
        return self._ready.result()

    async def close(self) -> None:
        self._closing.set()
        _, late = await asyncio.wait([self._keeper], timeout=CLOSING_S)
        if late:
            self._keeper.cancel()
            _log.warning("the client of %s did not close within %g s", self._name, CLOSING_S)

    async def _keep(self, resources: Resources) -> None:
        try:
            async with _entered(resources, self._source) as client:
                self._ready.set_result(client)
                await self._closing.wait()
        except BaseException as error:  # noqa: BLE001 - the task that awaits the client gets it
            if not self._ready.done():
                self._ready.set_exception(_client_error(self._source, error))
            elif not isinstance(error, asyncio.CancelledError):
                trace = encodable("".join(traceback.format_exception(error)))
                _log.warning("closing the client of %s failed: %s", self._name, trace)


@contextlib.asynccontextmanager
async def _entered(resources: Resources, source: str) -> AsyncIterator[Any]:
    manager = resources()
    if hasattr(manager, "__aenter__"):
        async with manager as client:
            yield client
    elif hasattr(manager, "__enter__"):
        with manager as client:
            yield client
    else:
        advice = ""
        if inspect.iscoroutine(manager):
            manager.close()
        if inspect.iscoroutine(manager) or inspect.isasyncgen(manager):
            advice = ": decorate it with contextlib.asynccontextmanager, and yield the client"
        raise ConfigurationError(
            f"{source} returned {type(manager).__name__}, which is not a context manager{advice}"
        )


def _client_error(source: str, error: BaseException) -> Exception:
    if isinstance(error, ConfigurationError):
        return error
    failure = FunctionError(f"{source} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


class OperatorClient:
    """The client of one operator. All methods are called on the loop's thread."""

    def __init__(
        self, resources: Resources, digest: str, name: str, source: str | None = None
    ) -> None:
        self.digest = digest
        self.users = 0
        self.current: Any = None
        """The client that was opened last; a broken client until its replacement is open."""
        self.opening = False
        """Whether a replacement is being opened."""
        self._resources = resources
        self._name = name
        self._source = source or f"resources of {name}"
        self._opened: _Opened | None = None
        self._failure: Exception | None = None
        self._retired: list[_Opened] = []
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Open the client if there is none, or if it is closed."""
        async with self._lock:
            if self._opened is not None and is_closed(self.current):
                self._retire()
            if self._opened is None:
                await self._open()

    async def opened(self) -> None:
        """Wait until a replacement is open; raises the error of opening it."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure

    async def replace(self, broken: Any) -> None:
        """Open a client in place of ``broken``, which is closed when its task is done.

        If many calls found it broken, the first one replaces it.
        """
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self.current is broken:
                _log.info("the client of %s is broken, and is opened again", self._name)
                self._retire()
                await self._open()

    async def close_retired(self) -> None:
        """Close the clients that were replaced."""
        retired, self._retired = self._retired, []
        for one in retired:
            await one.close()

    async def close(self) -> None:
        """Close the client, and the clients that it replaced."""
        async with self._lock:
            if self._opened is not None:
                self._retire()
            self.current = None
        await self.close_retired()

    async def _open(self) -> None:
        self._failure = None
        self.opening = True
        opened = _Opened(self._resources, self._name, self._source)
        try:
            self.current = await opened.client()
        except BaseException as error:
            self._retired.append(opened)
            self._failure = error if isinstance(error, Exception) else None
            raise
        finally:
            self.opening = False
        self._opened = opened

    def _retire(self) -> None:
        assert self._opened is not None
        self._retired.append(self._opened)
        self._opened = None


class OperatorClients:
    """The clients of a process, one for each operator."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._kept: dict[str, OperatorClient] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(
        self, operator: str, digest: str, resources: Resources, source: str | None = None
    ) -> OperatorClient:
        """Return the open client of an operator, to be passed to `release` later.

        A client that other resources made is closed first, unless a task still uses it.

        :param operator: the operator's name and query.
        :param digest: the hash of the pickled ``resources``.
        :param resources: returns the context manager of a client.
        :param source: what errors call ``resources``; default: the resources of ``operator``.
        """
        timer = self._timers.pop(operator, None)
        if timer is not None:
            timer.cancel()
        kept = self._kept.get(operator)
        if kept is not None and kept.digest != digest:
            if not kept.users:
                await kept.close()
            kept = None
        if kept is None:
            kept = self._kept[operator] = OperatorClient(resources, digest, operator, source)
        kept.users += 1
        try:
            await kept.open()
        except BaseException:
            kept.users -= 1
            await kept.close_retired()
            raise
        return kept

    async def release(self, operator: str, kept: OperatorClient, *, keep: bool) -> None:
        """End a task's use of a client; without ``keep`` an unused client is closed now."""
        kept.users -= 1
        if kept.users:
            return
        await kept.close_retired()
        if not keep or self._kept.get(operator) is not kept:
            await self._close(operator, kept)
            return
        loop = asyncio.get_running_loop()
        self._timers[operator] = loop.call_later(self._idle_s, self._idle, operator, kept)

    async def close(self) -> None:
        """Close all clients."""
        for operator, kept in list(self._kept.items()):
            await self._close(operator, kept)

    async def _close(self, operator: str, kept: OperatorClient) -> None:
        if self._kept.get(operator) is kept:
            del self._kept[operator]
        await kept.close()

    def _idle(self, operator: str, kept: OperatorClient) -> None:
        if not kept.users:
            task = asyncio.get_running_loop().create_task(self._close(operator, kept))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


_clients: dict[asyncio.AbstractEventLoop, OperatorClients] = {}
"""The clients of each loop that turns as long as its process."""


def clients_of(loop: asyncio.AbstractEventLoop) -> OperatorClients:
    """Return the clients of ``loop``, which another thread turns as long as the process lives."""
    found = _clients.get(loop)
    if found is None:
        found = _clients[loop] = OperatorClients()
        atexit.register(_at_exit, found, loop, os.getpid())
    return found


def _at_exit(clients: OperatorClients, loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked process has the loop, but not its thread
    # The process ends: nothing can react to an error of closing a client.
    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(clients.close(), loop).result(CLOSING_S)


def is_closed(client: Any) -> bool:
    """Return whether a client reports that it is closed, as the clients of aiohttp and httpx do."""
    flags = (inspect.getattr_static(client, name, None) for name in ("closed", "is_closed"))
    if all(one is None for one in flags):
        return False
    return any(getattr(client, name, False) is True for name in ("closed", "is_closed"))
