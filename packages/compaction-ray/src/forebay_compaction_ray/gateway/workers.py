"""Workers and jobs as the gateway sees them, and which worker gets the next job."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from forebay_compaction_ray.gateway.worker_handle import WorkerHandle
from forebay_compaction_ray.messages import JobProgress, JobView, Submission, WorkerInfo
from forebay_state_api.contract.compaction_service import CompactionPhase

_NO_PROGRESS = JobProgress(bytes_in=0, steps=0)
_NOT_UP = WorkerInfo(boot="", pid=0, node="", version="", formats=())


class WorkerPhase(enum.Enum):
    """The state of a worker."""

    STARTING = "starting"
    """It has not answered since its start."""
    READY = "ready"
    UNFIT = "unfit"
    """It is up, but can use no storage; it gets no jobs until it can."""
    SUSPECT = "suspect"
    """It does not answer pings; it gets no jobs, and is killed if that continues."""
    DRAINING = "draining"
    """It ends as soon as its jobs are done."""


@attrs.define(eq=False, kw_only=True)
class Worker:
    """One worker's process. If it ends, another worker takes its place."""

    id: str
    handle: WorkerHandle
    seen_s: float
    """The time of its last answer, or of its start."""
    phase: WorkerPhase = WorkerPhase.STARTING
    info: WorkerInfo = _NOT_UP
    jobs: dict[str, GatewayJob] = attrs.field(factory=dict)
    turn: int = 0
    """Number of the last job that it got, among all jobs of the gateway."""
    done: int = 0
    """Number of jobs that it has completed."""
    error: str = ""
    """The last error of the worker, or of its predecessor."""
    error_s: float = 0.0
    """The time of that error."""
    pinged: bool = False
    """Whether a ping is in progress."""
    describing: bool = False
    """Whether a request for its description is in progress."""
    draining_s: float | None = None

    @property
    def remaining(self) -> int:
        """Input bytes of its jobs that are still to be read."""
        return sum(entry.remaining for entry in self.jobs.values())

    def suits(self, submission: Submission) -> bool:
        """Return whether it is up and could run such a job, now or later."""
        return (
            self.phase in (WorkerPhase.READY, WorkerPhase.SUSPECT)
            and submission.job.format in self.info.formats
            and submission.storage not in self.info.problems
        )

    def has_room(self, slots: int) -> bool:
        """Return whether it can be given another job now."""
        return self.phase is WorkerPhase.READY and len(self.jobs) < slots

    def still_s(self, now_s: float) -> float:
        """Return the longest time, in seconds, for which one of its jobs has made no progress."""
        return max((now_s - entry.moved_s for entry in self.jobs.values()), default=0.0)

    def to_plain(self, now_s: float) -> dict[str, Any]:
        """Describe the worker, for display."""
        return {
            **attrs.asdict(self.info),
            "id": self.id,
            "state": self.phase.value,
            "jobs": list(self.jobs),
            "done": self.done,
            "error": self.error,
            "error_age_s": round(now_s - self.error_s, 3) if self.error else 0.0,
            "remaining": self.remaining,
            "silent_s": round(now_s - self.seen_s, 3),
        }


@attrs.define(eq=False, kw_only=True)
class GatewayJob:
    """A job that the gateway has taken. It ends once; later reports of a worker are ignored."""

    submission: Submission
    asked_s: float
    """The time of a client's last request about it, at which the lease begins."""
    view: JobView
    """The answer to a poll."""
    worker: Worker | None = None
    """The worker that got it."""
    abort_asked_s: float | None = None
    progress: JobProgress = _NO_PROGRESS
    moved_s: float = 0.0
    """The time of the last change of its progress, or at which a worker got the job."""
    submitted_s: float = attrs.field(factory=time.monotonic)
    ended: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.submission.job.id

    @property
    def remaining(self) -> int:
        """Input bytes that are still to be read."""
        return max(0, self.submission.bytes_in - self.progress.bytes_in)

    @property
    def phase(self) -> CompactionPhase:
        """The phase of the job, as in the answer to a poll."""
        return self.view.phase


Policy = Callable[[Sequence[Worker]], Worker]
"""Picks one of several workers that can take a job."""


def least_occupied(workers: Sequence[Worker]) -> Worker:
    """Pick the worker with the least input left to read, then with the fewest jobs."""
    return min(workers, key=lambda w: (w.remaining, len(w.jobs), w.turn, w.id))


def round_robin(workers: Sequence[Worker]) -> Worker:
    """Pick the worker whose last job is longest ago; a new one has its turn next."""
    return min(workers, key=lambda w: (w.turn, w.id))


POLICIES: Final[dict[str, Policy]] = {
    "least-occupied": least_occupied,
    "round-robin": round_robin,
}
