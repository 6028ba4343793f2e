"""The contract of compaction services: they run jobs and report their status."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
    from forebay_state_api.contract.object_storage import ObjectStorage

__all__ = [
    "CompactionFault",
    "CompactionPhase",
    "CompactionService",
    "CompactionStatus",
    "ServiceOutage",
]


class CompactionPhase(enum.Enum):
    """The phase of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    """The result object is durable."""
    FAILED = "failed"
    ABORTED = "aborted"
    LOST = "lost"
    """It was running on a worker that no longer exists."""
    UNKNOWN = "unknown"
    """The service does not know the job: it was never submitted here, or was released."""

    @property
    def ended(self) -> bool:
        """Whether the job is done, failed or aborted."""
        return self not in (CompactionPhase.QUEUED, CompactionPhase.RUNNING)


class CompactionFault(enum.Enum):
    """The kind of a job's failure, as far as one attempt shows.

    A service reports each failed job once, and remembers it until the job is released. What follows
    is the owner's business, by one rule for all services:

    - nothing that happened in an earlier run of the query counts: the job is submitted again;
    - `TRANSIENT`: it is submitted again with the next commit, each time;
    - `PERMANENT`, `CORRUPTION`: the same, the first time. One attempt cannot distinguish a defect
      from bad luck; if a later attempt at the same work ends so in the same run, the query stops;
    - `UNAVAILABLE`: the query stops at once.
    """

    TRANSIENT = "transient"
    """Trouble of storage, a peer, the process or the moment."""
    PERMANENT = "permanent"
    """A defect of the job, the settings or the compactor."""
    CORRUPTION = "corruption"
    """An input differs from what was written."""
    UNAVAILABLE = "unavailable"
    """The service gave up and is configured to fail the task then; the job is not to blame."""


@attrs.frozen
class CompactionStatus:
    """The result of `CompactionService.poll`."""

    job_id: str
    phase: CompactionPhase
    fault: CompactionFault | None = None
    """The kind of failure, if the job failed."""
    message: str = ""
    """A description of the failure."""


@attrs.frozen(kw_only=True)
class ServiceOutage:
    """A period in which a service runs none of a process's jobs."""

    since: datetime
    """The time at which the process noticed it, in UTC."""
    why: str
    """Sentences, the last without a period: what the last job met, at which address, what becomes
    of jobs meanwhile, and what to do."""


class CompactionService(abc.ABC):
    """Runs compaction jobs. Methods may be called from any thread."""

    name: ClassVar[str]
    """The name in ``spark.forebay.compaction.service``; lower case."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that the class was written for. Each class sets it; it is not
    inherited."""
    options: ClassVar[Mapping[str, Any]] = {}
    """The service's settings: name → `forebay_state_api.settings.Setting`; users set them as
    ``spark.forebay.<prefix>.<setting>``."""
    options_prefix: ClassVar[str] = ""
    """The prefix of its settings' names; if empty, the service's name."""
    required_option: ClassVar[str] = ""
    """A setting that the service requires and that may only be set for this service."""

    @classmethod
    @abc.abstractmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> CompactionService:
        """Return a service for jobs whose ``operator`` is in ``storage``, the state directory.

        Starts nothing that would cost a process without jobs anything.
        """

    @abc.abstractmethod
    def submit(self, job: CompactionJob) -> None:
        """Accept a job and return without waiting for it.

        A job with a known id is ignored. Raises `UnknownPluginError` if no compactor for its format
        is installed.
        """

    @abc.abstractmethod
    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        """Return the status of a job, at the latest after ``timeout_s`` seconds.

        With a timeout it returns as soon as the job is done.
        """

    @abc.abstractmethod
    def abort(self, job_id: str) -> None:
        """Request a job to stop; it ends as aborted, unless it has already ended."""

    @abc.abstractmethod
    def release(self, job_id: str) -> None:
        """Forget a job; a job that has not ended is aborted first. Deletes no object."""

    def discard(self, job_id: str) -> None:
        """Forget a job whose result is stale because one of its inputs is no longer live."""
        self.release(job_id)

    def metrics(self) -> Mapping[str, float]:
        """Return metrics of the service's work in this process, by name.

        Each commit writes them into its manifest. Makes no requests.
        """
        return {}

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:  # noqa: B027 - most have nothing to add
        """Check a result that is about to be installed, beyond the owner's own checks.

        Called once for each result, by the task that installs it, even if this object never saw the
        job. Raises `CorruptStateError` for outputs that differ from the result's description.
        """

    def detach(self) -> None:  # noqa: B027 - a service may need no process
        """Wait until no submitted job needs this process: it is done, or runs elsewhere.

        Called after its commit by a task whose process ends with it, as Spark's do without
        ``spark.python.worker.reuse``; the next process that opens the state finds the results.
        Raises `StorageError` for a job that has failed as `CompactionFault.UNAVAILABLE`, which
        nobody would learn later.
        """

    def outage(self) -> ServiceOutage | None:
        """Return since when and why the service does none of this process's jobs.

        Returns ``None`` if it does some, or has had none. Asked after each commit; makes no
        requests. The runtime logs an outage once in a run of the query, so a service logs no
        warning for each job and process.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Abort the jobs that run here and release all resources. Safe to call twice."""

    def __enter__(self) -> Self:
        """Return the service; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the service."""
        self.close()
