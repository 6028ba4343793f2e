"""Find which files stored manifests name, without reading all of them.

A manifest names files that a manifest of the version that it opened named, and files of its own
version; so below a version, what later versions of a timeline name is a part of what the earlier
ones name. Everything that was ever put at or above the clearing mark is stored
(`clearing_marks`). So for files of versions below the mark it is enough to read

* every manifest that is stored below the mark: of versions that are pinned, or that came late;
* the *entries* at or above it: of each run whose first version there opened one below the mark, or
  nothing, or another operator's state, all manifests of that first version;
* all manifests of imports, which name files of the version that they replace.

A run's record states what its first version opened. `docs/decisions/0042` has the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing.opening import is_complete
from forebay_engine.versions.format.epochs import read_record, record_name
from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import Made, VersionListing
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from forebay_engine.versions.cleaning.object_cache import ObjectCache
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.progress import Progress


@attrs.frozen
class NamedFiles:
    """Reads the files that stored manifests name, of versions below a clearing mark."""

    storage: ObjectStorage
    remembered: ObjectCache
    progress: Progress

    def below(self, mark: int, made: Sequence[Made]) -> frozenset[str] | None:
        """Return at least the files and folders below version ``mark`` that ``made`` name.

        Of other operators' files, it returns at least all that are named. ``made`` is one listing
        of all markers and manifests, and ``mark`` was read after it. ``None`` if a manifest was
        deleted meanwhile: another janitor is at work.
        """
        names = [one.name for one in self._needed(mark, made)]
        self.progress.stage("reading manifests", len(names))
        try:
            read = self.remembered.read(self.storage, names, _names, self.progress.advance)
        except ObjectNotFoundError:
            return None
        return frozenset().union(*read)

    def _needed(self, mark: int, made: Sequence[Made]) -> Iterator[Made]:
        yield from (one for one in made if one.manifest and one.by.version < mark)
        runs: dict[str, list[Made]] = {}
        for one in made:
            if one.by.version >= mark:
                runs.setdefault(one.by.run_key, []).append(one)
        opened = self.remembered.read(self.storage, map(record_name, runs), _opened)
        for objects, versions in zip(runs.values(), opened, strict=True):
            if not versions or versions[0] < mark:
                yield from _entries(objects)


def _entries(objects: Iterable[Made]) -> Iterator[Made]:
    """Yield the manifests of a run's first version, and of later ones until one is complete.

    Only in a directory that was copied while a janitor deleted is the first one not whole.
    """
    versions: dict[int, list[Made]] = {}
    for one in objects:
        versions.setdefault(one.by.version, []).append(one)
    for version in sorted(versions):
        listing = VersionListing(version=version, objects=versions[version])
        yield from listing.manifests
        if is_complete(listing):
            return


def _names(storage: ObjectStorage, name: str) -> frozenset[str]:
    return read_manifest(storage, name).names


def _opened(storage: ObjectStorage, name: str) -> tuple[int, ...]:
    """Return the version that a run continued, given its record; empty if it is not known.

    It is not known of an import, and of a run that began with nothing or with another operator's
    state. Such a run's manifests are read.
    """
    try:
        record = read_record(storage, name.rpartition("/")[2])
    except CorruptStateError:
        return ()
    if record is None or record.is_import or record.origin.run_key is None:
        return ()
    return (record.origin.version,)
