"""Runs and layers: the order in which a version's files are read, and which may be merged.

A *run* is the files that one commit or one compaction wrote, which have no cell in common. Files
that a compaction wrote in several lanes are several runs. Runs whose key groups overlap are ordered
by age; runs that do not overlap (the chains that several subtasks wrote before a rescale) are not.
A *layer* holds the runs of equal depth, which is one more than the deepest older run below them. No
two runs of a layer overlap, so the number of layers is the read amplification, and adjacent layers
can always be merged into one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

import attrs

from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.files import StateFile

FileSlice: TypeAlias = tuple[str, KeyGroupRange]
"""Identifies a file in a version, which may read one file for several ranges."""


def file_slice(file: StateFile) -> FileSlice:
    """Return the file's name and the key groups for which it is read."""
    return file.name, file.range


def hull(files: Collection[StateFile]) -> KeyGroupRange:
    """Return the smallest range that covers all ranges for which the files are read."""
    return KeyGroupRange(
        min(file.range.start for file in files), max(file.range.end for file in files)
    )


@attrs.frozen
class Layer:
    """The files of one depth, in the order in which a manifest names them."""

    files: tuple[StateFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def entries(self) -> int:
        """Number of cells of any kind."""
        return sum(file.meta.get("entries", 0) for file in self.files)

    @property
    def deletes(self) -> int:
        """Number of cells that only hide older ones."""
        return sum(file.meta.get("deletes", 0) for file in self.files)

    @property
    def job(self) -> str | None:
        """The compaction that wrote the whole layer; ``None`` if commits wrote it."""
        jobs = {file.meta.get("job") for file in self.files}
        return jobs.pop() if len(jobs) == 1 else None

    def meets(self, slices: Collection[FileSlice]) -> bool:
        """Return whether one of its files is among ``slices``."""
        return any(file_slice(file) in slices for file in self.files)


def layers_of(files: Iterable[StateFile]) -> Sequence[Layer]:
    """Return the layers of a version, the deepest (oldest) first; ``files`` are in order of age."""
    runs = [tuple(run) for _, run in groupby(files, key=_RunKey())]
    ranges = [hull(run) for run in runs]
    depths: list[int] = []
    for number, groups in enumerate(ranges):
        below = [d for d, r in zip(depths, ranges[:number], strict=True) if r.intersection(groups)]
        depths.append(max(below, default=-1) + 1)
    found: list[list[StateFile]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for depth, run in zip(depths, runs, strict=True):
        found[depth].extend(run)
    return [Layer(tuple(layer)) for layer in found]


class _RunKey:
    """Groups neighbouring files of one lane of one compaction; any other file is its own group."""

    def __init__(self) -> None:
        self._alone = 0

    def __call__(self, file: StateFile) -> object:
        if (job := file.meta.get("job")) is not None:
            return job, file.meta.get("lane", 0)
        self._alone += 1
        return self._alone


def replaced(
    files: Sequence[StateFile], inputs: Collection[FileSlice], outputs: Sequence[StateFile]
) -> Sequence[StateFile] | None:
    """Return ``files`` with ``outputs`` in place of ``inputs``, in order of age.

    Returns ``None`` if that is impossible: an input is no longer among the files, or another file
    of the same key groups is newer than one input and older than another.
    """
    slices = [file_slice(file) for file in files]
    if not set(inputs) <= set(slices):
        return None
    older: list[StateFile] = []
    newer: list[StateFile] = []
    merged: list[StateFile] = []
    for file, slice_ in zip(files, slices, strict=True):
        if slice_ in inputs:
            if _overlaps(file, newer):
                return None
            merged.append(file)
        elif _overlaps(file, merged) or _overlaps(file, newer):
            newer.append(file)
        else:
            older.append(file)
    return [*older, *outputs, *newer]


def _overlaps(file: StateFile, others: Iterable[StateFile]) -> bool:
    return any(file.range.intersection(other.range) is not None for other in others)
