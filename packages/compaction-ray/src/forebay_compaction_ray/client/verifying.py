"""Reads what a job wrote before it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forebay_compaction_ray.options import FULL, RESULT
from forebay_state_api.compaction import (
    CompactionJob,
    CompactionResult,
    Compactor,
    VerifyingCompactor,
)
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.sealed import unseal
from forebay_state_api.storage import ObjectStorage


class Verifier:
    """Verifies results to the degree that the settings ask for."""

    def __init__(
        self, storage: ObjectStorage, find_compactor: Callable[[str], Compactor], degree: str
    ) -> None:
        """``storage`` is the state directory."""
        self._storage: Final = storage
        self._find: Final = find_compactor
        self._degree: Final = degree

    def stored_result(self, job: CompactionJob) -> CompactionResult:
        """What the job left; raises `StorageError`, `CorruptStateError`."""
        name = f"{job.result_name} of {job.operator} in {self._storage.url}"
        plain = unseal(self._storage.child(job.operator).get(job.result_name), name)
        try:
            return CompactionResult.from_plain(plain)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"the compaction result {name} is not one: {error!r}"
            ) from error

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:
        """Raise `CorruptStateError` for an output that is not what the result says."""
        compactor = self._find(job.format)
        if self._degree == RESULT or not isinstance(compactor, VerifyingCompactor):
            return
        here = self._storage.child(job.operator)
        for file in result.outputs:
            compactor.verify(file, here, full=self._degree == FULL)
