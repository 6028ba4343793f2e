"""Finality: which complete versions can no longer be replaced.

A version that is complete may still be replaced: Spark repeats a batch whose commit it did not
record. A version is *final* when

* its run has begun a later version: Spark begins a batch when the one before it is committed;
* another run continues it, as that run's record states; in ``foreachBatch`` each batch is a run;
* its run is bounded, so that no batch is repeated, or an import (`BOUNDED` and `IMPORTED` in the
  run's record);
* a mark says so: the driver puts ``final/<version>-<run key>`` when Spark reports the batch's end.

So the newest version of a query that stopped before its driver's mark is not final until the query
goes on; readers then show the version before it, unless they are asked for provisional ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from forebay_state_api.contract.checksummed import seal
from forebay_state_api.versions import layout
from forebay_state_api.versions.epochs import Epochs, RunVersion, list_epochs, read_record
from forebay_state_api.versions.markers import list_version, marked_versions
from forebay_state_api.versions.timeline import newest_complete, timeline_version

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

BOUNDED: Final = "bounded"
"""Key in `RunRecord.details`: the run evaluates a bounded DataFrame, outside of any stream."""

IMPORTED: Final = "imported"
"""Key in `RunRecord.details`: the run is an import, which made one version outside a job."""


@attrs.frozen
class Shown:
    """A complete version that a reader may show."""

    at: RunVersion
    final: bool


def mark_final(storage: ObjectStorage, version: int, run_key: str) -> bool:
    """Mark a version as final (one request); return whether it had no mark yet."""
    return storage.put_if_absent(layout.final_name(version, run_key), seal({"final": True}))


def is_final(storage: ObjectStorage, at: RunVersion) -> bool:
    """Return whether a complete version can no longer be replaced; the empty version cannot."""
    if at.run_key is None or _is_marked(storage, at):
        return True
    record = read_record(storage, at.run_key)
    if record is not None and (record.details.get(BOUNDED) or IMPORTED in record.details):
        return True
    return _run_went_on(storage, at) or _is_continued(storage, at, list_epochs(storage))


def _is_marked(storage: ObjectStorage, at: RunVersion) -> bool:
    name = layout.final_name(at.version, at.run_key or "")
    return any(info.name == name for info in storage.list(layout.FINAL))


def _run_went_on(storage: ObjectStorage, at: RunVersion) -> bool:
    """Return whether the version's own run has begun a later one."""
    for version in marked_versions(storage, layout.LAST_VERSION):
        if version <= at.version:
            return False
        if list_version(storage, version).of_run(at.run_key or ""):
            return True
    return False


def _is_continued(storage: ObjectStorage, at: RunVersion, epochs: Epochs) -> bool:
    """Return whether another run began with the version."""
    later = {one.run_key for one in epochs.entries if one.since >= at.version} - {at.run_key}
    records = (read_record(storage, run_key) for run_key in sorted(later))
    return any(record is not None and record.origin == at for record in records)


def newest_shown(storage: ObjectStorage, *, provisional: bool) -> Shown | None:
    """Return the newest version of the current timeline that a reader shows.

    That is the newest final one, or with ``provisional`` the newest complete one. ``None`` when
    there is no such version.
    """
    at = newest_complete(storage, list_epochs(storage))
    while at is not None and at.run_key is not None:
        final = is_final(storage, at)
        if final or provisional:
            return Shown(at, final)
        at = timeline_version(storage, at.run_key, at.version - 1)
    return None


def shown_at(storage: ObjectStorage, version: int, *, provisional: bool) -> Shown | None:
    """Return ``version`` of the current timeline, or if it was skipped the newest below it.

    ``None`` when nothing is stored there, or ``version`` is above `newest_shown`.
    """
    newest = newest_shown(storage, provisional=provisional)
    if newest is None or newest.at.version <= version:
        return newest if newest is not None and newest.at.version == version else None
    assert newest.at.run_key is not None
    at = timeline_version(storage, newest.at.run_key, version)
    if at is None or at.run_key is None:
        return None
    return Shown(at, final=True)
