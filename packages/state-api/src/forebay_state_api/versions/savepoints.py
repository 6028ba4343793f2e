"""Savepoints: versions that are kept under a name, by reference.

A savepoint is an object ``savepoints/<name>`` in the operator's folder and the pin that it names;
the janitor leaves what the pin names alone until the savepoint is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.versions import layout
from forebay_state_api.versions.leftovers import delete_or_leave
from forebay_state_api.versions.pins import lasting_name, put_lasting
from forebay_state_api.versions.reader import open_version

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage


@attrs.frozen(kw_only=True)
class Savepoint:
    """One operator's version under a name."""

    name: str
    version: int
    run_key: str
    """The run that made the version."""
    pin: str
    """The object that holds its files."""
    backend: str
    bytes: int
    """Of the files that it needs."""
    made: datetime | None = attrs.field(default=None, eq=False)
    """By the store's own clock."""


def create_savepoint(
    storage: ObjectStorage, name: str, *, uid: str, version: int | None = None
) -> Savepoint:
    """Keep ``version``, or the newest complete one, under ``name``.

    ``storage`` is the operator's folder. Copies nothing. Raises `ConfigurationError` for a name
    that is taken, and what `open_version` raises.
    """
    place = _place(name)
    with open_version(storage, uid=uid, version=version) as reader:
        pin = lasting_name(reader.version)
        files = {file.name: file.size for manifest in reader.manifests for file in manifest.files}
        saved = Savepoint(
            name=name,
            version=reader.version,
            run_key=reader.run_key or "",
            pin=pin,
            backend=reader.manifests[0].backend,
            bytes=sum(files.values()),
        )
        names = frozenset[str]().union(*(manifest.names for manifest in reader.manifests))
        put_lasting(storage, pin, names, f"savepoint {name}")
        payload = attrs.asdict(saved, filter=lambda field, _: field.name != "made")
        if not storage.put_if_absent(place, seal(payload)):
            harm = f"it holds version {reader.version} until it is deleted by hand"
            delete_or_leave(storage, [pin], harm)
            message = f"operator {uid!r} in {storage.url} has a savepoint {name!r} already"
            raise ConfigurationError(message)
    return saved


def read_savepoint(storage: ObjectStorage, name: str, *, uid: str) -> Savepoint:
    """The savepoint of that name; `ConfigurationError` that lists the others if there is none."""
    try:
        return _read(storage, _place(name))
    except ObjectNotFoundError:
        known = ", ".join(repr(one.name) for one in list_savepoints(storage)) or "none"
        message = f"operator {uid!r} in {storage.url} has no savepoint {name!r}; it has: {known}"
        raise ConfigurationError(message) from None


def list_savepoints(storage: ObjectStorage) -> Sequence[Savepoint]:
    """All of an operator, by name."""
    found = []
    for info in storage.list(layout.SAVEPOINTS):
        try:
            found.append(_read(storage, info.name, info))
        except ObjectNotFoundError:  # deleted since it was listed
            continue
    return sorted(found, key=lambda saved: saved.name)


def delete_savepoint(storage: ObjectStorage, name: str, *, uid: str) -> Savepoint:
    """Let go of a savepoint; forks that were made of it hold what they need themselves."""
    saved = read_savepoint(storage, name, uid=uid)
    storage.delete([_place(name)])
    storage.delete([saved.pin])
    return saved


def _read(storage: ObjectStorage, place: str, info: ObjectInfo | None = None) -> Savepoint:
    what = f"{place} in {storage.url}"
    saved = read_sealed(
        storage.get(place), what, lambda payload: Savepoint(**known_fields(Savepoint, payload))
    )
    if _place(saved.name) != place:
        message = f"{what} is not what was written there: it is savepoint {saved.name!r}"
        raise CorruptStateError(message)
    return attrs.evolve(saved, made=None if info is None else info.modified)


def _place(name: str) -> str:
    if name.startswith("fork "):
        message = f"savepoint {name!r}: the holds of forks have such names; choose another one"
        raise ConfigurationError(message)
    return f"{layout.SAVEPOINTS}/{layout.escaped(name, 'the name of the savepoint')}"
