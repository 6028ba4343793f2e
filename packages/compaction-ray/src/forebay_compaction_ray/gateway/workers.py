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
    """The state of a worker."""

    STARTING = "starting"
    """It has not answered since its start, or since it died."""
    READY = "ready"
    SUSPECT = "suspect"
    """It does not answer pings; it gets no jobs, and is killed if that continues."""
    DRAINING = "draining"
    """It ends as soon as its jobs have ended."""


@attrs.define(eq=False, kw_only=True)
class Worker:
    """One worker."""

    id: str
    handle: WorkerHandle
    seen_s: float
    """When it last answered, or was started."""
    phase: WorkerPhase = WorkerPhase.STARTING
    info: WorkerInfo | None = None
    jobs: dict[str, GatewayJob] = attrs.field(factory=dict)
    given: int = 0
    """Number of jobs that it ever got."""
    pinged: bool = False
    """Whether a ping is in progress."""
    stalled: int = 0
    """Consecutive answers that reported a job without progress."""
    killed_boot: str = ""
    """The incarnation that was killed last; it may still answer for a while."""
    describing: bool = False
    """Whether a request for its description is in progress."""
    draining_s: float | None = None

    @property
    def boot(self) -> str:
        """Identifies the worker's incarnation; empty before its first answer."""
        return "" if self.info is None else self.info.boot

    @property
    def remaining(self) -> int:
        """Input bytes of its jobs that are still to be read."""
        return sum(entry.remaining for entry in self.jobs.values())

    def takes(self, file_format: str, slots: int) -> bool:
        """Return whether it can be given a job of this format now."""
        return (
            self.phase is WorkerPhase.READY
            and len(self.jobs) < slots
            and self.info is not None
            and file_format in self.info.formats
        )


@attrs.define(eq=False, kw_only=True)
class GatewayJob:
    """A job that the gateway has taken. It ends once; later reports of a worker are ignored."""

    submission: Submission
    work: str
    submitted_s: float
    asked_s: float
    """When a client last asked about it: the lease begins here."""
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
        """The job's id."""
        return self.submission.job.id

    @property
    def remaining(self) -> int:
        """Input bytes that are still to be read."""
        return max(0, self.submission.bytes_in - self.progress.bytes_in)

    def view(self, *, position: int, boot: str) -> JobView:
        """Return the answer to a poll."""
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
    """Pick the worker with the least input left to read, then with the fewest jobs."""
    return min(workers, key=lambda w: (w.remaining, len(w.jobs), w.given, w.id))


def round_robin(workers: Sequence[Worker]) -> Worker:
    """Pick the worker whose turn it is: the one that has been given the fewest jobs."""
    return min(workers, key=lambda w: (w.given, w.id))


POLICIES: Final[dict[str, Policy]] = {
    "least-occupied": least_occupied,
    "round-robin": round_robin,
}
