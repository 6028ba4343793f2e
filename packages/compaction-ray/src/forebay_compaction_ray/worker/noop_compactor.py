"""The compactor of empty jobs, which tests and measures a round trip."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError


class NoopCompactor:
    """Runs jobs without inputs; their results name no outputs."""

    format: ClassVar[str] = "nothing-1"
    contract_version: ClassVar[int] = 2

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        """Implement `forebay_state_api.contract.compactor.Compactor.compact`."""
        del storage
        if job.inputs:
            raise CorruptStateError(f"a job of format {self.format!r} has inputs")
        if cancelled():
            return None
        return CompactionResult(outputs=[], entries_in=0, entries_out=0, entries_dropped=0)
