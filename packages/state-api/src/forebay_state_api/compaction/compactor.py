"""The contract of compactors, and how every service runs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol

from forebay_state_api.sealed import seal

if TYPE_CHECKING:
    from forebay_state_api.compaction.job import CompactionJob, CompactionResult
    from forebay_state_api.storage import ObjectStorage


class Compactor(Protocol):
    """Rewrites files of one format. Stateless; may run several jobs on several threads."""

    format: ClassVar[str]
    """What `CompactionJob.format` says of the files it can read."""

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        """Read the inputs and write outputs under ``job.output_prefix``.

        ``storage`` is rooted at the operator's directory. Asks ``cancelled`` now and then, at
        least once a block, and returns ``None`` soon after it says yes; what it wrote until then
        is the janitor's. Raises `StorageError` for what may succeed later, `CorruptStateError` for
        inputs that are not what was written.
        """


def perform(
    job: CompactionJob,
    compactor: Compactor,
    storage: ObjectStorage,
    cancelled: Callable[[], bool],
) -> bool:
    """Run a job where the caller stands; every service does it through this function.

    ``storage`` is the state directory. Returns whether the job was done; then its result object
    is durable, written after all outputs.
    """
    here = storage.child(job.operator)
    result = compactor.compact(job, here, cancelled)
    if result is None:
        return False
    here.put_if_absent(job.result_name, seal(result.to_plain()))
    return True
