"""Readers from outside the query (state readers, savepoints, restore): they pin before they read.

The order: choose a version, pin it, list it again, read its manifests, check that every file
exists, narrow the pin to these files. If the janitor had already decided to delete part of the
version, one of the checks fails; decisions that it makes after the pin leave the version alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.pins import LEASE, Pin
from forebay_engine.versions.choosing.recovery import read_recovery
from forebay_engine.versions.choosing.timeline import newest_complete
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.epochs import RunVersion, list_epochs
from forebay_engine.versions.format.folder import OperatorStorage, data_folder
from forebay_engine.versions.format.markers import list_version, marked_versions
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api.contract.backend import NO_TIME, Opening
from forebay_state_api.contract.file_names import DATA
from forebay_state_api.errors import ConfigurationError, CorruptStateError, VersionGoneError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.progress import SILENT, Progress

if TYPE_CHECKING:
    from forebay_engine.versions.format.blobs import FileBlob
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.files import ParentState, StateFile
    from forebay_state_api.contract.object_storage import ObjectStorage

_THREADS: Final = 16


class VersionReader:
    """One complete version, held by a pin until `close`; also a context manager."""

    def __init__(
        self, storage: ObjectStorage, pin: Pin, origin: RunVersion, found: opening.Parents
    ) -> None:
        """Created by `open_version`."""
        self.storage = storage
        self.pin = pin
        self.version = origin.version
        self.run_key = origin.run_key
        self.parents: Sequence[ParentState] = [parent for parent, _ in found]
        self.clipped = [(parent.range, manifest) for parent, manifest in found]
        """Each part of the opened range, with the manifest from which it is read."""
        self.manifests: Sequence[Manifest] = list({m.id: m for _, m in found}.values())

    @property
    def bytes(self) -> int:
        """The bytes that the opened manifests' version occupies."""
        files = {file.name: file.size for one in self.manifests for file in one.files}
        return sum(files.values()) + sum(one.bytes_elsewhere for one in self.manifests)

    @property
    def uid(self) -> str:
        """The uid of the operator that made the version."""
        return self.manifests[0].uid

    def opening(
        self,
        options: Mapping[str, Any],
        groups: KeyGroupRange | None = None,
        *,
        now_us: int = NO_TIME,
        cache_bytes: int = 0,
        tables: Collection[str] | None = None,
    ) -> Opening:
        """Return the arguments with which a backend opens some key groups.

        The default is all key groups that the reader was opened for.
        """
        groups = groups or KeyGroupRange(self.parents[0].range.start, self.parents[-1].range.end)
        parts = ((found.intersection(groups), manifest) for found, manifest in self.clipped)
        return Opening.outside_job(
            self.storage,
            self.uid,
            groups,
            options,
            version=self.version,
            parents=[opening.clipped(manifest, part, groups) for part, manifest in parts if part],
            now_us=now_us,
            cache_bytes=cache_bytes,
            tables=tables,
        )

    def close(self) -> None:
        """Delete the pin on the version. Safe to call twice."""
        self.pin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the pin, also after a failure."""
        self.close()


def open_version(
    storage: ObjectStorage,
    *,
    uid: str,
    version: int | None = None,
    range: KeyGroupRange | None = None,  # noqa: A002 - the contract's word
    max_parallelism: int | None = None,
    run_key: str | None = None,
    lease: timedelta = LEASE,
    progress: Progress = SILENT,
) -> VersionReader:
    """Open ``version``, or the newest complete version of the current timeline.

    If ``version`` was skipped, the newest version below it is opened. ``range`` is the key groups
    to open (default: all), computed with ``max_parallelism``. With ``run_key`` only versions made
    by that run count. ``lease`` is how long the pin holds without a renewal. Raises
    `ConfigurationError` when there is no such version or it was made with a different max
    parallelism, `CorruptStateError` when it is incomplete or damaged, `VersionGoneError` when it
    was deleted in the meantime, or a version of ``run_key`` before.
    """
    if version is not None and run_key is not None:
        origin = RunVersion(version=version, run_key=run_key)
    else:
        origin = _chosen(storage, uid, version)
    pin = Pin(storage, origin.version, lease)
    try:
        found = _read(storage, origin, uid, range, max_parallelism, progress=progress)
        progress.stage("checking files")
        names = _checked_files(storage, origin, uid, found)
        pin.renew(names)
    except BaseException as error:
        pin.close()
        if isinstance(error, CorruptStateError):
            _check_stored(storage, origin, uid, error)
        raise
    return VersionReader(storage, pin, origin, found)


def _check_stored(
    storage: ObjectStorage, origin: RunVersion, uid: str, error: CorruptStateError
) -> None:
    """Raise `VersionGoneError` if a version is not damaged, but was deleted."""
    listing = list_version(storage, origin.version).of_run(origin.run_key or "")
    if not listing.torn and not opening.is_complete(listing):
        raise version_gone_error(storage, origin, uid) from error


def version_gone_error(
    storage: ObjectStorage, at: RunVersion, uid: str, how_to_go_on: str = "Open a newer one"
) -> VersionGoneError:
    """Return the error for a version that is not stored any more, or not all of it."""
    missing = opening.absent(list_version(storage, at.version).of_run(at.run_key or ""))
    why = "the janitor is deleting it, or it was never completed"
    return VersionGoneError(
        f"version {at.version}@{at.run_key} of operator {uid!r} in {storage.url} is not stored any "
        f"more: {missing}{why if missing else 'the janitor deleted it'}. {how_to_go_on}"
    )


def _chosen(storage: ObjectStorage, uid: str, version: int | None) -> RunVersion:
    epochs = list_epochs(storage)
    if version is None:
        newest = newest_complete(storage, epochs)
        if newest is not None:
            return newest
    recovery = read_recovery(storage, epochs)
    for marked in marked_versions(storage, version) if version is not None else ():
        listing = recovery.counted(list_version(storage, marked))
        if listing:
            complete = opening.complete_runs(listing, epochs)
            if not complete:
                raise opening.incomplete_version_error(listing, uid, storage.url)
            return RunVersion(version=marked, run_key=complete[0])
    wanted = "" if version is None else f" at or below version {version}"
    if isinstance(storage, OperatorStorage):
        raise nothing_stored_error(storage, uid, wanted)
    raise ConfigurationError(f"no state of operator {uid!r} is stored in {storage.url}{wanted}")


def _read(
    storage: ObjectStorage,
    origin: RunVersion,
    uid: str,
    groups: KeyGroupRange | None,
    max_parallelism: int | None,
    *,
    progress: Progress,
) -> opening.Parents:
    listing = list_version(storage, origin.version).of_run(origin.run_key or "")
    if listing.torn and not listing.manifests:
        raise opening.incomplete_version_error(listing, uid, storage.url)
    if not listing.manifests:
        raise CorruptStateError(
            f"version {origin.version} of operator {uid!r} in {storage.url} was cleared meanwhile"
        )
    if max_parallelism is None:
        max_parallelism = listing.manifests[0].by.max_parallelism
    segments = opening.segments_of(listing, max_parallelism, uid, storage.url)
    everything = KeyGroupRange(0, max_parallelism - 1)
    progress.stage("reading manifests", len(segments))
    found = []
    for parent in opening.parents_of(storage, segments, groups or everything, threads=_THREADS):
        found.append(parent)
        progress.advance()
    return found


def _checked_files(
    storage: ObjectStorage, origin: RunVersion, uid: str, found: opening.Parents
) -> frozenset[str]:
    files: list[StateFile | FileBlob] = [
        file for parent, _ in found for file in parent.files if file.data is None
    ]
    for _, manifest in found:
        files += OperatorStateContent.loaded(manifest.operator_state).files()
    folders = {DATA, *(data_folder(file.name) for file in files)}
    sizes = {info.name: info.size for folder in folders for info in storage.list(folder)}
    for file in files:
        if sizes.get(file.name) != file.size:
            state = "is missing" if file.name not in sizes else f"has {sizes[file.name]} bytes"
            raise CorruptStateError(
                f"file {file.name} ({file.size} bytes) of version {origin.version} of operator "
                f"{uid!r} in {storage.url} {state}"
            )
    return frozenset().union(*(manifest.names for _, manifest in found))
