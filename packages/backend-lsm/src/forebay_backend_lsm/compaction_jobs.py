"""Tracks pending compaction jobs: submitted, and not installed yet.

A manifest names the jobs that were pending when it was written, each with everything needed to
submit it again, so that any process can continue from there. Times are times of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs

from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.checksummed import TornObjectError, known_fields
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.object_storage import ObjectNotFoundError, checked_name
from forebay_state_api.errors import CorruptStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_state_api.contract.compaction_job import CompactionResult
    from forebay_state_api.contract.files import StateFile
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class PendingJob:
    """A pending job that a manifest names."""

    job: CompactionJob
    alive_us: int
    """The time of the micro-batch that last saw a sign of life, or that submitted the job;
    `NO_TIME` if that micro-batch had no time."""
    heartbeats: int = 0
    """Heartbeat objects seen so far, of all runs together."""
    run: str = ""
    """`Opening.run` of the query that submitted the job."""
    failures: int = 0
    """Earlier attempts at this work, in that run, that failed for a reason that may be final."""
    relieved_bytes: int = 0
    """Bytes that commits have compacted themselves while this work waited to run."""

    @property
    def is_overdue(self) -> bool:
        """Whether waiting for the job has made commits write more than the job would read."""
        return self.relieved_bytes > sum(file.size for file in self.job.inputs)

    def to_plain(self) -> dict[str, Any]:
        """Return dicts, lists, strings and numbers only."""
        return {**attrs.asdict(self, recurse=False), "job": self.job.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the pending job that `to_plain` described."""
        alive_us = plain["alive_us"] or NO_TIME  # older state has 0 for no time
        return cls(
            **{
                **known_fields(cls, plain),
                "alive_us": alive_us,
                "job": CompactionJob.from_plain(plain["job"]),
            }
        )

    def seen_alive(self, now_us: int) -> PendingJob:
        """Return the job with a sign of life in the micro-batch at ``now_us``."""
        return attrs.evolve(self, alive_us=now_us) if now_us != NO_TIME else self

    def looked_for(
        self, storage: ObjectStorage, now_us: int, timeout_s: float
    ) -> PendingJob | None:
        """Return the job as of ``now_us``; ``None`` if it gave no sign of life within the timeout.

        Lists heartbeats on storage only after the timeout. Without a time, assumes it is alive.
        """
        if now_us == NO_TIME:
            return self
        if self.alive_us == NO_TIME:
            return self.seen_alive(now_us)
        if now_us - self.alive_us < timeout_s * 1e6:
            return self
        heartbeats = self.job.heartbeats(storage)
        if heartbeats == self.heartbeats:
            return None
        return attrs.evolve(self, alive_us=now_us, heartbeats=heartbeats)


def found_result(job: CompactionJob, storage: ObjectStorage) -> CompactionResult | None:
    """Return a job's verified result; ``None`` while the result object is missing or incomplete.

    Raises `CorruptStateError` for a result that was altered or that contradicts the job.
    """
    try:
        result = job.stored_result(storage)
    except (ObjectNotFoundError, TornObjectError):
        return None
    sizes = {info.name: info.size for info in storage.list(job.output_prefix)}
    if fault := fault_of(job, result, sizes):
        raise CorruptStateError(
            f"the compaction result {job.result_name} in {storage.url} cannot be installed: "
            f"{fault}. The files that it was made from are untouched: delete this object, and the "
            "job runs again after its timeout"
        )
    return result


def fault_of(job: CompactionJob, result: CompactionResult, sizes: Mapping[str, int]) -> str:
    """Describe how the result contradicts the job; return an empty string if it does not.

    ``sizes`` are the sizes in bytes of the objects below the job's prefix, by name.
    """
    if result.entries_in != result.entries_out + result.entries_dropped:
        return (
            f"{result.entries_in} entries went in, {result.entries_out} came out and "
            f"{result.entries_dropped} were dropped"
        )
    if len({file.name for file in result.outputs}) != len(result.outputs):
        return "an output is named twice"
    if entries := _counted_wrongly(job, result):
        return entries
    return next(filter(None, (_file_fault(job, file, sizes) for file in result.outputs)), "")


def _counted_wrongly(job: CompactionJob, result: CompactionResult) -> str:
    given = sum(file.meta.get("entries", 0) for file in job.inputs)
    if result.entries_in > given:
        return f"{result.entries_in} entries went in, but the inputs hold {given}"
    written = sum(file.meta.get("entries", 0) for file in result.outputs)
    if written != result.entries_out:
        return f"{result.entries_out} entries came out, but the outputs hold {written}"
    return ""


def _file_fault(job: CompactionJob, file: StateFile, sizes: Mapping[str, int]) -> str:
    if not _is_below(file.name, job.output_prefix):
        return f"{file.name} is not below the job's prefix {job.output_prefix}"
    if sizes.get(file.name) != file.size:
        found = f"has {sizes[file.name]} bytes" if file.name in sizes else "is missing"
        return f"{file.name} of {file.size} bytes {found}"
    if file.range.start < job.range.start or file.range.end > job.range.end:
        return f"{file.name} is for key groups {file.range}, and the job for {job.range}"
    return ""


def _is_below(name: str, prefix: str) -> bool:
    try:
        return checked_name(name).startswith(prefix)
    except ValueError:  # not a valid object name
        return False


def outputs_of(job: CompactionJob, result: CompactionResult) -> Sequence[StateFile]:
    """Return the outputs as a manifest names them, each with the id of its job for `layers_of`."""
    return [attrs.evolve(f, meta={**f.meta, "job": job.id}) for f in result.outputs]
