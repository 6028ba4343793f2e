"""The manifest: one immutable object per subtask and version that makes files part of a version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format import layout
from forebay_engine.versions.format.figures import Figures, figures_of
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.named_clocks import clocks_text
from forebay_state_api.contract.checksummed import known_fields, read_sealed, seal
from forebay_state_api.contract.file_names import version_of
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.migration import Lineage, only_generation
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

FORMAT: Final = 2
"""Format number of the manifest's content; a release reads its own format and older ones.

A new field that older releases can ignore keeps the number. A field that they must not ignore
increments it. Since format 2 a file may be in the manifest.
"""


TTL_US: Final = "ttl_us"
"""Key in `Manifest.metrics`: state → its declared time to live in µs."""


@attrs.frozen(kw_only=True)
class Manifest:
    """The commit of one task attempt: self-contained and immutable."""

    made: Coordinates
    """Version, range, run and attempt, as in the object's name."""
    uid: str
    backend: str
    """Name of the backend that wrote the files."""
    parents: Sequence[str]
    """Identities of the manifests that were opened."""
    opened_version: int
    """The version that was opened; 0 is the empty version."""
    now_us: int
    """The micro-batch's time, µs since the epoch."""
    files: Sequence[StateFile]
    """Every file that the version needs, with the key groups for which it is read."""
    meta: Mapping[str, Any]
    """The backend's own plain data."""
    protected: Sequence[str]
    """More files, and folders of files (with a ``/`` at the end), that the janitor keeps as long as
    this manifest exists."""
    descriptions: Mapping[str, Mapping[str, Any]]
    """State name → description, also of states that are no longer declared."""
    generations: Mapping[str, Sequence[Mapping[str, Any]]] = attrs.field(factory=dict)
    """State name → `TableSpec.generations`; for a state that is missing here only the description
    is known."""
    operator_state: Mapping[str, Any]
    """State without a key, as plain data, which `operator_state_entries` defines."""
    metrics: Mapping[str, Any]
    """Metrics of the commit: ``keys``, ``bytes_total`` and ``bytes_written`` of the commit,
    ``opening_s``,
    ``ttl_us``, the times to live of the declared states, ``engine``, the `EngineMetrics` that are
    not 0, and ``compaction``, the status that the process's compaction service reported."""
    batch_ms: int = 0
    """The micro-batch's time in the query's checkpoint, ms since the epoch; 0 where Spark records
    none, and for a subtask without rows that does not learn it, as under Spark Connect."""
    times: Mapping[str, Any] = attrs.field(factory=dict)
    """The timers' clocks, as plain data; empty for an operator without timers."""
    keyed_by: Sequence[Sequence[Sequence[str]]] = ()
    """The names and kinds of each keyed input's key columns, as `KeyedBy.plain`; empty if nothing
    is known about them, as in manifests of releases that did not store them."""

    @property
    def id(self) -> str:
        """Random identity; cached copies are checked against it."""
        return self.made.random_id

    @property
    def bytes_elsewhere(self) -> int:
        """The bytes that the version occupies beyond its files, as in a server."""
        total: int = self.metrics.get("bytes_total", 0)
        return max(0, total - sum(file.size for file in self.files))

    @property
    def figures(self) -> Figures:
        """The figures that the manifest's name carries."""
        return figures_of(self.metrics, self.files, self.protected)

    @property
    def names(self) -> frozenset[str]:
        """All files and folders (with a ``/`` at the end) that stay while this manifest does."""
        stored = (file.name for file in self.files if file.data is None)
        return frozenset([*stored, *self.protected])

    def sealed(self) -> bytes:
        """The object's content."""
        payload = {"format": FORMAT, **attrs.asdict(self, recurse=False)}
        payload["made"] = attrs.asdict(self.made) | {"range": _pair(self.made.range)}
        payload["files"] = [plain_file(file) for file in self.files]
        return seal(payload)

    @classmethod
    def unsealed(cls, data: bytes, name: str) -> Manifest:
        """Decode the result of `sealed`; raises the errors of `unseal`."""
        return read_sealed(data, name, lambda payload: _reader(payload["format"], name)(payload))


def plain_file(file: StateFile) -> list[Any]:
    """Return a file as plain data."""
    held = [] if file.data is None else [file.data]
    return [file.name, file.size, *_pair(file.range), dict(file.meta), *held]


def loaded_file(plain: Sequence[Any]) -> StateFile:
    """Load what `plain_file` returned."""
    name, size, start, end, meta, *held = plain
    (data,) = held or (None,)
    return StateFile(name=name, size=size, range=KeyGroupRange(start, end), meta=meta, data=data)


def _read(payload: Mapping[str, Any]) -> Manifest:
    made = known_fields(Coordinates, payload["made"])
    made["range"] = KeyGroupRange(*made["range"])
    files = [loaded_file(file) for file in payload["files"]]
    fields = known_fields(Manifest, payload) | {"made": Coordinates(**made), "files": files}
    return Manifest(**fields)


_READERS: Final[Mapping[int, Callable[[Mapping[str, Any]], Manifest]]] = {
    1: _read,
    2: _read,
}
"""Format → its reader; a format stays here for as long as state in it may be stored."""


def _reader(number: Any, name: str) -> Callable[[Mapping[str, Any]], Manifest]:
    if number in _READERS:
        return _READERS[number]
    if isinstance(number, int) and number > FORMAT:
        raise CorruptStateError(
            f"{name} has format {number}, of a newer release of Forebay; this one reads "
            f"{_formats()}. Use the release that wrote it, or a newer one"
        )
    raise CorruptStateError(
        f"{name} has format {number!r}, which no release wrote; this one reads {_formats()}"
    )


def _formats() -> str:
    return f"format {', '.join(map(str, sorted(_READERS)))}"


def is_named(name: str, names: Collection[str]) -> bool:
    """Return whether a file, or a folder that contains it, is one of ``names``."""
    folders = name.split("/")[:-1]
    parents = ("/".join(folders[:depth]) + "/" for depth in range(1, len(folders) + 1))
    return name in names or any(parent in names for parent in parents)


def _pair(groups: KeyGroupRange) -> list[int]:
    return [groups.start, groups.end]


def read_manifest(storage: ObjectStorage, name: str) -> Manifest:
    """Read a manifest by its name; `CorruptStateError` if its content does not match the name."""
    return read_with_content(storage, name)[0]


def read_with_content(storage: ObjectStorage, name: str) -> tuple[Manifest, bytes]:
    """Do the same, and also return the bytes that are stored."""
    data = storage.get(name)
    manifest = Manifest.unsealed(data, f"{name} in {storage.url}")
    version = version_of(name.split("/")[1])
    if manifest.made.text() not in name or manifest.made.version != version:
        raise CorruptStateError(f"{name} in {storage.url} holds the manifest of another attempt")
    return manifest, data


def put_manifest(storage: ObjectStorage, manifest: Manifest) -> tuple[str, bytes]:
    """Make a manifest durable (one request); return its name and content."""
    data = manifest.sealed()
    clocks = clocks_text(manifest.times)
    name = layout.manifest_name(
        manifest.made, manifest.batch_ms, len(data), manifest.figures, clocks
    )
    storage.put(name, data)
    return name, data


def lineages_of(manifests: Iterable[Manifest]) -> dict[str, Lineage]:
    """Return the states of a version, by name.

    Where subtasks differ, because not all of them declared a state, the longest history counts.
    """
    found: dict[str, Lineage] = {}
    for manifest in manifests:
        for name, description in manifest.descriptions.items():
            generations = manifest.generations.get(name) or [only_generation(description)]
            if name not in found or len(generations) > len(found[name].generations):
                found[name] = Lineage(description, generations)
    return found
