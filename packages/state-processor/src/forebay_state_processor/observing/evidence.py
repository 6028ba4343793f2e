"""The numbers behind one micro-batch: its slowest subtask, compared with other micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format.manifest_metrics import flat
from forebay_state_api.metrics.keyed import GROUP_ROWS

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_processor.observing.figures_of_versions import SubtaskFigures, VersionFigures
    from forebay_state_processor.observing.timeline import Timeline

SKEWED: Final = 2.0
"""A subtask with this many times the mean rows has more than its share."""
HOT: Final = 0.5
"""A key group with this share of its subtask's rows is hot."""
FEWEST_ROWS: Final = 1_000
"""Rows of a subtask that can be skewed, and of a key group that can be hot.

Of a row or two, one subtask and one key group always have most.
"""


@attrs.frozen(kw_only=True, slots=False)
class Evidence:
    """One version, its slowest subtask, and what is known about both."""

    version: VersionFigures
    slowest: SubtaskFigures
    others: Sequence[VersionFigures]
    """The versions that it is compared with, without itself."""
    manifest: Manifest | None
    """The manifest of the slowest subtask; ``None`` if the janitor has deleted it."""

    @classmethod
    def of(
        cls, version: VersionFigures, timeline: Timeline, manifest: Manifest | None
    ) -> Evidence | None:
        """Return the evidence about a version; ``None`` if its times were not measured."""
        if version.slowest is None:
            return None
        others = [one for one in timeline.versions if one is not version]
        return cls(version=version, slowest=version.slowest, others=others, manifest=manifest)

    @cached_property
    def figures(self) -> Mapping[str, float]:
        """The slowest subtask's figures, by key: of its manifest, or the few in its name."""
        named = {key: float(n) for key, n in self.slowest.figures.counts.items()}
        return named if self.manifest is None else named | flat(self.manifest.metrics)

    @property
    def total_ms(self) -> int:
        """The time of the slowest subtask."""
        return self.slowest.figures.total_ms or 0

    @property
    def phase_ms(self) -> Mapping[str, int]:
        """The slowest subtask's milliseconds by phase."""
        return self.slowest.figures.phase_ms

    @property
    def phase(self) -> str:
        """The phase that took longest."""
        return max(self.phase_ms, key=self.phase_ms.__getitem__)

    @cached_property
    def other_subtasks_ms(self) -> float | None:
        """The median time of the other subtasks."""
        totals = [one.figures.total_ms for one in self.version.subtasks if one is not self.slowest]
        known = [total for total in totals if total is not None]
        return median(known) if known else None

    @cached_property
    def usual_ms(self) -> float | None:
        """The median time of the slowest subtask in the other versions."""
        known = [one.slowest_ms for one in self.others if one.slowest_ms is not None]
        return median(known) if known else None

    def usual_phase_ms(self, phase: str) -> float | None:
        """Return the median time of a phase in the slowest subtasks of the other versions."""
        known = [one.slowest.figures.phase_ms.get(phase, 0) for one in self.others if one.slowest]
        return median(known) if known else None

    @cached_property
    def grown(self) -> str | None:
        """The phase that exceeds its usual time most; ``None`` without other versions."""
        excess = {
            phase: ms - usual
            for phase, ms in self.phase_ms.items()
            if (usual := self.usual_phase_ms(phase)) is not None
        }
        return max(excess, key=excess.__getitem__) if excess else None

    @property
    def share_of_rows(self) -> float | None:
        """The slowest subtask's rows ÷ the mean of all; ``None`` if they are not known."""
        rows, every = self.figures.get("rows_in"), self.version.count("rows_in")
        return None if rows is None or not every else rows * len(self.version.subtasks) / every

    @property
    def is_skewed(self) -> bool:
        """Whether the slowest subtask had far more rows than the others, and enough of them."""
        many = self.figures.get("rows_in", 0) >= FEWEST_ROWS
        return many and (self.share_of_rows or 0.0) >= SKEWED

    @cached_property
    def hottest_group(self) -> tuple[int, int] | None:
        """The key group with the most rows, and their number, if it is hot."""
        rows = None if self.manifest is None else self.manifest.metrics.get(GROUP_ROWS)
        if self.manifest is None or not rows or max(rows) < max(FEWEST_ROWS, HOT * sum(rows)):
            return None
        return self.manifest.made.range.start + rows.index(max(rows)), max(rows)

    @property
    def is_uneven(self) -> bool:
        """Whether the slowest subtask had more than its share of rows, or one key group did."""
        return self.is_skewed or self.hottest_group is not None

    @property
    def is_start(self) -> bool:
        """Whether it is the first micro-batch of the query, or after a restart."""
        if self.version.version == 1:
            return True
        return self.before is not None and self.before.run_key != self.version.run_key

    @property
    def is_cold(self) -> bool:
        """Whether workers have just started, and had too few rows for these to take the time."""
        return self.is_start and self.figures.get("rows_in", 0) < FEWEST_ROWS

    @cached_property
    def before(self) -> VersionFigures | None:
        """The version before."""
        older = (one for one in self.others if one.version < self.version.version)
        return max(older, key=lambda one: one.version, default=None)
