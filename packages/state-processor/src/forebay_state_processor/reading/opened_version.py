"""A pinned version, opened range by range with the backend that made it."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.contract.backend import Capability
from forebay_state_api.errors import ConfigurationError, VersionGoneError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.held_pin import HeldPin
from forebay_state_processor.reading.history_positions import Position, is_stored

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.reader import VersionReader
    from forebay_state_api.contract.backend import StateBackend, Table, TableSpec

_KEPT: Final = 1_024
"""The most ranges that stay open for look-ups."""


class OpenedVersion:
    """Opens a version's key groups for look-ups and scans, and keeps its pin alive.

    Look-ups may come from several threads.
    """

    def __init__(
        self,
        reader: VersionReader,
        backend: type[StateBackend],
        options: Mapping[str, Any],
        *,
        cache_bytes: int,
        renew_every_s: float,
    ) -> None:
        """``reader`` holds the whole version; its pin is deleted when this object is closed."""
        self.reader: Final = reader
        self.backend: Final = backend
        self._storage: Final = reader.storage
        self._options: Final = options
        self._cache_bytes: Final = cache_bytes
        self._kept: Final[OrderedDict[KeyGroupRange, _OpenRange]] = OrderedDict()
        self._lock: Final = threading.Lock()
        self._group_bytes: Final = reader.bytes / reader.manifests[0].made.max_parallelism
        self._position: Final = Position(reader.version, reader.run_key or "")
        self._pin: Final = HeldPin(
            reader.pin, renew_every_s, partial(is_stored, reader.storage, self._position)
        )
        weakref.finalize(self, self._pin.abandon)  # if it is never closed
        self._closed = False

    def table(self, spec: TableSpec, groups: KeyGroupRange) -> Table:
        """Return a table over ``groups`` for look-ups; the range stays open for the next ones.

        Ranges stay open as long as about ``cache_bytes`` are stored in them, and at least one does:
        a resident backend holds all that its range has.
        """
        self.check_open()
        with self._lock:
            opened = self._kept.pop(groups, None)
            if opened is None:
                opened = _OpenRange(self._opened(groups))
            self._kept[groups] = opened
            while len(self._kept) > self._most_kept():
                self._kept.popitem(last=False)[1].backend.close()
            return opened.table(spec)

    @contextmanager
    def scanning(
        self, groups: KeyGroupRange, specs: Sequence[TableSpec] | None = None
    ) -> Iterator[StateBackend]:
        """Open ``groups`` of some tables, by default all, for as long as the context lasts."""
        self.check_open()
        tables = None if specs is None else [spec.name for spec in specs]
        backend = self._opened(groups, tables)
        try:
            yield backend
        finally:
            backend.close()

    def parts(self, groups: KeyGroupRange) -> list[KeyGroupRange]:
        """Return ``groups``, split at the bounds of the subtasks that made the version."""
        parts = (found.intersection(groups) for found, _ in self.reader.clipped)
        return [part for part in parts if part]

    def check_open(self) -> None:
        """Raise if the snapshot is closed, or if its version was deleted."""
        if self._closed:
            raise ConfigurationError(
                f"the snapshot of version {self.reader.version} in {self._storage.url} is closed; "
                "open it again with open_state"
            )
        if self._pin.is_lost:
            raise VersionGoneError(
                f"version {self._position} in {self._storage.url} is not stored any more: this "
                "process was suspended for longer than the lease of its pin, and the janitor "
                "deleted the version. Open a newer one with open_state, or pass a longer lease="
            )

    def close(self) -> None:
        """Close what is open and delete the pin. Safe to call twice."""
        self._closed = True
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].backend.close()
        self._pin.release()

    def _most_kept(self) -> int:
        """Return the number of ranges of average size that may stay open."""
        groups = sum(map(len, self._kept)) / len(self._kept)
        resident = Capability.RESIDENT in self.backend.capabilities
        size = max(1.0, self._group_bytes * groups) if resident else 1.0
        return max(1, min(_KEPT, int(self._cache_bytes / size)))

    def _opened(self, groups: KeyGroupRange, tables: Collection[str] | None = None) -> StateBackend:
        return self.backend.open(
            self.reader.opening(self._options, groups, cache_bytes=self._cache_bytes, tables=tables)
        )


class _OpenRange:
    """An opened range and its tables."""

    def __init__(self, backend: StateBackend) -> None:
        self.backend: Final = backend
        self._tables: Final[dict[str, Table]] = {}

    def table(self, spec: TableSpec) -> Table:
        if spec.name not in self._tables:
            self._tables[spec.name] = self.backend.table(spec)
        return self._tables[spec.name]
