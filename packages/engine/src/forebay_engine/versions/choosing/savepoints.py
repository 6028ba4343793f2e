"""Savepoints: versions that are kept under a name, by reference.

A savepoint is an object ``savepoints/<name>`` in the operator's folder and the pin that it names.
The janitor does not delete the files that the pin names until the savepoint is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.choosing.pins import lasting_name, put_lasting
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.deletions import delete_or_leave
from forebay_engine.versions.format import layout
from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.progress import SILENT, Progress

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage


@attrs.frozen(kw_only=True)
class Savepoint:
    """One operator's version under a name."""

    name: str
    version: int
    run_key: str
    """The run that made the version."""
    pin: str
    """The pin that holds the savepoint's files."""
    backend: str
    bytes: int
    """Total size of the files that it needs."""
    made: datetime | None = attrs.field(default=None, eq=False)
    """The time of its creation, by the store's clock."""


def create_savepoint(
    storage: ObjectStorage,
    name: str,
    *,
    uid: str,
    version: int | None = None,
    progress: Progress = SILENT,
) -> Savepoint:
    """Keep ``version``, or the newest complete version, under ``name``.

    ``storage`` is the operator's folder, ``uid`` its name for messages. Copies nothing. Raises
    `ConfigurationError` for a name that is taken, and the errors of `open_version`.
    """
    savepoint_object(name)
    with open_version(storage, uid=uid, version=version, progress=progress) as reader:
        saved = savepoint_of(name, reader.manifests)
        hold(storage, saved, reader.manifests)
        try:
            put_savepoint(storage, saved, uid=uid)
        except ConfigurationError:
            harm = f"it holds version {reader.version} until it is deleted by hand"
            delete_or_leave(storage, [saved.pin], harm)
            raise
    return saved


def savepoint_of(name: str, manifests: Sequence[Manifest]) -> Savepoint:
    """Return the savepoint, with a fresh pin, of the version that all these manifests make."""
    made = manifests[0].made
    files = {file.name: file.size for manifest in manifests for file in manifest.files}
    return Savepoint(
        name=name,
        version=made.version,
        run_key=made.run_key,
        pin=lasting_name(made.version),
        backend=manifests[0].backend,
        bytes=sum(files.values()) + sum(one.bytes_elsewhere for one in manifests),
    )


def hold(storage: ObjectStorage, saved: Savepoint, manifests: Sequence[Manifest]) -> None:
    """Put the pin of a savepoint."""
    names = frozenset[str]().union(*(manifest.names for manifest in manifests))
    put_lasting(storage, saved.pin, names, f"savepoint {saved.name}")


def put_savepoint(storage: ObjectStorage, saved: Savepoint, *, uid: str) -> None:
    """Put the object of a savepoint. Raises `ConfigurationError` for a name that is taken."""
    payload = attrs.asdict(saved, filter=lambda field, _: field.name != "made")
    if not storage.put_if_absent(savepoint_object(saved.name), seal(payload)):
        raise ConfigurationError(
            f"operator {uid!r} in {storage.url} has a savepoint {saved.name!r} already"
        )


def find_savepoint(storage: ObjectStorage, name: str) -> Savepoint | None:
    """Return the savepoint ``name``, if there is one."""
    try:
        return _read(storage, savepoint_object(name))
    except ObjectNotFoundError:
        return None


def drop_savepoint(storage: ObjectStorage, saved: Savepoint) -> None:
    """Delete a savepoint, and then its pin."""
    storage.delete([savepoint_object(saved.name)])
    storage.delete([saved.pin])


def read_savepoint(storage: ObjectStorage, name: str, *, uid: str) -> Savepoint:
    """Return the savepoint ``name``; the `ConfigurationError` for an unknown one lists the rest."""
    found = find_savepoint(storage, name)
    if found is None:
        known = ", ".join(repr(one.name) for one in list_savepoints(storage)) or "none"
        raise ConfigurationError(
            f"operator {uid!r} in {storage.url} has no savepoint {name!r}; it has: {known}"
        )
    return found


def list_savepoints(storage: ObjectStorage) -> Sequence[Savepoint]:
    """Return all savepoints of an operator, by name."""
    found = []
    for info in storage.list(layout.SAVEPOINTS):
        try:
            found.append(_read(storage, info.name, info))
        except ObjectNotFoundError:  # deleted since it was listed
            continue
    return sorted(found, key=lambda saved: saved.name)


def delete_savepoint(storage: ObjectStorage, name: str, *, uid: str) -> Savepoint:
    """Delete a savepoint and return it; forks made from it hold the files they need themselves."""
    saved = read_savepoint(storage, name, uid=uid)
    drop_savepoint(storage, saved)
    return saved


def _read(storage: ObjectStorage, place: str, info: ObjectInfo | None = None) -> Savepoint:
    what = f"{place} in {storage.url}"
    saved = read_sealed(
        storage.get(place), what, lambda payload: Savepoint(**known_fields(Savepoint, payload))
    )
    if savepoint_object(saved.name) != place:
        raise CorruptStateError(f"{what} is in the wrong place: it is savepoint {saved.name!r}")
    return attrs.evolve(saved, made=None if info is None else info.modified)


def savepoint_object(name: str) -> str:
    """Return the object of a savepoint; `ConfigurationError` for a name that cannot be one."""
    escaped = layout.escaped(name, "the name of the savepoint")
    if name.startswith("fork "):
        raise ConfigurationError(
            f"savepoint {name!r}: names of this form are reserved for forks; choose another"
        )
    return f"{layout.SAVEPOINTS}/{escaped}"
