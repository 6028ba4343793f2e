"""A value that is read again when it is older than a moment, once for all who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_REST: Final = 4.0
"""A value is kept this many times as long as reading it took, at least: reading takes at most a
fifth of the time, however much is stored."""


class Fresh(Generic[T]):
    """Keeps what ``read`` returned for ``ttl_s`` seconds.

    Viewers who ask at the same time wait for one read and share its value, or its error: storage
    gets as many requests from many viewers as from one. Thread-safe.
    """

    def __init__(
        self, read: Callable[[], T], ttl_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read: Final = read
        self._ttl_s: Final = ttl_s
        self._now: Final = now
        self._lock: Final = threading.Lock()
        self._until = float("-inf")
        self._value: T | None = None
        self._error: Exception | None = None

    def get(self) -> T:
        """Return the value. Raises what the newest read raised, for as long as a value is kept."""
        with self._lock:
            if self._now() >= self._until:
                self._renew()
            if self._error is not None:
                raise self._error.with_traceback(None)
            assert self._value is not None
            return self._value

    def _renew(self) -> None:
        began = self._now()
        try:
            self._value, self._error = self._read(), None
        except Exception as error:  # noqa: BLE001 - every viewer gets it
            self._error = error
        read = self._now()
        self._until = read + max(self._ttl_s, _REST * (read - began))
