"""Which gateways there are: what the settings say, and what was added or removed since.

Changes are objects in the state directory, ``.compaction/endpoints-<number>``, each with the whole
of what differs from the settings; the highest number counts. Nothing is overwritten: of two
changes at once one is put, and the other is made again on top of it. The newest few are kept.
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
"""No query is called so: its folder has no dot."""
REREAD_S: Final = 10.0
"""How old what a process knows of the changes may become."""

_NAME: Final = re.compile(r"endpoints-(\d{12})")
_RIVALS: Final = 100
_KEPT: Final = 8
"""Lists before the newest one that stay: for who is reading one, and should the newest be torn."""


@attrs.frozen
class EndpointList:
    """What was added to the addresses of the settings, and what was taken from them."""

    number: int = 0
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def of(self, configured: Sequence[str]) -> tuple[str, ...]:
        """The addresses in force."""
        kept = [address for address in configured if address not in self.removed]
        return tuple(dict.fromkeys([*kept, *self.added]))

    def with_added(self, addresses: Iterable[str]) -> EndpointList:
        """The list after an addition."""
        new = [address_of(address) for address in addresses]
        return EndpointList(
            self.number + 1,
            tuple(dict.fromkeys([*self.added, *new])),
            tuple(address for address in self.removed if address not in new),
        )

    def with_removed(self, addresses: Iterable[str]) -> EndpointList:
        """The list after a removal."""
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
    """The changes of one state directory, to be read and made from anywhere."""

    def __init__(self, storage: ObjectStorage) -> None:
        """``storage`` is the state directory."""
        self._storage: Final = storage

    def read(self) -> EndpointList:
        """What was changed until now; raises `StorageError`, and `CorruptStateError`."""
        found = self._stored()
        highest = max((number for number, _ in found), default=0)
        for _, name in sorted(found, reverse=True):
            where = f"{name} in {self._storage.url}"
            try:
                plain = unseal(self._storage.get(name), where)
            except TornObjectError:  # a change that did not come about; the one before it holds
                continue
            return _read_list(plain, highest, where)
        return EndpointList(highest)

    def add(self, *addresses: str) -> EndpointList:
        """Let all queries of the state directory use these gateways too, within `REREAD_S`."""
        return self._change(lambda now: now.with_added(addresses))

    def remove(self, *addresses: str) -> EndpointList:
        """Let no query of the state directory submit to these gateways any more."""
        return self._change(lambda now: now.with_removed(addresses))

    def _change(self, change: Callable[[EndpointList], EndpointList]) -> EndpointList:
        for _ in range(_RIVALS):
            changed = change(self.read())
            payload = {"added": list(changed.added), "removed": list(changed.removed)}
            name = f"{FOLDER}/endpoints-{changed.number:012d}"
            if self._storage.put_if_absent(name, seal(payload)) and self._holds(changed.number):
                return changed
        raise StorageError(f"the endpoints in {self._storage.url} are changed all the time")

    def _stored(self) -> list[tuple[int, str]]:
        """Number and name of each list."""
        return [
            (int(match[1]), info.name)
            for info in self._storage.list(FOLDER)
            if (match := _NAME.fullmatch(info.name.rpartition("/")[2]))
        ]

    def _holds(self, number: int) -> bool:
        """Whether a list that was put is the newest, or was changed since; clears old ones.

        One that was long on its way may have been put where a later one had been cleared.
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
    """The addresses in force, as one process knows them. Used from several threads."""

    def __init__(
        self,
        endpoints: Endpoints,
        configured: Sequence[str],
        *,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``warn`` is told when the changes cannot be read; what was known stays in force."""
        self._endpoints: Final = endpoints
        self._configured: Final = tuple(configured)
        self._clock: Final = clock
        self._warn: Final = warn
        self._lock: Final = threading.Lock()
        self._read_s: float | None = None
        self._known = EndpointList()

    def last_known(self) -> tuple[str, ...]:
        """The addresses in force when they were last read; asks nobody."""
        return self._known.of(self._configured)

    def current(self) -> tuple[str, ...]:
        """The addresses in force, read again if what is known is older than `REREAD_S`."""
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
