"""Count the keys that differ between two versions of an operator, without the user's types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.stored.restore import default_options
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api.codecs import raw_codec
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.errors import ForebayError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.plugins import plugins
from forebay_state_api.progress import SILENT, Progress

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.heads import Head
    from forebay_engine.versions.choosing.reader import VersionReader
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.object_storage import ObjectStorage

_PARTS: Final = 16
"""Number of parts of the key groups, compared one after another to limit memory."""
_KEYS: Final = 4_096


def differing_keys(
    storage: ObjectStorage,
    uid: str,
    one: Head,
    other: Head,
    *,
    find_backend: Callable[[str], type[StateBackend]] | None = None,
    options_of: Callable[[str], Mapping[str, Any]] | None = None,
    progress: Progress = SILENT,
) -> int | None:
    """Return the number of keys under which any state differs.

    ``find_backend`` finds the backend that stored them (default: among the installed ones).
    ``options_of`` returns that backend's settings by its name (default: their defaults). ``None``
    if the number cannot be determined: the backend is not installed, or types changed in between.
    """
    find = find_backend or plugins().backend

    def found(name: str) -> tuple[type[StateBackend], Mapping[str, Any]]:
        backend = find(name)
        return backend, default_options(backend) if options_of is None else options_of(name)

    try:
        parts = list(_parts(_groups_of(storage, uid, one)))
        progress.stage(f"comparing the timeline of run {other.run_key}", len(parts))
        differing = 0
        for part in parts:
            cells = [_cells(storage, uid, head, part, found) for head in (one, other)]
            differing += _differing(*cells)
            progress.advance()
    except ForebayError:
        return None
    return differing


def _differing(ours: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> int:
    return len(
        {
            key
            for state, namespace, key in ours.keys() | theirs.keys()
            if ours.get((state, namespace, key)) != theirs.get((state, namespace, key))
        }
    )


def _groups_of(storage: ObjectStorage, uid: str, head: Head) -> int:
    only = KeyGroupRange(0, 0)
    with open_version(
        storage, uid=uid, version=head.version, run_key=head.run_key, range=only
    ) as reader:
        return reader.manifests[0].made.max_parallelism


def _parts(groups: int) -> Iterator[KeyGroupRange]:
    size = -(-groups // _PARTS)
    for start in range(0, groups, size):
        yield KeyGroupRange(start, min(start + size, groups) - 1)


def _cells(
    storage: ObjectStorage,
    uid: str,
    head: Head,
    groups: KeyGroupRange,
    find: Callable[[str], tuple[type[StateBackend], Mapping[str, Any]]],
) -> dict[tuple[str, Any, Any], bytes]:
    """Return (state, namespace, key) → the bytes of the stored content."""
    with open_version(
        storage, uid=uid, version=head.version, run_key=head.run_key, range=groups
    ) as reader:
        backend, options = find(reader.manifests[0].backend)
        opened = backend.open(_opening(storage, uid, reader, groups, options))
        try:
            return {
                (name, *address): content
                for name, description in _descriptions(reader).items()
                for spec in [_spec(description)]
                for changes in opened.table(spec).export(_KEYS)
                for address, content in _contents(spec, changes)
            }
        finally:
            opened.close()


def _opening(
    storage: ObjectStorage,
    uid: str,
    reader: VersionReader,
    groups: KeyGroupRange,
    options: Mapping[str, Any],
) -> Opening:
    return Opening(
        storage=storage,
        path=f"{storage.url}#compared",
        uid=uid,
        version=reader.version,
        range=groups,
        parents=reader.parents,
        options=options,
        now_us=0,
        cache_bytes=0,
    )


def _descriptions(reader: VersionReader) -> dict[str, Mapping[str, Any]]:
    return {
        name: description
        for manifest in reader.manifests
        for name, description in manifest.descriptions.items()
    }


def _spec(description: Mapping[str, Any]) -> TableSpec:
    user_key = description["user_key"]
    return TableSpec(
        name=description["name"],
        shape=Shape.of(description),
        kind=description["kind"],
        key=raw_codec(description["key"]),
        value=raw_codec(description["value"]),
        user_key=None if user_key is None else raw_codec(user_key),
        ttl=description["ttl"],
    )


def _contents(spec: TableSpec, changes: Changes) -> Iterator[tuple[tuple[Any, Any], bytes]]:
    pack = spec.stored.pack
    for namespace, points in changes.points.items():
        for key, value in zip(points.keys, points.values, strict=True):
            yield (namespace, key), pack([value])
    for namespace, lists in changes.lists.items():
        for key, change in lists.items():
            yield (namespace, key), pack(list(change.elements))
    for namespace, maps in changes.maps.items():
        for key, entries in maps.items():
            ordered = sorted(entries.entries.items(), key=repr)
            values = [value for _, value in ordered]
            yield (namespace, key), repr([name for name, _ in ordered]).encode() + pack(values)
