"""The janitor: the only component that deletes state, and only state that nobody can open any more.

In one pass the floor is the caller's own committed version minus the retention, and the *base* is
the version of the caller's timeline at the floor. The pass first deletes files that no manifest
named when the pass began, and then markers and manifests of versions below the base, whose figures
it puts into the history; so a file outlives the manifests that named it by at least one pass. The
files are those of versions below the base from which earlier passes have deleted (`clearing_marks`,
`named_files`), and those for later versions that nobody has begun: a task puts its
marker before it writes, but clients that submit compactions choose their folders. Pinned files
stay, as does every object that is younger than the minimum age by the store's clock. Before each
batch of deletes the janitor lists epochs and pins again: a newer run ends the pass at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.choosing.forks import release_unused
from forebay_engine.versions.choosing.pins import PinEntry, list_pins, newest_renewals, pinned_files
from forebay_engine.versions.choosing.timeline import timeline_version
from forebay_engine.versions.cleaning.clearing_marks import cleared_below, put_mark
from forebay_engine.versions.cleaning.deleted_figures import forgotten, remember
from forebay_engine.versions.cleaning.named_files import NamedFiles
from forebay_engine.versions.cleaning.object_cache import ObjectCache
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import (
    UNKNOWN_SPARK_RUN,
    EpochEntry,
    list_epochs,
    taken_number,
)
from forebay_engine.versions.format.manifest import is_named
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.file_names import (
    DATA,
    data_version,
    inverted,
    random_id,
    version_of,
)
from forebay_state_api.progress import SILENT, Progress

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage

_log = logging.getLogger(__name__)

TAKEN_AGE: Final = timedelta(hours=1)
"""How long a number is shown as taken after a higher one has an entry; see `is_taken`."""

RECORD_AGE: Final = timedelta(days=7)
"""How long a run's record outlives its epoch entry: a driver that slept so long is still fenced."""

_BATCH: Final = 1_000
"""Objects deleted between two looks for a newer run: what S3 deletes with one request."""


@attrs.frozen(kw_only=True)
class JanitorPass:
    """The objects that one pass deleted, or would delete in a dry run."""

    base: int
    """The oldest version that stays; 0 when nothing can be deleted."""
    overtaken: bool
    """Whether a newer run appeared and the pass ended early."""
    names: Sequence[str]


class _OvertakenError(Exception):
    """A newer run exists; only its janitor knows what may be deleted."""


class Janitor:
    """Clears one operator's folder on behalf of one run."""

    def __init__(
        self,
        storage: ObjectStorage,
        *,
        run_key: str,
        retention: int,
        min_age: timedelta,
        dry_run: bool = False,
        progress: Progress = SILENT,
        remembered: ObjectCache | None = None,
    ) -> None:
        """Keep ``retention`` versions below the committed one, and objects under ``min_age``.

        ``remembered`` is what earlier passes over this folder have read.
        """
        self._storage = storage
        self._run_key = run_key
        self._retention = retention
        self._min_age = min_age
        self._dry_run = dry_run
        self._progress = progress
        self._remembered = ObjectCache() if remembered is None else remembered
        self._now: datetime | None = None
        self._deleted: list[str] = []

    def sweep(self, committed_version: int) -> JanitorPass:
        """Run one pass; ``committed_version`` is the version that this run itself committed.

        Raises `StorageError` and `CorruptStateError`. Objects deleted before the error stay
        deleted, and the next pass continues.
        """
        self._deleted = []
        base, overtaken = 0, False
        try:
            self._check_newest()
            base = self._base(committed_version - self._retention)
            if base:
                self._clear(base, committed_version)
                self._forget(committed_version)
        except _OvertakenError:
            overtaken = True
            _log.info("janitor of %s: a newer run exists, stopping", self._storage.url)
        _log.debug("janitor of %s: %d objects", self._storage.url, len(self._deleted))
        return JanitorPass(base=base, overtaken=overtaken, names=tuple(self._deleted))

    def _base(self, floor: int) -> int:
        if floor <= 0:
            return 0
        origin = timeline_version(self._storage, self._run_key, floor)
        return 0 if origin is None else origin.version

    def _clear(self, base: int, committed_version: int) -> None:
        self._now = self._store_time()
        oldest = self._now - self._min_age
        versions = self._storage.list(layout.VERSIONS)
        made = [one for info in versions if (one := Made.parse(info)) is not None]
        cleared = cleared_below(self._storage)
        data = self._storage.list(DATA)
        below = [info for info in versions if _below(info, base) and info.modified <= oldest]
        pinned = _keeps_version(self._storage, self._active_pins())
        doomed = [info for info in below if not pinned(info.name)]
        doomed.reverse()  # the oldest first: what is stored of a timeline has no holes meanwhile
        named = self._named_files(made, cleared, doomed)
        if named is not None:
            old = [info for info in data if info.modified <= oldest]
            below_both = min(base, cleared)
            useless = [i for i in old if _file_below(i, below_both) and not is_named(i.name, named)]
            self._delete(useless, self._keeps_file)
        begun = {info.name.split("/")[1] for info in versions}
        later = [i for i in data if i.modified <= oldest]
        later = [info for info in later if _is_of_no_version(info, committed_version, begun)]
        self._delete(later, self._keeps_file)
        self._clear_versions(doomed, cleared)
        self._clear_runs(made, oldest)
        self._clear_marks(base, oldest)
        self._clear_pins(oldest)
        if named is not None and not self._dry_run:
            self._deleted += release_unused(self._storage, named, oldest)

    def _clear_versions(self, doomed: Sequence[ObjectInfo], cleared: int) -> None:
        """Delete markers and manifests, after a mark above them and the history of their figures.

        Files go before them: on a full disk they make room for both.
        """
        above = 1 + max((_version(info) or 0 for info in doomed), default=-1)
        if not self._dry_run:
            if above > cleared:
                put_mark(self._storage, above, self._retention, self._min_age)
            self._remember(doomed)
        self._delete(doomed, _keeps_version)

    def _remember(self, doomed: Sequence[ObjectInfo]) -> None:
        """Put the figures of manifests that will be deleted into the history."""
        keeps = _keeps_version(self._storage, self._active_pins())
        found = (Made.parse(info) for info in doomed if not keeps(info.name))
        remember(self._storage, [made for made in found if made is not None and made.manifest])

    def _forget(self, committed_version: int) -> None:
        """Delete the history of versions that are too old to be remembered."""
        self._delete(forgotten(self._storage, committed_version), _keeps_nothing)

    def _named_files(
        self, made: Sequence[Made], cleared: int, doomed: Sequence[ObjectInfo]
    ) -> frozenset[str] | None:
        """Return at least the files of versions below ``cleared`` that stored manifests name.

        ``None`` while an earlier pass has left manifests there that it should have deleted: this
        pass deletes them, and the next one the files; or if another janitor is at work.
        """
        left = {info.name for info in doomed if _below(info, cleared)}
        if any(one.manifest and one.name in left for one in made):
            return None
        return NamedFiles(self._storage, self._remembered, self._progress).below(cleared, made)

    def _clear_runs(self, made: Sequence[Made], oldest: datetime) -> None:
        """Delete runs that left no state: first their entries, much later their records."""
        gone = frozenset(self._deleted)
        needed = {self._run_key, *(one.by.run_key for one in made if one.name not in gone)}
        records = {info.name: info for info in self._storage.list(layout.RUNS)}
        epochs = self._storage.list(layout.EPOCHS)
        entries = [(info, EpochEntry.parse(info.name)) for info in epochs]
        present = {entry.run_key for _, entry in entries if entry}
        own = max((e.rank for _, e in entries if e and e.run_key == self._run_key), default=None)
        if own is None:
            raise _OvertakenError
        # An entry whose run has no record stays: without either, the run could mint again. Newer
        # ones, of the same Spark run, stay as well: the next number follows the highest.
        old = [
            info
            for info, entry in entries
            if entry
            and info.modified <= oldest
            and entry.rank < own
            and entry.run_key not in needed
            and f"{layout.RUNS}/{entry.run_key}" in records
        ]
        keep = {f"{layout.RUNS}/{run_key}" for run_key in needed | present}
        stale = [
            info
            for name, info in records.items()
            if name not in keep and info.modified <= oldest - RECORD_AGE
        ]
        self._delete([*old, *stale], _keeps_nothing)
        going = {info.name for info in old}
        self._clear_taken([(i, e.number) for i, e in entries if e and i.name not in going])

    def _clear_taken(self, entries: Sequence[tuple[ObjectInfo, int]]) -> None:
        """Delete what shows that numbers are taken, below the highest old entry; see `is_taken`."""
        assert self._now is not None
        oldest = self._now - max(self._min_age, TAKEN_AGE)
        highest = max((number for info, number in entries if info.modified <= oldest), default=0)
        taken = ((info, taken_number(info.name)) for info in self._storage.list(layout.TAKEN))
        useless = [info for info, number in taken if number is not None and number < highest]
        self._delete(useless, _keeps_nothing)

    def _clear_marks(self, base: int, oldest: datetime) -> None:
        """Delete the marks of final versions below ``base``."""
        marks = self._storage.list(layout.FINAL)
        old = [
            info
            for info in marks
            if info.modified <= oldest and (layout.final_mark(info.name) or (base, ""))[0] < base
        ]
        self._delete(old, _keeps_nothing)

    def _clear_pins(self, oldest: datetime) -> None:
        now = oldest + self._min_age
        pins = {pin.name for pin in list_pins(self._storage) if pin.expired(now)}
        infos = self._storage.list(layout.PINS)
        expired = [info for info in infos if info.name in pins and info.modified <= oldest]
        self._delete(expired, _keeps_nothing)

    def _delete(self, infos: Sequence[ObjectInfo], rule: _Rule) -> None:
        remaining = iter(infos)
        self._progress.stage("deleting", len(infos))
        while batch := list(islice(remaining, _BATCH)):
            self._check_newest()
            keeps = rule(self._storage, self._active_pins())
            names = [info.name for info in batch if not keeps(info.name)]
            if not self._dry_run:
                self._storage.delete(names)
            self._deleted += names
            self._progress.advance(len(batch))

    def _check_newest(self) -> None:
        epochs = list_epochs(self._storage)
        newest = epochs.newest()
        own = epochs.of_run(self._run_key)
        if newest is None or own is None:
            raise _OvertakenError
        # In foreachBatch every batch is a run; the runs of one Spark run form one timeline.
        same = newest.spark_run == own.spark_run != UNKNOWN_SPARK_RUN
        if newest.run_key != self._run_key and not same:
            raise _OvertakenError

    def _active_pins(self) -> Sequence[PinEntry]:
        """Return the pins that held at the beginning of the pass, or were put since."""
        pins = newest_renewals(list_pins(self._storage))
        now = self._now
        return pins if now is None else [pin for pin in pins if not pin.expired(now)]

    def _keeps_file(
        self, storage: ObjectStorage, pins: Sequence[PinEntry]
    ) -> Callable[[str], bool]:
        named: set[str] = set()
        whole = -1
        by_name = {pin.name: pin for pin in pins}
        read = self._remembered.read(
            storage, by_name, lambda storage, name: pinned_files(storage, by_name[name])
        )
        for pin, files in zip(pins, read, strict=True):
            if files is None:
                whole = max(whole, pin.version)
            named |= files or frozenset()
        return lambda name: is_named(name, named) or (data_version(name) or 0) <= whole

    def _store_time(self) -> datetime:
        """Return the store's time, by writing an object and reading its time."""
        name = f"{layout.PROBES}/{random_id()}"
        self._storage.put(name, seal({}))
        try:
            return next(i.modified for i in self._storage.list(layout.PROBES) if i.name == name)
        finally:
            self._storage.delete([name])


_Rule = Callable[["ObjectStorage", Sequence[PinEntry]], Callable[[str], bool]]
"""Takes the active pins, and returns a test for objects that must stay."""


def _keeps_version(_: ObjectStorage, pins: Sequence[PinEntry]) -> Callable[[str], bool]:
    folders = {f"{layout.version_folder(pin.version)}/" for pin in pins}
    return lambda name: any(name.startswith(folder) for folder in folders)


def _keeps_nothing(_: ObjectStorage, __: Sequence[PinEntry]) -> Callable[[str], bool]:
    return lambda _name: False


def _version(info: ObjectInfo) -> int | None:
    return version_of(info.name.split("/")[1])


def _below(info: ObjectInfo, version: int) -> bool:
    of = _version(info)
    return of is not None and of < version


def _file_below(info: ObjectInfo, version: int) -> bool:
    of = data_version(info.name)
    return of is not None and of < version


def _is_of_no_version(info: ObjectInfo, committed_version: int, begun: Collection[str]) -> bool:
    """Return whether a file is for a later version without a marker or a manifest.

    ``begun`` are the folders of the versions that have one.
    """
    version = data_version(info.name)
    if version is None or version <= committed_version:
        return False
    return inverted(version) not in begun
