"""Pins: they keep the janitor from deleting a version that a reader from outside uses.

A pin is an object ``pins/<version>-<id>-<lease in s>-<renewal>``. It is renewed by putting the next
renewal (nothing is overwritten) and expires when its newest renewal is older than its lease, by
the store's clock. At first it names only the version, and protects every file that this version
may need. Once the reader knows the files, it renews the pin with their names, and only those are
protected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_engine.versions.format import layout
from forebay_state_api.contract.checksummed import read_sealed, seal
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, CorruptStateError, StorageError

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage

LEASE: Final = timedelta(hours=1)
"""The time for which a pin holds without a renewal."""
LONGEST_LEASE: Final = timedelta(days=3_650)
"""The longest lease of a reader; a savepoint holds a version for longer."""
FOREVER: Final = timedelta(days=36_500)
"""The lease of a pin that holds until it is deleted; savepoints and forks use it."""

_HOLDER: Final = itemgetter("holder")
_NAME: Final = re.compile(r"(\d+)-([0-9a-f]{24})-(\d+)-(\d{6})")


@attrs.frozen(kw_only=True)
class PinEntry:
    """One renewal of a pin, as a listing shows it."""

    name: str
    version: int
    id: str
    lease: timedelta
    renewal: int
    modified: datetime

    def expired(self, now: datetime) -> bool:
        """Return whether the pin has expired at the store's time ``now``."""
        return now - self.modified >= self.lease


def list_pins(storage: ObjectStorage) -> Sequence[PinEntry]:
    """List all renewals of all pins (one request)."""
    return pins_among(storage.list(layout.PINS))


def pins_among(objects: Iterable[ObjectInfo]) -> Sequence[PinEntry]:
    """Return the renewals of pins among listed objects."""
    found = map(_parse, objects)
    return [pin for pin in found if pin]


def _parse(info: ObjectInfo) -> PinEntry | None:
    match = _NAME.fullmatch(info.name.removeprefix(f"{layout.PINS}/"))
    return match and PinEntry(
        name=info.name,
        version=int(match[1]),
        id=match[2],
        lease=_lease(int(match[3])),
        renewal=int(match[4]),
        modified=info.modified,
    )


def _lease(seconds: int) -> timedelta:
    """Return a lease that may be too long for a time: pins are named by any process that can."""
    bound = LONGEST_LEASE if seconds > FOREVER.total_seconds() else FOREVER
    return timedelta(seconds=min(seconds, int(bound.total_seconds())))


def checked_lease(lease: Any) -> timedelta:
    """Return the lease of a reader; raise `ConfigurationError` unless it is 1 s to 10 years."""
    if isinstance(lease, timedelta) and timedelta(seconds=1) <= lease <= LONGEST_LEASE:
        return lease
    raise ConfigurationError(
        f"lease is a timedelta of 1 second to {LONGEST_LEASE.days} days, not {lease!r}: a "
        "savepoint holds a version until it is deleted"
    )


def newest_renewals(pins: Iterable[PinEntry]) -> Sequence[PinEntry]:
    """Return the newest renewal of each pin."""
    newest: dict[str, PinEntry] = {}
    for pin in sorted(pins, key=lambda pin: pin.renewal):
        newest[pin.id] = pin
    return list(newest.values())


def pinned_files(storage: ObjectStorage, pin: PinEntry) -> frozenset[str] | None:
    """Return the files that a pin names; ``None`` if it protects all that its version may need."""
    try:
        return read_sealed(storage.get(pin.name), f"{pin.name} in {storage.url}", _files)
    except ObjectNotFoundError:
        return frozenset()
    except CorruptStateError:  # the names are unknown, so everything is protected
        return None


def _files(payload: Mapping[str, Any]) -> frozenset[str] | None:
    files = payload["files"]
    return None if files is None else frozenset(files)


def renew_pin(storage: ObjectStorage, pin_id: str, *, now: datetime) -> bool:
    """Restart the lease of a pin that another process put; return whether the pin is there.

    Nothing is put while three quarters of the lease remain at ``now``. Several processes may renew
    one pin.
    """
    renewals = [pin for pin in list_pins(storage) if pin.id == pin_id]
    if not renewals:
        return False
    newest = max(renewals, key=lambda pin: pin.renewal)
    if timedelta(0) <= now - newest.modified < newest.lease / 4:
        return True
    stem = newest.name.rpartition("-")[0]
    try:
        storage.put_if_absent(f"{stem}-{newest.renewal + 1:06d}", storage.get(newest.name))
    except ObjectNotFoundError:  # another process has renewed it, or the janitor deleted it
        return any(pin.id == pin_id for pin in list_pins(storage))
    return True


def lasting_name(version: int) -> str:
    """Return a fresh name for a pin that holds until it is deleted."""
    return f"{layout.PINS}/{version}-{random_id()}-{int(FOREVER.total_seconds())}-000000"


def put_lasting(storage: ObjectStorage, name: str, files: Iterable[str], holder: str) -> None:
    """Put a pin of that name on files; ``holder`` names who needs them, for people."""
    storage.put(name, seal({"files": sorted(files), "holder": holder}))


def lasting_holders(storage: ObjectStorage) -> Sequence[str]:
    """Return the holders of pins that do not expire, sorted."""
    return sorted({holder for _, holder in _lasting(storage)})


def delete_holder(storage: ObjectStorage, holder: str) -> bool:
    """Delete every lasting pin of ``holder``; return whether there was one."""
    names = [name for name, found in _lasting(storage) if found == holder]
    storage.delete(names)
    return bool(names)


def _lasting(storage: ObjectStorage) -> Iterator[tuple[str, str]]:
    """Yield the name and the holder of each pin that does not expire."""
    for pin in list_pins(storage):
        if pin.lease == FOREVER:
            try:
                data = storage.get(pin.name)
            except ObjectNotFoundError:  # deleted since it was listed
                continue
            yield pin.name, read_sealed(data, f"{pin.name} in {storage.url}", _HOLDER)


class Pin:
    """A reader's hold on one version: the constructor puts the pin, `close` deletes it."""

    def __init__(self, storage: ObjectStorage, version: int, lease: timedelta = LEASE) -> None:
        """Hold everything that ``version`` may need, for ``lease`` unless renewed.

        Raises `ConfigurationError` for a lease that `checked_lease` refuses.
        """
        self._storage = storage
        self._version = version
        self._lease_s = int(checked_lease(lease).total_seconds())
        self.id: Final = random_id()
        """The identity of the pin, for `renew_pin`."""
        self._stem = f"{layout.PINS}/{version}-{self.id}-{self._lease_s}"
        self._names: list[str] = []
        self._renewals = 0
        self._files: list[str] | None = None
        self.renew()

    def renew(self, files: Iterable[str] | None = None) -> None:
        """Restart the lease; ``files`` narrows the pin to these files from now on."""
        if files is not None:
            self._files = sorted(files)
        name = f"{self._stem}-{self._renewals:06d}"
        self._renewals += 1
        self._storage.put(name, seal({"files": self._files}))
        older, self._names = self._names, [name]
        try:
            self._storage.delete(older)
        except StorageError:  # `close` tries again
            self._names += older

    def close(self) -> None:
        """Delete the pin. Safe to call twice.

        Where deleting is not permitted, the pin stays until it expires, and a warning is logged.
        """
        harm = f"this pin holds version {self._version} for {self._lease_s} s longer"
        delete_or_leave(self._storage, self._names, harm)
        self._names = []

    def __repr__(self) -> str:
        """Show the version and where it is stored."""
        return f"version {self._version} in {self._storage.url}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the pin, also after a failure."""
        self.close()
