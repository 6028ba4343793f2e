"""A pool of daemon threads: the standard library's waits for its threads when the process ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

__all__ = ["DaemonPool"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_IDLE_S: Final = 0.1
"""A thread without work ends after so long."""


class DaemonPool:
    """Does work in the order given, on up to ``most`` threads, which are started as it comes.

    No thread keeps the process alive. May be used from any thread.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        """``name`` is that of each thread. None is started yet."""
        self._name: Final = name
        self._most: Final = most
        self._work: Final[SimpleQueue[Callable[[], object] | None]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._threads: Final[set[threading.Thread]] = set()
        self._unfinished = 0
        self._closed = False

    def do(self, work: Callable[[], object]) -> None:
        """Have it done some time; what it raises is logged. After `close` nothing is done."""
        with self._lock:
            if self._closed:
                return
            self._work.put(work)
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._most):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done as by `do`; what it returns or raises is the future's."""
        future: Future[T] = Future()

        def fulfil() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to who waits
                future.set_exception(error)

        self.do(fulfil)
        return future

    def close(self, wait_s: float = 0.0) -> None:
        """Begin no further work, and wait for each thread that is at work, at most ``wait_s``."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(wait_s)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:  # noqa: BLE001 - the thread must go on
                _log.exception("work of %s failed", self._name)
            with self._lock:
                self._unfinished -= 1

    def _next(self) -> Callable[[], object] | None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_S)
            except Empty:
                work = None
            with self._lock:
                if work is not None and not self._closed:
                    return work
                if self._closed or self._work.empty():
                    self._threads.discard(threading.current_thread())
                    return None
