"""Workers and jobs as the gateway sees them, and which worker gets the next job."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from forebay_compaction_ray.gateway.pool import WorkerHandle
from forebay_compaction_ray.messages import JobProgress, JobView, Submission, WorkerInfo
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

_NO_PROGRESS = JobProgress(bytes_in=0, bytes_out=0, age_s=0.0)


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
    jobs: dict[str, GatewayJob] = attrs.field(factory=dict)
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


@attrs.define(eq=False, kw_only=True)
class GatewayJob:
    """A job that was taken. It ends once; whatever a worker tells later is ignored."""

    submission: Submission
    work: str
    submitted_s: float
    asked_s: float
    """When somebody last asked about it: the lease counts from here."""
    watched: bool = False
    """Whether a client that did not submit it has asked about it."""
    phase: CompactionPhase = CompactionPhase.QUEUED
    worker: Worker | None = None
    started_s: float | None = None
    abort_asked_s: float | None = None
    fault: CompactionFault | None = None
    code: str = ""
    message: str = ""
    progress: JobProgress = _NO_PROGRESS
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def id(self) -> str:
        """The key under which it is known."""
        return self.submission.job.id

    @property
    def remaining(self) -> int:
        """Input bytes that are still to be read."""
        return max(0, self.submission.bytes_in - self.progress.bytes_in)

    def view(self, *, position: int, boot: str) -> JobView:
        """What a poll answers."""
        return JobView(
            job_id=self.id,
            attempt=self.submission.job.attempt,
            phase=self.phase,
            started=self.started_s is not None,
            position=position,
            worker="" if self.worker is None else self.worker.id,
            bytes_in=self.progress.bytes_in,
            bytes_out=self.progress.bytes_out,
            age_s=self.progress.age_s,
            fault=self.fault,
            code=self.code,
            message=self.message,
            boot=boot,
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
