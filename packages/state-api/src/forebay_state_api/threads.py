"""Starts threads and event loops, also in a process that has reached its limits.

The whole project follows one rule. Work that the caller can do itself, such as a read, is done by
the caller. Work that can wait, such as a pass of the janitor, is skipped until the next time.
Everything else raises a `NoThreadError`, or a `StorageError` if no file can be opened.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final, Generic, ParamSpec, TypeVar

from forebay_state_api.errors import NoThreadError, StorageError

__all__ = ["NO_THREAD", "RANDOM", "PerProcess", "ReadThreads", "new_loop", "start_thread"]

P = ParamSpec("P")
T = TypeVar("T")

RANDOM: Final = threading.local()
"""Its attribute ``source``, in a thread that a simulation runs, draws random ids from a seed."""
NO_THREAD: Final = "can't start new thread"
"""Python's words for a process that has as many threads as it may have."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises `NoThreadError` if the process cannot have another one now."""
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(
            f"the thread {thread.name} could not be started: {error}. Raise the limit on threads "
            "(`ulimit -u`, or the process limit of the container), or run fewer tasks per process"
        ) from error


def new_loop(
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> asyncio.AbstractEventLoop:
    """Make an event loop; raises a transient `StorageError` if no file can be opened for it."""
    try:
        return make()
    except OSError as error:
        raise StorageError(
            f"an event loop could not be made: {error}. Raise the limit of open files (ulimit -n) "
            "of the executors, or run fewer tasks per process",
            transient=True,
        ) from error


class PerProcess(Generic[T]):
    """Calls return an object that each process makes once, also a fork, which has no threads."""

    def __init__(self, make: Callable[[], T]) -> None:
        """``make`` is called once in each process, or again after it failed."""
        self._make: Final = make
        self._lock: Final = threading.Lock()
        self._made: tuple[int, T] | None = None

    def __call__(self) -> T:
        with self._lock:
            if (found := self.made) is None:
                found = self._make()
                self._made = os.getpid(), found
            return found

    @property
    def made(self) -> T | None:
        """The object of this process; ``None`` before the first call."""
        found = self._made
        return found[1] if found is not None and found[0] == os.getpid() else None


class ReadThreads(Executor):
    """Up to ``most`` threads, started when needed.

    If no thread can be started, the caller does the work. Use it for reads and other work that does
    not wait for its caller.
    """

    def __init__(self, most: int, name: str) -> None:
        """``name`` begins the name of each thread. No thread is started yet."""
        self._pool: Final = ThreadPoolExecutor(most, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call, or make it now if no thread can be started for it."""
        call = _Once(functools.partial(fn, *args, **kwargs))
        try:
            return self._pool.submit(call)
        except RuntimeError as error:
            if NO_THREAD not in str(error):  # it is shut down
                raise
        done: Future[T] = Future()
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is used
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as declared by `Executor`
        """Accept no more calls; see `concurrent.futures.Executor.shutdown`."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class _Once(Generic[T]):
    """A call that is made once, although a pool that had no thread for it keeps it in its queue."""

    def __init__(self, fn: Callable[[], T]) -> None:
        self._fn: Callable[[], T] | None = fn
        self._lock: Final = threading.Lock()
        self._error: BaseException | None = None

    def __call__(self) -> T:
        with self._lock:
            if self._fn is not None:
                fn, self._fn = self._fn, None
                try:
                    self._result = fn()
                except BaseException as error:  # noqa: BLE001 - raised below
                    self._error = error
            if self._error is not None:
                raise self._error
            return self._result
