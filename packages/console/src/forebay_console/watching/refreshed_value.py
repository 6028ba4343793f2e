"""A value that is read again when it is too old, once for all viewers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_REST: Final = 4.0
"""A value is kept this many times as long as reading it took, at least: reading takes at most a
fifth of the time, however much is stored."""


class RefreshedValue(Generic[T]):
    """Keeps what ``read`` returned for ``ttl_s`` seconds.

    Viewers who ask at the same time share one read, or its error: storage gets as many requests
    from many viewers as from one. While one of them reads, the others get what was read before, so
    slow storage holds up one viewer at a time. Thread-safe.
    """

    def __init__(
        self, read: Callable[[], T], ttl_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read: Final = read
        self._ttl_s: Final = ttl_s
        self._now: Final = now
        self._reading: Final = threading.Lock()
        self._until = float("-inf")
        self._known: tuple[T] | Exception | None = None
        self._traceback: TracebackType | None = None
        """The traceback of an error where it was raised, without the frames of its receivers."""

    def get(self) -> T:
        """Return the value. Raises what the newest read raised, for as long as a value is kept."""
        if not self._reading.acquire(blocking=self._known is None):
            return self._given()
        try:
            if self._now() >= self._until:
                self._renew()
            return self._given()
        finally:
            self._reading.release()

    def _given(self) -> T:
        known = self._known
        if isinstance(known, tuple):
            return known[0]
        assert known is not None
        raise known.with_traceback(self._traceback)

    def _renew(self) -> None:
        began = self._now()
        try:
            self._known, self._traceback = (self._read(),), None
        except Exception as error:  # noqa: BLE001 - every viewer gets it
            self._known, self._traceback = error, error.__traceback__
        read = self._now()
        self._until = read + max(self._ttl_s, _REST * (read - began))
