"""One operator: its listing, its timeline, and the manifests of its versions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from forebay_console.watching.kept_files import KeptFiles, KeptFilesReader
from forebay_console.watching.refreshed_value import RefreshedValue
from forebay_console.watching.sizes import KnownSizes
from forebay_console.watching.summaries import Summaries, VersionSummary
from forebay_state_processor import observing
from forebay_state_processor.observing import OperatorListing, OperatorWatch, StoredOperator

if TYPE_CHECKING:
    from forebay_engine.versions import OperatorStorage
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_processor.observing import VersionFigures

HISTORY: Final = 1_000
"""Versions that a timeline shows: as many as the history keeps."""
_PAUSE_S: Final = 60.0
"""Seconds without viewers after which nothing that was listed before counts."""
_MANIFESTS: Final = 2_000
"""Manifests that are kept in memory; they never change."""


@attrs.frozen(kw_only=True, slots=False)
class OperatorView(observing.OperatorView):
    """A view for pages, with what is kept for all viewers."""

    operator: WatchedOperator

    @property
    def stored(self) -> StoredOperator:
        """The operator's names and folder."""
        return self.operator.stored

    def recent(self, most: int) -> Sequence[VersionSummary]:
        """Return the sums of the newest versions, the newest first."""
        return self.operator.sums(self.timeline.versions[:most])

    def manifests(self, version: VersionFigures) -> Sequence[Manifest]:
        """Return the manifests of a version's subtasks; empty if they are not stored any more."""
        return self.manifests_named([subtask.manifest for subtask in version.subtasks])

    def manifests_named(self, names: Sequence[str]) -> Sequence[Manifest]:
        """Return manifests by name; empty if they are not stored any more."""
        return self.operator.manifests(names)

    def kept(self) -> KeptFiles:
        """Return the objects that keep the operator's files."""
        return self.operator.kept(self.listing)

    def is_stored(self, version: VersionFigures) -> bool:
        """Return whether the version's manifests are stored."""
        stored = {info.name for info in self.listing.below("versions")}
        return all(subtask.manifest in stored for subtask in version.subtasks)


class WatchedOperator(OperatorWatch):
    """Watches one operator for all viewers. Thread-safe.

    A listing is shared until it is ``ttl_s`` old; of a folder with many names it is new in part
    (see `PagedListing`). Objects of the history, manifests, savepoints and pins are read once.
    """

    storage: OperatorStorage

    def __init__(
        self,
        root: ObjectStorage,
        stored: StoredOperator,
        *,
        ttl_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stored.storage(root), most_manifests=_MANIFESTS)
        self.stored: Final = stored
        self.sizes: Final = KnownSizes(ttl_s, now)
        self._view: Final = RefreshedValue(self._look, ttl_s, now)
        self._now: Final = now
        self._looked_at = now()
        self._caches: Final = threading.Lock()
        self._summaries: Final = Summaries()
        self._kept: Final = KeptFilesReader(self.storage, stored.uid)

    def look(self) -> OperatorView:
        """Return the operator as the newest listing shows it. Raises the errors of storage."""
        return self._view.get()

    def sums(self, versions: Sequence[VersionFigures]) -> Sequence[VersionSummary]:
        """Return the sums of versions, each added up once."""
        with self._caches:
            return self._summaries.of(versions)

    def kept(self, listing: OperatorListing) -> KeptFiles:
        """Return the objects that keep the operator's files."""
        with self._caches:
            return self._kept.kept(listing, datetime.now(UTC))

    def _look(self) -> OperatorView:
        listing = self._listed()
        history = listing.history
        timeline = self._history.timeline(listing, HISTORY) if history else listing.timeline
        busiest = partial(self.busiest, timeline.newest)
        return OperatorView(operator=self, listing=listing, timeline=timeline, read_busiest=busiest)

    def _listed(self) -> OperatorListing:
        """List the folder: whole at first and after a pause, and a few pages of it otherwise."""
        paused = self._now() - self._looked_at > _PAUSE_S
        if not paused and self._pages.is_whole:
            self._pages.refresh()
        if paused or not self._pages.is_whole:
            self._pages.read_all()
        self._looked_at = self._now()
        return self._pages.listing()
