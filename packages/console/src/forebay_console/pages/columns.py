"""Versions as the columns of charts: one for each, or for several that follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from forebay_console.pages.phase_families import by_family

if TYPE_CHECKING:
    from forebay_console.watching.summaries import VersionSummary

MOST: Final = 120
"""The most columns of a chart."""


@attrs.frozen
class Column:
    """One column, of one version or of several."""

    versions: Sequence[VersionSummary]
    """The oldest first."""

    @property
    def name(self) -> str:
        """``version 7``, or ``versions 7 to 15``."""
        first, last = self.versions[0].version, self.versions[-1].version
        return f"version {first}" if first == last else f"versions {first} to {last}"

    @property
    def newest(self) -> VersionSummary:
        """The newest version of the column."""
        return self.versions[-1]

    @property
    def family_ms(self) -> Mapping[str, float]:
        """Family of phases → milliseconds of a subtask, on average."""
        subtasks = sum(one.parallelism for one in self.versions if one.phase_ms)
        total: dict[str, float] = {}
        for one in self.versions:
            for name, ms in by_family(one.phase_ms).items():
                total[name] = total.get(name, 0.0) + ms / subtasks
        return total

    def mean(self, name: str) -> float | None:
        """Return the mean of a count; ``None`` unless each version knows it."""
        numbers = [one.counts.get(name) for one in self.versions]
        known = [number for number in numbers if number is not None]
        return sum(known) / len(known) if len(known) == len(numbers) else None


def columns_of(newest_first: Sequence[VersionSummary], most: int = MOST) -> Sequence[Column]:
    """Return the columns of versions, the oldest first."""
    oldest_first = list(reversed(newest_first))
    each = -(-len(oldest_first) // most) or 1
    # Whole columns at the right, where the newest versions are.
    first = len(oldest_first) % each
    starts = [0, *range(first, len(oldest_first), each)] if first else []
    starts = starts or list(range(0, len(oldest_first), each))
    ends = [*starts[1:], len(oldest_first)]
    # Without versions there is an end and no start.
    return [Column(oldest_first[a:b]) for a, b in zip(starts, ends, strict=False) if a < b]
