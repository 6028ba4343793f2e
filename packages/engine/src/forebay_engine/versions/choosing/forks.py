"""Forks: state that begins as a reference to another operator's state, and the pins that hold it.

A run that opens version 0 with a `RestoreFrom` opens a version of another operator instead. The
first task of the first run chooses the version and stores the choice in the run's record. If a new
run begins before anything was committed, it adopts the earlier choice. Nothing is copied: the
fork's first manifests name the source's files (`folder.renamed`), and later manifests keep naming
them for as long as they need them.

Two objects hold the files: in the source a pin that does not expire; in the fork, put before it, an
object ``sources/<id>`` that names the pin. The fork's janitor deletes both when no stored manifest
names a file of that folder any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.versions.choosing import opening
from forebay_engine.versions.choosing.pins import lasting_name, put_lasting
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.choosing.savepoints import read_savepoint
from forebay_engine.versions.choosing.timeline import record_of_begun
from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.blobs import FileBlob
from forebay_engine.versions.format.epochs import Epochs
from forebay_engine.versions.format.folder import OperatorStorage, renamed, split
from forebay_engine.versions.format.markers import list_version, marked_versions
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.contract.file_names import LAST_VERSION, random_id
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_engine.versions.choosing.opening import KeyGroupSegment
    from forebay_engine.versions.format.epochs import RunVersion
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.keys import KeyGroupRange

DETAILS: Final = "restored"
"""Key in `RunRecord.details`."""
_HELD: Final = itemgetter("folder", "pin")

_log = logging.getLogger(__name__)


@attrs.frozen
class RestoreFrom:
    """Another operator's state, in the same state directory, for an operator to begin with."""

    query: str
    """The id of the query, or the name that was passed as ``query=``."""
    uid: str | None = attrs.field(default=None, kw_only=True)
    """The operator's uid there; default: the same as here."""
    version: int | None = attrs.field(default=None, kw_only=True)
    """Default: the newest complete version. If the version was skipped, the next below it."""
    savepoint: str | None = attrs.field(default=None, kw_only=True)
    """The name of a savepoint, instead of a version."""
    allow_non_restored: bool = attrs.field(default=False, kw_only=True)
    """Whether to accept stored states that the function does not declare; default: an error."""

    def __attrs_post_init__(self) -> None:
        """Refuse what contradicts itself."""
        layout.operator_folder(self.query, self.uid or "uid")
        if self.version is not None and self.savepoint is not None:
            raise ConfigurationError("restore_from= takes a version or a savepoint, not both")
        if self.version is not None and self.version < 1:
            raise ConfigurationError(
                f"restore_from=: versions are counted from 1, not {self.version}"
            )

    def plain(self) -> dict[str, Any]:
        """Return the fields that determine the version, as plain data."""
        return attrs.asdict(self, filter=lambda field, _: field.name != "allow_non_restored")

    def text(self) -> str:
        """Describe the request, for messages."""
        of = f"query {self.query!r}" + (f", uid {self.uid!r}" if self.uid else "")
        if self.savepoint is not None:
            return f"savepoint {self.savepoint!r} of {of}"
        return of if self.version is None else f"version {self.version} of {of}"


@attrs.frozen(kw_only=True)
class ForkSource:
    """The version that was chosen."""

    asked: Mapping[str, Any]
    """The request, as plain data."""
    folder: str
    uid: str
    version: int
    run_key: str

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Self | None:
        """Load the fork from a run's record; ``None`` if the run did not restore."""
        stored = details.get(DETAILS)
        return None if stored is None else cls(**known_fields(cls, stored))

    @classmethod
    def imported(cls, folder: str, uid: str, at: RunVersion) -> Self:
        """Return the imported first version of the operator itself, whose folder this is."""
        run_key = at.run_key or ""
        return cls(asked={}, folder=folder, uid=uid, version=at.version, run_key=run_key)

    @classmethod
    def is_imported(cls, details: Mapping[str, Any]) -> bool:
        """Return whether the run began with an import of its own operator."""
        source = cls.of(details)
        return source is not None and not source.asked

    def opened(
        self, storage: OperatorStorage, groups: KeyGroupRange, max_parallelism: int
    ) -> opening.Parents:
        """Return the parts that ``groups`` need, with the names by which ``storage`` reads them."""
        there = storage.sibling(self.folder)
        found = opening.parents_of(there, self._segments(there, max_parallelism), groups)
        parents = []
        for parent, manifest in found:
            adopted = self._adopted(manifest, storage)
            clipped = opening.clipped(adopted, parent.range, groups)
            parents.append((attrs.evolve(clipped, whole=False), adopted))
        return parents

    def every_manifest(self, storage: OperatorStorage, max_parallelism: int) -> Sequence[Manifest]:
        """Return the manifests of all subtasks, in subtask order."""
        there = storage.sibling(self.folder)
        segments = self._segments(there, max_parallelism)
        manifests = opening.manifests_of(segments, lambda made: opening.read(there, made.name)[0])
        return [self._adopted(manifest, storage) for manifest in manifests]

    def _segments(self, there: ObjectStorage, max_parallelism: int) -> Sequence[KeyGroupSegment]:
        listing = list_version(there, self.version).of_run(self.run_key)
        return opening.segments_of(listing, max_parallelism, self.uid, there.url)

    def _adopted(self, manifest: Manifest, storage: OperatorStorage) -> Manifest:
        """Return the manifest with the names by which ``storage`` reads the files."""

        def here(name: str) -> str:
            return renamed(name, named_by=self.folder, reader=storage.folder)

        def blob_here(blob: Any) -> Any:
            return attrs.evolve(blob, name=here(blob.name)) if isinstance(blob, FileBlob) else blob

        content = OperatorStateContent.loaded(manifest.operator_state).mapped(blob_here)
        return attrs.evolve(
            manifest,
            files=[
                file if file.data is not None else attrs.evolve(file, name=here(file.name))
                for file in manifest.files
            ],
            operator_state=content.stored(),
        )


class ForkPins:
    """The pins that a fork put before its run's record names their version."""

    def __init__(self, storage: OperatorStorage) -> None:
        """``storage`` is the fork's folder."""
        self._storage = storage
        self._held: list[tuple[str, str, str]] = []

    def take(self, reader: VersionReader, folder: str) -> None:
        """Hold all files of an opened version of ``folder``, including files in other folders."""
        files: dict[str, set[str]] = {folder: set()}
        for manifest in reader.manifests:
            for name in manifest.names:
                lies_in, below = split(name, folder)
                files.setdefault(lies_in, set()).add(below)
        for lies_in, names in files.items():
            # In another folder this version's number means nothing; the file names decide.
            version = reader.version if lies_in == folder else 0
            self._put(lies_in, lasting_name(version), names)

    def _put(self, folder: str, pin: str, files: Iterable[str]) -> None:
        entry = f"{layout.SOURCES}/{random_id()}"
        self._storage.put(entry, seal({"folder": folder, "pin": pin}))
        self._held.append((entry, folder, pin))
        put_lasting(self._storage.sibling(folder), pin, files, f"fork {self._storage.folder}")

    def release(self) -> None:
        """Delete the pins: another task has decided."""
        for entry, folder, pin in self._held:
            harm = f"it holds files of {folder} until it is deleted by hand"
            delete_or_leave(self._storage.sibling(folder), [pin], harm)
            delete_or_leave(self._storage, [entry], "it does no harm")


def choose(
    storage: ObjectStorage,
    asked: RestoreFrom,
    *,
    batch_id: int,
    uid: str,
    max_parallelism: int,
    epochs: Epochs,
) -> tuple[ForkSource, ForkPins]:
    """Choose the version that a fork begins with at batch ``batch_id``, and hold it.

    ``epochs`` are the fork's. Raises `ConfigurationError` when there is no such version or it was
    made with a different max parallelism, `CorruptStateError` when it is incomplete.
    """
    if not isinstance(storage, OperatorStorage):
        raise ConfigurationError("restore_from= needs the operator's folder in its state directory")
    source = find_source(storage, asked, batch_id=batch_id, uid=uid, epochs=epochs)
    hold = ForkPins(storage)
    there = storage.sibling(source.folder)
    try:
        with open_version(
            there,
            uid=source.uid,
            version=source.version or None,
            run_key=source.run_key or None,
            max_parallelism=max_parallelism,
        ) as reader:
            if source.version and reader.version != source.version:
                _log.warning(
                    "restore_from=%s: there is no such version, and version %d below it is taken",
                    asked.text(),
                    reader.version,
                )
            hold.take(reader, source.folder)
            run_key = reader.run_key or ""
            return attrs.evolve(source, version=reader.version, run_key=run_key), hold
    except BaseException:
        hold.release()
        raise


def find_source(
    storage: OperatorStorage, asked: RestoreFrom, *, batch_id: int, uid: str, epochs: Epochs
) -> ForkSource:
    """Return the version as `choose` knows it before reading it; version 0 means the newest."""
    return _decided(storage, asked, batch_id, epochs) or _looked_up(storage, asked, uid)


def _decided(
    storage: ObjectStorage, asked: RestoreFrom, batch_id: int, epochs: Epochs
) -> ForkSource | None:
    """Return an earlier run's choice for the same request, unless the query has moved past it."""
    if any(version > batch_id + 1 for version in marked_versions(storage, LAST_VERSION)):
        return None
    for entry in sorted(epochs.entries, key=lambda entry: entry.rank, reverse=True):
        record = record_of_begun(storage, entry.run_key)
        source = None if record is None else ForkSource.of(record.details)
        if source is not None and source.asked == asked.plain():
            return source
    return None


def _looked_up(storage: OperatorStorage, asked: RestoreFrom, uid: str) -> ForkSource:
    """Return the folder, with version and run if a savepoint names them."""
    there = asked.uid or uid
    folder = layout.operator_folder(asked.query, there)
    _check_there(storage, asked, folder, there)
    version, run_key = asked.version or 0, ""
    if asked.savepoint is not None:
        saved = read_savepoint(storage.sibling(folder), asked.savepoint, uid=there)
        version, run_key = saved.version, saved.run_key
    return ForkSource(
        asked=asked.plain(), folder=folder, uid=there, version=version, run_key=run_key
    )


def _check_there(storage: OperatorStorage, asked: RestoreFrom, folder: str, uid: str) -> None:
    query, _, part = folder.rpartition("/")
    uids = storage.root.list_folders(query)
    if part in uids:
        return
    known = ", ".join(repr(layout.unescaped(one)) for one in uids)
    found = (
        f"its uids are {known}; name one with RestoreFrom(..., uid=...)"
        if known
        else ("no state of this query is stored; pass the query's id, or the name given as query=")
    )
    raise ConfigurationError(
        f"restore_from={asked.text()}: there is no operator {uid!r} in {storage.root.url}: {found}"
    )


def release_unused(storage: ObjectStorage, named: Iterable[str], oldest: datetime) -> list[str]:
    """Release the folders that contain no file in ``named``; return the deleted objects.

    ``named`` are the files and folders in all manifests that the fork still stores, including
    versions that a savepoint or a fork of the fork holds. Objects put after ``oldest`` stay.
    """
    if not isinstance(storage, OperatorStorage):
        return []
    entries = [info for info in storage.list(layout.SOURCES) if info.modified <= oldest]
    if not entries:
        return []
    needed = {split(name, storage.folder)[0] for name in named} - {storage.folder}
    gone = []
    for info in entries:
        try:
            data = storage.get(info.name)
        except ObjectNotFoundError:  # released by another janitor since it was listed
            continue
        folder, pin = read_sealed(data, f"{info.name} in {storage.url}", _HELD)
        if folder not in needed:
            storage.sibling(folder).delete([pin])
            storage.delete([info.name])
            gone.append(info.name)
    return gone
