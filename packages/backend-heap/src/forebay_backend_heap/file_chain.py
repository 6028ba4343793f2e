"""Orders the files of a version, snapshots before deltas, and decides when to fold deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Final, Self

import attrs

from forebay_backend_heap.files import FileRole
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.files import ParentState, StateFile

_HELD_TOGETHER: Final = 4
"""A manifest holds deltas up to this many times the largest; then they are folded into one."""


@attrs.frozen
class Chain:
    """The files to read, in order, for the cells of one key-group range.

    After a rescale there are several snapshots, and deltas of several ranges. A snapshot is the
    oldest file of its groups, so all snapshots may come first; deltas keep the order in which
    each parent named them.
    """

    snapshots: tuple[StateFile, ...] = ()
    deltas: tuple[StateFile, ...] = ()

    @classmethod
    def of(cls, parents: Iterable[ParentState]) -> Self:
        """Return the chain of files that the parents name."""
        files = [file for parent in parents for file in parent.files]
        return cls(
            tuple(f for f in files if f.meta["role"] == FileRole.SNAPSHOT.value),
            tuple(f for f in files if f.meta["role"] == FileRole.DELTA.value),
        )

    @property
    def files(self) -> tuple[StateFile, ...]:
        """All files, oldest first within a key group."""
        return (*self.snapshots, *self.deltas)

    @property
    def snapshot_bytes(self) -> float:
        """Bytes of the snapshots, in proportion to the ranges that are read."""
        return sum(map(weight, self.snapshots))

    @property
    def delta_bytes(self) -> float:
        """Bytes of the deltas, in proportion to the ranges that are read."""
        return sum(map(weight, self.deltas))

    def room(self, largest: int) -> int:
        """Return how large a delta may be for the manifest to hold it, at most ``largest``."""
        held = sum(file.size for file in self.deltas if file.data is not None)
        return min(largest, _HELD_TOGETHER * largest - held)

    def overflowing(self, added: int, largest: int, kept: int = 0) -> int:
        """Return how many of the newest deltas to fold so that the manifest has room for another.

        ``added`` are the bytes of that delta, ``largest`` is as for `room`. The oldest ``kept`` are
        left alone. Only deltas that the manifest holds are folded, and none while it has room, or
        if there is only one of them.
        """
        if added > largest or added <= self.room(largest):
            return 0
        newest = takewhile(lambda file: file.data is not None, reversed(self.deltas[kept:]))
        count = sum(1 for _ in newest)
        return count if count > 1 else 0

    def holds_too_much(self, largest: int) -> bool:
        """Return whether the manifest would hold the snapshots of many: only after a rescale."""
        held = sum(file.size for file in self.snapshots if file.data is not None)
        return held > _HELD_TOGETHER * largest

    def with_delta(self, delta: StateFile) -> Self:
        """Return the chain with one more delta."""
        return attrs.evolve(self, deltas=(*self.deltas, delta))

    def through(self, delta: str) -> int | None:
        """Return the number of deltas up to and including one; ``None`` if it is not there."""
        return next((n for n, file in enumerate(self.deltas, 1) if file.name == delta), None)

    def after(self, snapshot: StateFile, deltas: int) -> Self:
        """Return the chain with a snapshot in place of the oldest ``deltas`` and all before."""
        return attrs.evolve(self, snapshots=(snapshot,), deltas=self.deltas[deltas:])

    def foldable(self, max_deltas: int, kept: int = 0) -> int:
        """Return how many of the newest deltas to fold into one before another is added.

        The oldest ``kept`` are left alone and do not count. Returns 0 while there is room.
        Otherwise folds at least half of ``max_deltas``, and then
        older deltas as long as each is no larger than all newer ones together. A delta that is
        folded again thus ends in one at least twice its size, so the cost of folding grows with the
        logarithm of the number of deltas, not with the state.
        """
        deltas = self.deltas[kept:]
        if len(deltas) < max_deltas:
            return 0
        count = max(max_deltas // 2, len(deltas) + 2 - max_deltas, 2)
        weights = [*map(weight, reversed(deltas))]
        total = sum(weights[:count])
        while count < len(weights) and weights[count] <= total:
            total += weights[count]
            count += 1
        return count

    def without(self, count: int) -> Self:
        """Return the chain without its newest ``count`` deltas."""
        return attrs.evolve(self, deltas=self.deltas[:-count])


def weight(file: StateFile) -> float:
    """Return the bytes of a file, in proportion to the range for which it is read."""
    return file.size * len(file.range) / len(written_range(file.meta))


def written_range(meta: Mapping[str, Any]) -> KeyGroupRange:
    """Return the key groups that a file was written for; it may be read for fewer."""
    return KeyGroupRange(*meta["range"])
