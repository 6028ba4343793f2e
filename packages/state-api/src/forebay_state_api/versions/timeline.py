"""Timelines: the chain of versions behind a run, run by run, according to the records.

A run's timeline consists of the versions that it made itself above the batch at which it began;
below that, of the timeline of the version that it continued, and so on. After a checkpoint went
back, versions of the abandoned timeline are still stored next to (and above) the new ones; version
numbers alone do not distinguish them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.versions import layout
from forebay_state_api.versions.epochs import Epochs, RunVersion, read_record
from forebay_state_api.versions.markers import list_version, marked_versions
from forebay_state_api.versions.opening import is_complete
from forebay_state_api.versions.recovery import Recovery, read_recovery, recover_command

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)


def timeline_version(storage: ObjectStorage, run_key: str, newest: int) -> RunVersion | None:
    """Return the newest complete version ≤ ``newest`` in a run's timeline.

    ``None`` when a record is missing, so that nothing is known about older versions.
    """
    key: str | None = run_key
    while key is not None:
        record = read_record(storage, key)
        if record is None:
            return None
        made = _made_by(storage, key, record.since, newest)
        if made is not None:
            return made
        if record.origin.version <= newest:
            return record.origin
        key = record.origin.run_key
    return None


def _made_by(storage: ObjectStorage, run_key: str, since: int, newest: int) -> RunVersion | None:
    if newest <= since:
        return None
    for version in marked_versions(storage, newest):
        if version <= since:
            break
        listing = list_version(storage, version).of_run(run_key)
        if is_complete(listing):
            return RunVersion(version=version, run_key=run_key)
        if listing.torn:
            _log.warning(
                "version %d in %s is skipped: truncated (shorter than the size in its name): %s",
                version,
                storage.url,
                ", ".join(made.name for made in listing.torn),
            )
    return None


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
    latest = next((key for key in ranked if _has_record(storage, key)), None)
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


def _has_record(storage: ObjectStorage, run_key: str) -> bool:
    return read_record(storage, run_key) is not None


def newest_complete(storage: ObjectStorage, epochs: Epochs) -> RunVersion | None:
    """Return the newest complete version in the timeline of the highest-ranked run.

    A version that is being made right now does not count. ``None`` when there is no version.
    """
    for run_key in _runs_by_rank(epochs, read_recovery(storage, epochs)):
        found = timeline_version(storage, run_key, layout.LAST_VERSION)
        if found is not None:
            return found if found.version else None
    return None


def _runs_by_rank(epochs: Epochs, recovery: Recovery) -> Iterator[str]:
    """Yield all runs that count, highest-ranked first; a run without a record opened nothing."""
    seen = set()
    for entry in sorted(epochs.entries, key=lambda entry: entry.rank, reverse=True):
        if entry.run_key not in seen and not recovery.leaves(entry.run_key):
            seen.add(entry.run_key)
            yield entry.run_key
