"""The figures of one version: of each subtask, and of all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.format.figures import CALLS, PHASES, Figures

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_engine.versions.format.markers import Made
    from forebay_state_api.keys import KeyGroupRange

_LARGEST: Final = frozenset({"runs_max", "group_rows_max"})
"""Counts of which the largest one of all subtasks counts, not the sum."""
_parsed: Final = lru_cache(maxsize=10_000)(Figures.parse)


@attrs.frozen(kw_only=True)
class SubtaskFigures:
    """One subtask's part of a version."""

    subtask: int
    range: KeyGroupRange
    attempt_id: int
    committed: datetime
    """The time of its manifest, by the store's clock."""
    manifest: str
    """Name of the manifest, which may have been deleted."""
    encoded: str
    """The text of `figures`."""

    @property
    def figures(self) -> Figures:
        """The figures of its commit."""
        return _parsed(self.encoded)

    @classmethod
    def of(cls, made: Made) -> SubtaskFigures:
        """Return the figures of a manifest."""
        return cls(
            subtask=made.by.subtask,
            range=made.by.range,
            attempt_id=made.by.attempt_id,
            committed=made.modified,
            manifest=made.name,
            encoded=made.encoded,
        )


@attrs.frozen(kw_only=True)
class VersionFigures:
    """A version that one run made. Of several attempts of a subtask the highest counts."""

    version: int
    run_key: str
    epoch: int
    parallelism: int
    max_parallelism: int
    batch_ms: int
    """`Manifest.batch_ms`: the micro-batch's time; 0 where it is not known."""
    subtasks: Sequence[SubtaskFigures]
    """The subtasks that have committed, by number."""

    @classmethod
    def of(cls, manifests: Sequence[Made]) -> VersionFigures:
        """Return the figures of the manifests that one run made of one version."""
        newest = max(manifests, key=lambda made: (made.by.epoch, made.by.attempt_id)).by
        best: dict[int, Made] = {}
        for made in sorted(manifests, key=lambda m: (m.by.attempt_id, m.by.random_id)):
            if made.by.parallelism == newest.parallelism:
                best[made.by.subtask] = made
        return cls(
            version=newest.version,
            run_key=newest.run_key,
            epoch=newest.epoch,
            parallelism=newest.parallelism,
            max_parallelism=newest.max_parallelism,
            batch_ms=max(made.batch_ms for made in best.values()),
            subtasks=[SubtaskFigures.of(best[subtask]) for subtask in sorted(best)],
        )

    @property
    def batch(self) -> int:
        """The micro-batch that made the version."""
        return self.version - 1

    @property
    def is_complete(self) -> bool:
        """Whether all subtasks have committed."""
        return len(self.subtasks) == self.parallelism

    @property
    def committed(self) -> datetime:
        """The time at which the last subtask committed, by the store's clock."""
        return max(subtask.committed for subtask in self.subtasks)

    def count(self, name: str) -> int | None:
        """Return the sum of a count over all subtasks; ``None`` unless all of them know it.

        Of calls it is the sum of those that made any; ``None`` if none did.
        """
        known = [one.figures.counts.get(name) for one in self.subtasks]
        if name in CALLS:
            return sum(number or 0 for number in known) or None
        if any(number is None for number in known):
            return None
        together: Callable[[Iterable[int]], int] = max if name in _LARGEST else sum
        return together(number or 0 for number in known)

    @property
    def phase_ms(self) -> dict[str, int]:
        """Milliseconds by phase, of all subtasks together; empty if they were not measured."""
        found: dict[str, int] = {}
        for one in self.subtasks:
            for phase, ms in one.figures.phase_ms.items():
                found[phase] = found.get(phase, 0) + ms
        return {phase: found[phase] for phase in PHASES if phase in found}

    @property
    def slowest(self) -> SubtaskFigures | None:
        """The subtask that took longest; ``None`` if times were not measured."""
        timed = [one for one in self.subtasks if one.figures.total_ms is not None]
        return max(timed, key=lambda one: one.figures.total_ms or 0, default=None)

    @property
    def busiest(self) -> SubtaskFigures:
        """The subtask that got the most rows."""
        return max(self.subtasks, key=lambda one: one.figures.counts.get("rows_in", 0))

    @property
    def slowest_ms(self) -> int | None:
        """The time of the slowest subtask."""
        return None if self.slowest is None else self.slowest.figures.total_ms
