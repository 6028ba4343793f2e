"""One operator, as one list of its folder shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing.pins import FOREVER, PinEntry, newest_renewals, pins_among
from forebay_engine.versions.cleaning.clearing_marks import ClearingMark, marks_among
from forebay_engine.versions.cleaning.deleted_figures import HistoryBlock
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import EpochEntry, Epochs
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.file_names import DATA
from forebay_state_processor.observing.compactions import CompactionFolder, compactions_of
from forebay_state_processor.observing.known_names import KnownNames
from forebay_state_processor.observing.timeline import Timeline, timeline_of

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage


@attrs.frozen(kw_only=True)
class BatchInProgress:
    """The version that subtasks are making now."""

    version: int
    begun: datetime
    """The time at which the first subtask began, by the store's clock."""
    parallelism: int
    """Subtasks of the version."""
    subtasks: int
    """Subtasks that have begun."""
    committed: int
    """Subtasks that have committed."""


@attrs.frozen(kw_only=True, slots=False)
class OperatorListing:
    """All objects of an operator's folder, sorted by what they are. Nothing was read."""

    objects: Mapping[str, Sequence[ObjectInfo]]
    """Folder below the operator's → its objects: ``versions``, ``data``, ``pins`` …"""
    known: KnownNames = attrs.field(factory=KnownNames, eq=False, repr=False)
    """The names that listings before this one showed."""

    @cached_property
    def made(self) -> Sequence[Made]:
        """Manifests of all stored versions."""
        return self.known.made(i for i in self.below(layout.VERSIONS) if "/manifest-" in i.name)

    @cached_property
    def timeline(self) -> Timeline:
        """The stored versions."""
        return timeline_of(self.made, self.known)

    @cached_property
    def history(self) -> Sequence[HistoryBlock]:
        """The objects of the history, the newest first."""
        found = (HistoryBlock.parse(info.name) for info in self.below(layout.HISTORY))
        blocks = [block for block in found if block is not None]
        return sorted(blocks, key=lambda block: (-block.newest, -block.oldest, block.name))

    @cached_property
    def compactions(self) -> Sequence[CompactionFolder]:
        """The compaction jobs that have begun, the newest version first."""
        return compactions_of(self.below(DATA))

    @cached_property
    def clearing(self) -> ClearingMark | None:
        """The highest mark of the janitor; ``None`` before the first pass that deletes versions."""
        return next(iter(marks_among(self.below(layout.CLEARED))), None)

    @property
    def pins(self) -> Sequence[PinEntry]:
        """The newest renewal of each pin: readers from outside, savepoints and forks."""
        return newest_renewals(pins_among(self.below(layout.PINS)))

    def reader_pins(self, now: datetime) -> Sequence[PinEntry]:
        """Return the pins of readers that hold a version at ``now``."""
        return [pin for pin in self.pins if pin.lease != FOREVER and not pin.expired(now)]

    @property
    def savepoints(self) -> Sequence[str]:
        """The names of savepoints."""
        found = (info.name.rpartition("/")[2] for info in self.below(layout.SAVEPOINTS))
        return sorted(map(layout.unescaped, found))

    @property
    def is_fork(self) -> bool:
        """Whether it needs files of the operator that it was restored from."""
        return bool(self.below(layout.SOURCES))

    @property
    def data_files(self) -> int:
        """Number of the backend's files, including files of deleted versions that still exist."""
        return len(self.below(DATA))

    @property
    def data_bytes(self) -> int:
        """The size of the data files."""
        return sum(info.size for info in self.below(DATA))

    @cached_property
    def epochs(self) -> Epochs:
        """The epochs of the operator's runs."""
        found = (EpochEntry.parse(info.name) for info in self.below(layout.EPOCHS))
        return Epochs([entry for entry in found if entry is not None])

    @cached_property
    def being_made(self) -> Sequence[Made]:
        """Markers and manifests of the version that the newest run is making.

        Empty unless a subtask of that run began a version after those that the run has completed.
        A run that went back makes versions again that older runs completed. What older runs left of
        later versions does not count: nobody completes it any more.
        """
        newest = self.timeline.newest
        made = self._made_above(0 if newest is None else newest.version)
        run_key = self._newest_run(made)
        if newest is not None and run_key != newest.run_key:  # it has completed nothing
            made = self._made_by(run_key)
        of_run = [one for one in made if one.by.run_key == run_key]
        version = max((one.by.version for one in of_run), default=0)
        return [one for one in of_run if one.by.version == version]

    def _newest_run(self, made: Sequence[Made]) -> str:
        """Return the newest of the runs that have an epoch or made any of these objects."""
        newest, entry = self.timeline.newest, self.epochs.newest()
        runs = {(one.by.run_key, one.by.epoch) for one in made}
        if newest is not None:
            runs.add((newest.run_key, newest.epoch))
        if entry is not None:
            runs.add((entry.run_key, entry.number))
        return max((self.epochs.rank(*run) for run in runs), default=(0, ""))[1]

    def _made_above(self, version: int) -> Sequence[Made]:
        """Return the markers and manifests of all later versions, of all runs."""
        folder = layout.version_folder(version)  # names of later versions sort before it
        return _made(info for info in self.below(layout.VERSIONS) if info.name < folder)

    def _made_by(self, run_key: str) -> Sequence[Made]:
        """Return the markers and manifests of one run."""
        return _made(info for info in self.below(layout.VERSIONS) if run_key in info.name)

    def begun(self) -> Mapping[int, datetime]:
        """Return when each subtask began the version that is being made; empty if none is."""
        found: dict[int, datetime] = {}
        for made in sorted(self.being_made, key=lambda made: made.modified, reverse=True):
            if not made.manifest:
                found[made.by.subtask] = made.modified
        return found

    @cached_property
    def in_progress(self) -> BatchInProgress | None:
        """The version that is being made; ``None`` between micro-batches."""
        begun = self.begun()
        if not begun:
            return None
        newest = max(self.being_made, key=lambda made: made.by.attempt_id).by
        done = {one.by.subtask for one in self.being_made if one.manifest}
        return BatchInProgress(
            version=newest.version,
            begun=min(begun.values()),
            parallelism=newest.parallelism,
            subtasks=len(begun),
            committed=len(done & begun.keys()),
        )

    def below(self, folder: str) -> Sequence[ObjectInfo]:
        """Return the objects of one folder."""
        return self.objects.get(folder, ())


def _made(objects: Iterable[ObjectInfo]) -> Sequence[Made]:
    found = map(Made.parse, objects)
    return [made for made in found if made is not None]


def list_operator(storage: ObjectStorage) -> OperatorListing:
    """List an operator's folder (one request)."""
    found: dict[str, list[ObjectInfo]] = {}
    for info in storage.list():
        found.setdefault(info.name.partition("/")[0], []).append(info)
    return OperatorListing(objects=found)
