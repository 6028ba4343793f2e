"""The contract of compaction services: where jobs run, and how to ask about them."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import attrs

if TYPE_CHECKING:
    from types import TracebackType

    from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
    from forebay_state_api.contract.object_storage import ObjectStorage


class CompactionPhase(enum.Enum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    """The result object is durable."""
    FAILED = "failed"
    ABORTED = "aborted"
    LOST = "lost"
    """It was running on a worker that is gone."""
    UNKNOWN = "unknown"
    """The service does not know the job: never submitted here, or released."""

    @property
    def ended(self) -> bool:
        """Nothing more will happen to the job here."""
        return self not in (CompactionPhase.QUEUED, CompactionPhase.RUNNING)


class CompactionFault(enum.Enum):
    """Why a job failed, by what can be done about it."""

    TRANSIENT = "transient"
    """Storage or a peer: another submission may succeed."""
    PERMANENT = "permanent"
    """A fault in the job or the compactor: another submission fails too."""
    CORRUPTION = "corruption"
    """An input is not what was written: the job's owner must learn of it."""
    UNAVAILABLE = "unavailable"
    """The service gave up, and was told that the task shall fail then: not the job's fault."""


@attrs.frozen
class CompactionStatus:
    """What `CompactionService.poll` answers."""

    job_id: str
    phase: CompactionPhase
    fault: CompactionFault | None = None
    """Of a failed job."""
    message: str = ""
    """Of a failed job: what happened."""


class CompactionService(abc.ABC):
    """Runs compaction jobs. Methods may be called from any thread."""

    name: ClassVar[str]
    """What ``spark.forebay.compaction.service`` selects; lower case."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that the class was written for."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the service: name → `forebay_state_api.settings.Setting`; users set them as
    ``spark.forebay.<prefix>.<setting>``."""
    options_prefix: ClassVar[str] = ""
    """What the names of its settings begin with; empty stands for the service's name."""
    required_option: ClassVar[str] = ""
    """A setting without which the service cannot work, and which means nothing without it."""

    @classmethod
    @abc.abstractmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> CompactionService:
        """Return a service for jobs whose ``operator`` lies in ``storage``, the state directory.

        Starts nothing that a process without jobs would have to pay for.
        """

    @abc.abstractmethod
    def submit(self, job: CompactionJob) -> None:
        """Take a job and return without waiting for it.

        A job whose id is known is not taken again. Raises `UnknownPluginError` where nothing here
        can compact its format.
        """

    @abc.abstractmethod
    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        """Return where a job stands, at the latest ``timeout_s`` seconds later.

        With a timeout it returns as soon as the job has ended.
        """

    @abc.abstractmethod
    def abort(self, job_id: str) -> None:
        """Ask a job to stop; it ends as aborted, or as whatever it had become before."""

    @abc.abstractmethod
    def release(self, job_id: str) -> None:
        """Forget a job that has ended; one that has not is aborted first. Deletes no object."""

    def discard(self, job_id: str) -> None:
        """Forget a job whose result was found, and is stale: an input of it is no longer live."""
        self.release(job_id)

    def metrics(self) -> Mapping[str, float]:
        """What the service would tell people of its work in this process: name → number.

        Each commit writes it into its manifest. Asks nobody.
        """
        return {}

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:  # noqa: B027 - most have nothing to add
        """Check a result that is about to be installed, beyond what its owner checks of any.

        Called once for a result, by the task that installs it, whether or not this object ever saw
        the job. Raises `CorruptStateError` for outputs that are not what the result says.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Abort what runs here and release what is held. Safe to call twice."""

    def __enter__(self) -> Self:
        """Return the service; it is closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the service."""
        self.close()
