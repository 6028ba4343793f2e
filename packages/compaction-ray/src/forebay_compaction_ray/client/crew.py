"""A few daemon threads that do what a client may not wait for; begun when there is work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

NAME: Final = "forebay-remote-compaction"


class Crew:
    """Does errands in the order given, up to ``most`` at once. They do not keep a process alive."""

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._errands: deque[Callable[[], None]] = deque()
        self._changed: Final = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def do(self, errand: Callable[[], None]) -> None:
        """Have it done some time; after `close` nothing is done any more."""
        with self._changed:
            if self._closed:
                return
            self._errands.append(errand)
            if len(self._errands) > self._idle and len(self._threads) < self._most:
                self._begin()
            self._changed.notify()

    def close(self, wait_s: float) -> None:
        """Begin no further errand, and wait for those under way."""
        with self._changed:
            self._closed = True
            self._errands.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(wait_s)

    def _begin(self) -> None:
        thread = threading.Thread(target=self._work, name=NAME, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (errand := self._next()) is not None:
            try:
                errand()
            except Exception:  # noqa: BLE001 - the thread must go on
                _log.exception("an errand of the remote compaction service failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            while not self._errands and not self._closed:
                self._changed.wait()
            self._idle -= 1
            return None if self._closed else self._errands.popleft()
