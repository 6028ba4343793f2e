"""`VirtualClock`: waits of asynchronous functions take no time.

The loop's time moves only where the loop has nothing to run: to the next timer. A thread that the
loop has started stops the time until it is done. Sockets and processes are refused: their answers
come in real time, so a timeout next to them would fire at once or never.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from forebay_engine.execution.awaitables import loop_of_thread, records_on
from forebay_engine.execution.task_thread import waits_for_task_thread
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.threads import new_loop
from forebay_testing.clock import ManualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_US: Final = 1_000_000


class VirtualClock(ManualClock):
    """A `ManualClock` that is also the time of asyncio in the functions of a harness.

    ``asyncio.sleep(3600)`` takes no time, and moves the clock by an hour. Timeouts and retries run
    as they would, in the order of their times. Threads of ``asyncio.to_thread`` take their real
    time, in which the clock stands still. Sockets and processes raise `ConfigurationError`.
    ``time.time`` and ``time.monotonic`` are not the clock's.
    """


class VirtualTime:
    """Runs a harness's micro-batches on a loop whose time is a clock's."""

    def __init__(self, clock: VirtualClock) -> None:
        self._runner = asyncio.Runner(loop_factory=lambda: new_loop(lambda: _VirtualLoop(clock)))

    def run(self, work: Callable[[], T]) -> T:
        """Call ``work`` on the loop; on a thread of its own where a loop runs in this one."""
        if loop_of_thread() is not None:
            with records_on(self._runner.get_loop()):
                return work()
        done: Future[T] = Future()
        here = partial(self.run, work)
        thread = threading.Thread(target=_complete, args=(done, here))
        with waits_for_task_thread():
            thread.start()
            thread.join()
        return done.result()

    def close(self) -> None:
        """Cancel what is left on the loop, and close it."""
        self.run(self._runner.close)


class ReadsAtOnce(Executor):
    """Executes reads of storage when they are sent: they take none of the clock's time."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        _complete(done, partial(fn, *args, **kwargs))
        return done


def _complete(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
        done.set_exception(error)


class _Selector(selectors.DefaultSelector):
    """Moves the time instead of waiting, unless a thread is at work."""

    def __init__(self, pass_time: Callable[[float], None], threads: Callable[[], int]) -> None:
        super().__init__()
        self._pass_time = pass_time
        self._threads = threads

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= 0 or self._threads():
            # Without a timer only another thread can wake the loop.
            return super().select(None if timeout is None or timeout > 0 else 0)
        found = super().select(0)
        if not found:
            self._pass_time(timeout)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time a clock follows."""

    _closed = True
    """Until its constructor returns: without descriptors it may fail."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._us = 0
        self._threads = 0
        super().__init__(_Selector(self._pass, lambda: self._threads))
        self._clock_resolution = 1 / _US

    def __del__(self) -> None:
        if not self.is_closed():  # a harness that nobody closed
            self.close()

    def time(self) -> float:
        return self._us / _US

    def _pass(self, seconds: float) -> None:
        passed = max(math.ceil(seconds * _US), 1)
        self._us += passed
        self._clock.advance(timedelta(microseconds=passed))

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    async def shutdown_default_executor(self, *_: float | None) -> None:
        """Wait for the threads in real time; a limit of virtual time would pass at once."""
        self._threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._threads -= 1

    def _thread_ended(self, _: object) -> None:
        self._threads -= 1


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ConfigurationError(
            f"a function under a VirtualClock called {name} of its loop: answers of sockets and "
            "processes come in real time. Replace the client, as with FunctionHarness(clients={"
            '"http": fake}), or use a ManualClock'
        )

    return refuse


_REAL_IO: Final = (
    *("add_reader", "add_writer", "connect_accepted_socket", "create_connection"),
    *("create_datagram_endpoint", "create_server", "create_unix_connection"),
    *("create_unix_server", "getaddrinfo", "getnameinfo", "sendfile", "start_tls"),
    *("connect_read_pipe", "connect_write_pipe", "subprocess_exec", "subprocess_shell"),
    *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom"),
    *("sock_recvfrom_into", "sock_sendall", "sock_sendfile", "sock_sendto"),
)
"""The methods of a loop that start real I/O."""

for _name in _REAL_IO:
    setattr(_VirtualLoop, _name, _refusing(_name))
