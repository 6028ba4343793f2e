"""A compaction service without a thread: a job is done when ``submit`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from forebay_engine.compaction.local_service import FindCompactor, run_here
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.compaction_service import (
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.plugins import plugins

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob
    from forebay_state_api.contract.object_storage import ObjectStorage


class ImmediateCompaction(CompactionService):
    """Runs each job within `submit`, or holds it until `run`, so that tests are repeatable."""

    name: ClassVar[str] = "immediate"
    contract_version: ClassVar[int] = CONTRACT_VERSION

    def __init__(
        self,
        storage: ObjectStorage,
        find_compactor: FindCompactor | None = None,
        *,
        hold: bool = False,
    ) -> None:
        """Run jobs in ``storage``, the state directory; with ``hold`` only when `run` is called."""
        self._storage: Final = storage
        self._find_compactor = find_compactor
        self.hold = hold
        self.submitted: Final[list[CompactionJob]] = []
        """Every job, in the order of submission."""
        self.discarded: Final[list[str]] = []
        """The id of every job whose result was found to be stale."""
        self._statuses: dict[str, CompactionStatus] = {}

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> Self:
        """Return a service that does not hold; there are no options."""
        del options
        return cls(storage)

    def submit(self, job: CompactionJob) -> None:
        if job.id in self._statuses:
            return
        self.submitted.append(job)
        self._set(job, CompactionPhase.QUEUED)
        if not self.hold:
            self.run(job)

    def run(self, job: CompactionJob) -> None:
        """Run a job now, whatever its phase was."""
        find = self._find_compactor or plugins().compactor
        self._statuses[job.id] = run_here(job, find, self._storage, lambda: False)

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        """Return the status of a job at once: nothing happens while a caller waits."""
        del timeout_s
        return self._statuses.get(job_id, CompactionStatus(job_id, CompactionPhase.UNKNOWN))

    def abort(self, job_id: str) -> None:
        status = self._statuses.get(job_id)
        if status is not None and not status.phase.ended:
            self._statuses[job_id] = CompactionStatus(job_id, CompactionPhase.ABORTED)

    def release(self, job_id: str) -> None:
        self._statuses.pop(job_id, None)

    def discard(self, job_id: str) -> None:
        self.discarded.append(job_id)
        self.release(job_id)

    def forget(self) -> None:
        """Forget all jobs, like the service of a new process."""
        self._statuses.clear()

    def close(self) -> None:
        for job_id in list(self._statuses):
            self.abort(job_id)

    def _set(self, job: CompactionJob, phase: CompactionPhase) -> None:
        self._statuses[job.id] = CompactionStatus(job.id, phase)
