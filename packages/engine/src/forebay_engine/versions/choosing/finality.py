"""Finality: which complete versions can no longer be replaced.

A version that is complete may still be replaced: Spark repeats a batch whose commit it did not
record. A version is *final* when

* its run has begun a later version: Spark begins a batch when the one before it is committed;
* another run continues it, as that run's record states; in ``foreachBatch`` each batch is a run;
* its run is bounded, so that no batch is repeated, or an import, as its record states;
* a mark says so: the driver puts ``final/<version>-<run key>`` when Spark reports the batch's end.

So the newest version of a query that stopped before its driver's mark is not final until the query
goes on; readers then show the version before it, unless they are asked for provisional ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from forebay_engine.versions.choosing.opening import incomplete_version_error, is_complete
from forebay_engine.versions.choosing.timeline import (
    CurrentTimeline,
    begun_versions,
    current,
    lost_version_error,
    record_of_begun,
    stored_versions,
)
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import Epochs, RunVersion, list_epochs, read_record
from forebay_engine.versions.format.folder import uid_of
from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import VersionListing, list_version, marked_versions
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.file_names import LAST_VERSION
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.storage import ForwardingStorage

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")


@attrs.frozen
class ShownVersion:
    """A complete version that a reader may show."""

    at: RunVersion
    final: bool


def mark_final(storage: ObjectStorage, version: int, run_key: str) -> bool:
    """Mark a version as final (one request); return whether it had no mark yet."""
    return storage.put_if_absent(layout.final_name(version, run_key), seal({"final": True}))


def is_final(storage: ObjectStorage, at: RunVersion) -> bool:
    """Return whether a complete version can no longer be replaced; the empty version cannot.

    Raises `CorruptStateError` if the record of its run is missing.
    """
    return at.run_key is None or _is_final(storage, at, marked_final(storage))


def marked_final(storage: ObjectStorage) -> frozenset[RunVersion]:
    """Return the versions that have a mark (one request)."""
    found = (layout.final_mark(info.name) for info in storage.list(layout.FINAL))
    return frozenset(RunVersion(version=mark[0], run_key=mark[1]) for mark in found if mark)


def _is_final(storage: ObjectStorage, at: RunVersion, marks: frozenset[RunVersion]) -> bool:
    if at in marks:
        return True
    record = record_of_begun(storage, at.run_key or "")
    if record is not None and (record.is_bounded or record.is_import):
        return True
    return _run_went_on(storage, at) or _is_continued(storage, at, list_epochs(storage))


def _run_went_on(storage: ObjectStorage, at: RunVersion) -> bool:
    """Return whether the version's own run has begun a later one."""
    for version in marked_versions(storage, LAST_VERSION):
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


def newest_shown(storage: ObjectStorage, *, provisional: bool) -> ShownVersion | None:
    """Return the newest version of the current timeline that a reader shows.

    That is the newest final one, or with ``provisional`` the newest complete one. ``None`` when
    there is no such version. Raises `CorruptStateError` if a newer one must be there, and is not.
    """
    try:
        return _newest_shown(_OneLook(storage), provisional=provisional)
    except CorruptStateError:  # something may have changed between two requests of the look
        return _newest_shown(storage, provisional=provisional)


class _OneLook(ForwardingStorage):
    """Makes each request once, and then gives the same answer; what is missing is asked again."""

    def __init__(self, inner: ObjectStorage) -> None:
        super().__init__(inner)
        self._answers: dict[tuple[str, str], Any] = {}

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        asked = operation, name
        if asked not in self._answers:
            self._answers[asked] = request()
        found: T = self._answers[asked]
        return found


def _newest_shown(storage: ObjectStorage, *, provisional: bool) -> ShownVersion | None:
    marks = marked_final(storage)
    timeline = current(storage, list_epochs(storage))
    if timeline is None:
        return None
    _check_marked(storage, timeline, marks)
    at = timeline.newest
    while at is not None:
        final = _is_final(storage, at, marks)
        if final or provisional:
            return ShownVersion(at, final)
        at = _nearest(storage, at.run_key or "", at.version - 1)
    return None


def _check_marked(
    storage: ObjectStorage, timeline: CurrentTimeline, marks: frozenset[RunVersion]
) -> None:
    """Raise if the current run made a final version that is newer than all complete ones."""
    newest = 0 if timeline.newest is None else timeline.newest.version
    for at in sorted(marks, key=lambda mark: mark.version):
        if at.run_key == timeline.run_key and at.version > newest:
            listing = list_version(storage, at.version).of_run(timeline.run_key)
            mark = layout.final_name(at.version, timeline.run_key)
            raise lost_version_error(storage, at, listing, f"{mark} says that it was complete")


def shown_at(storage: ObjectStorage, version: int, *, provisional: bool) -> ShownVersion | None:
    """Return ``version`` of the current timeline, or if it was skipped the newest below it.

    ``None`` when it is not stored, or is above `newest_shown`. Raises `CorruptStateError` if it is
    truncated.
    """
    newest = newest_shown(storage, provisional=provisional)
    if newest is None or newest.at.version <= version:
        return newest if newest is not None and newest.at.version == version else None
    at = _nearest(storage, newest.at.run_key or "", version)
    if at is None or (at.version < version and not _was_skipped(storage, newest.at, version, at)):
        return None
    return ShownVersion(at, final=True)


def _nearest(storage: ObjectStorage, run_key: str, newest: int) -> RunVersion | None:
    """Return the newest complete version ≤ ``newest``; raise if one above it is truncated."""
    for at, listing in begun_versions(storage, run_key, newest):
        if is_complete(listing):
            return at
        if listing.torn:
            raise incomplete_version_error(listing, uid_of(storage), storage.url)
    return None


def _was_skipped(
    storage: ObjectStorage, newest: RunVersion, version: int, below: RunVersion
) -> bool:
    """Return whether the next version that is stored above ``version`` was made from ``below``.

    Otherwise ``version`` was made, and deleted: what is below it is stored for a pin.
    """
    above: VersionListing | None = None
    for at, listing in stored_versions(storage, newest.run_key or "", newest.version):
        if at.version <= version:
            break
        above = listing
    if above is None:
        return False
    return read_manifest(storage, above.manifests[0].name).opened_version == below.version
