"""The contract of compactors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
    from forebay_state_api.contract.files import StateFile
    from forebay_state_api.contract.object_storage import ObjectStorage

__all__ = ["Compactor", "VerifyingCompactor"]


class Compactor(Protocol):
    """Rewrites files of one format. Stateless; may run several jobs on several threads."""

    format: ClassVar[str]
    """The `CompactionJob.format` of the files that it can read."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that it was written for."""

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        """Read the inputs and write outputs under ``job.output_prefix``.

        ``storage`` is rooted at the operator's directory. Calls ``cancelled`` regularly, at least
        once a block, and returns ``None`` soon after it returns true; the janitor deletes the files
        written until then. Raises `StorageError` for a failure that may not recur,
        `CorruptStateError` for inputs that differ from what was written.
        """


@runtime_checkable
class VerifyingCompactor(Protocol):
    """A compactor that can also verify a file of its format."""

    def verify(self, file: StateFile, storage: ObjectStorage) -> None:
        """Raise `CorruptStateError` unless ``file`` matches its name, size and metadata.

        It reads as much as opening it does. ``storage`` is rooted at the operator's directory.
        """
