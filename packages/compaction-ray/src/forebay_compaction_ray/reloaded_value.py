"""Keeps a value that is read again when it is too old: tokens, certificates, lists of gateways."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from forebay_state_api.errors import ForebayError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ReloadedValue(Generic[T]):
    """The value that ``read`` returned last. Thread-safe.

    While it cannot be read, as in the middle of a change, the last known one stays in force.
    """

    def __init__(
        self,
        read: Callable[[], T],
        max_age_s: float,
        *,
        first: T | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the value now, and raise any error, unless there is a ``first`` one."""
        self.last_known: T = read() if first is None else first
        """The value as of the last read."""
        self._read: Final = read
        self._max_age_s: Final = max_age_s
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._read_s: float | None = None if first is not None else clock()
        self._complaint = ""

    def __call__(self) -> T:
        """Return the value, read again if the last reading is ``max_age_s`` seconds old."""
        with self._lock:
            now = self._clock()
            if self._read_s is None or now - self._read_s >= self._max_age_s:
                self._read_s = now
                self._read_again()
            return self.last_known

    def _read_again(self) -> None:
        complaint = ""
        try:
            self.last_known = self._read()
        except ForebayError as error:
            complaint = str(error)
        if complaint and complaint != self._complaint:
            _log.warning("what was read before stays in force: %s", complaint)
        self._complaint = complaint
