"""The distribution of an operator's state, and of its newest rows, over key groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.metrics.keyed import GROUP_ROWS

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.files import StateFile
    from forebay_state_api.keys import KeyGroupRange


@attrs.frozen(kw_only=True)
class KeyGroups:
    """Figures by key group; each list has one number for each key group, from 0."""

    version: int
    bytes: Sequence[float]
    """Bytes in files. A file that holds several key groups counts in equal parts."""
    has_sizes: bool
    """Whether some file holds a part of its subtask's key groups: otherwise all bytes of a subtask
    count in equal parts, which says nothing about its key groups."""
    files: Sequence[int]
    """Files that are read for the key group."""
    cells: Sequence[float] | None
    """Cells in files, including overwritten ones, divided as bytes are; ``None`` unless the backend
    counts them."""
    rows: Sequence[int] | None
    """Rows of the micro-batch; ``None`` unless all subtasks counted them."""

    def hottest(self, most: int) -> Mapping[int, int]:
        """Return the key groups with the most rows, and their rows; omit those without rows."""
        if self.rows is None:
            return {}
        order = sorted(range(len(self.rows)), key=self.rows.__getitem__, reverse=True)[:most]
        return {group: self.rows[group] for group in order if self.rows[group]}


def key_groups_of(manifests: Sequence[Manifest]) -> KeyGroups:
    """Return the numbers of a version, whose subtasks' manifests are given."""
    made = manifests[0].made
    groups = made.max_parallelism
    files = [file for manifest in manifests for file in manifest.files]
    rows = [0] * groups
    counted = True
    for manifest in manifests:
        of_range = manifest.metrics.get(GROUP_ROWS)
        counted = counted and of_range is not None
        start = manifest.made.range.start
        rows[start : start + len(of_range or ())] = of_range or ()
    return KeyGroups(
        version=made.version,
        bytes=_spread(files, groups, {file.name: file.size for file in files}),
        has_sizes=any(
            len(file.range) < len(manifest.made.range)
            for manifest in manifests
            for file in manifest.files
        ),
        files=[round(count) for count in _summed(((file.range, 1) for file in files), groups)],
        cells=_cells(files, groups),
        rows=rows if counted else None,
    )


def cells_of(file: StateFile) -> int | None:
    """Return the cells in a file, as its backend counts them; ``None`` if it does not."""
    found: int | None = file.meta.get("entries", file.meta.get("cells"))
    return found


def _cells(files: Sequence[StateFile], groups: int) -> list[float] | None:
    found = {file.name: cells_of(file) for file in files}
    known = {name: cells for name, cells in found.items() if cells is not None}
    return _spread(files, groups, known) if len(known) == len(found) else None


def _spread(files: Sequence[StateFile], groups: int, numbers: Mapping[str, float]) -> list[float]:
    """Spread the files' ``numbers`` over their key groups, in equal parts."""
    everywhere: dict[str, int] = {}
    for file in files:
        everywhere[file.name] = everywhere.get(file.name, 0) + len(file.range)
    parts = ((file.range, numbers[file.name] / everywhere[file.name]) for file in files)
    return [max(0.0, number) for number in _summed(parts, groups)]


def _summed(parts: Iterable[tuple[KeyGroupRange, float]], groups: int) -> Iterable[float]:
    """Return for each key group the sum over the ranges that contain it.

    The numbers are steps at the ends of their ranges, summed up.
    """
    steps = [0.0] * (groups + 1)
    for part, number in parts:
        steps[part.start] += number
        steps[part.end + 1] -= number
    return accumulate(steps[:-1])
