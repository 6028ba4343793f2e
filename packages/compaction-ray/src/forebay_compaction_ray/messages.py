"""Messages between client and gateway, and between gateway and workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
import msgpack
import xxhash

from forebay_compaction_ray.protocol import MalformedMessageError
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase


@attrs.frozen(kw_only=True)
class Greeting:
    """A gateway's description of itself, for clients: the answer to `Hello`."""

    boot: str
    """Differs for each process of the gateway."""
    state: str
    """``serving``, or ``draining`` if it takes no more jobs."""
    workers: int
    """Workers that are able to work."""
    formats: tuple[str, ...] = ()
    storages: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)
    """Name → ``root``, where it is, for people; its ``mark``; the ``problem`` with it, if any."""
    limits: Mapping[str, int] = attrs.field(factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a message."""
        return attrs.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the description in a message; raises `MalformedMessageError`."""
        try:
            storages = dict(plain.get("storages", {}))
            return cls(
                boot=str(plain["boot"]),
                state=str(plain["state"]),
                workers=int(plain["workers"]),
                formats=tuple(map(str, plain.get("formats", ()))),
                storages={name: dict(storage) for name, storage in storages.items()},
                limits={name: int(most) for name, most in dict(plain.get("limits", {})).items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedMessageError(f"a malformed description: {error!r}") from error


def events_from_plain(plain: object) -> dict[str, int]:
    """Return the events that a `Hello` reports, each with its count.

    Raises `MalformedMessageError` for anything but whole numbers of events.
    """
    if not isinstance(plain, dict):
        raise MalformedMessageError(f"malformed events: a map of counts, not {plain!r}")
    for event, count in plain.items():
        if type(count) is not int or count < 0:
            raise MalformedMessageError(f"malformed events: {event} was counted {count!r} times")
    return plain


@attrs.frozen(kw_only=True)
class Submission:
    """A job and its owner."""

    job: CompactionJob
    storage: str
    """Name of the gateway's storage that holds the job's files."""
    client: str
    """The submitting client: limits are counted per client."""
    avoid: tuple[str, ...] = ()
    """Workers that have judged the job, as in `JobView.worker`; another one is asked, if any."""

    @property
    def work(self) -> str:
        """Identifies the work, independently of the submitter and the attempt."""
        plain = self.job.to_plain()
        for name in ("id", "attempt", "output_prefix"):
            del plain[name]
        packed = msgpack.packb([self.storage, plain], use_bin_type=True)
        return xxhash.xxh3_128_hexdigest(packed)

    @property
    def bytes_in(self) -> int:
        """Bytes of all inputs."""
        return sum(file.size for file in self.job.inputs)

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a message."""
        return {
            "job": self.job.to_plain(),
            "storage": self.storage,
            "client": self.client,
            "avoid": list(self.avoid),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the submission of a message; raises `MalformedMessageError`."""
        try:
            return cls(
                job=CompactionJob.from_plain(plain["job"]),
                storage=str(plain["storage"]),
                client=str(plain["client"]),
                avoid=tuple(map(str, plain.get("avoid", ()))),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MalformedMessageError(f"a malformed submission: {error!r}") from error


@attrs.frozen(kw_only=True)
class JobView:
    """The state of a job at a gateway."""

    job_id: str
    phase: CompactionPhase
    fault: CompactionFault | None = None
    message: str = ""
    worker: str = ""
    """Identifies the worker's incarnation that has the job, or had it; empty before one has."""
    code: str = ""
    """A word for the cause of an end that is not the work of a worker."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for a message."""
        fault = None if self.fault is None else self.fault.value
        return {**attrs.asdict(self), "phase": self.phase.value, "fault": fault}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the state in a message; raises `MalformedMessageError`.

        Fields that this release does not know are left out: a newer one may send more.
        """
        try:
            names = {field.name for field in attrs.fields(cls)}
            known = {name: value for name, value in plain.items() if name in names}
            known["phase"] = CompactionPhase(known["phase"])
            if known.get("fault") is not None:
                known["fault"] = CompactionFault(known["fault"])
            return cls(**known)
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedMessageError(f"a malformed job state: {error!r}") from error


@attrs.frozen(kw_only=True)
class Outcome:
    """The outcome of a job on a worker that survived to report it.

    Its phase is `DONE`, `FAILED` or `ABORTED`.
    """

    phase: CompactionPhase
    fault: CompactionFault | None = None
    message: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker's process meanwhile: a compactor may use its own threads."""
    entries_in: int = 0
    entries_dropped: int = 0
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    """Dropped entries by cause, as in `CompactionResult.dropped`."""


@attrs.frozen(kw_only=True)
class WorkerInfo:
    """A worker's description of itself when it is up."""

    boot: str
    """Differs for each incarnation of a worker."""
    pid: int
    node: str
    version: str
    formats: tuple[str, ...]
    """File formats for which a compactor is installed on the worker."""
    node_id: str = ""
    """The node, as `Pool.lost_nodes` names it."""
    problems: Mapping[str, str] = attrs.field(factory=dict)
    """Storage → why the worker takes no jobs for it; only storages with a problem."""


@attrs.frozen(kw_only=True)
class JobProgress:
    """A worker's progress with a job."""

    bytes_in: int
    age_s: float
    """Seconds since the compactor last asked whether to continue."""


@attrs.frozen(kw_only=True)
class Pulse:
    """A worker's answer to a ping."""

    boot: str
    jobs: Mapping[str, JobProgress]
