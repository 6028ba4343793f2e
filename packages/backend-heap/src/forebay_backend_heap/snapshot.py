"""What a commit writes: a delta, a snapshot in its place, or a fold of older deltas beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from forebay_backend_heap.chain import Chain
from forebay_backend_heap.collector import paused
from forebay_backend_heap.columns import decode, encode
from forebay_backend_heap.files import FileBytes, Role, Section, file_bytes
from forebay_backend_heap.options import HeapOptions
from forebay_backend_heap.pending import Pending, changes_of
from forebay_backend_heap.reading import Reader
from forebay_backend_heap.resident import Resident
from forebay_state_api.backend import StateFile, TableSpec
from forebay_state_api.versions.layout import data_name

MERGE_BELOW: Final = 4096
"""Cells of a section from which on a fold takes it over as it is."""


@attrs.frozen(kw_only=True)
class Written:
    """What became of a commit."""

    chain: Chain
    """The files of the new version."""
    delta: StateFile | None
    """What leads from the opened version to the new one; ``None`` where only a snapshot does, and
    where nothing changed."""
    changed: bool
    bytes_written: int


class Writer:
    """Makes the files of one version."""

    def __init__(
        self, reader: Reader, resident: Resident, options: HeapOptions, version: int
    ) -> None:
        self._reader = reader
        self._resident = resident
        self._options = options
        self._version = version
        self._bytes = 0

    def write(self, chain: Chain) -> Written:
        """Make durable what was applied since ``chain`` was opened."""
        if self._resident.pending and self._rewrites_most(chain):
            return self._snapshot(self._resident.snapshot())
        delta = self._resident.delta() if self._resident.pending else []
        if not delta:
            return Written(chain=chain, delta=None, changed=False, bytes_written=0)
        data = file_bytes(Role.DELTA, self._version, delta)
        if self._is_due(chain, len(data.data)):
            return self._snapshot_beside(delta, data)
        if count := chain.foldable(self._options.max_deltas):
            chain = self._fold(chain, count)
        file = self._put(Role.DELTA, delta, data)
        return self._written(chain.with_delta(file), file)

    def _is_due(self, chain: Chain, delta_bytes: float) -> bool:
        """Whether the deltas outgrow the snapshot.

        Writing it then costs at most what was written of deltas since the last one, times a
        constant: so the cost of commits stays in proportion to what they change.
        """
        limit = self._options.snapshot_factor * chain.snapshot_bytes
        return chain.delta_bytes + delta_bytes > limit

    def _rewrites_most(self, chain: Chain) -> bool:
        """Whether a snapshot alone is the cheapest, without packing the delta to see."""
        if not chain.files:
            return True
        changed, resident = self._resident.pending, self._resident
        points = all(table.spec.kind.is_point for table in resident.tables.values())
        if not resident.raw and points and changed >= resident.cells:
            return True
        if not chain.deltas:
            return False
        newest = chain.deltas[-1]
        expected = newest.size / newest.meta["cells"] * changed
        return 2 * expected >= chain.snapshot_bytes and self._is_due(chain, expected)

    def _snapshot_beside(self, delta: Sequence[Section], delta_data: FileBytes) -> Written:
        """A snapshot; and the delta too if that is less for who holds the version before."""
        sections = self._resident.snapshot()
        data = file_bytes(Role.SNAPSHOT, self._version, sections)
        if len(data.data) <= len(delta_data.data):
            return self._snapshot(sections, data)
        file = self._put(Role.DELTA, delta, delta_data)
        snapshot = self._put(Role.SNAPSHOT, sections, data)
        return self._written(Chain(snapshots=(snapshot,)), file)

    def _snapshot(self, sections: Sequence[Section], data: FileBytes | None = None) -> Written:
        """A snapshot that takes the place of everything; no file for a state without cells."""
        if not sections:
            return self._written(Chain(), None)
        data = data or file_bytes(Role.SNAPSHOT, self._version, sections)
        snapshot = self._put(Role.SNAPSHOT, sections, data)
        return self._written(Chain(snapshots=(snapshot,)), None)

    def _fold(self, chain: Chain, count: int) -> Chain:
        """One delta in the place of the newest ``count``; costs what those are large."""
        files = self._reader.read_all(chain.deltas[-count:])
        with paused():
            sections = folded(self._resident, [s for found in files for s in found])
        file = self._put(Role.DELTA, sections, file_bytes(Role.DELTA, self._version, sections))
        return chain.folded(count, file)

    def _put(self, role: Role, sections: Sequence[Section], file: FileBytes) -> StateFile:
        name = data_name(self._version, f"heap-{role.value}-{self._version}")
        self._reader.storage.put(name, file.data)
        self._bytes += len(file.data)
        groups = self._resident.groups
        meta = {
            "role": role.value,
            "version": self._version,
            "range": [groups.start, groups.end],
            "header": file.header_bytes,
            "checksum": file.checksum,
            "cells": sum(section.cells for section in sections),
        }
        return StateFile(name=name, size=len(file.data), range=groups, meta=meta)

    def _written(self, chain: Chain, delta: StateFile | None) -> Written:
        return Written(chain=chain, delta=delta, changed=True, bytes_written=self._bytes)


def folded(resident: Resident, sections: Sequence[Section]) -> list[Section]:
    """The sections of several deltas, oldest first, as one delta's.

    Small ones of one table become one section, in which each cell has its newest content. Large
    ones are taken over as they are, as are those of tables that are not decoded, or that were
    written under another declaration: copying bytes costs next to nothing, and what it spares is
    not worth unpacking and packing them.
    """
    result: list[Section] = []
    merged: dict[str, Pending] = {}
    for section in sections:
        spec = _mergeable(resident, section)
        if spec is None:
            result += _encoded(resident, section.table, merged.pop(section.table, None))
            result.append(section)
            continue
        pending = merged.setdefault(section.table, Pending(spec.kind))
        pending.add(changes_of(spec.kind, section.op, decode(section, spec)))
    for name, pending in merged.items():
        result += _encoded(resident, name, pending)
    return result


def _mergeable(resident: Resident, section: Section) -> TableSpec | None:
    """What a section is decoded with to be merged; ``None`` if it is taken over as it is."""
    table = resident.tables.get(section.table)
    if table is None or section.cells >= MERGE_BELOW:
        return None
    return table.spec if section.description == table.spec.description() else None


def _encoded(resident: Resident, name: str, pending: Pending | None) -> list[Section]:
    if pending is None:
        return []
    spec = resident.tables[name].spec
    return [encode(spec, op, block, resident.groups) for op, block in pending.blocks()]
