"""List one version: the attempts that began to make it, and the attempts that committed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import Figures
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.named_clocks import clocks_of
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.file_names import version_of
from forebay_state_api.contract.object_storage import ObjectInfo

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_AFTER_COORDINATES: Final = re.compile(r"(.*)-(\d+)(?:-([A-Z][A-Za-z0-9]*))?-(\d+)")
"""The end of a manifest's name: its batch's time, figures if there are any, and its size."""


@attrs.frozen(kw_only=True)
class Made:
    """A marker or a manifest, parsed from its name."""

    name: str
    by: Coordinates
    manifest: bool
    """Whether it is a whole manifest; otherwise a marker, or the remains of a torn manifest."""
    batch_ms: int = 0
    """The batch's time, as `Manifest.batch_ms`; 0 for a marker."""
    modified: datetime
    """When it was written, by the store's clock."""
    encoded: str = ""
    """The text of `clocks` and `figures`."""

    @property
    def figures(self) -> Figures:
        """The figures of the commit; a marker has no figures."""
        return Figures.parse(self.encoded)

    @property
    def clocks(self) -> Mapping[str, Any] | None:
        """The clocks in the name, as in `Manifest.times`; ``None`` if it has none."""
        return clocks_of(self.encoded)

    @classmethod
    def parse(cls, info: ObjectInfo) -> Self | None:
        """Read an object's name; ``None`` if it is neither a manifest's nor a marker's."""
        parts = info.name.split("/")
        named = len(parts) == 4  # noqa: PLR2004 - directory, version, pair, what it is
        version = version_of(parts[1]) if named else None
        if version is None:
            return None
        kind, _, text = parts[3].partition("-")
        if kind == "marker":
            by = Coordinates.parse(version, text)
            if by is None:
                return None
            return cls(name=info.name, by=by, manifest=False, modified=info.modified)
        ending = _AFTER_COORDINATES.fullmatch(text) if kind == "manifest" else None
        by = None if ending is None else Coordinates.parse(version, ending[1])
        if ending is None or by is None:
            return None
        # A torn manifest still shows, as a marker does, that an attempt began this version.
        return cls(
            name=info.name,
            by=by,
            manifest=int(ending[4]) == info.size,
            batch_ms=int(ending[2]),
            modified=info.modified,
            encoded=ending[3] or "",
        )

    @classmethod
    def of_whole(cls, name: str, modified: datetime) -> Self | None:
        """Read the name of a manifest that is known to be complete; ``None`` for any other name."""
        ending = _AFTER_COORDINATES.fullmatch(name)
        if ending is None:
            return None
        return cls.parse(ObjectInfo(name=name, size=int(ending[4]), modified=modified))


@attrs.frozen(kw_only=True)
class VersionListing:
    """The markers and manifests of one version, of all runs and attempts."""

    version: int
    objects: Sequence[Made]

    def __bool__(self) -> bool:
        """Return whether any attempt began to make this version; otherwise it was skipped."""
        return bool(self.objects)

    def of_run(self, run_key: str) -> VersionListing:
        """Return only the objects that one run made."""
        return self.of_runs(frozenset({run_key}))

    def of_runs(self, run_keys: frozenset[str]) -> VersionListing:
        """Return only the objects that these runs made."""
        kept = [made for made in self.objects if made.by.run_key in run_keys]
        return VersionListing(version=self.version, objects=kept)

    @property
    def run_keys(self) -> frozenset[str]:
        """The runs that began to make this version."""
        return frozenset(made.by.run_key for made in self.objects)

    @property
    def manifests(self) -> Sequence[Made]:
        """The whole manifests."""
        return [made for made in self.objects if made.manifest]

    @property
    def torn(self) -> Sequence[Made]:
        """The remains of torn manifests."""
        return [m for m in self.objects if "/manifest-" in m.name and not m.manifest]


def list_version(storage: ObjectStorage, version: int) -> VersionListing:
    """List one version, for all subtasks (one request)."""
    return _listed(storage, version, layout.version_folder(version))


def list_pair(
    storage: ObjectStorage, version: int, subtask: int, parallelism: int
) -> VersionListing:
    """List one version in a subtask's folder (one request)."""
    return _listed(storage, version, layout.pair_folder(version, subtask, parallelism))


def _listed(storage: ObjectStorage, version: int, folder: str) -> VersionListing:
    found = (Made.parse(info) for info in storage.list(folder))
    return VersionListing(version=version, objects=[made for made in found if made])


def put_marker(storage: ObjectStorage, made: Coordinates) -> bool:
    """Mark that an attempt begins to make a version, before it reads any state (one request).

    Returns whether no marker of this attempt existed. The random id is for a put whose response was
    lost: the attempt then recognises the object as its own.
    """
    return storage.put_if_absent(layout.marker_name(made), seal({"id": made.random_id}))


def marked_versions(storage: ObjectStorage, newest: int) -> list[int]:
    """Return the versions up to ``newest`` that have a folder, newest first (one request).

    A folder may turn out to be empty if the version was deleted in the meantime.
    """
    folders = storage.list_folders(layout.VERSIONS)
    versions = (version_of(folder) for folder in folders)
    return sorted((v for v in versions if v is not None and v <= newest), reverse=True)
