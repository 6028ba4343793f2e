"""The bytes of each state of a version: read when a viewer asks for them, once for all viewers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import attrs
from cachetools import LRUCache

from forebay_console.watching.refreshed_value import RefreshedValue
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_state_processor.observing import VersionFigures

_VERSIONS: Final = 16
"""Versions whose sizes are kept in memory; they never change."""
_WAIT_S: Final = 5.0
"""Seconds that a viewer waits for the reading of other versions: each holds a thread meanwhile."""


@attrs.frozen(kw_only=True)
class StateSizes:
    """The sizes of the states of one version."""

    version: int
    backend: str
    of_states: Mapping[str, int] | None
    """Keyed state → its stored bytes, about; ``None`` if the backend does not know them."""


class KnownSizes:
    """The sizes of the versions that viewers asked for last. Thread-safe.

    One version is read at a time; a request for another one waits for `_WAIT_S`. Errors are shared
    as in `RefreshedValue`, and sizes are read once.
    """

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        """``ttl_s``: for how many seconds an error is shown, at least."""
        self._ttl_s: Final = ttl_s
        self._now: Final = now
        self._reading: Final = threading.Lock()
        self._lock: Final = threading.Lock()
        self._known: Final[LRUCache[int, tuple[str, RefreshedValue[StateSizes]]]] = LRUCache(
            _VERSIONS
        )
        """Version → its run and its sizes."""

    def of(
        self,
        number: int,
        version: VersionFigures | None,
        read: Callable[[VersionFigures], StateSizes],
    ) -> StateSizes:
        """Return the sizes of a version, which ``read`` reads; raises its errors.

        Raises `ConfigurationError` if other versions are read for longer than a viewer waits.
        ``version`` is ``None`` if nothing is stored of it: then only sizes that are known count.
        """
        with self._lock:
            run, fresh = self._known.get(number, ("", None))
            if version is not None and (fresh is None or run != version.run_key):
                fresh = RefreshedValue(
                    cache(partial(self._read, version, read)), self._ttl_s, self._now
                )
                self._known[number] = version.run_key, fresh
        if fresh is None:
            raise ConfigurationError(
                f"Nothing is stored of version {number}, and the history does not have it."
            )
        return fresh.get()

    def _read(
        self, version: VersionFigures, read: Callable[[VersionFigures], StateSizes]
    ) -> StateSizes:
        if not self._reading.acquire(timeout=_WAIT_S):
            raise ConfigurationError(
                f"the sizes of other versions are being read; ask for version {version.version} "
                "again in a while"
            )
        try:
            return read(version)
        finally:
            self._reading.release()
