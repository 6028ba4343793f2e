"""A job at the gateway."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from forebay_compaction_ray.messages import JobProgress, JobView, Submission
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

if TYPE_CHECKING:
    from forebay_compaction_ray.gateway.workers import Worker

_NO_PROGRESS = JobProgress(bytes_in=0, bytes_out=0, age_s=0.0)


@attrs.define(eq=False, kw_only=True)
class Entry:
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
