"""The methods that a third party's service need not define."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import (
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.contract.object_storage import ObjectStorage


class Least(CompactionService):
    """Implements only the abstract methods of the contract."""

    name: ClassVar[str] = "least"
    contract_version: ClassVar[int] = CONTRACT_VERSION

    def __init__(self) -> None:
        self.released: list[str] = []

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> CompactionService:
        return cls()

    def submit(self, job: CompactionJob) -> None:
        pass

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        return CompactionStatus(job_id, CompactionPhase.UNKNOWN)

    def abort(self, job_id: str) -> None:
        pass

    def release(self, job_id: str) -> None:
        self.released.append(job_id)

    def close(self) -> None:
        pass


def test_a_service_that_has_only_what_is_abstract_releases_stale_jobs_and_tells_nothing() -> None:
    service = Least()
    service.discard("stale")
    assert service.released == ["stale"]
    assert service.metrics() == {}
    service.detach()
