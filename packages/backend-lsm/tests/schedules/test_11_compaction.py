"""Schedule 11: compacting processes are killed, stop, or are late; each is a real process.

Of neighbouring moments of a kill one runs by default. The kit kills at every request of a commit,
and schedule 10 at requests all over a pass of the janitor, in one process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import runpy
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_engine.versions import Janitor, RunIdentity
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import PluginError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ImmediateCompaction, KeyedJob

pytestmark = pytest.mark.long

COUNT = ValueStateDescriptor("n", int)
MAX_RUNS = 4
WORKER = Path(__file__).with_name("worker.py")


PROCESSES = multiprocessing.get_context("forkserver")
# Processes start with these modules imported.
PROCESSES.set_forkserver_preload(["forebay_backend_lsm.backend", "forebay_testing"])


class Worker:
    """A process that runs `worker.py`."""

    def __init__(self, **told: Any) -> None:
        hear, self.tell = PROCESSES.Pipe(duplex=False)
        self.hear, say = PROCESSES.Pipe(duplex=False)
        given = {"GIVEN": (told, hear, say)}
        self.process = PROCESSES.Process(
            target=runpy.run_path, args=(str(WORKER), given, "__main__")
        )
        self.process.start()
        hear.close()
        say.close()
        self.said: list[tuple[Any, ...]] = []

    def until(self, *wanted: str) -> tuple[Any, ...]:
        """Listen until each of the words has arrived; return what follows the first of them."""
        while not set(wanted) <= {words[0] for words in self.said}:
            self.said.append(self.hear.recv())
        return next(words for words in self.said if words[0] == wanted[0])[1:]

    def end(self) -> None:
        """Let it continue, and wait until it succeeds."""
        with contextlib.suppress(BrokenPipeError):  # it has exited
            for _ in range(3):
                self.tell.send("go")
        self._ended()
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                self.said.append(self.hear.recv())
        self.process.join()

    @property
    def runs(self) -> list[int]:
        """Return the number of runs on the longest read path after each batch."""
        return [words[2] for words in self.said if words[0] == "BATCH"]

    @property
    def batches(self) -> list[int]:
        """Return the committed batches."""
        return [words[1] for words in self.said if words[0] == "BATCH"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    run = str(uuid.uuid4())
    started: list[Worker] = []

    def begin(what: str = "batches", **told: Any) -> Worker:
        told = {"attempt": 1_000 * len(started), "directory": str(tmp_path), **told}
        worker = Worker(what=what, run=run, **told)
        started.append(worker)
        return worker

    yield begin
    for worker in started:
        worker.kill()
        worker.tell.close()
        worker.hear.close()


@pytest.fixture
def job(tmp_path: Path) -> KeyedJob:
    """Return the operator, as this process sees it."""
    storage = open_storage(tmp_path)
    service = ImmediateCompaction(storage, hold=True)
    return KeyedJob(LsmBackend, storage, descriptors=[COUNT], compaction=service)


def check(job: KeyedJob, last: int) -> None:
    for number in range(max(0, last - 4), last + 1):
        assert job.peek(COUNT, f"k{number % 5}") == number
    assert job.peek(COUNT, "all") == 1


def newest(job: KeyedJob) -> tuple[set[str], list[str]]:
    """Return files and pending prefixes of the newest version."""
    with open_version(job.storage, uid=job.uid) as reader:
        files = {file.name for parent in reader.parents for file in parent.files}
        return files, [name for one in reader.manifests for name in one.protected]


def stop(operation: str, name: str, when: str, skip: int = 0) -> dict[str, Any]:
    return {"operation": operation, "name": name, "when": when, "skip": skip}


def prefix_of(name: str) -> str:
    """Return the output prefix, below the operator, of an object that a compaction writes."""
    return "/".join(name[name.index("data/") :].split("/")[:3]) + "/"


COMPACTION = {
    "before the first output": stop("put", "*/compaction-*/0000", "before"),
    "between the outputs and the result": stop("put_if_absent", "*/result", "before"),
    "after the result": stop("put_if_absent", "*/result", "after"),
}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before the first output", marks=pytest.mark.slow),
        "between the outputs and the result",
        pytest.param("after the result", marks=pytest.mark.slow),
    ],
)
def test_the_process_that_compacts_is_killed(
    start: Callable[..., Worker], job: KeyedJob, point: str
) -> None:
    first = start(first=0, count=3, stop=COMPACTION[point], linger=True)
    (name,) = first.until("STOPPED", "DONE")
    first.kill()
    prefix = prefix_of(name)
    files, pending = newest(job)
    assert prefix in pending
    done = point == "after the result"
    second = start(first=3, count=13, settle=True)  # a minute each: the job runs out of time
    second.end()
    assert max(first.runs + second.runs) <= MAX_RUNS
    check(job, 15)
    _, pending = newest(job)
    assert prefix not in pending
    assert not any(file.startswith(prefix) for file in files)
    if not done:
        assert not any(file.startswith(prefix) for file in newest(job)[0])


def test_a_result_of_a_killed_process_is_installed(
    start: Callable[..., Worker], job: KeyedJob
) -> None:
    first = start(first=0, count=3, stop=COMPACTION["after the result"], linger=True)
    (name,) = first.until("STOPPED", "DONE")
    first.kill()
    start(first=3, count=1, stop=stop("put", "*/compaction-*/0000", "before")).until("DONE")
    files, pending = newest(job)
    assert any(file.startswith(prefix_of(name)) for file in files)
    assert prefix_of(name) not in pending
    check(job, 3)


def test_a_zombie_that_finishes_late_never_goes_live(
    start: Callable[..., Worker], job: KeyedJob
) -> None:
    zombie = start(first=0, count=3, stop=COMPACTION["before the first output"], linger=True)
    (name,) = zombie.until("STOPPED", "DONE")
    prefix = prefix_of(name)
    start(first=3, count=15, settle=True).end()
    assert prefix not in newest(job)[1]
    zombie.end()
    left = [info.name for info in job.storage.list(prefix)]
    assert f"{prefix}result" in left
    start(first=18, count=5, settle=True).end()
    files, pending = newest(job)
    assert not any(file.startswith(prefix) for file in files)
    assert prefix not in pending
    check(job, 22)
    start("janitor", count=2).end()
    assert job.storage.list(prefix) == []
    check(job, 22)


COMMIT: Mapping[str, dict[str, Any]] = {
    "before the file": stop("put", "*/data/*", "before", skip=4),
    "after the file": stop("put", "*/data/*", "after", skip=4),
    "before the manifest": stop("put", "*/manifest-*", "before", skip=4),
    "after the manifest": stop("put", "*/manifest-*", "after", skip=4),
}


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before the file", marks=pytest.mark.slow),
        pytest.param("after the file", marks=pytest.mark.slow),
        pytest.param("before the manifest", marks=pytest.mark.slow),
        "after the manifest",
    ],
)
def test_a_process_is_killed_while_it_commits(
    start: Callable[..., Worker], job: KeyedJob, point: str
) -> None:
    first = start(first=0, count=20, stop=COMMIT[point])
    first.until("STOPPED")
    first.kill()
    again = len(first.batches)  # Spark repeats the batch that did not end
    second = start(first=again, count=6, settle=True)
    second.end()
    assert max(second.runs) <= MAX_RUNS
    check(job, again + 5)


@pytest.mark.parametrize("skip", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_janitor_is_killed(start: Callable[..., Worker], job: KeyedJob, skip: int) -> None:
    start(first=0, count=12, settle=True).end()
    killed = start("janitor", count=3, stop=stop("delete", "*", "after", skip=skip + 4))
    killed.until("STOPPED")
    killed.kill()
    check(job, 11)
    start(first=12, count=3, settle=True).end()
    start("janitor", count=2).end()
    check(job, 14)


def test_a_writer_and_two_janitors_at_once(start: Callable[..., Worker], job: KeyedJob) -> None:
    start(first=0, count=5).end()
    workers = [
        start(first=5, count=20),
        start("janitor", count=8),
        start("janitor", count=8),
    ]
    for worker in workers:
        worker.end()
    assert max(workers[0].runs) <= MAX_RUNS
    check(job, 24)


def test_two_attempts_install_different_results(tmp_path: Path) -> None:
    """One opens before the job is done, the other after it; the higher attempt counts."""
    for late_wins in (True, False):
        storage = open_storage(tmp_path / str(late_wins))
        service = ImmediateCompaction(storage, hold=True)
        job = KeyedJob(LsmBackend, storage, descriptors=[COUNT], compaction=service)
        for number in range(3):
            job.do(f"k{number}", ("n.update", number))
        (compaction, *_) = service.submitted
        first, second = job.subtask(_function(job)), job.subtask(_function(job))
        early, late = (first, second) if late_wins else (second, first)
        with early:
            service.run(compaction)
            with late:
                late.commit()
            early.commit()
        job.batch_id += 1
        installed = any(f.startswith(compaction.output_prefix) for f in newest(job)[0])
        assert installed is late_wins
        for _ in range(4):
            job.do("more", ("n.update", 1))
            for number in range(3):
                assert job.peek(COUNT, f"k{number}") == number


def _function(job: KeyedJob) -> Any:
    from forebay_testing.scripts import Style, script_function

    return script_function(Style.SYNCHRONOUS, job.descriptors)


class Broken(LsmCompactor):
    """Raises an error until it is repaired."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        if self.error is not None:
            raise self.error
        return super().compact(job, storage, cancelled)


def broken_query(path: Path, error: Exception) -> tuple[KeyedJob, Broken]:
    """Return a query whose jobs run at once, in a process that outlives restarts, and fail."""
    storage, compactor = open_storage(path), Broken(error)
    service = ImmediateCompaction(storage, lambda _: compactor)
    return KeyedJob(LsmBackend, storage, descriptors=[COUNT], compaction=service), compactor


def batches(job: KeyedJob, count: int) -> None:
    for number in range(count):
        job.do(f"k{number}", ("n.update", number))


def test_a_process_short_of_memory_goes_on(tmp_path: Path) -> None:
    job, compactor = broken_query(tmp_path, MemoryError("no room"))
    batches(job, 5)
    assert not any("/compaction-" in file for file in newest(job)[0])
    compactor.error = None
    batches(job, 8)
    assert any("/compaction-" in file for file in newest(job)[0])
    assert [job.peek(COUNT, f"k{number}") for number in range(8)] == [*range(8)]


def test_a_defect_stops_the_query_until_it_is_mended(tmp_path: Path) -> None:
    job, compactor = broken_query(tmp_path, KeyError("a bug in a merge"))
    for _ in range(3):  # starts of the query
        for _ in range(2):  # Spark's retry
            with pytest.raises(PluginError, match="failed again: 'a bug in a merge'"):
                batches(job, 9)
        job.restart()
    compactor.error = None
    batches(job, 9)
    assert any("/compaction-" in file for file in newest(job)[0])
    assert [job.peek(COUNT, f"k{number}") for number in range(9)] == [*range(9)]


def test_a_trigger_slower_than_every_timeout_gets_its_compactions(tmp_path: Path) -> None:
    """A new process runs each hourly batch; jobs end long before the next batch."""
    storage = open_storage(tmp_path)
    service = ImmediateCompaction(storage, hold=True)
    options = {"max-runs": MAX_RUNS, "job-timeout": 600.0}
    job = KeyedJob(LsmBackend, storage, descriptors=[COUNT], options=options, compaction=service)
    job._run = RunIdentity(keyed_uuid="hourly", app_id="app", run_id=None)
    installed = set()
    for number in range(20):
        job.clock.advance(timedelta(hours=1))
        job.do(f"k{number % 5}", ("n.update", number))
        for one in service.submitted:
            if not service.poll(one.id).phase.ended:
                service.run(one)
        service.submitted.clear()
        service.forget()
        files, _ = newest(job)
        installed |= {prefix_of(file) for file in files if "/compaction-" in file}
    assert len(installed) > 3
    janitor = Janitor(job.storage, run_key=job._run.key, retention=2, min_age=timedelta(0))
    janitor.sweep(20)
    assert job.peek(COUNT, "k4") == 19
