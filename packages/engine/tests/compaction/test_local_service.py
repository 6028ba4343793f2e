"""The local compaction service, with a toy compactor that concatenates its inputs."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import ClassVar

import attrs
import pytest

from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    StorageError,
    UnknownPluginError,
)
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.plugins import Plugins
from forebay_state_api.storage.opening import open_storage

ALL = KeyGroupRange(0, 127)
PATIENCE_S = 100.0


class Concatenation:
    """Joins its inputs into one file; tests can delay it or make it fail."""

    format: ClassVar[str] = "toy"
    contract_version: ClassVar[int] = 2

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.fault: Exception | None = None
        self.threads: set[str] = set()

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        self.began.set()
        self.threads.add(threading.current_thread().name)
        while not self.go.wait(0.01):
            if cancelled():
                return None
        if self.fault is not None:
            raise self.fault
        data = b"".join(storage.get(file.name) for file in job.inputs)
        output = StateFile(name=f"{job.output_prefix}0", size=len(data), range=ALL)
        storage.put_if_absent(output.name, data)
        return CompactionResult(
            outputs=[output], entries_in=len(data), entries_out=len(data), entries_dropped=0
        )


@pytest.fixture
def compactor() -> Concatenation:
    return Concatenation()


@pytest.fixture
def storage() -> ObjectStorage:
    here = open_storage(f"memory://{uuid.uuid4().hex}", {})
    for name in ("a", "b"):
        here.put(f"q/count/{name}", name.encode())
    return here


@pytest.fixture
def service(storage: ObjectStorage, compactor: Concatenation) -> Iterator[LocalCompactionService]:
    with LocalCompactionService(storage, {"toy": compactor}.__getitem__) as opened:
        yield opened


def job(job_id: str = "j1") -> CompactionJob:
    return CompactionJob(
        id=job_id,
        operator="q/count",
        format="toy",
        inputs=[StateFile(name=name, size=1, range=ALL) for name in ("a", "b")],
        output_prefix=f"data/000000000000/compaction-{job_id.encode().hex():0>24}/",
        range=ALL,
        now_us=1_000_000,
        target_bytes=1024,
        options={"level": 1},
    )


def test_a_process_that_ends_waits_for_its_jobs(
    service: LocalCompactionService, compactor: Concatenation, monkeypatch: pytest.MonkeyPatch
) -> None:
    compactor.go.clear()
    wait_for = service._changed.wait_for

    def continues(ended: Callable[[], bool]) -> bool:
        compactor.go.set()
        return wait_for(ended)

    for job_id in ("j1", "j2"):
        service.submit(job(job_id))
    monkeypatch.setattr(service._changed, "wait_for", continues)
    service.detach()
    monkeypatch.undo()
    phases = {service.poll(job_id).phase for job_id in ("j1", "j2")}
    assert phases == {CompactionPhase.DONE}


def test_a_job_leaves_outputs_and_a_result_under_its_prefix(
    service: LocalCompactionService, storage: ObjectStorage
) -> None:
    service.submit(job())
    assert service.poll("j1", PATIENCE_S).phase is CompactionPhase.DONE
    here = storage.child("q/count")
    (output,) = job().stored_result(here).outputs
    assert here.get(output.name) == b"ab"
    assert output.range == ALL
    assert {found.name for found in here.list("")} >= {"a", "b"}


def test_a_job_for_which_no_thread_can_be_started_may_be_submitted_again(
    service: LocalCompactionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        service.submit(job())
    status = service.poll("j1")
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    service.submit(job("j2"))
    assert service.poll("j2", PATIENCE_S).phase is CompactionPhase.DONE


def test_no_thread_before_the_first_job(service: LocalCompactionService) -> None:
    def mine() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "forebay-compaction"]

    before = len(mine())
    service.poll("j1")
    assert len(mine()) == before
    service.submit(job("j1"))
    service.submit(job("j2"))
    assert len(mine()) == before + 1
    service.close()
    assert len(mine()) == before


def test_one_thread_does_all_in_order(
    service: LocalCompactionService, compactor: Concatenation
) -> None:
    compactor.go.clear()
    service.submit(job("j1"))
    service.submit(job("j2"))
    assert compactor.began.wait(PATIENCE_S)
    assert service.poll("j1").phase is CompactionPhase.RUNNING
    assert service.poll("j2", 0.01).phase is CompactionPhase.QUEUED
    compactor.go.set()
    assert service.poll("j2", PATIENCE_S).phase is CompactionPhase.DONE
    assert service.poll("j1").phase is CompactionPhase.DONE
    assert compactor.threads == {"forebay-compaction"}


def test_a_known_id_is_not_taken_again(
    service: LocalCompactionService, compactor: Concatenation
) -> None:
    service.submit(job())
    service.poll("j1", PATIENCE_S)
    compactor.began.clear()
    service.submit(job())
    assert service.poll("j1").phase is CompactionPhase.DONE
    assert not compactor.began.is_set()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (StorageError("down"), CompactionFault.TRANSIENT),
        (CorruptStateError("torn"), CompactionFault.CORRUPTION),
        (RuntimeError("bug"), CompactionFault.PERMANENT),
        (RuntimeError("can't start new thread"), CompactionFault.TRANSIENT),
        (MemoryError("no memory"), CompactionFault.TRANSIENT),
        (OSError(errno.EMFILE, "too many open files"), CompactionFault.TRANSIENT),
        (TimeoutError("late"), CompactionFault.TRANSIENT),
    ],
)
def test_a_failure_says_what_can_be_done(
    service: LocalCompactionService,
    compactor: Concatenation,
    storage: ObjectStorage,
    fault: Exception,
    kind: CompactionFault,
) -> None:
    compactor.fault = fault
    service.submit(job())
    status = service.poll("j1", PATIENCE_S)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, kind)
    assert status.message == str(fault)
    assert job().result_name not in [info.name for info in storage.child("q/count").list()]
    compactor.fault = None
    service.submit(job("j2"))
    assert service.poll("j2", PATIENCE_S).phase is CompactionPhase.DONE


def test_abort_stops_what_runs_and_what_waits(
    service: LocalCompactionService, compactor: Concatenation, storage: ObjectStorage
) -> None:
    compactor.go.clear()
    service.submit(job("j1"))
    service.submit(job("j2"))
    assert compactor.began.wait(PATIENCE_S)
    service.abort("j2")
    assert service.poll("j2").phase is CompactionPhase.ABORTED
    service.abort("j1")
    assert service.poll("j1", PATIENCE_S).phase is CompactionPhase.ABORTED
    here = storage.child("q/count")
    assert [info.name for info in here.list("data")] == [job("j1").claim_name]
    service.abort("unheard-of")


def test_a_released_job_is_unknown_and_its_objects_stay(
    service: LocalCompactionService, storage: ObjectStorage
) -> None:
    service.submit(job())
    service.poll("j1", PATIENCE_S)
    service.release("j1")
    service.release("j1")
    assert service.poll("j1", PATIENCE_S).phase is CompactionPhase.UNKNOWN
    assert job().stored_result(storage.child("q/count")).outputs


def test_close_ends_what_is_under_way(
    service: LocalCompactionService, compactor: Concatenation
) -> None:
    compactor.go.clear()
    service.submit(job("j1"))
    service.submit(job("j2"))
    service.close()
    service.close()
    assert {service.poll(name).phase for name in ("j1", "j2")} == {CompactionPhase.ABORTED}
    with pytest.raises(ValueError, match="closed"):
        service.submit(job("j3"))


def test_a_format_that_nothing_here_can_read(storage: ObjectStorage) -> None:
    with (
        LocalCompactionService(storage, Plugins(tuple).compactor) as service,
        pytest.raises(UnknownPluginError, match="compactor for the format 'nothing'"),
    ):
        service.submit(attrs.evolve(job(), format="nothing"))


def test_there_are_no_options(storage: ObjectStorage) -> None:
    with pytest.raises(ConfigurationError, match="'local' has no settings"):
        LocalCompactionService.open(storage, {"threads": 2})


@pytest.mark.long
def test_ended_jobs_are_forgotten_some_time(service: LocalCompactionService) -> None:
    jobs = [job(f"j{number}") for number in range(300)]
    for one in jobs:
        service.submit(one)
        assert service.poll(one.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert service.poll(jobs[0].id).phase is CompactionPhase.UNKNOWN
    assert service.poll(jobs[-1].id).phase is CompactionPhase.DONE


ENDS = """
import atexit, logging
from concurrent.futures import ThreadPoolExecutor
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

class UntilRefused:
    format = "toy"
    def compact(self, job, storage, cancelled):
        if job.options["bug"]:
            raise ValueError("a bug")
        with ThreadPoolExecutor(1) as pool:
            while True:
                pool.submit(int).result()

logging.basicConfig()
service = LocalCompactionService(open_storage("memory://ends", {}), {"toy": UntilRefused()}.get)
everything = KeyGroupRange(0, 127)
job = CompactionJob(
    id="j", operator="q/o", format="toy", inputs=[], range=everything,
    output_prefix=f"data/{'0' * 12}/compaction-{'0' * 24}/",
    now_us=1, target_bytes=1, options={"bug": BUG},
)
atexit.register(lambda: print(service.poll("j", 30.0)))
service.submit(job)
"""


@pytest.mark.long
@pytest.mark.parametrize(("bug", "phase"), [(False, "ABORTED"), (True, "FAILED")])
def test_a_process_that_ends_meanwhile_aborts_and_does_not_complain(bug: bool, phase: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS.replace("BUG", str(bug))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"CompactionPhase.{phase}" in ended.stdout
    assert ("Traceback" in ended.stderr) is bug


def test_a_prefix_that_is_taken_is_one_line_and_costs_another_prefix(
    service: LocalCompactionService, storage: ObjectStorage, caplog: pytest.LogCaptureFixture
) -> None:
    storage.child("q/count").put(job().claim_name, b"")
    service.submit(job())
    status = service.poll("j1", PATIENCE_S)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    (line,) = caplog.records
    assert line.exc_info is None
    assert "is submitted again below another prefix" in line.message
