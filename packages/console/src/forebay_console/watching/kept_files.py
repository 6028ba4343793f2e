"""Savepoints, forks and readers: they keep files beyond an operator's newest versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
from cachetools import LRUCache

from forebay_engine.versions.choosing.pins import FOREVER
from forebay_engine.versions.choosing.savepoints import Savepoint, read_savepoint
from forebay_engine.versions.format import layout
from forebay_state_api.contract.checksummed import read_sealed
from forebay_state_api.contract.object_storage import ObjectNotFoundError

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage
    from forebay_state_processor.observing import OperatorListing

T = TypeVar("T")

_OBJECTS: Final = 2_000
_FORK: Final = "fork "


@attrs.frozen(kw_only=True)
class Fork:
    """An operator that needs files of this one."""

    folder: str
    """The operator's folder below the state directory."""
    version: int
    made: datetime


@attrs.frozen(kw_only=True)
class ReaderPin:
    """A pin of a reader from outside."""

    version: int
    renewed: datetime
    expires: datetime


@attrs.frozen(kw_only=True)
class KeptFiles:
    """The savepoints, forks and readers that keep files of an operator."""

    savepoints: Sequence[Savepoint]
    forks: Sequence[Fork]
    readers: Sequence[ReaderPin]
    sources: Sequence[str]
    """Folders of the operators whose files this one needs, as a fork does."""


class KeptFilesReader:
    """Reads savepoints and pins, each object once: they never change."""

    def __init__(self, storage: ObjectStorage, uid: str) -> None:
        """``storage`` is the operator's folder."""
        self._storage: Final = storage
        self._uid: Final = uid
        self._read: Final[LRUCache[tuple[str, datetime], Any]] = LRUCache(_OBJECTS)

    def kept(self, listing: OperatorListing, now: datetime) -> KeptFiles:
        """Return the kept files in the newest listing, as of ``now``."""
        saved = (self._once(info, self._savepoint) for info in listing.below(layout.SAVEPOINTS))
        sources = {self._once(info, self._source) for info in listing.below(layout.SOURCES)}
        return KeptFiles(
            savepoints=sorted((s for s in saved if s), key=lambda one: one.name),
            forks=self._forks(listing),
            readers=[
                ReaderPin(version=p.version, renewed=p.modified, expires=p.modified + p.lease)
                for p in listing.reader_pins(now)
            ],
            sources=sorted(folder for folder in sources if folder),
        )

    def _forks(self, listing: OperatorListing) -> Sequence[Fork]:
        objects = {info.name: info for info in listing.below(layout.PINS)}
        found = {}
        for pin in listing.pins:
            lasts = pin.lease == FOREVER
            holder = self._once(objects[pin.name], self._holder) if lasts else None
            if holder is not None and holder.startswith(_FORK):
                folder = holder.removeprefix(_FORK)
                fork = Fork(folder=folder, version=pin.version, made=pin.modified)
                found[folder, pin.version] = fork
        return [found[key] for key in sorted(found)]

    def _once(self, info: ObjectInfo, read: Callable[[ObjectInfo], T]) -> T | None:
        key = info.name, info.modified
        if key not in self._read:
            try:
                self._read[key] = read(info)
            except ObjectNotFoundError:  # deleted after the listing
                return None
        found: T = self._read[key]
        return found

    def _savepoint(self, info: ObjectInfo) -> Savepoint:
        name = layout.unescaped(info.name.rpartition("/")[2])
        return attrs.evolve(read_savepoint(self._storage, name, uid=self._uid), made=info.modified)

    def _holder(self, info: ObjectInfo) -> str:
        return self._sealed(info, lambda payload: str(payload["holder"]))

    def _source(self, info: ObjectInfo) -> str:
        return self._sealed(info, lambda payload: str(payload["folder"]))

    def _sealed(self, info: ObjectInfo, part: Callable[[Mapping[str, Any]], str]) -> str:
        data = self._storage.get(info.name)
        return read_sealed(data, f"{info.name} in {self._storage.url}", part)
