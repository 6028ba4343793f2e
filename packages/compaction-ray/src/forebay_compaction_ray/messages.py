"""Messages between client and gateway, and between gateway and workers."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import attrs

from forebay_compaction_ray.protocol import MalformedMessageError, pack
from forebay_state_api.contract.checksummed import typed_fields
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase


class Message(attrs.AttrsInstance):
    """The content of a message. The converters of its fields refuse what they cannot read."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a message."""
        shallow = attrs.asdict(self, recurse=False)
        return {name: _plain_value(value) for name, value in shallow.items()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the content of a message; raises `MalformedMessageError`.

        Fields that this release does not know are left out: a newer one may send more.
        """
        try:
            return cls(**typed_fields(cls, plain))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise MalformedMessageError(f"a malformed {cls.__name__}: {error!r}") from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, CompactionJob):
        return value.to_plain()
    return value.value if isinstance(value, enum.Enum) else value


def _job(given: CompactionJob | Mapping[str, Any]) -> CompactionJob:
    return given if isinstance(given, CompactionJob) else CompactionJob.from_plain(given)


def _names(given: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"{given!r} is not a list of names")
    return tuple(given)


def _counts(given: Mapping[str, int]) -> dict[str, int]:
    for event, count in given.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{event} was counted {count!r} times")
    return dict(given)


def _described(given: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {name: dict(description) for name, description in given.items()}


def _marks(given: Mapping[str, str]) -> dict[str, str]:
    for name, mark in given.items():
        if not isinstance(mark, str):
            raise TypeError(f"the mark of {name!r} is {mark!r}, not text")
    return dict(given)


@attrs.frozen(kw_only=True)
class Hello(Message):
    """A client's events since its last message that was answered."""

    events: Mapping[str, int] = attrs.field(factory=dict, converter=_counts)
    """Event, as in `EVENTS` → count."""
    marks: Mapping[str, str] = attrs.field(factory=dict, converter=_marks)
    """Storage → the mark that the client reads there, or an empty string. A gateway that knows a
    different mark reads again before it answers."""


@attrs.frozen(kw_only=True)
class Greeting(Message):
    """A gateway's description of itself, for clients: the answer to `Hello`."""

    boot: str
    """A random id of the gateway's process."""
    state: str
    """``serving``, or ``draining`` if it takes no more jobs."""
    workers: int = attrs.field(converter=int)
    """Workers that are able to work."""
    formats: tuple[str, ...] = attrs.field(default=(), converter=_names)
    storages: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict, converter=_described)
    """Name → ``root``, where it is, for people; its ``mark``; the ``problem`` with it, if any."""
    limits: Mapping[str, int] = attrs.field(factory=dict, converter=_counts)


@attrs.frozen(kw_only=True)
class Submission(Message):
    """A job, and where it may run."""

    job: CompactionJob = attrs.field(converter=_job)
    storage: str
    """Name of the gateway's storage that holds the job's files."""
    avoid: tuple[str, ...] = attrs.field(default=(), converter=_names)
    """Workers that have failed the job, as in `JobView.worker`; another worker is used if there is
    one."""
    digest: str = ""
    """The job's digest as its owner computes it. A different digest means that a field is unknown
    here."""

    @property
    def work(self) -> str:
        """Identifies the work, independently of the submitter and the attempt."""
        return f"{self.storage}/{attrs.evolve(self.job, output_prefix='').digest}"

    @property
    def bytes_in(self) -> int:
        """Bytes of all inputs."""
        return sum(file.size for file in self.job.inputs)

    @property
    def is_of_newer_release(self) -> bool:
        """Whether the job has fields that this release does not know. Running it would be wrong."""
        return bool(self.digest) and self.digest != self.job.digest

    def excess(self, limits: Mapping[str, int]) -> str:
        """Return the limits of a gateway that the job exceeds, as text; empty if there are none."""
        for name, most in limits.items():
            size, unit = self._size(name)
            if size > most:
                return f"{size} {unit}, at most {most}"
        return ""

    def _size(self, limit: str) -> tuple[int, str]:
        match limit:
            case "inputs":
                return len(self.job.inputs), "inputs"
            case "job_bytes":
                return self.bytes_in, "bytes of input"
            case "message_bytes":
                return len(pack(self.to_plain())), "bytes of description"
        return 0, ""  # of a newer release


@attrs.frozen(kw_only=True)
class JobView(Message):
    """The state of a job at a gateway."""

    job_id: str
    phase: CompactionPhase = attrs.field(converter=CompactionPhase)
    fault: CompactionFault | None = attrs.field(
        default=None, converter=attrs.converters.optional(CompactionFault)
    )
    message: str = ""
    worker: str = ""
    """Identifies the worker's incarnation that has the job, or had it; empty before one has."""
    node: str = ""
    """The worker's machine: workers of one share its mounts and its faults."""
    code: str = ""
    """A code for the cause, where no worker ended the job or the job is not at fault."""


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a job on a worker that survived to report it.

    Its phase is `DONE`, `FAILED` or `ABORTED`.
    """

    phase: CompactionPhase
    fault: CompactionFault | None = None
    message: str = ""
    code: str = ""
    """A code for the cause, where the job is not at fault, as in `JobView.code`."""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker's process meanwhile: a compactor may use its own threads."""
    entries_in: int = 0
    entries_dropped: int = 0
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    """Dropped entries by cause, as in `CompactionResult.dropped`."""


NO_STORAGE: Final = "no_storage"
"""The code of a worker that does not have the directory of the job's storage."""
TAKEN_PREFIX: Final = "taken_prefix"
"""The code of a job whose prefix holds something damaged, or another job's."""
OLDER_RELEASE: Final = "older_release"
"""The code of a gateway or worker that does not know a field of the job."""


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """A worker's description of itself when it is up."""

    boot: str
    """A random id of this incarnation of the worker."""
    pid: int
    node: str
    version: str
    formats: tuple[str, ...]
    """File formats for which a compactor is installed on the worker."""
    problems: Mapping[str, str] = attrs.field(factory=dict)
    """Storage → why the worker takes no jobs for it; only storages with a problem."""


@attrs.frozen(kw_only=True)
class JobProgress:
    """A worker's progress with a job."""

    bytes_in: int
    steps: int
    """Number of times that the compactor has asked whether to continue."""
