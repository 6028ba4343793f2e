"""Determines the gateways: the settings' addresses, with later additions and removals.

Each change is an object in the state directory, whose name holds the address:
``.compaction/added/<address>`` or ``.compaction/removed/<address>``. A removal has precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from forebay_compaction_ray.addresses import address_of
from forebay_compaction_ray.reloaded_value import ReloadedValue
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, CorruptStateError

FOLDER: Final = ".compaction"
"""Cannot be the folder of a query, which has no dot."""
REREAD_S: Final = 10.0
"""Maximum age, in seconds, of a process's copy of the changes."""

_ADDED: Final = f"{FOLDER}/added"
_REMOVED: Final = f"{FOLDER}/removed"
_TO_NAME: Final = str.maketrans(":[]", "!()")
"""Every storage takes these characters in names, and no address has them."""
_FROM_NAME: Final = str.maketrans("!()", ":[]")


@attrs.frozen
class EndpointList:
    """The addresses added to the settings' addresses, and the addresses removed from them."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def of(self, configured: Sequence[str]) -> tuple[str, ...]:
        """Apply the changes to the ``configured`` addresses; return the effective ones."""
        known = dict.fromkeys([*configured, *self.added])
        return tuple(address for address in known if address not in self.removed)


class Endpoints:
    """Reads and makes the changes of one state directory, from any process.

    Changes of different addresses may be made at the same time. If one address is added and removed
    at the same time, both changes may be lost.
    """

    def __init__(self, storage: ObjectStorage) -> None:
        """``storage`` is the state directory."""
        self._storage: Final = storage

    def read(self) -> EndpointList:
        """Return all changes so far; raises `StorageError` or `CorruptStateError`."""
        found: dict[str, list[str]] = {_ADDED: [], _REMOVED: []}
        for info in self._storage.list(FOLDER):
            folder, _, name = info.name.rpartition("/")
            if folder in found:
                found[folder].append(self._address(info.name, name))
        return EndpointList(tuple(found[_ADDED]), tuple(found[_REMOVED]))

    def add(self, *addresses: str) -> EndpointList:
        """Make all queries of the state directory use these gateways too, within `REREAD_S`.

        ``addresses`` have the form ``host:port``. Returns the changes in force. Raises
        `ConfigurationError` for an address of another form, and `StorageError`.
        """
        return self._change(addresses, _ADDED, _REMOVED)

    def remove(self, *addresses: str) -> EndpointList:
        """Stop all queries of the state directory from submitting to these gateways.

        ``addresses`` have the form ``host:port``. Returns the changes in force. Raises
        `ConfigurationError` for an address of another form, and `StorageError`.
        """
        return self._change(addresses, _REMOVED, _ADDED)

    def _change(self, addresses: Iterable[str], to: str, from_: str) -> EndpointList:
        names = [address_of(address).translate(_TO_NAME) for address in addresses]
        for name in names:
            self._storage.put(f"{to}/{name}", b"the name says it")
        reverted = {f"{from_}/{name}" for name in names}
        found = (info.name for info in self._storage.list(FOLDER))
        self._storage.delete([name for name in found if name in reverted])
        return self.read()

    def _address(self, where: str, name: str) -> str:
        try:
            return address_of(name.translate(_FROM_NAME))
        except ConfigurationError as error:
            raise CorruptStateError(
                f"{where} in {self._storage.url} names no gateway: delete it"
            ) from error


def known_endpoints(
    storage: ObjectStorage, configured: Sequence[str], clock: Callable[[], float]
) -> ReloadedValue[tuple[str, ...]]:
    """Return the effective addresses at any time; the ``configured`` ones before the first read."""
    endpoints = Endpoints(storage)
    return ReloadedValue(
        lambda: endpoints.read().of(configured), REREAD_S, first=tuple(configured), clock=clock
    )
