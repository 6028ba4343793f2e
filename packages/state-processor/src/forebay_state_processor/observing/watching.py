"""Watches one operator for `forebay top`, the console and others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.choosing.pins import FOREVER
from forebay_engine.versions.format.figures import COUNTS
from forebay_engine.versions.format.manifest import Manifest, read_manifest
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.metrics.keyed import GROUP_ROWS
from forebay_state_processor.observing.deleted_versions import HistoryReader
from forebay_state_processor.observing.paged_listing import PagedListing
from forebay_state_processor.observing.parallel_requests import for_each
from forebay_state_processor.observing.request_costs import RequestCosts

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_processor.observing.figures_of_versions import VersionFigures
    from forebay_state_processor.observing.listing import BatchInProgress, OperatorListing
    from forebay_state_processor.observing.timeline import Timeline

REQUESTS: Final = 3
"""The most requests of a refresh."""
VERSIONS: Final = 100
"""Versions that a view goes back, if that many are stored or remembered."""
SILENT_AFTER: Final = timedelta(minutes=3)
"""A compaction that has shown no sign of life for this long ended without a result."""


@attrs.frozen(kw_only=True)
class HotKeyGroups:
    """The key groups with the most rows in one subtask and micro-batch."""

    subtask: int
    rows_in: int
    """Rows of the subtask."""
    rows: Mapping[int, int]
    """Key group → the number of its rows, the hottest first."""


@attrs.frozen(kw_only=True, slots=False)
class OperatorView:
    """An operator, as one listing shows it: all of it is of the same moment."""

    listing: OperatorListing
    """All objects of its folder."""
    timeline: Timeline
    """The stored versions, and the versions of the history that were read so far."""
    read_busiest: Callable[[], Manifest | None] = attrs.field(repr=False, eq=False)
    """Returns `busiest`."""

    @cached_property
    def busiest(self) -> Manifest | None:
        """The newest manifest of the subtask with the most rows; ``None`` if it cannot be read."""
        return self.read_busiest()

    @property
    def newest(self) -> VersionFigures | None:
        """The newest complete version."""
        return self.timeline.newest

    @property
    def backend(self) -> str | None:
        """The name of the backend."""
        return None if self.busiest is None else self.busiest.backend

    @property
    def unknown(self) -> Sequence[str]:
        """Figures of the newest version that not all subtasks know, by key."""
        newest = self.newest
        return [] if newest is None else [key for key in COUNTS if newest.count(key) is None]

    @property
    def in_progress(self) -> BatchInProgress | None:
        """The version that is being made; ``None`` between micro-batches."""
        return self.listing.in_progress

    def hot_key_groups(self, most: int) -> HotKeyGroups | None:
        """Return the key groups with the most rows of the `busiest` subtask; ``None`` if unknown.

        The hottest key group of the operator is among them, unless its subtask has fewer rows.
        """
        rows = None if self.busiest is None else self.busiest.metrics.get(GROUP_ROWS)
        if self.busiest is None or rows is None:
            return None
        start = self.busiest.made.range.start
        order = sorted(range(len(rows)), key=rows.__getitem__, reverse=True)[:most]
        return HotKeyGroups(
            subtask=self.busiest.made.subtask,
            rows_in=sum(rows),
            rows={start + at: rows[at] for at in order if rows[at]},
        )

    def running_compactions(self, now: datetime) -> int:
        """Return the number of compactions that have begun and showed a sign of life lately."""
        folders = self.listing.compactions
        return sum(not one.is_done and now - one.seen < SILENT_AFTER for one in folders)

    @cached_property
    def request_costs(self) -> RequestCosts | None:
        """The requests of its micro-batches; ``None`` if they were not counted."""
        return RequestCosts.of(self.listing, self.timeline)

    @property
    def held_by_forks(self) -> int:
        """Pins that do not expire and belong to no savepoint: they belong to forks."""
        lasting = sum(pin.lease == FOREVER for pin in self.listing.pins)
        return max(0, lasting - len(self.listing.savepoints))


class OperatorWatch:
    """Reads one operator again and again; what cannot change is read once.

    Manifests may be read from several threads.
    """

    def __init__(self, storage: ObjectStorage, *, most_manifests: int = 1) -> None:
        """``storage`` is the operator's folder, and at most ``most_manifests`` stay in memory."""
        self.storage = storage
        self._pages: Final = PagedListing(storage)
        self._history: Final = HistoryReader(storage)
        self._most_manifests: Final = most_manifests
        self._manifests: Final[dict[str, Manifest]] = {}
        self._lock: Final = threading.Lock()

    def refresh(self, requests: int = REQUESTS) -> OperatorView | None:
        """List the operator's folder, and read a manifest and an object of the history at most.

        So the timeline of an operator with a long history grows from refresh to refresh. Returns
        ``None`` as long as ``requests`` did not suffice to list the whole folder and to read the
        manifest, which only happens at first and after a long break; the next call goes on.
        """
        left = requests - self._pages.refresh(requests)
        if not (left and self._pages.is_whole):
            return None
        listing = self._pages.listing()
        newest = listing.timeline.newest
        left -= newest is None or newest.busiest.manifest not in self._manifests
        try:
            busiest = self.busiest(newest)
        except CorruptStateError:
            busiest = None
        timeline = self._history.timeline(listing, VERSIONS, most=min(1, left))
        return OperatorView(listing=listing, timeline=timeline, read_busiest=lambda: busiest)

    def view(self) -> OperatorView:
        """Refresh until there is a view."""
        while (found := self.refresh()) is None:
            pass
        return found

    def busiest(self, newest: VersionFigures | None) -> Manifest | None:
        """Return the manifest of a version's subtask with the most rows, if it is still stored.

        Raises `CorruptStateError` if it is damaged.
        """
        found = () if newest is None else self.manifests([newest.busiest.manifest])
        return found[0] if found else None

    def manifests(self, names: Sequence[str]) -> Sequence[Manifest]:
        """Return manifests, an empty list if the janitor deleted one of them after the listing."""
        with self._lock:
            found = {name: self._manifests[name] for name in names if name in self._manifests}
        missing = [name for name in names if name not in found]
        try:
            found.update(zip(missing, for_each(self.storage, missing, self._read), strict=True))
        except ObjectNotFoundError:
            return ()
        return [found[name] for name in names]

    def _read(self, name: str) -> Manifest:
        """Read a manifest, and keep it in place of the one that was read first."""
        found = read_manifest(self.storage, name)
        with self._lock:
            self._manifests[name] = found
            if len(self._manifests) > self._most_manifests:
                del self._manifests[next(iter(self._manifests))]
        return found
