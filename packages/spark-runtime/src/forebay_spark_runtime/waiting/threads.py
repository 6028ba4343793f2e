"""Runs plain functions on at most ``capacity`` threads, which are started when they are needed.

A thread cannot be cancelled. A call that ran out of time keeps running on its thread, without
effect on the record, which fails or is tried again; the thread is busy until the function returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from forebay_engine.calls.current_call import CURRENT, Call
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import FunctionError

_Settled: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"


class ThreadedFunction:
    """An asynchronous function that calls a plain one on a thread.

    It belongs to the event loop in which it is made.
    """

    def __init__(
        self, fn: Callable[[Any, Any], Any], capacity: int, patience: float | None
    ) -> None:
        """Wrap ``fn``.

        :param fn: the plain function of a row and the client.
        :param capacity: the most threads.
        :param patience: seconds that a call waits for a thread if calls that ran out of time occupy
            all of them; ``None`` for no limit.

        Raises `NoThreadError` if not one thread can be started.
        """
        self._fn = fn
        self._capacity = capacity
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._pool = DaemonPool("forebay-call", capacity)
        self._pool.do(bool)  # starts one thread, so that no call lacks all of them later
        self._settled: deque[_Settled] = deque()
        self._free: deque[asyncio.Future[None]] = deque()
        self._busy = 0

    async def ready(self) -> None:
        """Wait until a thread is free; a caller that calls at once gets it.

        Raises `FunctionError` if no thread becomes free in time.
        """
        if self._busy < self._capacity:
            return
        try:
            async with asyncio.timeout(self._patience):
                while self._busy >= self._capacity:
                    turn = self._loop.create_future()
                    self._free.append(turn)
                    await turn
        except TimeoutError:
            raise FunctionError(
                f"all {self._capacity} threads are taken by calls that ran out of time and did not "
                f"return within another {self._patience:g} s; a plain function cannot be "
                "cancelled: set a timeout in its client, or make it async"
            ) from None

    async def __call__(self, row: Any, client: Any) -> Any:
        """Call the function on a thread."""
        source = CURRENT.get()
        call = source if isinstance(source, Call) else source.call()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._busy += 1
        self._pool.do(functools.partial(self._run, future, call, row, client))
        return await future

    def close(self) -> None:
        """End the threads, each when its call has returned."""
        self._pool.close()

    def _run(self, future: asyncio.Future[Any], call: Call, row: Any, client: Any) -> None:
        error: BaseException | None = None
        answer = None
        try:
            answer = contextvars.Context().run(self._called, call, row, client)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the call
            error = raised
        self._settled.append((future, answer, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing awaits the answer
            self._loop.call_soon_threadsafe(self._settle)

    def _called(self, call: Call, row: Any, client: Any) -> Any:
        CURRENT.set(call)
        answer = self._fn(row, client)
        if inspect.isawaitable(answer):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TypeError("a plain function returned an awaitable: define it with async def")
        return answer

    def _settle(self) -> None:
        while self._settled:
            future, answer, error = self._settled.popleft()
            self._busy -= 1
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            elif isinstance(error, StopIteration):
                future.set_exception(RuntimeError("the function raised StopIteration"))
            else:
                future.set_exception(error)
        free = self._capacity - self._busy
        while self._free and free > 0:
            turn = self._free.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
