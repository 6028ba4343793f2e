"""Publish a version that was written outside a job, as the only version of a run of its own.

The files are durable before `publish` is called. It mints an epoch above all others, puts the run's
record, and then the markers and manifests of all parts. A version with some of its manifests is not
complete, so a reader or a query sees all of an import or nothing of it. If one of the requests
fails, the objects that were put are deleted again.

Of two first versions that are published at once at most one stays: each import looks for complete
ones after it has minted its epoch, and for a newer epoch after its last manifest; it takes its own
back if it finds one. A query that begins looks for an import after it has minted, too (`fencing`).
The import of a replaced version looks for a newer epoch as well, and fails unless its run goes on
from the copy.

Nothing repeats an import, so its version is final as soon as it is complete. The run's record shows
it, under `IMPORTED`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.choosing.savepoints import (
    Savepoint,
    drop_savepoint,
    find_savepoint,
    hold,
    put_savepoint,
    savepoint_of,
)
from forebay_engine.versions.choosing.timeline import record_of_begun, timeline_version
from forebay_engine.versions.commit import committed_fields
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import (
    IMPORTED,
    UNKNOWN_SPARK_RUN,
    Epochs,
    RunIdentity,
    RunRecord,
    RunVersion,
    decide_record,
    list_epochs,
    mint,
    read_record,
)
from forebay_engine.versions.format.folder import uid_of
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.manifest import (
    Manifest,
    loaded_file,
    plain_file,
    put_manifest,
)
from forebay_engine.versions.format.markers import list_version, marked_versions, put_marker
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import LAST_VERSION, random_id
from forebay_state_api.contract.files import CommittedState
from forebay_state_api.errors import ConfigurationError, FencedError, ForebayError, StorageError
from forebay_state_api.keys import KeyGroupRange

if TYPE_CHECKING:
    from forebay_engine.versions.format.markers import VersionListing
    from forebay_state_api.contract.object_storage import ObjectStorage

_NOTHING: Final = RunVersion(version=0, run_key=None)


@attrs.frozen(kw_only=True)
class ImportTarget:
    """The version that an import makes, and its position in the query's history."""

    version: int
    max_parallelism: int
    parallelism: int
    continues: RunVersion = _NOTHING
    """The version below it in its timeline."""
    batch_ms: int = 0
    """The batch time that the query's checkpoint has for this version; 0 if there is none."""
    location: str | None = None
    """The location of that checkpoint."""
    replaces: str | None = None
    """The run whose copy of the version it replaces."""
    keyed_by: Sequence[Sequence[Sequence[str]]] = ()
    """The key columns, as `Manifest.keyed_by`."""

    @classmethod
    def replacing(cls, storage: ObjectStorage, reader: VersionReader) -> Self:
        """Return the target of another copy of the version that ``reader`` holds."""
        made = reader.manifests[0].made
        run_key = reader.run_key or ""
        record = read_record(storage, run_key)
        if record is None:
            raise ConfigurationError(
                f"the record of run {run_key} in {storage.url}, which made version "
                f"{reader.version}, is missing: that version cannot be replaced"
            )
        continues = record.origin
        if reader.version > record.since + 1:
            continues = RunVersion(version=reader.version - 1, run_key=run_key)
        return cls(
            version=reader.version,
            max_parallelism=made.max_parallelism,
            parallelism=made.parallelism,
            continues=continues,
            batch_ms=max(manifest.batch_ms for manifest in reader.manifests),
            location=record.location,
            replaces=run_key,
            keyed_by=reader.manifests[0].keyed_by,
        )


@attrs.frozen(kw_only=True)
class ImportedPart:
    """One subtask's part of an imported version: durable files, and the rest of its manifest."""

    subtask: int
    range: KeyGroupRange
    committed: CommittedState
    descriptions: Mapping[str, Mapping[str, Any]]
    generations: Mapping[str, Sequence[Mapping[str, Any]]] = attrs.field(factory=dict)
    operator_state: Mapping[str, Any] = attrs.field(factory=dict)
    operator_files: Sequence[str] = ()
    metrics: Mapping[str, Any] = attrs.field(factory=dict)
    times: Mapping[str, Any] = attrs.field(factory=dict)

    def packed(self) -> bytes:
        """Return the part as sealed bytes, to be sent from the process that wrote its files."""
        payload = attrs.asdict(self, recurse=False)
        payload["range"] = [self.range.start, self.range.end]
        payload["committed"] = attrs.asdict(self.committed, recurse=False) | {
            "files": [plain_file(file) for file in self.committed.files]
        }
        return seal(payload)

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Decode the result of `packed`; raises the errors of `unseal`."""
        payload = unseal(data, "a part of an import")
        committed = payload["committed"]
        files = [loaded_file(file) for file in committed["files"]]
        return cls(
            **payload
            | {
                "range": KeyGroupRange(*payload["range"]),
                "committed": CommittedState(**committed | {"files": files}),
            }
        )


def check_vacant(storage: ObjectStorage, target: ImportTarget, uid: str) -> None:
    """Refuse to import into an operator that has versions, unless one of them is replaced."""
    if target.replaces is None:
        _check_vacant(storage, list_epochs(storage), uid)


def _check_vacant(storage: ObjectStorage, epochs: Epochs, uid: str, own: str | None = None) -> None:
    """Refuse if another run than ``own`` has begun, except for interrupted imports."""
    for run_key in dict.fromkeys(entry.run_key for entry in epochs.entries):
        if run_key != own and not _left_nothing(storage, run_key):
            raise ConfigurationError(
                f"operator {uid!r} in {storage.url} has state already: import under another name "
                "of the query, or replace the version that the stopped query opens next"
            )


def _left_nothing(storage: ObjectStorage, run_key: str) -> bool:
    record = read_record(storage, run_key)
    if record is None:  # stopped between its epoch and its record
        return not marked_versions(storage, LAST_VERSION)
    return record.is_import and not _is_whole(storage, record)


def _is_whole(storage: ObjectStorage, record: RunRecord) -> bool:
    """Return whether an import is complete."""
    at = RunVersion(version=record.since + 1, run_key=record.identity.key)
    return opening.is_whole(storage, at)


def first_import(storage: ObjectStorage, epochs: Epochs) -> RunVersion | None:
    """Return the first version of an operator, if an import made it; ``None`` if there is none.

    A version that an import replaced, or made for a checkpoint, does not count. Raises
    `CorruptStateError` if there is only a truncated one.
    """
    truncated: VersionListing | None = None
    for entry in epochs.entries:
        if entry.since or entry.spark_run != UNKNOWN_SPARK_RUN:
            continue
        record = record_of_begun(storage, entry.run_key)
        if record is None or not _is_first(record):
            continue
        listing = list_version(storage, 1).of_run(entry.run_key)
        if opening.is_complete(listing):
            return RunVersion(version=1, run_key=entry.run_key)
        truncated = listing if listing.torn else truncated
    if truncated is not None:
        raise opening.incomplete_version_error(truncated, uid_of(storage), storage.url)
    return None


def _is_first(record: RunRecord) -> bool:
    imported = record.details.get(IMPORTED)
    return imported is not None and imported["replaces"] is None and record.location is None


def publish(
    storage: ObjectStorage,
    target: ImportTarget,
    parts: Sequence[ImportedPart],
    *,
    uid: str,
    backend: str,
    now_us: int,
    savepoint: str | None = None,
) -> str:
    """Make a version of ``parts``, which cover all key groups; return the key of its run.

    ``savepoint`` is a name that keeps it. Raises `FencedError` if a query or another import begins
    at the same time, and `ConfigurationError` if the operator has got state since `check_vacant`.
    """
    run = RunIdentity(keyed_uuid=random_id(), app_id=None, run_id=None)
    epochs = mint(storage, run, target.version - 1, list_epochs(storage))
    _check_newest(epochs, run, storage, uid)
    _decide(storage, target, run)
    entry = epochs.of_run(run.key)
    assert entry is not None
    if target.replaces is None:
        _check_vacant(storage, epochs, uid, run.key)
    made = [_coordinates(target, part, entry.number, run.key) for part in parts]
    manifests = [
        _manifest(one, target, part, uid=uid, backend=backend, now_us=now_us)
        for one, part in zip(made, parts, strict=True)
    ]
    saved = None if savepoint is None else _vacated(storage, savepoint, epochs, manifests)
    _put_whole(storage, manifests, uid, saved)
    if target.replaces is None:
        _check_alone(storage, manifests, run, uid, saved)
    else:
        _check_continued(storage, target, run, uid)
    return run.key


def _vacated(
    storage: ObjectStorage, name: str, epochs: Epochs, manifests: Sequence[Manifest]
) -> Savepoint:
    """Return the savepoint to put, after deleting one that an interrupted import left there."""
    left = find_savepoint(storage, name)
    if left is not None and epochs.of_run(left.run_key) is not None and not _is_kept(storage, left):
        drop_savepoint(storage, left)
    return savepoint_of(name, manifests)


def _is_kept(storage: ObjectStorage, saved: Savepoint) -> bool:
    """Return whether the version of a savepoint was published."""
    at = RunVersion(version=saved.version, run_key=saved.run_key)
    return opening.is_whole(storage, at)


def _put_whole(
    storage: ObjectStorage, manifests: Sequence[Manifest], uid: str, saved: Savepoint | None
) -> None:
    """Put markers, savepoint and manifests; the last manifest makes the version whole.

    After a failure before that, the objects are deleted again.
    """
    try:
        for manifest in manifests:
            put_marker(storage, manifest.made)
        if saved is not None:
            put_savepoint(storage, saved, uid=uid)
            hold(storage, saved, manifests)
        for manifest in manifests:
            put_manifest(storage, manifest)
    except ForebayError as error:
        # An error of storage after the last manifest means only that its answer was lost.
        if not isinstance(error, StorageError) or not _was_put(storage, manifests[0].made):
            _take_back(storage, manifests[0].made, saved)
            raise


def _was_put(storage: ObjectStorage, made: Coordinates) -> bool:
    try:
        return opening.is_whole(storage, RunVersion(version=made.version, run_key=made.run_key))
    except StorageError:
        return False


def _check_alone(
    storage: ObjectStorage,
    manifests: Sequence[Manifest],
    run: RunIdentity,
    uid: str,
    saved: Savepoint | None,
) -> None:
    """Delete a first version again, and raise, if a newer run may have begun without it."""
    try:
        _check_newest(list_epochs(storage), run, storage, uid)
    except ForebayError:
        _take_back(storage, manifests[0].made, saved)
        raise


def _check_continued(
    storage: ObjectStorage, target: ImportTarget, run: RunIdentity, uid: str
) -> None:
    """Raise if a newer run does not go on from the copy, or has not decided yet.

    The copy stays: that run may still choose it, and another import replaces it.
    """
    newest = list_epochs(storage).newest()
    if newest is None or newest.run_key == run.key:
        return
    continued = timeline_version(storage, newest.run_key, target.version)
    if continued is None or continued.run_key != run.key:
        raise _taken_error(storage, uid)


def _take_back(storage: ObjectStorage, made: Coordinates, saved: Savepoint | None) -> None:
    """Delete the objects of an import; objects that cannot be deleted are never opened."""
    folder = layout.version_folder(made.version)
    with contextlib.suppress(StorageError):
        put = [info.name for info in storage.list(folder) if f"-{made.run_key}-" in info.name]
        storage.delete(sorted(put))  # manifests first
        found = None if saved is None else find_savepoint(storage, saved.name)
        if found is not None and found.run_key == made.run_key:
            drop_savepoint(storage, found)


def _check_newest(epochs: Epochs, run: RunIdentity, storage: ObjectStorage, uid: str) -> None:
    newest = epochs.newest()
    if newest is None or newest.run_key != run.key:
        raise _taken_error(storage, uid)


def _taken_error(storage: ObjectStorage, uid: str) -> FencedError:
    return FencedError(
        f"the state of operator {uid!r} in {storage.url} was taken by another run while the import "
        "published its version: stop the query, then import again"
    )


def _decide(storage: ObjectStorage, target: ImportTarget, run: RunIdentity) -> None:
    record = RunRecord(
        since=target.version - 1,
        origin=target.continues,
        keyed_uuid=run.keyed_uuid,
        app_id=None,
        run_id=None,
        details={IMPORTED: {"replaces": target.replaces}},
        location=target.location,
    )
    decide_record(storage, run.key, record)


def _coordinates(target: ImportTarget, part: ImportedPart, epoch: int, run_key: str) -> Coordinates:
    return Coordinates(
        version=target.version,
        max_parallelism=target.max_parallelism,
        parallelism=target.parallelism,
        subtask=part.subtask,
        range=part.range,
        epoch=epoch,
        run_key=run_key,
        attempt_id=0,
        random_id=random_id(),
    )


def _manifest(
    made: Coordinates,
    target: ImportTarget,
    part: ImportedPart,
    *,
    uid: str,
    backend: str,
    now_us: int,
) -> Manifest:
    return Manifest(
        made=made,
        uid=uid,
        backend=backend,
        parents=[],
        opened_version=target.continues.version,
        now_us=now_us,
        batch_ms=target.batch_ms,
        descriptions=part.descriptions,
        generations=part.generations,
        operator_state=part.operator_state,
        times=part.times,
        keyed_by=target.keyed_by,
        **committed_fields(
            part.committed, operator_files=part.operator_files, metrics=part.metrics
        ),
    )


def open_replaced(
    storage: ObjectStorage, *, uid: str, version: int, location: str | None, batch_ms: int | None
) -> VersionReader:
    """Open the copy of ``version`` that a query with this checkpoint would open.

    ``batch_ms`` is the time of the batch that made the version, as the checkpoint has it. Raises
    `ConfigurationError` if no copy has that time.
    """
    listing = list_version(storage, version)
    epochs = list_epochs(storage)
    candidates = [
        run_key
        for run_key in opening.complete_runs(listing, epochs)
        if batch_ms is None or _time(listing, run_key) in (0, batch_ms)
    ]
    here = [key for key in candidates if _location(storage, key) == location]
    chosen = next(iter(here or candidates), None)
    if chosen is None:
        raise ConfigurationError(
            f"version {version} of operator {uid!r} in {storage.url}, which the checkpoint's next "
            "batch opens, is not stored, or belongs to another checkpoint"
        )
    return open_version(storage, uid=uid, version=version, run_key=chosen)


def _time(listing: VersionListing, run_key: str) -> int:
    return max((one.batch_ms for one in listing.of_run(run_key).manifests), default=0)


def _location(storage: ObjectStorage, run_key: str) -> str | None:
    record = record_of_begun(storage, run_key)
    return None if record is None else record.location
