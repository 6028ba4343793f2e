"""Timelines: the chain of versions behind a run, run by run, according to the records.

A run's timeline consists of the versions that it made itself above the batch at which it began;
below that, of the timeline of the version that it continued, and so on. After a checkpoint went
back, versions of the abandoned timeline are still stored next to (and above) the new ones; version
numbers alone do not distinguish them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing.opening import incomplete_version_error, is_complete, is_whole
from forebay_engine.versions.choosing.recovery import Recovery, read_recovery, recover_command
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import (
    UNKNOWN_SPARK_RUN,
    EpochEntry,
    Epochs,
    RunRecord,
    RunVersion,
    list_epochs,
    read_record,
    record_name,
)
from forebay_engine.versions.format.folder import uid_of
from forebay_engine.versions.format.markers import (
    Made,
    VersionListing,
    list_version,
    marked_versions,
)
from forebay_state_api.contract.file_names import LAST_VERSION
from forebay_state_api.errors import ConfigurationError, CorruptStateError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)


@attrs.frozen
class CurrentTimeline:
    """The timeline that readers see: the highest-ranked run's, of those that count."""

    run_key: str
    newest: RunVersion | None
    """The newest complete version; ``None`` while there is none."""


def begun_versions(
    storage: ObjectStorage, run_key: str, newest: int
) -> Iterator[tuple[RunVersion, VersionListing]]:
    """Yield what is stored of each version ≤ ``newest`` in a run's timeline, the newest first.

    It may be incomplete, and the janitor may have deleted any of them, also one that a record
    names. Ends early where a record was deleted, long after the versions of its run; raises
    `CorruptStateError` if one is missing before.
    """
    key: str | None = run_key
    marked: Sequence[int] | None = None
    while key is not None:
        record = record_of_begun(storage, key)
        if record is None:
            return
        if marked is None:
            marked = marked_versions(storage, newest)
        for version in marked:
            if record.since < version <= newest:
                listing = list_version(storage, version).of_run(key)
                if listing:
                    yield RunVersion(version=version, run_key=key), listing
        newest = min(newest, record.origin.version)
        if not any(version <= newest for version in marked):
            return
        key = record.origin.run_key


def stored_versions(
    storage: ObjectStorage, run_key: str, newest: int
) -> Iterator[tuple[RunVersion, VersionListing]]:
    """Yield the complete ones of `begun_versions`: what can be opened, newest first."""
    for at, listing in begun_versions(storage, run_key, newest):
        if is_complete(listing):
            yield at, listing
        elif listing.torn:
            _log.warning(
                "version %d in %s is skipped: truncated (shorter than the size in its name): %s",
                at.version,
                storage.url,
                ", ".join(made.name for made in listing.torn),
            )


def timeline_version(storage: ObjectStorage, run_key: str, newest: int) -> RunVersion | None:
    """Return the newest complete version ≤ ``newest`` in a run's timeline.

    Returns ``None`` if there is none.
    """
    return next((at for at, _ in stored_versions(storage, run_key, newest)), None)


def record_of_begun(storage: ObjectStorage, run_key: str) -> RunRecord | None:
    """Return the record of a run; ``None`` if the run has begun no version that is stored.

    Raises `CorruptStateError` if it is missing although a version is stored: a run puts its record
    before it begins one, and the janitor deletes the record last.
    """
    record = read_record(storage, run_key)
    if record is not None or not _has_begun(storage, run_key):
        return record
    record = read_record(storage, run_key)
    if record is None:
        raise CorruptStateError(
            f"{record_name(run_key)} in {storage.url} is missing, the record of a run that made "
            "stored versions: it was deleted, or is not in this copy of the state directory. Put "
            "it back; or start the query again, and read what its new run makes. If the query "
            f"needs it too, choose its timeline with {recover_command(storage, uid_of(storage))}"
        )
    return record


def _has_begun(storage: ObjectStorage, run_key: str) -> bool:
    return any(f"-{run_key}-" in info.name for info in storage.list(layout.VERSIONS))


def check_one_timeline(  # noqa: PLR0917 - one caller
    storage: ObjectStorage,
    epochs: Epochs,
    origin: RunVersion,
    batch_id: int,
    uid: str,
    recovery: Recovery,
) -> None:
    """Refuse to choose between two timelines for a run that begins at ``batch_id``.

    ``origin`` is the version with the highest number, about which the checkpoint has no entry. If
    the newest run's timeline ends below it with a version that a *later* run made, the query went
    back in between, or two drivers ran at once. Storage does not show which timeline is meant.
    """
    if origin.run_key is None:
        return
    ranked = _runs_by_rank(epochs, recovery)
    latest = next((key for key in ranked if _counts(storage, key)), None)
    ends = None if latest is None else timeline_version(storage, latest, batch_id)
    if ends is None or ends.run_key is None or ends.version >= origin.version:
        return
    if epochs.rank(ends.run_key, 0) <= epochs.rank(origin.run_key, 0):
        return
    raise ConfigurationError(
        f"batch {batch_id} of operator {uid!r} in {storage.url} could go on from version "
        f"{origin.version}, made before the query went back to an older batch, and version "
        f"{ends.version}, made after it by run {ends.run_key}. Choose the timeline that the "
        f"checkpoint belongs to with {recover_command(storage, uid)}"
    )


def newest_complete(storage: ObjectStorage, epochs: Epochs) -> RunVersion | None:
    """Return the newest complete version of the current timeline; ``None`` while there is none."""
    found = current(storage, epochs)
    return None if found is None else found.newest


def current(storage: ObjectStorage, epochs: Epochs) -> CurrentTimeline | None:
    """Return the timeline of the highest-ranked run that counts; ``None`` if there is no run.

    The version that the run is making does not count, nor does a run that has opened nothing yet,
    or an import that was not published to its end. Raises `CorruptStateError` where what is stored
    shows that a newer version was complete, and names what is missing.
    """
    recovery = read_recovery(storage, epochs)
    for run_key in _runs_by_rank(epochs, recovery):
        record = record_of_begun(storage, run_key)
        if record is None:
            continue
        newest = _newest_made(storage, run_key, record.since, epochs)
        if newest is None and record.is_import:
            continue
        if run_key in recovery.kept:  # no run has begun since the decision
            _check_chosen(storage, epochs, recovery)
        return CurrentTimeline(run_key, newest or _continued(storage, run_key, record, epochs))
    for version in marked_versions(storage, LAST_VERSION)[:1]:
        check_epochs(storage, list_version(storage, version), epochs)
    _check_chosen(storage, epochs, recovery)
    return None


def _check_chosen(storage: ObjectStorage, epochs: Epochs, recovery: Recovery) -> None:
    """Raise if the entry of the run that a person chose is missing."""
    chosen = max(recovery.kept, key=recovery.kept.__getitem__, default=None)
    if chosen is None or epochs.of_run(chosen) is not None:
        return
    listing = list_version(storage, recovery.kept[chosen]).of_run(chosen)
    for made in listing.objects:
        raise _missing_entry_error(storage, made)


def _newest_made(
    storage: ObjectStorage, run_key: str, since: int, epochs: Epochs
) -> RunVersion | None:
    """Return the newest complete version that a run made above ``since``.

    One incomplete version may be above it: the one that is being made.
    """
    went_on = False
    for version in marked_versions(storage, LAST_VERSION):
        if version <= since:
            break
        listing = list_version(storage, version)
        check_epochs(storage, listing, epochs)
        made = listing.of_run(run_key)
        if is_complete(made):
            return RunVersion(version=version, run_key=run_key)
        if made.torn or (made and went_on):
            raise incomplete_version_error(made, uid_of(storage), storage.url)
        went_on = went_on or bool(made)
    return None


def _continued(
    storage: ObjectStorage, run_key: str, record: RunRecord, epochs: Epochs
) -> RunVersion | None:
    """Return the version that a run without versions continues; ``None`` is the empty version."""
    origin = record.origin
    if origin.run_key is None:
        return None
    listing = list_version(storage, origin.version).of_run(origin.run_key)
    if is_complete(listing):
        return origin
    # The janitor deletes it when the run has continued.
    made = _newest_made(storage, run_key, record.since, epochs)
    if made is None:
        raise lost_version_error(storage, origin, listing, f"run {run_key} continues it")
    return made


def lost_version_error(
    storage: ObjectStorage, at: RunVersion, listing: VersionListing, reason: str
) -> CorruptStateError:
    """Return the error for a version that must be stored, for the ``reason`` given, and is not."""
    uid = uid_of(storage)
    if listing:
        return incomplete_version_error(listing, uid, storage.url)
    return CorruptStateError(
        f"version {at.version}@{at.run_key} of operator {uid!r} in {storage.url} is missing: "
        f"{reason}, and nothing is stored in {layout.version_folder(at.version)}/ of that run. It "
        "was deleted, or is not in this copy of the state directory: put it back"
    )


def check_epochs(storage: ObjectStorage, listing: VersionListing, epochs: Epochs) -> None:
    """Raise if a version was begun in a higher epoch than any entry has: its entry is missing."""
    for made in listing.objects:
        if made.by.epoch > epochs.highest and made.by.epoch > list_epochs(storage).highest:
            raise _missing_entry_error(storage, made)


def _missing_entry_error(storage: ObjectStorage, made: Made) -> CorruptStateError:
    record = record_of_begun(storage, made.by.run_key)
    since, spark_run = 0, UNKNOWN_SPARK_RUN
    if record is not None:
        since, spark_run = record.since, record.identity.spark_run
    entry = EpochEntry(made.by.epoch, since, made.by.run_key, spark_run)
    return CorruptStateError(
        f"{entry.name} in {storage.url} is missing, the entry of the run that made {made.name}: it "
        "was deleted, or is not in this copy of the state directory. Put an object of that name "
        "there, whatever its content; or start the query again, whose new run has an entry of its "
        "own"
    )


def _counts(storage: ObjectStorage, run_key: str) -> bool:
    """Return whether a run has opened a version, and if it is an import made one."""
    record = record_of_begun(storage, run_key)
    if record is None:
        return False
    made = RunVersion(version=record.since + 1, run_key=run_key)
    return not record.is_import or is_whole(storage, made)


def _runs_by_rank(epochs: Epochs, recovery: Recovery) -> Iterator[str]:
    """Yield all runs that are not abandoned, highest-ranked first."""
    seen = set()
    for entry in sorted(epochs.entries, key=lambda entry: entry.rank, reverse=True):
        if entry.run_key not in seen and not recovery.leaves(entry.run_key):
            seen.add(entry.run_key)
            yield entry.run_key
