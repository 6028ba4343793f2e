"""What a commit writes: a delta, a snapshot in its place, or a fold of older deltas beside it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from forebay_backend_heap.file_chain import Chain
from forebay_backend_heap.file_reader import Reader
from forebay_backend_heap.files import FileBytes, Role, Section, file_bytes
from forebay_backend_heap.folding import Fold
from forebay_backend_heap.gc_pause import paused
from forebay_backend_heap.options import HeapOptions
from forebay_backend_heap.resident import Resident
from forebay_state_api.contract.changes import Shape
from forebay_state_api.contract.files import StateFile
from forebay_state_api.versions.layout import data_name


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
        self, reader: Reader, resident: Resident, options: HeapOptions, version: int, now_us: int
    ) -> None:
        """``now_us`` is the micro-batch's time; `NO_TIME`: nothing expires."""
        self._reader = reader
        self._resident = resident
        self._options = options
        self._version = version
        self._now_us = now_us
        self._bytes = 0

    def write(self, chain: Chain) -> Written:
        """Make durable what was applied since ``chain`` was opened."""
        if self._resident.pending and self._rewrites_most(chain):
            self._resident.clean_up(self._now_us)
            return self._snapshot(self._resident.snapshot())
        delta: Sequence[Section] = self._resident.delta() if self._resident.pending else ()
        if not delta:
            return Written(chain=chain, delta=None, changed=False, bytes_written=0)
        data = file_bytes(Role.DELTA, self._version, delta)
        if self._is_due(chain, len(data.data)):
            return self._snapshot_beside(delta, data)
        if count := chain.foldable(self._options.max_deltas):
            chain, dropped = self._fold(chain, count)
            delta, data = self._with(dropped, delta, data)
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
        points = all(table.spec.shape is Shape.POINT for table in resident.tables.values())
        if not resident.raw and points and changed >= resident.cells:
            return True
        if not chain.deltas:
            return False
        newest = chain.deltas[-1]
        expected = newest.size / newest.meta["cells"] * changed
        return 2 * expected >= chain.snapshot_bytes and self._is_due(chain, expected)

    def _snapshot_beside(self, delta: Sequence[Section], delta_data: FileBytes) -> Written:
        """A snapshot; and the delta too if that is less for who holds the version before."""
        dropped = self._resident.clean_up(self._now_us)
        delta, delta_data = self._with(dropped, delta, delta_data)
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

    def _fold(self, chain: Chain, count: int) -> tuple[Chain, Sequence[Section]]:
        """One delta in the place of the newest ``count``; costs what those are large.

        Also the sections that drop from newer content what the fold found expired.
        """
        files = self._reader.read_all(chain.deltas[-count:])
        fold = Fold(self._resident, self._now_us)
        with paused():
            sections = fold.sections([s for found in files for s in found])
        file = self._put(Role.DELTA, sections, file_bytes(Role.DELTA, self._version, sections))
        return chain.folded(count, file), fold.dropped()

    def _with(
        self, dropped: Sequence[Section], delta: Sequence[Section], data: FileBytes
    ) -> tuple[Sequence[Section], FileBytes]:
        """A delta that drops something besides."""
        if not dropped:
            return delta, data
        delta = [*delta, *dropped]
        return delta, file_bytes(Role.DELTA, self._version, delta)

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
