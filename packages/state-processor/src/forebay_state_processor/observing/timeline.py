"""An operator's timeline: the versions of its newest run, and of the runs that it continues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.format.epochs import Epochs
from forebay_state_processor.observing.known_names import KnownNames

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_engine.versions.format.markers import Made
    from forebay_state_processor.observing.figures_of_versions import VersionFigures


@attrs.frozen(kw_only=True)
class Timeline:
    """Versions with their figures, the newest first."""

    versions: Sequence[VersionFigures]
    """Versions that all subtasks have committed."""
    abandoned: Sequence[VersionFigures] = ()
    """Versions that a newer run replaced, or that are newer than the version it continued from."""

    @property
    def newest(self) -> VersionFigures | None:
        """The newest complete version."""
        return self.versions[0] if self.versions else None

    def count(self, name: str) -> int | None:
        """Return a count of the newest version; ``None`` if there is none, or it is not known."""
        return None if self.newest is None else self.newest.count(name)

    def of_batch(self, batch: int) -> VersionFigures | None:
        """Return the version that a micro-batch made; ``None`` if its figures are not stored."""
        return next((one for one in self.versions if one.batch == batch), None)

    def rate(self, name: str, last: int = 10) -> float | None:
        """Return a count per second over the ``last`` versions; ``None`` if it is not known."""
        recent = self.versions[: last + 1]
        seconds = _seconds(recent)
        counts = [version.count(name) for version in recent[:-1]]
        if not seconds or any(count is None for count in counts):
            return None
        return sum(count or 0 for count in counts) / seconds

    def growth(self, name: str) -> float | None:
        """Return by how much a count grew per second, over all versions."""
        known = [v for v in self.versions if v.count(name) is not None]
        seconds = _seconds(known)
        if not seconds:
            return None
        return ((known[0].count(name) or 0) - (known[-1].count(name) or 0)) / seconds

    def seconds_between(self) -> Sequence[float]:
        """Return the seconds from each version's commit back to the previous one's."""
        return [
            (newer.committed - older.committed).total_seconds()
            for newer, older in pairwise(self.versions)
        ]


def _seconds(versions: Sequence[VersionFigures]) -> float:
    if not versions:
        return 0.0
    newest: datetime = versions[0].committed
    return (newest - versions[-1].committed).total_seconds()


def timeline_of(manifests: Iterable[Made], known: KnownNames | None = None) -> Timeline:
    """Return the timeline of manifests, which may be named several times.

    :param known: the versions that timelines before this one had.

    Runs count by rank: an older run's versions from a newer run's first one on are abandoned. A
    version that a run has not completed does not hide another run's.
    """
    ranked = sorted(
        _versions(manifests, known or KnownNames()),
        key=lambda one: (_rank(one), one.version),
        reverse=True,
    )
    first: int | None = None
    kept: list[VersionFigures] = []
    abandoned: list[VersionFigures] = []
    for run in _by_run(ranked):
        complete = [version for version in run if version.is_complete]
        kept += [one for one in complete if first is None or one.version < first]
        abandoned += [one for one in complete if first is not None and one.version >= first]
        if complete:
            oldest = min(version.version for version in complete)
            first = oldest if first is None else min(first, oldest)
    return Timeline(versions=_newest_first(kept), abandoned=_newest_first(abandoned))


def _rank(version: VersionFigures) -> tuple[int, str]:
    """Return the rank of the run that made a version, which decides for readers too."""
    return Epochs(()).rank(version.run_key, version.epoch)


def _versions(manifests: Iterable[Made], known: KnownNames) -> Iterable[VersionFigures]:
    found: dict[tuple[int, str], dict[str, Made]] = {}
    for made in manifests:
        if made.manifest:
            found.setdefault((made.by.version, made.by.run_key), {})[made.name] = made
    return (known.version(list(made.values())) for made in found.values())


def _by_run(ranked: Sequence[VersionFigures]) -> Iterable[Sequence[VersionFigures]]:
    """Yield the versions of each run, by the run's highest rank."""
    runs: dict[str, list[VersionFigures]] = {}
    for version in ranked:
        runs.setdefault(version.run_key, []).append(version)
    return runs.values()


def _newest_first(versions: Sequence[VersionFigures]) -> Sequence[VersionFigures]:
    return sorted(versions, key=lambda one: -one.version)
