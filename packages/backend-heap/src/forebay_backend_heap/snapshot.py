"""Writes the files of a commit: a delta, a snapshot instead, or also a fold of older deltas.

A snapshot that is due is planned, and written during the next micro-batches (`SnapshotPlan`). The
commit itself writes one if that is cheapest, if the process may not hold a copy of the state, or if
a planned one has not come before the deltas have grown to twice the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from forebay_backend_heap.background_snapshots import SnapshotPlan, SnapshotThread
from forebay_backend_heap.file_chain import Chain
from forebay_backend_heap.file_reader import Reader
from forebay_backend_heap.files import FileBytes, FileRole, Section, file_bytes, state_file
from forebay_backend_heap.folding import Fold
from forebay_backend_heap.gc_pause import paused
from forebay_backend_heap.options import HeapOptions
from forebay_backend_heap.resident import Resident
from forebay_state_api.contract.changes import Shape
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile

PLANNED_FROM: Final = 256 << 10
"""The commit itself writes a snapshot that replaces a smaller one: it costs as much as a request,
and a planned one would cost the next commits requests that look for it."""
_PATIENCE: Final = 2
"""A commit writes a snapshot when the deltas are this many times as large as when it was due."""


@attrs.frozen(kw_only=True)
class Written:
    """The result of writing a commit."""

    chain: Chain
    """The files of the new version."""
    delta: StateFile | None
    """The delta from the opened version to the new one; ``None`` if only a snapshot was written, or
    if nothing changed."""
    changed: bool
    bytes_written: int
    plan: SnapshotPlan | None
    """The snapshot that is written in the background, or will be when the manifest is durable."""


class Writer:
    """Writes the files of one version."""

    def __init__(
        self,
        reader: Reader,
        resident: Resident,
        options: HeapOptions,
        version: int,
        now_us: int,
        *,
        plan: SnapshotPlan | None = None,
        thread: SnapshotThread | None = None,
    ) -> None:
        """Prepare to write ``version``.

        ``now_us`` is the micro-batch's time; with `NO_TIME` nothing expires. ``plan`` is the
        snapshot that the opened version waits for. ``thread`` writes snapshots in the background;
        ``None`` if the process may not hold a copy of the state.
        """
        self._reader = reader
        self._resident = resident
        self._options = options
        self._version = version
        self._now_us = now_us
        self._plan = plan
        self._thread = thread
        self._most_held = options.held_bytes if reader.storage.waits else 0
        """Bytes of a file for the manifest to hold it: of no file where requests cost nothing."""
        self._bytes = 0

    def write(self, chain: Chain) -> Written:
        """Make the changes applied since ``chain`` was opened durable."""
        chain, kept = self._installed(chain)
        if self._resident.pending and self._rewrites_most(chain):
            self._resident.clean_up(self._now_us)
            return self._snapshot(self._everything())
        delta: Sequence[Section] = self._resident.delta() if self._resident.pending else ()
        if not delta:
            return self._written(chain, None, changed=False)
        data = file_bytes(FileRole.DELTA, self._version, delta)
        in_background = self._thread is not None and chain.snapshot_bytes >= PLANNED_FROM
        if self._is_due(chain, len(data.data), _PATIENCE if in_background else 1):
            return self._snapshot_and_delta(delta, data)
        plans = in_background and self._plan is None and self._is_due(chain, len(data.data))
        if plans := plans and self._thread is not None and self._thread.is_free:
            delta, data = self._with(self._resident.clean_up(self._now_us), delta, data)
        full = chain.overflowing(len(data.data), self._most_held, kept)
        if count := max(full, chain.foldable(self._options.max_deltas, kept)):
            chain, dropped = self._fold(chain, count)
            delta, data = self._with(dropped, delta, data)
        file = self._put(FileRole.DELTA, delta, data, chain.room(self._most_held))
        if plans:
            self._plan = SnapshotPlan.begin(self._version, file.name)
        return self._written(chain.with_delta(file), file)

    def _installed(self, chain: Chain) -> tuple[Chain, int]:
        """Install the planned snapshot if it has been written.

        Also returns how many of the oldest deltas it will replace if it is still to come.
        """
        covered = None if self._plan is None else chain.through(self._plan.after)
        if self._plan is None or covered is None:
            self._plan = None
            return chain, 0
        if (snapshot := self._found(self._plan)) is None:
            return chain, covered
        self._plan = None
        self._bytes += snapshot.size
        return chain.after(snapshot, covered), 0

    def _found(self, plan: SnapshotPlan) -> StateFile | None:
        if self._thread is not None and self._thread.knows(plan.name):
            return self._thread.take(plan.name, self._resident)
        if not plan.is_looked_for(self._reader.version, self._version):
            return None
        return plan.found(self._reader.storage, self._resident.groups)

    def _is_due(self, chain: Chain, delta_bytes: float, patience: int = 1) -> bool:
        """Return whether the deltas outgrow the snapshot, ``patience`` times.

        A new snapshot then costs at most a constant times the deltas written since the last one, so
        the cost of commits stays proportional to what they change. It is also due if the manifests
        of many subtasks held theirs, so that after a rescale one manifest would hold all.
        """
        if chain.holds_too_much(self._most_held):
            return True
        limit = patience * self._options.snapshot_factor * chain.snapshot_bytes
        return chain.delta_bytes + delta_bytes > limit

    def _rewrites_most(self, chain: Chain) -> bool:
        """Return whether a snapshot alone is cheapest, estimated without packing the delta."""
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

    def _snapshot_and_delta(self, delta: Sequence[Section], delta_data: FileBytes) -> Written:
        """Write a snapshot, and the delta too if it is smaller, for caches of the last version."""
        dropped = self._resident.clean_up(self._now_us)
        delta, delta_data = self._with(dropped, delta, delta_data)
        sections = self._everything()
        data = file_bytes(FileRole.SNAPSHOT, self._version, sections)
        if len(data.data) <= len(delta_data.data):
            return self._snapshot(sections, data)
        file = self._put(FileRole.DELTA, delta, delta_data)
        snapshot = self._put(FileRole.SNAPSHOT, sections, data)
        self._plan = None
        return self._written(Chain(snapshots=(snapshot,)), file)

    def _snapshot(self, sections: Sequence[Section], data: FileBytes | None = None) -> Written:
        """Write a snapshot that replaces all files; no file if the state has no cells."""
        self._plan = None
        if not sections:
            return self._written(Chain(), None)
        data = data or file_bytes(FileRole.SNAPSHOT, self._version, sections)
        snapshot = self._put(FileRole.SNAPSHOT, sections, data)
        return self._written(Chain(snapshots=(snapshot,)), None)

    def _fold(self, chain: Chain, count: int) -> tuple[Chain, Sequence[Section]]:
        """Replace the newest ``count`` deltas by one; costs as much as they are large.

        Also returns the sections that drop, from newer content, what the fold found expired.
        """
        files = self._reader.read_all(chain.deltas[-count:])
        fold = Fold(self._resident, self._now_us)
        with paused():
            sections = fold.sections([s for found in files for s in found])
        data, kept = file_bytes(FileRole.DELTA, self._version, sections), chain.without(count)
        file = self._put(FileRole.DELTA, sections, data, kept.room(self._most_held))
        return kept.with_delta(file), fold.dropped()

    def _with(
        self, dropped: Sequence[Section], delta: Sequence[Section], data: FileBytes
    ) -> tuple[Sequence[Section], FileBytes]:
        """Add sections that drop expired content to a delta."""
        if not dropped:
            return delta, data
        delta = [*delta, *dropped]
        return delta, file_bytes(FileRole.DELTA, self._version, delta)

    def _put(
        self,
        role: FileRole,
        sections: Sequence[Section],
        file: FileBytes,
        room: int | None = None,
    ) -> StateFile:
        """Write a file, or let the manifest hold it if it is no larger than ``room``.

        The default is what it may hold of a snapshot, or of a delta next to one.
        """
        name = data_name(self._version, f"heap-{role.value}-{self._version}")
        most = self._most_held if room is None else room
        held = file.data if len(file.data) <= most else None
        if held is None:
            self._reader.storage.put(name, file.data)
        self._bytes += len(file.data)
        groups, size = self._resident.groups, len(file.data)
        named = state_file(name, role, self._version, groups, file.head, size, sections)
        return attrs.evolve(named, data=held)

    def _everything(self) -> Sequence[Section]:
        with paused():
            return self._resident.snapshot()

    def _written(self, chain: Chain, delta: StateFile | None, *, changed: bool = True) -> Written:
        return Written(
            chain=chain, delta=delta, changed=changed, bytes_written=self._bytes, plan=self._plan
        )
