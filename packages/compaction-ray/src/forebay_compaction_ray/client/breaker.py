"""A circuit breaker: keeps a client away from a gateway that does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

FAILURES: Final = 3
"""Consecutive failures that open the breaker."""
REST_S: Final = 10.0
"""Seconds that it stays open before one caller may try again."""


class Breaker:
    """Open after `FAILURES` in a row, half open `REST_S` later. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock: Final = clock
        self._failures = 0
        self._opened_s = 0.0
        self._lock: Final = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether calls are allowed without restriction."""
        return self._failures < FAILURES

    def allows(self) -> bool:
        """Return whether to call now; a half-open breaker allows one of several callers."""
        with self._lock:
            if self.closed:
                return True
            if self._clock() - self._opened_s < REST_S:
                return False
            self._opened_s = self._clock()
            return True

    def answered(self) -> None:
        """Record that a call was answered, whatever the answer."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Record that a call was not answered, or not by a gateway."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._opened_s = self._clock()
