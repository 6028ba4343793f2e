"""Keeps a client away from a gateway that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

FAILURES: Final = 3
"""In a row, until a gateway is left alone."""
REST_S: Final = 10.0
"""How long it is left alone before one caller may try again."""


class Breaker:
    """Open after `FAILURES` in a row, half open `REST_S` later. Used from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._failures = 0
        self._opened_s = 0.0
        self._lock: Final = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether nothing speaks against a call."""
        return self._failures < FAILURES

    def allows(self) -> bool:
        """Whether to call now; of several who ask of a half open one, one is told yes."""
        with self._lock:
            if self.closed:
                return True
            if self._clock() - self._opened_s < REST_S:
                return False
            self._opened_s = self._clock()
            return True

    def answered(self) -> None:
        """A call was answered, with whatever."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """A call was not answered, or not by a gateway."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._opened_s = self._clock()
