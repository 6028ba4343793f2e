"""Merges sorted files in a process of its own: ``python -m benchmarks.lsm_merge``.

`benchmarks.lsm_files` starts it, with the folder as its argument and the files as JSON on standard
input. It prints its peak resident memory in MB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage


def job_of(files: Sequence[StateFile], prefix: str, groups: KeyGroupRange) -> CompactionJob:
    """Return the job that merges all files."""
    return CompactionJob(
        id=prefix,
        operator="",
        format=LsmCompactor.format,
        inputs=files,
        output_prefix=f"{prefix}/",
        range=groups,
        now_us=0,
        target_bytes=LsmOptions().target_file_bytes,
        options={"bottom": True},
    )


def peak_mb(folder: str, job: CompactionJob) -> float:
    """Return the memory that a process needs for a job, with interpreter and libraries."""
    command = [sys.executable, "-m", "benchmarks.lsm_merge", folder]
    done = subprocess.run(
        command,
        input=json.dumps(job.to_plain()),
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main(folder: str) -> None:
    """Run the job that standard input describes."""
    job = CompactionJob.from_plain(json.load(sys.stdin))
    if LsmCompactor().compact(job, open_storage(folder), lambda: False) is None:
        raise SystemExit("the job was not done")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (peak,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    print(int(peak.split()[1]) * 1024 / 1e6)


if __name__ == "__main__":
    main(sys.argv[1])
