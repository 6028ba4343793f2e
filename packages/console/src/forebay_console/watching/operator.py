"""One operator: its listing, its timeline, and the manifests of its versions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from forebay_console.watching.fresh import Fresh
from forebay_console.watching.kept import Kept, KeptReader
from forebay_console.watching.summaries import Summaries, VersionSummary
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.observing import (
    HistoryReader,
    OperatorListing,
    StoredOperator,
    Timeline,
    VersionFigures,
    list_operator,
)
from forebay_state_api.versions.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

HISTORY: Final = 1_000
"""Versions that a timeline shows: as many as the history keeps."""
_MANIFESTS: Final = 2_000
"""Manifests that are kept in memory; they never change."""


class WatchedOperator:
    """One operator, as its newest listing shows it. Thread-safe.

    A listing is one request, shared by all viewers until it is ``ttl_s`` old. Objects of the
    history and manifests are read once.
    """

    def __init__(
        self, root: ObjectStorage, stored: StoredOperator, settings: Settings, *, ttl_s: float
    ) -> None:
        self.stored: Final = stored
        self.storage: Final = stored.storage(root)
        self.settings: Final = settings
        self._listing: Final = Fresh(self._look, ttl_s)
        self._history: Final = HistoryReader(self.storage)
        self._lock: Final = threading.Lock()
        self._manifests: Final[LRUCache[str, Manifest]] = LRUCache(_MANIFESTS)
        self._summaries: Final = Summaries()
        self._kept: Final = KeptReader(self.storage, stored.uid)

    @property
    def listing(self) -> OperatorListing:
        """All objects of its folder."""
        return self._listing.get()[0]

    @property
    def timeline(self) -> Timeline:
        """Its versions, with those that only the history knows."""
        return self._listing.get()[1]

    @property
    def seen(self) -> datetime:
        """When the listing was made, by this machine's clock."""
        return self._listing.get()[2]

    def recent(self, most: int) -> Sequence[VersionSummary]:
        """Return the sums of the newest versions, the newest first."""
        versions = self.timeline.versions[:most]
        with self._lock:
            return self._summaries.of(versions)

    def manifests(self, version: VersionFigures) -> Sequence[Manifest]:
        """Return the manifests of a version's subtasks; empty if they are not stored any more."""
        names = [subtask.manifest for subtask in version.subtasks]
        try:
            return [self._manifest(name) for name in names]
        except ObjectNotFoundError:  # the janitor deleted it after the listing
            return ()

    def kept(self) -> Kept:
        """Return what keeps its files."""
        with self._lock:
            return self._kept.kept(self.listing, datetime.now(UTC))

    def is_stored(self, version: VersionFigures) -> bool:
        """Return whether the version's manifests are stored, by the newest listing."""
        stored = {info.name for info in self.listing.below("versions")}
        return all(subtask.manifest in stored for subtask in version.subtasks)

    def _look(self) -> tuple[OperatorListing, Timeline, datetime]:
        seen = datetime.now(UTC)
        listing = list_operator(self.storage)
        return listing, self._history.timeline(listing, HISTORY), seen

    def _manifest(self, name: str) -> Manifest:
        with self._lock:
            found = self._manifests.get(name)
        if found is None:
            found = read_manifest(self.storage, name)
            with self._lock:
                self._manifests[name] = found
        return found
