"""The contract of compactors, and how every service runs one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
    from forebay_state_api.contract.files import StateFile
    from forebay_state_api.contract.object_storage import ObjectStorage


class Compactor(Protocol):
    """Rewrites files of one format. Stateless; may run several jobs on several threads."""

    format: ClassVar[str]
    """What `CompactionJob.format` says of the files it can read."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that it was written for."""

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        """Read the inputs and write outputs under ``job.output_prefix``.

        ``storage`` is rooted at the operator's directory. Asks ``cancelled`` now and then, at
        least once a block, and returns ``None`` soon after it says yes; what it wrote until then
        is the janitor's. Raises `StorageError` for what may succeed later, `CorruptStateError` for
        inputs that are not what was written.
        """


@runtime_checkable
class VerifyingCompactor(Protocol):
    """A compactor that can also tell whether a file of its format is whole."""

    def verify(self, file: StateFile, storage: ObjectStorage) -> None:
        """Raise `CorruptStateError` unless ``file`` is what its name, size and meta say.

        Reads what opening the file would read. ``storage`` is rooted at the operator's directory.
        """
