"""Choose the timeline that a run continues; the run's first task decides.

The candidates are the runs that made the newest version that any run began at or below the batch,
and whose manifests *alone* cover every key group. Of these

* a run is excluded if its batch has a *different* time from the one in the query's checkpoint: a
  copy of the checkpoint planned that batch. Where a version has no time, because no subtask had
  rows, the versions below it in its timeline are examined, newest first; if none of them has a
  time, nothing is excluded;
* if several remain, those that began from this checkpoint's location count: a copy that was made
  while a batch was open repeats that batch with the same time. If all of them began from one other
  location, the checkpoint was moved;
* of these the highest-ranked run is chosen.

A timeline that a person chose with ``forebay recover`` is never excluded. Where the checkpoint is
not known (under Spark Connect, and without a stream), the rank decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.recovery import Recovery, read_recovery, recover_command
from forebay_engine.versions.choosing.timeline import (
    check_one_timeline,
    record_of_begun,
    stored_versions,
)
from forebay_engine.versions.format.epochs import Epochs, RunIdentity, RunVersion, read_record
from forebay_engine.versions.format.markers import VersionListing, list_version
from forebay_state_api.errors import ConfigurationError, CorruptStateError

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.forks import RestoreFrom
    from forebay_engine.versions.format.checkpoint import Checkpoint
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class StartingTask:
    """A task that is about to make a version."""

    run: RunIdentity
    batch_id: int
    uid: str
    max_parallelism: int
    consecutive: bool
    new_state: bool
    bounded: bool = False
    """Whether no stream will repeat the batch."""
    restore: RestoreFrom | None = None
    """The state to begin with instead of empty state."""
    checkpoint: Checkpoint | None = None
    """The query's checkpoint; ``None`` where it is not known."""


def choose_origin(storage: ObjectStorage, task: StartingTask, epochs: Epochs) -> RunVersion | None:
    """Return the version that a run beginning at ``task.batch_id`` continues.

    It is checked as far as object names allow. ``None`` when nothing is stored at or below that
    batch.
    """
    recovery = read_recovery(storage, epochs)
    excluded: list[RunVersion] = []
    for every in opening.begun(storage, task.batch_id, epochs, task.run.spark_run):
        listing = recovery.counted(every)
        others = _excluded(storage, task.checkpoint, listing, recovery)
        listing = listing.of_runs(listing.run_keys - {origin.run_key for origin in others})
        excluded += others
        if listing:
            _check_none_missing(storage, task, listing.version, excluded)
            return _chosen(storage, task, epochs, listing, recovery)
    if excluded:
        raise _other_query_error(storage, task, excluded)
    return None


def _check_none_missing(
    storage: ObjectStorage, task: StartingTask, version: int, excluded: Sequence[RunVersion]
) -> None:
    """On a stream, raise unless the previous batch's version is the one that was found."""
    if not task.consecutive or task.new_state or version == task.batch_id:
        return
    if excluded:
        raise _other_query_error(storage, task, excluded)
    raise opening.missing_version_error(version, task.batch_id, task.uid, storage.url)


def _excluded(
    storage: ObjectStorage,
    checkpoint: Checkpoint | None,
    listing: VersionListing,
    recovery: Recovery,
) -> list[RunVersion]:
    """Return the complete runs of a version whose batches another checkpoint planned."""
    if checkpoint is None:
        return []
    return [
        RunVersion(version=listing.version, run_key=run_key)
        for run_key in sorted(listing.run_keys)
        if opening.is_complete(listing.of_run(run_key))
        and not recovery.keeps(run_key, listing.version)
        and _is_known(storage, checkpoint, listing.of_run(run_key)) is False
    ]


def _is_known(storage: ObjectStorage, checkpoint: Checkpoint, made: VersionListing) -> bool | None:
    """Return whether the checkpoint knows the batch in which a run made a version.

    Returns ``None`` if neither that version nor any stored below it in its timeline has a time to
    compare.
    """
    try:
        dated = next((one for one in _and_below(storage, made) if _time_of(one)), None)
    except CorruptStateError as error:  # a record below is missing; the state itself is not
        _log.warning("%s; so nothing is known about the checkpoint of older versions", error)
        return None
    known = None if dated is None else checkpoint.time_of(dated.version)
    return None if dated is None or known is None else known == _time_of(dated)


def _and_below(storage: ObjectStorage, made: VersionListing) -> Iterator[VersionListing]:
    """Yield what a run made of a version, and then the stored versions below in its timeline."""
    yield made
    for run_key in made.run_keys:
        for _, listing in stored_versions(storage, run_key, made.version - 1):
            yield listing


def _time_of(made: VersionListing) -> int:
    """Return the time of a version's batch; 0 if no subtask recorded it, for lack of rows."""
    return max((manifest.batch_ms for manifest in made.manifests), default=0)


def _chosen(
    storage: ObjectStorage,
    task: StartingTask,
    epochs: Epochs,
    listing: VersionListing,
    recovery: Recovery,
) -> RunVersion:
    complete = opening.complete_runs(listing, epochs)
    run_key = _preferred(storage, task, listing.version, complete)
    _check_mended(storage, task, epochs, listing, run_key)
    origin = RunVersion(version=listing.version, run_key=run_key)
    known = task.checkpoint is not None and _is_known(
        storage, task.checkpoint, listing.of_run(run_key or "")
    )
    if not known and not epochs.of_spark_run(task.run.spark_run):
        newest = run_key or opening.runs_by_rank(listing, epochs)[0]
        begun = RunVersion(version=listing.version, run_key=newest)
        check_one_timeline(storage, epochs, begun, task.batch_id, task.uid, recovery)
    if run_key is None:
        raise opening.incomplete_version_error(listing, task.uid, storage.url)
    opening.segments_of(listing.of_run(run_key), task.max_parallelism, task.uid, storage.url)
    return origin


def _check_mended(
    storage: ObjectStorage,
    task: StartingTask,
    epochs: Epochs,
    listing: VersionListing,
    chosen: str | None,
) -> None:
    """Raise if a mended copy that ranks above the chosen one is truncated."""
    for run_key in opening.runs_by_rank(listing, epochs):
        if run_key == chosen:
            return
        made = listing.of_run(run_key)
        record = record_of_begun(storage, run_key) if made.torn else None
        if record is not None and record.is_import:
            raise opening.incomplete_version_error(made, task.uid, storage.url)


def _preferred(
    storage: ObjectStorage, task: StartingTask, version: int, complete: Sequence[str]
) -> str | None:
    """Choose one of the complete runs, which are ordered by rank.

    Returns ``None`` if no run is complete.
    """
    if task.checkpoint is None or len(complete) < 2:  # noqa: PLR2004 - nothing to choose
        return next(iter(complete), None)
    records = {run_key: record_of_begun(storage, run_key) for run_key in complete}
    locations = {key: record and record.location for key, record in records.items()}
    here = task.checkpoint.location
    for run_key in complete:
        if locations[run_key] == here:
            return run_key
    if len(set(locations.values())) == 1:
        return complete[0]
    raise _ambiguous_timelines_error(
        storage, task, [RunVersion(version=version, run_key=key) for key in complete]
    )


def _other_query_error(
    storage: ObjectStorage, task: StartingTask, excluded: Sequence[RunVersion]
) -> ConfigurationError:
    assert task.checkpoint is not None
    newest = excluded[0].version
    known = task.checkpoint.time_of(newest)
    planned = "" if known is None else f", whose batch {newest - 1} is of {_shown(known)}"
    return ConfigurationError(
        f"the state of operator {task.uid!r} in {storage.url} that batch {task.batch_id} could go "
        f"on from was made with another checkpoint than {task.checkpoint.location}{planned}: "
        f"{_named(storage, excluded)}. The checkpoint was copied, the copy ran on this state "
        "directory, and this checkpoint's own versions are not stored any more. Give each copy its "
        "own state directory. To continue a stored timeline, choose it with "
        f"{recover_command(storage, task.uid)}"
    )


def _ambiguous_timelines_error(
    storage: ObjectStorage, task: StartingTask, origins: Sequence[RunVersion]
) -> ConfigurationError:
    assert task.checkpoint is not None
    return ConfigurationError(
        f"batch {task.batch_id} of operator {task.uid!r} in {storage.url} could go on from several "
        f"timelines that share a batch: {_named(storage, origins)}. None of them began from "
        f"{task.checkpoint.location}: this checkpoint and another one are copies of each other. "
        f"Choose one with {recover_command(storage, task.uid)}"
    )


def _named(storage: ObjectStorage, origins: Sequence[RunVersion]) -> str:
    return "; ".join(_described(storage, origin) for origin in origins)


def _described(storage: ObjectStorage, origin: RunVersion) -> str:
    """Describe who made a version, for messages."""
    run_key = origin.run_key or ""
    record = read_record(storage, run_key)
    batch_ms = _time_of(list_version(storage, origin.version).of_run(run_key))
    made = f"run {run_key} made version {origin.version}"
    made += f" of a batch of {_shown(batch_ms)}" if batch_ms else ""
    if record is None:
        return made
    return f"{made}, from {record.location or 'a checkpoint that is not known'}"


def _shown(batch_ms: int) -> str:
    return datetime.fromtimestamp(batch_ms / 1_000, UTC).isoformat(timespec="milliseconds")
