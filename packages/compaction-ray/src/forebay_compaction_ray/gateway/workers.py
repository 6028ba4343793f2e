"""A worker as the gateway sees it, and which of several gets the next job."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from forebay_compaction_ray.gateway.jobs import Entry
from forebay_compaction_ray.gateway.pool import WorkerHandle
from forebay_compaction_ray.messages import WorkerInfo


class WorkerPhase(enum.Enum):
    """What may be expected of a worker."""

    STARTING = "starting"
    """It has not answered since it was begun, or since it died."""
    READY = "ready"
    SUSPECT = "suspect"
    """It does not answer pings; it gets no jobs, and is killed if that goes on."""
    DRAINING = "draining"
    """It ends as soon as its jobs have."""


@attrs.define(eq=False, kw_only=True)
class Worker:
    """One worker."""

    id: str
    handle: WorkerHandle
    seen_s: float
    """When it last answered, or was begun."""
    phase: WorkerPhase = WorkerPhase.STARTING
    info: WorkerInfo | None = None
    jobs: dict[str, Entry] = attrs.field(factory=dict)
    given: int = 0
    """Jobs that it ever got."""
    pinged: bool = False
    """A ping is under way."""
    stalled: int = 0
    """Answers in a row that told of a job without a step."""
    killed_boot: str = ""
    """The life that was told to end last; it may still answer for a while."""
    describing: bool = False
    """It has been asked what it is."""
    draining_s: float | None = None

    @property
    def boot(self) -> str:
        """Which life of the worker this is; empty before its first answer."""
        return "" if self.info is None else self.info.boot

    @property
    def remaining(self) -> int:
        """Input bytes that are still to be read in its jobs."""
        return sum(entry.remaining for entry in self.jobs.values())

    def takes(self, file_format: str, slots: int) -> bool:
        """Whether it can be given a job of this format now."""
        return (
            self.phase is WorkerPhase.READY
            and len(self.jobs) < slots
            and self.info is not None
            and file_format in self.info.formats
        )


Policy = Callable[[Sequence[Worker]], Worker]
"""Picks one of several workers that can take a job."""


def least_occupied(workers: Sequence[Worker]) -> Worker:
    """The one with the least input left to read; of equal ones, that with fewer files so far."""
    return min(workers, key=lambda w: (w.remaining, len(w.jobs), w.given, w.id))


def round_robin(workers: Sequence[Worker]) -> Worker:
    """The one whose turn it is: that which has been given the fewest."""
    return min(workers, key=lambda w: (w.given, w.id))


POLICIES: Final[dict[str, Policy]] = {
    "least-occupied": least_occupied,
    "round-robin": round_robin,
}
