"""`HeapBackend`: keyed state in dictionaries, made durable as deltas and snapshots."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self

import attrs

from forebay_backend_heap.background_snapshots import THREAD, SnapshotPlan
from forebay_backend_heap.cache import CACHE, CachedState, size_of
from forebay_backend_heap.export import exported_points
from forebay_backend_heap.file_chain import Chain, written_range
from forebay_backend_heap.file_reader import Reader
from forebay_backend_heap.options import HeapOptions
from forebay_backend_heap.resident import Resident
from forebay_backend_heap.resident_table import ResidentTable
from forebay_backend_heap.snapshot import Writer, Written
from forebay_state_api import CleanupIncrementally, KeyGroupRange
from forebay_state_api.contract.backend import Capability, Opening, StateBackend, TableSpec
from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.contract.files import CommittedState, ParentState, StateFile
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.settings import Setting, options_from, settings_of

_log = logging.getLogger(__name__)

_RECENT: Final = 8
"""Commits whose deltas are listed, and retained, for a process that holds an ancestor. A copy that
was last used here more than this many versions ago is no longer brought up to date."""


class HeapBackend(StateBackend):
    """Keeps every cell of the opened range in memory, which must be large enough.

    Opening reads files, unless this process holds the state of the opened manifest or of one of
    its ancestors. It then reads only the deltas in between, often none.
    """

    name: ClassVar[str] = "heap"
    contract_version: ClassVar[int] = 2
    capabilities: ClassVar[Capability] = (
        Capability.RESIDENT
        | Capability.CLEANUP_FULL_SNAPSHOT
        | Capability.CLEANUP_INCREMENTALLY
        | Capability.CLEANUP_IN_COMPACTION
    )
    background_cleanup: ClassVar[CleanupIncrementally] = CleanupIncrementally(5)
    options: ClassVar[Mapping[str, Setting]] = settings_of(HeapOptions)

    def __init__(self, opening: Opening, resident: Resident) -> None:
        self._opening = opening
        self._resident = resident
        self._version = opening.version
        self._closed = False
        self._tables: dict[str, ResidentTable] = {}
        """The declared states' tables."""
        self._was_cached = False
        self._begun: SnapshotPlan | None = None
        """The snapshot that this commit has planned."""

    @classmethod
    def open(cls, opening: Opening) -> Self:
        cached = _from_cache(opening)
        backend = cls(opening, _read(opening) if cached is None else cached)
        backend._was_cached = cached is not None
        return backend

    @classmethod
    def cached_ranges(cls, path: str, version: int) -> Sequence[KeyGroupRange]:
        return CACHE.behind(path, version, used_since=version - _RECENT)

    @classmethod
    def catch_up(cls, opening: Opening) -> None:
        address = (opening.path, opening.range)
        CACHE.exchange(address, lambda copy: _caught_up(copy, opening), opening.cache_bytes)

    def table(self, spec: TableSpec) -> ResidentTable:
        self._check_readable(spec)
        table = _table(self._resident, spec, self._opening)
        if spec.name not in self._tables:
            self._tables[spec.name] = table
            table.begin_count()
        return table

    def export(self, spec: TableSpec, keys: int) -> Iterator[Changes]:
        if spec.shape is not Shape.POINT or spec.name in self._resident.tables:
            return self.table(spec).export(keys)
        self._check_readable(spec)
        return exported_points(self._resident.raw.get(spec.name, ()), spec, keys)

    def stored_bytes(self) -> Mapping[str, int]:
        return self._resident.bytes_by_state()

    def _check_readable(self, spec: TableSpec) -> None:
        for parent in self._opening.parents:
            if (stored := parent.descriptions.get(spec.name)) is not None:
                reader_of(stored, spec)

    def commit(self, version: int) -> CommittedState:
        self._version = version
        options = options_from(HeapOptions, self._opening.options)
        now_us = self._opening.now_us
        parent = _only_parent(self._opening)
        plan = None if parent is None else SnapshotPlan.of(parent.meta)
        size = self._resident.size or size_of(self._resident)
        may_copy = 2 * size <= self._opening.cache_bytes
        written = Writer(
            _reader(self._opening),
            self._resident,
            options,
            version,
            now_us,
            plan=plan,
            thread=THREAD() if may_copy else None,
        ).write(Chain.of(self._opening.parents))
        self._begun = None if written.plan == plan else written.plan
        recent = self._recent(written)
        files = written.chain.files
        named = {file.name: file.size for file in files}
        held = self._held(written, recent)
        counts = self._counts()
        return CommittedState(
            files=files,
            meta={
                "range": [self._opening.range.start, self._opening.range.end],
                "recent": recent,
                **({"held": held} if held else {}),
                "keys": counts,
                "swept": {n: t.swept for n, t in self._resident.tables.items() if t.swept},
                **({} if written.plan is None else {"planned": attrs.asdict(written.plan)}),
            },
            protected=[
                *(name for name in _names(recent) if name not in named and name not in held),
                *(() if written.plan is None else (written.plan.name,)),
            ],
            keys=None if None in counts.values() else sum(n or 0 for n in counts.values()),
            keys_new=sum(table.new for table in self._tables.values()),
            keys_removed=sum(table.removed for table in self._tables.values()),
            bytes_total=sum(named.values()),
            bytes_written=written.bytes_written,
        )

    def measured(self) -> Mapping[str, float]:
        if not self._opening.parents:
            return {}
        hit = self._was_cached
        return {"cache_hits_process": int(hit), "cache_misses_process": int(not hit)}

    def installed(self, manifest_id: str) -> None:
        if self._closed:
            return
        self._resident.settled()
        if self._begun is not None:
            THREAD().write(self._begun, self._opening.storage, self._resident)
        self._resident.size = size = size_of(self._resident)
        used = self._opening.version
        copy = CachedState(manifest_id, self._version, self._resident, size, used)
        CACHE.put((self._opening.path, self._opening.range), copy, self._opening.cache_bytes)

    def close(self) -> None:
        self._closed = True
        self._tables = {}
        self._resident = Resident(self._opening.range)

    def _recent(self, written: Written) -> list[dict[str, Any]]:
        """Return the deltas that lead from recent ancestors to the new version, oldest first."""
        parent = _only_parent(self._opening)
        if parent is None or (written.changed and written.delta is None):
            return []
        file = written.delta and [written.delta.name, written.delta.size, dict(written.delta.meta)]
        step = {"parent": parent.manifest_id, "file": file}
        return [*parent.meta.get("recent", ()), step][-_RECENT:]

    def _held(self, written: Written, recent: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
        """Return the content of recent deltas that are in no object and not in the chain."""
        known = {} if (parent := _only_parent(self._opening)) is None else _held_by(parent)
        if written.delta is not None and written.delta.data is not None:
            known = known | {written.delta.name: written.delta.data}
        named = {file.name for file in written.chain.files}
        return {name: known[name] for name in _names(recent) if name in known.keys() - named}

    def _counts(self) -> dict[str, int | None]:
        """Count the cells of each state; ``None`` if a rescale made the count unknown."""
        counts: dict[str, int | None] = {n: len(t) for n, t in self._resident.tables.items()}
        for name in self._resident.raw:
            found = [_count(parent, name) for parent in self._opening.parents]
            counts[name] = None if None in found else sum(n or 0 for n in found)
        return counts


def _read(opening: Opening) -> Resident:
    """Read the state of the opened manifest from its files."""
    resident = Resident(opening.range)
    resident.replay(_reader(opening).read_all(Chain.of(opening.parents).files))
    return resident


def _table(resident: Resident, spec: TableSpec, opening: Opening) -> ResidentTable:
    """Return the table of a declared state; its sweeps resume where earlier ones stopped."""
    fresh = spec.name in resident.raw
    table = resident.table(spec)
    if fresh and (only := _only_parent(opening)) is not None:
        table.swept = only.meta.get("swept", {}).get(spec.name, 0)
    return table


def _from_cache(opening: Opening) -> Resident | None:
    """Return the state of the opened manifest if this process holds it or an ancestor of it."""
    copy = CACHE.take((opening.path, opening.range))
    if copy is None or (parent := _only_parent(opening)) is None:
        return None
    if not _replay(copy, parent, opening):
        _log.debug("a cached copy of %s has another history; reading the files again", opening.path)
        return None
    return copy.resident


def _caught_up(copy: CachedState, opening: Opening) -> CachedState:
    """Bring the copy to the opened manifest; return it unchanged if it is newer."""
    if copy.version > opening.version:
        return copy
    (parent,) = opening.parents
    resident = copy.resident
    if not _replay(copy, parent, opening):
        resident = _read_again(resident, opening)
    resident.settled()
    return CachedState(parent.manifest_id, opening.version, resident, size_of(resident), copy.used)


def _read_again(behind: Resident, opening: Opening) -> Resident:
    """Read the whole state of the opened manifest, to which no deltas lead from ``behind``.

    Decodes the same tables that ``behind`` has decoded, and empties ``behind`` first to free its
    memory.
    """
    specs = [table.spec for table in behind.tables.values()]
    behind.tables.clear()
    resident = _read(opening)
    for spec in specs:
        sections = resident.raw.get(spec.name, ())
        if all(section.description == spec.description() for section in sections):
            _table(resident, spec, opening)
    return resident


def _replay(copy: CachedState, parent: ParentState, opening: Opening) -> bool:
    """Apply the deltas that a copy lacks; return false if its manifest is no known ancestor."""
    missing = _missing(copy.manifest_id, parent, opening.range)
    if missing is None:
        return False
    copy.resident.replay(_reader(opening).read_all(missing))
    return True


def _missing(held: str, parent: ParentState, groups: KeyGroupRange) -> Sequence[StateFile] | None:
    """Return the deltas from a manifest to the opened one.

    Returns ``None`` if it is not a known ancestor.
    """
    if held == parent.manifest_id:
        return ()
    recent = parent.meta.get("recent", ())
    start = next((i for i, step in enumerate(recent) if step["parent"] == held), None)
    if start is None:
        return None
    files = [step["file"] for step in recent[start:] if step["file"]]
    known = _held_by(parent)
    return [
        StateFile(name=name, size=size, range=groups, meta=meta, data=known.get(name))
        for name, size, meta in files
    ]


def _names(recent: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the deltas of recent commits."""
    return [step["file"][0] for step in recent if step["file"]]


def _held_by(parent: ParentState) -> dict[str, bytes]:
    """Return the files whose content is in a manifest, by name."""
    chain = {file.name: file.data for file in parent.files if file.data is not None}
    return {**parent.meta.get("held", {}), **chain}


def _only_parent(opening: Opening) -> ParentState | None:
    """Return the parent if there was no rescale, else ``None``."""
    parents = opening.parents
    return parents[0] if len(parents) == 1 and parents[0].whole else None


def _count(parent: ParentState, name: str) -> int | None:
    whole = "range" in parent.meta and written_range(parent.meta) == parent.range
    counts: Mapping[str, int | None] = parent.meta.get("keys", {}) if whole else {}
    return counts.get(name, 0) if whole else None


def _reader(opening: Opening) -> Reader:
    return Reader(
        opening.storage, opening.path, opening.uid, opening.version, tables=opening.tables
    )
