"""Running a job: heartbeats while it runs, the result object last."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import ClassVar

import attrs

from forebay_state_api.compaction.performing import perform
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

JOB = CompactionJob(
    id="j",
    operator="q/u",
    format="slow",
    inputs=[],
    output_prefix="data/p/",
    range=KeyGroupRange(0, 1),
    now_us=0,
    target_bytes=1,
    heartbeat_s=10,
)


@attrs.define
class Slow:
    """Checks for cancellation ``asks`` times, ``step_s`` apart, and returns an empty result."""

    format: ClassVar[str] = "slow"
    asks: int
    step_s: float
    time_s: float = 0.0

    def clock(self) -> float:
        return self.time_s

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        del job, storage
        for _ in range(self.asks):
            self.time_s += self.step_s
            if cancelled():
                return None
        return CompactionResult(outputs=[], entries_in=0, entries_out=0, entries_dropped=0)


def run(compactor: Slow, cancelled: Callable[[], bool] = lambda: False) -> list[str]:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    done = perform(JOB, compactor, storage, cancelled, clock=compactor.clock)
    names = [info.name for info in storage.child("q/u").list()]
    assert done is (JOB.result_name in names)
    return [name.removeprefix("data/p/") for name in names]


def test_a_short_job_leaves_no_heartbeat() -> None:
    assert run(Slow(asks=3, step_s=3)) == ["result"]


def test_a_heartbeat_whenever_its_time_has_come() -> None:
    assert run(Slow(asks=25, step_s=1)) == ["heartbeat-000001", "heartbeat-000002", "result"]


def test_a_job_that_was_cancelled_has_no_result() -> None:
    compactor = Slow(asks=40, step_s=1)
    assert run(compactor, lambda: compactor.time_s > 15) == ["heartbeat-000001"]


class Copying(Slow):
    """Copies its input."""

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        (file,) = job.inputs
        storage.put(f"{job.output_prefix}0000", storage.get(file.name))
        assert [info.name for info in storage.list("from/other/u/data")] == [file.name]
        return super().compact(job, storage, cancelled)


def test_a_job_of_a_fork_reads_files_of_its_source() -> None:
    storage = open_storage(f"memory://{uuid.uuid4().hex}")
    storage.put("other/u/data/p/x", b"content")
    file = StateFile(name="from/other/u/data/p/x", size=7, range=KeyGroupRange(0, 1))
    job = attrs.evolve(JOB, inputs=[file])
    assert perform(job, Copying(asks=1, step_s=1), storage, lambda: False)
    assert storage.get("q/u/data/p/0000") == b"content"
