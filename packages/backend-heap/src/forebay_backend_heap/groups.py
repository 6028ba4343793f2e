"""Maps each key of a table to its key group: files are sorted by it, sweeps walk along it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from forebay_backend_heap.files import Groups

_SLACK: Final = 4096
_MOST: Final = 6
"""The index is compacted when it holds this many times the keys that it held after the last time.
A snapshot is due at about half of that, and the thread that writes it compacts the index."""

KeyRun = tuple[list[Any], Groups]


class GroupIndex:
    """Maps keys to key groups.

    Kept as runs of keys and groups in order of arrival, which takes a tenth of the memory of a
    dictionary; look-ups are needed only when a snapshot is written.
    """

    def __init__(self, runs: Iterable[KeyRun] = (), walked: int = 0) -> None:
        """Index ``runs``; the walk has already passed the first ``walked`` keys."""
        self._reset(list(runs), walked)

    def copy(self) -> GroupIndex:
        """Return an index of the same keys that shares the runs, which never change."""
        return GroupIndex(self._runs)

    def replace(self, copied: GroupIndex, compact: GroupIndex) -> None:
        """Hold ``compact`` in place of the runs of an earlier copy, if they are still the oldest.

        Does nothing in the middle of a walk.
        """
        count = len(copied._runs)
        same = map(operator.is_, self._runs[:count], copied._runs)
        if not self.position and count <= len(self._runs) and all(same):
            self._reset([*compact._runs, *self._runs[count:]], 0)

    def add(self, keys: list[Any], groups: Sequence[int] | Groups) -> None:
        """Add keys, known or new; keeps a reference to ``keys``."""
        run = (keys, np.asarray(groups, np.uint16))
        if not self._runs:
            self._reset([run], 0)
            return
        self._runs.append(run)
        self.held += len(keys)
        if self.held > self._limit:
            self.compact()

    def of(self, keys: list[Any], known: Mapping[Any, int] | None = None) -> Groups:
        """Return the key groups of known keys; pass `as_dict` as ``known`` for repeated calls.

        Dictionaries keep their order: if nothing was deleted, ``keys`` begins with the keys of the
        oldest run, and these need no look-up.
        """
        if known is not None:
            return _looked_up(keys, known)
        first, groups = self._runs[0]
        if len(keys) < len(first) or not all(map(operator.is_, first, keys)):
            return _looked_up(keys, self.as_dict())
        if len(keys) == len(first):
            return groups
        return np.concatenate([groups, _looked_up(keys[len(first) :], self.as_dict(1))])

    def as_dict(self, start: int = 0) -> dict[Any, int]:
        """Return a dictionary from key to key group, of the runs from ``start`` on."""
        known: dict[Any, int] = {}
        for keys, groups in self._runs[start:]:
            known.update(zip(keys, groups.tolist(), strict=True))
        return known

    # -- walking ------------------------------------------------------------------------------

    def walk(self, count: int) -> list[tuple[Any, int]]:
        """Return the next keys with their groups; may repeat keys, or name removed cells."""
        found: list[tuple[Any, int]] = []
        start = self.position
        for keys, groups in self._runs:
            if start < len(keys):
                stop = start + count - len(found)
                part = groups[start:stop].tolist()
                found += zip(islice(keys, start, start + len(part)), part, strict=True)
            start = max(0, start - len(keys))
        self.position += len(found)
        return found

    @property
    def at_end(self) -> bool:
        """Whether the walk has passed all keys."""
        return self.position >= self.held

    def rewind(self, cells: Sequence[Mapping[Any, Any]]) -> None:
        """Begin the next walk; compact first if most keys were deleted or occur twice."""
        self.position = self.gone = 0
        if self.held > 2 * sum(map(len, cells)):
            self.compact(cells)

    def walked(self, held: Iterable[Mapping[Any, Any]]) -> int:
        """Return how many of the keys in ``held`` the walk has passed."""
        if self.at_end:
            return len(set().union(*held))
        if not self.position:
            return 0
        passed: set[Any] = set()
        start = 0
        for keys, _ in self._runs:
            passed.update(islice(keys, max(self.position - start, 0)))
            start += len(keys)
        return len(passed.intersection(set().union(*held)))

    def _parted(self) -> tuple[dict[Any, int], dict[Any, int]]:
        """Return the keys that the walk has passed, and the keys that it has not reached."""
        before: dict[Any, int] = {}
        after: dict[Any, int] = {}
        start = 0
        for keys, groups in self._runs:
            cut = min(max(self.position - start, 0), len(keys))
            pairs = zip(keys, groups.tolist(), strict=True)
            before.update(islice(pairs, cut))
            after.update((key, group) for key, group in pairs if key not in before)
            start += len(keys)
        return before, after

    def compact(self, cells: Sequence[Mapping[Any, Any]] = (), walked: int = 0) -> None:
        """Keep each key once; given ``cells``, the table's dictionaries, keep only their keys."""
        before, after = self._parted() if self.position else ({}, self.as_dict())
        known = before | after
        if cells:
            there = cells[0] if len(cells) == 1 else set().union(*cells)
            known = {key: group for key, group in known.items() if key in there}
        groups = np.fromiter(known.values(), np.uint16, len(known))
        self._reset([(list(known), groups)], min(walked or len(before), len(known)))

    def _reset(self, runs: list[KeyRun], walked: int) -> None:
        self._runs = runs
        self.held = sum(len(keys) for keys, _ in runs)
        """Keys in all runs; a key that was added twice counts twice."""
        self._limit = _MOST * self.held + _SLACK
        self.position = walked
        """Keys that the walk has passed."""
        self.gone = 0
        """Passed keys that the table has lost since."""


def _looked_up(keys: list[Any], known: Mapping[Any, int]) -> Groups:
    return np.fromiter(map(known.__getitem__, keys), np.uint16, len(keys))
