"""Decide when the janitor of a job runs: by versions, and not more often than its age allows.

A pass lists all that is stored, which for a fast stream is as much as the minimum age holds. So a
process waits a part of that age between two passes; what is stored grows by that part.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from forebay_engine.versions.cleaning.object_cache import ObjectCache

if TYPE_CHECKING:
    from collections.abc import Callable

PASS_EVERY: Final = 10
"""The most versions between two passes, where the pause is shorter."""
PASSES_PER_MIN_AGE: Final = 10
"""The most passes that one process makes over a folder within the minimum age."""


def pass_every(retention: int) -> int:
    """Return the number of versions between two passes: the less is kept, the sooner one is due."""
    return min(retention, PASS_EVERY)


def pause(min_age: timedelta) -> timedelta:
    """Return how long a process waits after it began a pass over a folder."""
    return min_age / PASSES_PER_MIN_AGE


def is_due(
    version: int, subtask: int, every: int = PASS_EVERY, *, opened: int | None = None
) -> bool:
    """Return whether ``subtask`` should run a pass after it made ``version`` from ``opened``.

    ``opened`` defaults to the version before. Skipped versions count too: in ``foreachBatch`` an
    operator may run only in every second batch.
    """
    before = version - 1 if opened is None else opened
    return subtask == 0 and before // every < version // every


class FolderPasses:
    """The passes of one process over an operator's folder: the last one's time and its cache.

    Another process that makes the next pass has neither: it runs one at once, and reads again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a clock that never goes back."""
        self._clock = clock
        self._begun_s: float | None = None
        self.remembered: Final = ObjectCache()

    def may_begin(self, min_age: timedelta) -> bool:
        """Return whether the pause since the last pass is over."""
        if self._begun_s is None:
            return True
        return self._clock() - self._begun_s >= pause(min_age).total_seconds()

    def begun(self) -> None:
        """Begin a pass: the pause starts."""
        self._begun_s = self._clock()
