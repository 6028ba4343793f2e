"""How an operator's state, and the rows of its newest micro-batch, are spread over key groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.metrics.keyed import GROUP_ROWS

if TYPE_CHECKING:
    from forebay_state_api.versions.manifest import Manifest


@attrs.frozen(kw_only=True)
class KeyGroups:
    """Numbers by key group, from 0; each list has one number for each of them."""

    version: int
    bytes: Sequence[float]
    """Bytes in files. A file that holds several key groups counts in equal parts."""
    files: Sequence[int]
    """Files that are read for the key group."""
    rows: Sequence[int] | None
    """Rows of the micro-batch; ``None`` unless all subtasks counted them."""

    def hottest(self, most: int) -> Mapping[int, int]:
        """Return the key groups with the most rows, and their rows; those without rows are cold."""
        if self.rows is None:
            return {}
        order = sorted(range(len(self.rows)), key=self.rows.__getitem__, reverse=True)[:most]
        return {group: self.rows[group] for group in order if self.rows[group]}


def key_groups_of(manifests: Sequence[Manifest]) -> KeyGroups:
    """Return the numbers of a version, whose subtasks' manifests are given."""
    made = manifests[0].made
    shares, counts = _per_file(manifests, made.max_parallelism)
    rows = [0] * made.max_parallelism
    counted = True
    for manifest in manifests:
        of_range = manifest.metrics.get(GROUP_ROWS)
        counted = counted and of_range is not None
        start = manifest.made.range.start
        rows[start : start + len(of_range or ())] = of_range or ()
    return KeyGroups(
        version=made.version, bytes=shares, files=counts, rows=rows if counted else None
    )


def _per_file(manifests: Sequence[Manifest], groups: int) -> tuple[list[float], list[int]]:
    """Spread files over their key groups: steps at the ends of their ranges, summed up."""
    everywhere: dict[str, int] = {}
    for file in (file for manifest in manifests for file in manifest.files):
        everywhere[file.name] = everywhere.get(file.name, 0) + len(file.range)
    sizes, counts = [0.0] * (groups + 1), [0] * (groups + 1)
    for file in (file for manifest in manifests for file in manifest.files):
        share = file.size / everywhere[file.name]
        for at, sign in ((file.range.start, 1), (file.range.end + 1, -1)):
            sizes[at] += sign * share
            counts[at] += sign
    return [max(0.0, size) for size in accumulate(sizes[:-1])], list(accumulate(counts[:-1]))
