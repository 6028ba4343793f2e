"""Jobs and results survive the conversion to plain data for manifests and messages."""

from __future__ import annotations

import msgpack

from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange

FILE = StateFile(name="f", size=7, range=KeyGroupRange(3, 9), meta={"entries": 2})


def test_a_job_survives_a_wire() -> None:
    job = CompactionJob(
        id="j1",
        operator="q/count",
        format="toy",
        inputs=[FILE],
        output_prefix="compacted/j1/",
        range=KeyGroupRange(0, 63),
        now_us=5,
        target_bytes=100,
        options={"bits": 10},
    )
    assert CompactionJob.from_plain(msgpack.unpackb(msgpack.packb(job.to_plain()))) == job
    assert job.result_name == "compacted/j1/result"
    newer = {**job.to_plain(), "of a later one": 1}
    newer["inputs"] = [{**file, "of a later one": 1} for file in newer["inputs"]]
    assert CompactionJob.from_plain(newer) == job


def test_a_result_survives_a_wire() -> None:
    counts = {"entries_in": 3, "entries_out": 2, "entries_dropped": 1}
    result = CompactionResult(outputs=[FILE], dropped={"expired": 1}, **counts)
    wired = msgpack.unpackb(msgpack.packb(result.to_plain()))
    assert CompactionResult.from_plain(wired) == result


def test_a_result_of_another_release_is_understood() -> None:
    counts = {"entries_in": 3, "entries_out": 2, "entries_dropped": 1}
    result = CompactionResult(outputs=[], **counts)
    plain = result.to_plain()
    assert CompactionResult.from_plain({**plain, "of a later one": 1}) == result
    del plain["dropped"]
    assert CompactionResult.from_plain(plain) == result
