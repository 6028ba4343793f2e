"""A pool of daemon threads; unlike the standard library's, it does not delay the process's exit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from forebay_state_api.errors import NoThreadError
from forebay_state_api.threads import start_thread

__all__ = ["DaemonPool"]

_log = logging.getLogger(__name__)


class DaemonPool:
    """Runs work in submission order on up to ``most`` threads, which are started when needed.

    No thread keeps the process alive. May be used from any thread.
    """

    def __init__(self, name: str, most: int = 1) -> None:
        """``name`` is the name of each thread. No thread is started yet."""
        self._name: Final = name
        self._most: Final = most
        self._work: Final[SimpleQueue[Callable[[], object]]] = SimpleQueue()
        self._lock: Final = threading.Lock()
        self._threads: Final[list[threading.Thread]] = []
        self._unfinished = 0
        self._closed = False

    def do(self, work: Callable[[], object]) -> None:
        """Queue ``work``; its exceptions are logged. After `close` nothing is run.

        Raises `NoThreadError`, and queues nothing, if the pool has no thread and cannot start one.
        """
        with self._lock:
            if len(self._threads) < min(self._unfinished + 1, self._most) and not self._closed:
                self._start_thread()
            self._unfinished += 1
            self._work.put(work)

    def do_if_possible(self, work: Callable[[], object]) -> bool:
        """Queue ``work`` that can be left out: return false, and log it, if no thread is there."""
        try:
            self.do(work)
        except NoThreadError as error:
            _log.warning("work of %s is left out for now: %s", self._name, error)
            return False
        return True

    def close(self, wait_s: float = 0.0) -> None:
        """Start no more work, and wait at most ``wait_s`` seconds for each busy thread."""
        with self._lock:
            self._closed = True
        for _ in self._threads:
            self._work.put(bool)  # wakes a thread; it is not called
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(wait_s)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            start_thread(thread)
        except NoThreadError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if self._closed:
                return
            try:
                work()
            except BaseException:  # noqa: BLE001 - the thread must continue
                _log.exception("work of %s failed", self._name)
            with self._lock:
                self._unfinished -= 1
