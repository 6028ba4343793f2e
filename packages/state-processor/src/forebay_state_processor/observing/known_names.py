"""Names of manifests, parsed once and remembered from one listing to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forebay_engine.versions.format.markers import Made
from forebay_state_processor.observing.figures_of_versions import VersionFigures

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectInfo


class KnownNames:
    """Parses each name once, and puts each version together once: manifests do not change.

    An object that is listed with another size or time is parsed again, and a version of which
    another manifest is listed is put together again; versions are distinguished by number and run.
    Only what two listings in a row show is kept. Not thread-safe.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[ObjectInfo, Made | None]] = {}
        self._versions: dict[tuple[int, str], tuple[Sequence[Made], VersionFigures]] = {}
        self._older: dict[tuple[int, str], tuple[Sequence[Made], VersionFigures]] = {}

    def made(self, objects: Iterable[ObjectInfo]) -> list[Made]:
        """Return the markers and manifests among the objects of a new listing."""
        known, self._made = self._made, {}
        self._versions, self._older = {}, self._versions
        for info in objects:
            found = known.get(info.name)
            if found is None or (found[0] is not info and found[0] != info):
                found = info, Made.parse(info)
            self._made[info.name] = found
        return [made for _, made in self._made.values() if made is not None]

    def version(self, manifests: Sequence[Made]) -> VersionFigures:
        """Return the figures of the manifests that one run made of one version."""
        by = manifests[0].by
        key = by.version, by.run_key
        found = self._versions.get(key) or self._older.get(key)
        if found is None or found[0] != manifests:
            found = manifests, VersionFigures.of(manifests)
        self._versions[key] = found
        return found[1]
