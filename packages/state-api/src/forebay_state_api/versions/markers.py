"""What one list of one version says: who began to make it, and who did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import attrs

from forebay_state_api.sealed import seal
from forebay_state_api.versions import layout
from forebay_state_api.versions.layout import Coordinates

if TYPE_CHECKING:
    from forebay_state_api.storage import ObjectInfo, ObjectStorage


@attrs.frozen(kw_only=True)
class Made:
    """A marker or a manifest, as its name tells it."""

    name: str
    by: Coordinates
    manifest: bool
    """A whole manifest; otherwise a marker, or what is left of a torn manifest."""

    @classmethod
    def parse(cls, info: ObjectInfo) -> Self | None:
        """Read an object's name; ``None`` when it is neither."""
        parts = info.name.split("/")
        named = len(parts) == 3  # noqa: PLR2004 - directory, version, what it is
        version = layout.version_of(parts[1]) if named else None
        if version is None:
            return None
        kind, _, text = parts[2].partition("-")
        if kind == "marker":
            return cls._of(info, Coordinates.parse(version, text), manifest=False)
        if kind != "manifest":
            return None
        text, _, size = text.rpartition("-")
        # A torn manifest still tells what a marker does: somebody was making this version.
        whole = size == str(info.size)
        return cls._of(info, Coordinates.parse(version, text), manifest=whole)

    @classmethod
    def _of(cls, info: ObjectInfo, by: Coordinates | None, *, manifest: bool) -> Self | None:
        return None if by is None else cls(name=info.name, by=by, manifest=manifest)


@attrs.frozen(kw_only=True)
class VersionListing:
    """Everything that is stored for one version, of all runs and attempts."""

    version: int
    objects: Sequence[Made]

    def __bool__(self) -> bool:
        """Whether anybody began to make this version; otherwise it was skipped."""
        return bool(self.objects)

    def of_run(self, run_key: str) -> VersionListing:
        """Only what one run made."""
        return self.of_runs(frozenset({run_key}))

    def of_runs(self, run_keys: frozenset[str]) -> VersionListing:
        """Only what these runs made."""
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
        """What is left of torn manifests."""
        return [m for m in self.objects if "/manifest-" in m.name and not m.manifest]


def list_version(storage: ObjectStorage, version: int) -> VersionListing:
    """List one version (one request)."""
    found = (Made.parse(info) for info in storage.list(layout.version_folder(version)))
    return VersionListing(version=version, objects=[made for made in found if made])


def put_marker(storage: ObjectStorage, made: Coordinates) -> None:
    """Say that an attempt begins to make a version: before it reads any state (one request)."""
    storage.put(layout.marker_name(made), seal({}))


def marked_versions(storage: ObjectStorage, newest: int) -> list[int]:
    """The versions up to ``newest`` that have a folder, newest first (one request).

    A folder may turn out to be empty: the version was cleared meanwhile.
    """
    folders = storage.list_folders(layout.VERSIONS)
    versions = (layout.version_of(folder) for folder in folders)
    return sorted((v for v in versions if v is not None and v <= newest), reverse=True)
