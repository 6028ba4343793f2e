"""A worker process for tests that kill it: runs micro-batches or the janitor, and reports progress.

The variable ``GIVEN`` holds its instructions and the ends of two pipes. Before or after a request
that matches ``stop`` it sends ``STOPPED`` and waits until it is killed or receives a message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import attrs

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.layers import layers_of
from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_engine.versions import Janitor, RunIdentity
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.epochs import list_epochs
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob, WrappedStorage

T = TypeVar("T")

TOLD: dict[str, Any] = globals()["GIVEN"][0]
HEAR: Connection = globals()["GIVEN"][1]
SAY: Connection = globals()["GIVEN"][2]

COUNT = ValueStateDescriptor("n", int)
MAX_RUNS = 4
OPTIONS = {"max-runs": MAX_RUNS, "job-timeout": 600.0}


_speaking, _hearing = threading.Lock(), threading.Lock()


def say(*words: object) -> None:
    """Send a message, from any thread."""
    with _speaking:
        SAY.send(words)


def wait() -> None:
    """Wait for the next message, in any thread."""
    with _hearing:
        HEAR.recv()


class Stopping(WrappedStorage):
    """Stops once, at the request that ``stop`` describes."""

    def __init__(self, inner: ObjectStorage, stop: dict[str, Any] | None) -> None:
        super().__init__(inner)
        self.stop = dict(stop or {})

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        if not self._matches(operation, name):
            return request()
        if self.stop.pop("when") == "before":
            self._wait(name)
            return request()
        answer = request()
        self._wait(name)
        return answer

    def _matches(self, operation: str, name: str) -> bool:
        stop = self.stop
        if "when" not in stop or not fnmatchcase(operation, stop["operation"]):
            return False
        if not fnmatchcase(name, stop["name"]):
            return False
        stop["skip"] = stop.get("skip", 0) - 1
        return bool(stop["skip"] < 0)

    def _wait(self, name: str) -> None:
        say("STOPPED", name)
        wait()


class Watched(LocalCompactionService):
    """Records the jobs submitted to it."""

    def __init__(self, storage: ObjectStorage) -> None:
        super().__init__(storage)
        self.jobs: list[str] = []

    def submit(self, job: Any) -> None:
        self.jobs.append(job.id)
        super().submit(job)

    def settle(self) -> None:
        for job_id in self.jobs:
            assert self.poll(job_id, 60).phase is not CompactionPhase.RUNNING


def job_of(storage: ObjectStorage, run: str, service: LocalCompactionService | None) -> KeyedJob:
    """Return the operator that all processes of a test work on."""
    job = KeyedJob(LsmBackend, storage, descriptors=[COUNT], options=OPTIONS, compaction=service)
    job._run = RunIdentity(keyed_uuid=run, app_id="app", run_id=None)
    return job


def batches(storage: ObjectStorage, told: dict[str, Any]) -> None:
    service = Watched(storage)
    job = job_of(storage, told["run"], service)
    job._attempts = iter(range(told["attempt"], told["attempt"] + 10_000))
    job.batch_id = told["first"]
    job.clock.advance(timedelta(minutes=told["first"]))
    for number in range(told["first"], told["first"] + told["count"]):
        job.clock.advance(timedelta(minutes=1))
        job.scripts([(f"k{number % 5}", [("n.update", number)]), ("all", [("n.update", 1)])])
        if told.get("settle"):
            service.settle()
        with open_version(job.storage, uid=job.uid) as reader:
            runs = max(len(layers_of(parent.files)) for parent in reader.parents)
        say("BATCH", number, runs)
    say("DONE")
    if told.get("linger"):
        wait()
        service.settle()
    service.close()


def sweeps(storage: ObjectStorage, told: dict[str, Any]) -> None:
    here = job_of(storage, told["run"], None).storage
    for _ in range(told["count"]):
        newest = list_epochs(here).newest()
        if newest is None:
            continue
        with open_version(here, uid="operator") as reader:
            version = reader.version
        janitor = Janitor(here, run_key=newest.run_key, retention=3, min_age=timedelta(0))
        say("SWEPT", len(attrs.asdict(janitor.sweep(version))["names"]))
    say("DONE")


def main() -> None:
    storage = Stopping(open_storage(TOLD["directory"]), TOLD.get("stop"))
    {"batches": batches, "janitor": sweeps}[TOLD["what"]](storage, TOLD)


if __name__ == "__main__":
    main()
