"""Determines the gateways: those of the settings, with later additions and removals.

Changes are objects in the state directory, ``.compaction/endpoints-<number>``, each with all
differences from the settings; the highest number counts. Nothing is overwritten: of two concurrent
changes one is put, and the other is repeated on top of it. The newest few are kept.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from forebay_compaction_ray.addresses import address_of
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.checksummed import TornObjectError, seal, unseal
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

FOLDER: Final = ".compaction"
"""Cannot be the folder of a query, which has no dot."""
REREAD_S: Final = 10.0
"""Maximum age, in seconds, of a process's copy of the changes."""

_NAME: Final = re.compile(r"endpoints-(\d{12})")
_RIVALS: Final = 100
_KEPT: Final = 8
"""Older lists that are kept: for concurrent readers, and in case the newest is torn."""


@attrs.frozen
class EndpointList:
    """The addresses added to those of the settings, and the addresses removed from them."""

    number: int = 0
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def of(self, configured: Sequence[str]) -> tuple[str, ...]:
        """Apply the changes to the ``configured`` addresses; return the effective ones."""
        kept = [address for address in configured if address not in self.removed]
        return tuple(dict.fromkeys([*kept, *self.added]))

    def with_added(self, addresses: Iterable[str]) -> EndpointList:
        """Return the list after an addition."""
        new = [address_of(address) for address in addresses]
        return EndpointList(
            self.number + 1,
            tuple(dict.fromkeys([*self.added, *new])),
            tuple(address for address in self.removed if address not in new),
        )

    def with_removed(self, addresses: Iterable[str]) -> EndpointList:
        """Return the list after a removal."""
        gone = [address_of(address) for address in addresses]
        return EndpointList(
            self.number + 1,
            tuple(address for address in self.added if address not in gone),
            tuple(dict.fromkeys([*self.removed, *gone])),
        )


def _read_list(plain: Mapping[str, Any], number: int, where: str) -> EndpointList:
    with decoding(lambda _: where):
        return EndpointList(number, tuple(plain["added"]), tuple(plain["removed"]))


class Endpoints:
    """Reads and makes the changes of one state directory, from any process."""

    def __init__(self, storage: ObjectStorage) -> None:
        """``storage`` is the state directory."""
        self._storage: Final = storage

    def read(self) -> EndpointList:
        """Return all changes so far; raises `StorageError` or `CorruptStateError`."""
        found = self._stored()
        highest = max((number for number, _ in found), default=0)
        for _, name in sorted(found, reverse=True):
            where = f"{name} in {self._storage.url}"
            try:
                plain = unseal(self._storage.get(name), where)
            except TornObjectError:  # an incomplete change; the previous one holds
                continue
            return _read_list(plain, highest, where)
        return EndpointList(highest)

    def add(self, *addresses: str) -> EndpointList:
        """Make all queries of the state directory use these gateways too, within `REREAD_S`.

        ``addresses`` have the form ``host:port``. Returns the changes in force. Raises
        `ConfigurationError` for an address of another form, and `StorageError`.
        """
        return self._change(lambda now: now.with_added(addresses))

    def remove(self, *addresses: str) -> EndpointList:
        """Stop all queries of the state directory from submitting to these gateways.

        ``addresses`` have the form ``host:port``. Returns the changes in force. Raises
        `ConfigurationError` for an address of another form, and `StorageError`.
        """
        return self._change(lambda now: now.with_removed(addresses))

    def _change(self, change: Callable[[EndpointList], EndpointList]) -> EndpointList:
        for _ in range(_RIVALS):
            changed = change(self.read())
            payload = {"added": list(changed.added), "removed": list(changed.removed)}
            name = f"{FOLDER}/endpoints-{changed.number:012d}"
            if self._storage.put_if_absent(name, seal(payload)) and self._holds(changed.number):
                return changed
        raise StorageError(f"the endpoints in {self._storage.url} change too often")

    def _stored(self) -> list[tuple[int, str]]:
        """Return number and name of each list."""
        return [
            (int(match[1]), info.name)
            for info in self._storage.list(FOLDER)
            if (match := _NAME.fullmatch(info.name.rpartition("/")[2]))
        ]

    def _holds(self, number: int) -> bool:
        """Return whether a list that was put is the newest or was changed since; delete old ones.

        A delayed put may have written a number whose original list was already deleted.
        """
        stored = dict(self._stored())
        highest = max(stored)
        old = [name for other, name in stored.items() if other < highest - _KEPT]
        try:
            self._storage.delete(old)
        except StorageError as error:
            _log.warning("old lists of gateways stay in %s: %s", self._storage.url, error)
        return number == highest or number + 1 in stored


class KnownEndpoints:
    """One process's view of the effective addresses. Thread-safe."""

    def __init__(
        self,
        endpoints: Endpoints,
        configured: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``warn`` is called if the changes cannot be read; the known addresses stay in force."""
        self._endpoints: Final = endpoints
        self._configured: Final = tuple(configured)
        self._clock: Final = clock
        self._warn: Final = warn
        self._lock: Final = threading.Lock()
        self._read_s: float | None = None
        self._known = EndpointList()

    def last_known(self) -> tuple[str, ...]:
        """Return the effective addresses as of the last read, without reading again."""
        return self._known.of(self._configured)

    def current(self) -> tuple[str, ...]:
        """Return the effective addresses, read again if they are older than `REREAD_S`."""
        with self._lock:
            now = self._clock()
            if self._read_s is None or now - self._read_s >= REREAD_S:
                self._read_s = now
                try:
                    self._learn(self._endpoints.read())
                except (StorageError, CorruptStateError) as error:
                    self._warn(str(error))
            return self.last_known()

    def _learn(self, found: EndpointList) -> None:
        before, self._known = self.last_known(), found
        if self.last_known() != before:
            shown = ", ".join(self.last_known()) or "none: compaction runs in the job"
            _log.info("gateways for compaction: %s", shown)
