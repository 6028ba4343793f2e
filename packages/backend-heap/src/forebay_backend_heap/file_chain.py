"""The files of a version: snapshots first, then deltas; and when to shorten the chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

from forebay_backend_heap.files import Role
from forebay_state_api.contract.files import ParentState, StateFile
from forebay_state_api.keys import KeyGroupRange


@attrs.frozen
class Chain:
    """What has to be read, in order, for the cells of one key-group range.

    After a rescale there are several snapshots, and deltas of several ranges. A snapshot is the
    oldest file of its groups, so snapshots may stand first; deltas keep the order in which each
    parent named them.
    """

    snapshots: tuple[StateFile, ...] = ()
    deltas: tuple[StateFile, ...] = ()

    @classmethod
    def of(cls, parents: Iterable[ParentState]) -> Self:
        """The files that the parents name."""
        files = [file for parent in parents for file in parent.files]
        return cls(
            tuple(f for f in files if f.meta["role"] == Role.SNAPSHOT.value),
            tuple(f for f in files if f.meta["role"] == Role.DELTA.value),
        )

    @property
    def files(self) -> tuple[StateFile, ...]:
        """All of them, oldest first within a key group."""
        return (*self.snapshots, *self.deltas)

    @property
    def snapshot_bytes(self) -> float:
        """Bytes of the snapshots, as far as they belong to the ranges that are read."""
        return sum(map(weight, self.snapshots))

    @property
    def delta_bytes(self) -> float:
        """The same of the deltas."""
        return sum(map(weight, self.deltas))

    def with_delta(self, delta: StateFile) -> Self:
        """The chain after one more commit."""
        return attrs.evolve(self, deltas=(*self.deltas, delta))

    def foldable(self, max_deltas: int) -> int:
        """How many of the newest deltas to fold into one, before another one is added.

        0 while there is room. Else at least half of ``max_deltas``, and older ones while they are
        no larger than all newer ones together: so a delta that is folded again ends in one at
        least twice its size, and what folding costs grows with the logarithm of the deltas, not
        with the state.
        """
        if len(self.deltas) < max_deltas:
            return 0
        count = max(max_deltas // 2, len(self.deltas) + 2 - max_deltas, 2)
        weights = [*map(weight, reversed(self.deltas))]
        total = sum(weights[:count])
        while count < len(weights) and weights[count] <= total:
            total += weights[count]
            count += 1
        return count

    def folded(self, count: int, into: StateFile) -> Self:
        """The chain with its newest ``count`` deltas replaced by ``into``."""
        return attrs.evolve(self, deltas=(*self.deltas[:-count], into))


def weight(file: StateFile) -> float:
    """Bytes of a file, as far as they belong to the range for which it is read."""
    return file.size * len(file.range) / len(written_range(file.meta))


def written_range(meta: Mapping[str, Any]) -> KeyGroupRange:
    """The key groups that a file was written for, whatever it is read for now."""
    return KeyGroupRange(*meta["range"])
