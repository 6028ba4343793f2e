"""The totals of a version's figures, computed once: versions do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from cachetools import LRUCache

from forebay_engine.versions.format.figures import ALL_COUNTS

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_processor.observing import VersionFigures

_KEPT: Final = 20_000


@attrs.frozen(kw_only=True)
class VersionSummary:
    """A version's figures, of all its subtasks together."""

    version: int
    run_key: str
    epoch: int
    parallelism: int
    committed: datetime
    counts: Mapping[str, int]
    """Key of a metric → number; a metric that a subtask does not know is absent."""
    phase_ms: Mapping[str, int]
    """Phase → milliseconds of all subtasks; empty if they were not measured."""
    slowest_ms: int | None
    """The time of the subtask that took longest."""
    slowest: int | None
    """The number of the slowest subtask."""

    @property
    def batch(self) -> int:
        """The micro-batch that made the version."""
        return self.version - 1

    @property
    def identity(self) -> tuple[str, int]:
        """The run that made it, and its number."""
        return self.run_key, self.version

    @property
    def slowest_phase(self) -> str | None:
        """The phase in which the subtasks spent most of their time."""
        return max(self.phase_ms, key=self.phase_ms.__getitem__, default=None)

    @classmethod
    def of(cls, version: VersionFigures) -> VersionSummary:
        """Add a version's figures up."""
        counts = {name: version.count(name) for name in ALL_COUNTS}
        return cls(
            version=version.version,
            run_key=version.run_key,
            epoch=version.epoch,
            parallelism=version.parallelism,
            committed=version.committed,
            counts={name: number for name, number in counts.items() if number is not None},
            phase_ms=version.phase_ms,
            slowest_ms=version.slowest_ms,
            slowest=None if version.slowest is None else version.slowest.subtask,
        )


class Summaries:
    """Sums of versions, each computed once. Used under its owner's lock."""

    def __init__(self) -> None:
        self._known: Final[LRUCache[tuple[str, int, int], VersionSummary]] = LRUCache(_KEPT)

    def of(self, versions: Sequence[VersionFigures]) -> Sequence[VersionSummary]:
        """Return the sums of versions, in their order."""
        return [self._of(version) for version in versions]

    def _of(self, version: VersionFigures) -> VersionSummary:
        key = version.run_key, version.version, max(s.attempt_id for s in version.subtasks)
        if key not in self._known:
            self._known[key] = VersionSummary.of(version)
        return self._known[key]
