"""Schedule 10: the janitor against pending jobs, a writer, another janitor, and rollbacks."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor, JanitorPass
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.manifest import is_named
from forebay_state_api.contract.file_names import compaction_run_prefix, data_version
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.keys import KeyGroupRange, key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_testing import (
    ClockedStorage,
    Crash,
    Fault,
    FaultyStorage,
    ImmediateCompaction,
    KeyedJob,
    ManualClock,
)
from forebay_testing.scripts import Script, Style, script_function

COUNT = ValueStateDescriptor("n", int)
HOUR = timedelta(hours=1)
RETENTION = 2


class JanitorQuery:
    """One query, whose jobs run when the test decides, and its janitor."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.root = ClockedStorage(open_storage(f"memory://{uuid.uuid4()}"), self.clock)
        self.service = ImmediateCompaction(self.root, hold=True)
        self.job = KeyedJob(
            LsmBackend,
            self.root,
            descriptors=[COUNT],
            options={"max-runs": 4, "job-timeout": 600.0},
            compaction=self.service,
            clock=self.clock,
        )
        self.storage = self.job.storage

    def batches(self, count: int, *, minutes: int = 90) -> None:
        for _ in range(count):
            self.clock.advance(timedelta(minutes=minutes))
            number = self.job.batch_id
            self.job.scripts([(f"k{number % 5}", [("n.update", number)]), ("all", [ADD])])

    def sweep(self, storage: object = None) -> JanitorPass:
        newest = list_epochs(self.storage).newest()
        assert newest is not None
        janitor = Janitor(
            self.storage if storage is None else storage,
            run_key=newest.run_key,
            retention=RETENTION,
            min_age=HOUR,
        )
        return janitor.sweep(self.job.batch_id)

    def check(self) -> None:
        """Check that every retained version is complete, and the newest one has the last writes."""
        last = self.job.batch_id
        for version in range(max(1, last - RETENTION), last + 1):
            with open_version(self.storage, uid=self.job.uid, version=version) as reader:
                assert reader.version == version
        for number in range(max(0, last - 5), last):
            assert self.job.peek(COUNT, f"k{number % 5}") == number
        assert self.job.peek(COUNT, "all") == 1

    def names(self) -> set[str]:
        return {info.name for info in self.storage.list("data")}

    def live(self) -> set[str]:
        with open_version(self.storage, uid=self.job.uid) as reader:
            return {file.name for parent in reader.parents for file in parent.files}


ADD = ("n.update", 1)

moments = pytest.mark.parametrize(
    "stride", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["every seventh", "every"]
)
"""By default a pass is interrupted before every seventh of its requests, in `slow` before each."""


@pytest.fixture
def query() -> JanitorQuery:
    return JanitorQuery()


def test_what_a_pending_job_reads_and_writes_stays(query: JanitorQuery) -> None:
    query.batches(2)
    (job, *_) = query.service.submitted
    inputs = {file.name for file in job.inputs}
    keeper = ImmediateCompaction(query.root, hold=True)
    for _ in range(6):
        half = f"{compaction_run_prefix(job.output_prefix)}0000"
        query.storage.put(half, b"an output under way")
        keeper.run(job)
        query.clock.advance(3 * HOUR)
        query.sweep()
        outputs = {file.name for file in job.stored_result(query.storage).outputs}
        assert inputs | outputs | {half, job.claim_name, job.result_name} <= query.names()
    query.check()


@pytest.mark.long
def test_after_the_install_the_inputs_go_when_no_version_needs_them(query: JanitorQuery) -> None:
    query.batches(2)
    (job, *_) = query.service.submitted
    query.service.run(job)
    query.batches(RETENTION + 4)
    for _ in range(3):
        query.clock.advance(3 * HOUR)
        query.sweep()
    assert {file.name for file in job.inputs}.isdisjoint(query.names())
    query.check()


@pytest.mark.long
def test_what_a_dropped_job_left_goes(query: JanitorQuery) -> None:
    """A zombie writes its outputs after another submission has replaced it."""
    query.batches(2)
    (job, *_) = query.service.submitted
    query.service.forget()
    query.batches(RETENTION + 8)
    ImmediateCompaction(query.root, hold=True).run(job)
    assert job.result_name in query.names()
    for _ in range(3):
        query.clock.advance(3 * HOUR)
        query.sweep()
    assert not [name for name in query.names() if name.startswith(job.output_prefix)]
    query.check()


@pytest.mark.long
def test_what_losing_runs_left_goes_while_what_won_is_live(query: JanitorQuery) -> None:
    query.batches(2)
    (job, *_) = query.service.submitted
    for _ in range(3):
        query.service.run(job)
    query.service.hold = True
    won = {file.name for file in job.stored_result(query.storage).outputs}
    query.batches(1)
    query.service.submitted.clear()
    for _ in range(RETENTION + 3):
        query.batches(1)
        query.clock.advance(3 * HOUR)
        query.sweep()
        assert query.live() <= query.names()
    assert {name for name in query.names() if name.startswith(job.output_prefix)} <= won
    query.check()


@pytest.mark.long
def test_nothing_but_what_is_needed_stays(query: JanitorQuery) -> None:
    for _ in range(12):
        query.batches(1)
        for job in list(query.service.submitted):
            if not query.service.poll(job.id).phase.ended:
                query.service.run(job)
    for _ in range(2):
        query.clock.advance(3 * HOUR)
        swept = query.sweep()
    query.check()
    needed: set[str] = set()
    for version in range(swept.base, query.job.batch_id + 1):
        with open_version(query.storage, uid=query.job.uid, version=version) as reader:
            for manifest in reader.manifests:
                needed |= manifest.names
    unneeded = {name for name in query.names() if not is_named(name, needed)}
    assert all((data_version(name) or 0) >= swept.base for name in unneeded)


def prepared(query: JanitorQuery) -> None:
    """Prepare much to delete, and jobs in every state: installed, done, running, lost."""
    for number in range(9):
        query.batches(1)
        for job in query.service.submitted[: number // 2]:
            if not query.service.poll(job.id).phase.ended:
                query.service.run(job)
    query.clock.advance(3 * HOUR)
    query.sweep()
    query.clock.advance(3 * HOUR)


def interleaved(query: JanitorQuery, step: int, other: Callable[[], None]) -> bool:
    """Sweep, and run ``other`` before request ``step``; return whether that request was made."""
    done: list[str] = []
    counter = itertools.count()

    def latency(operation: str, name: str) -> None:
        if next(counter) == step:
            done.append(f"{operation} {name}")
            other()

    query.sweep(FaultyStorage(query.storage, latency=latency))
    return bool(done)


def every_step(other: Callable[[JanitorQuery], None], stride: int) -> int:
    """Try ``other`` before every ``stride``-th request of a pass; return how many there were."""
    for step in itertools.count(step=stride):
        query = JanitorQuery()
        prepared(query)
        if not interleaved(query, step, lambda query=query: other(query)):
            return step
        query.check()
        query.batches(2)
        query.check()
    raise AssertionError


@pytest.mark.long
@moments
def test_a_batch_commits_at_any_moment_of_a_pass(stride: int) -> None:
    def batch(query: JanitorQuery) -> None:
        query.batches(1, minutes=0)

    assert every_step(batch, stride) > 3 * stride


@pytest.mark.long
@moments
def test_a_job_ends_and_is_installed_at_any_moment_of_a_pass(stride: int) -> None:
    def install(query: JanitorQuery) -> None:
        for job in query.service.submitted:
            if not query.service.poll(job.id).phase.ended:
                query.service.run(job)
        query.batches(1, minutes=0)

    assert every_step(install, stride) > 3 * stride


@pytest.mark.long
@moments
def test_a_second_janitor_at_any_moment_of_a_pass(stride: int) -> None:
    def another(query: JanitorQuery) -> None:
        query.sweep()

    assert every_step(another, stride) > 3 * stride


@pytest.mark.long
@moments
def test_a_janitor_that_dies_at_any_moment(stride: int) -> None:
    for step in itertools.count(step=stride):
        query = JanitorQuery()
        prepared(query)
        broken = FaultyStorage(query.storage, Fault(skip=step, error=Crash))
        try:
            query.sweep(broken)
        except Crash:
            query.check()
            query.batches(1)
            query.sweep()
            query.check()
        else:
            break
    assert step > 3 * stride


@pytest.mark.long
def test_going_back_to_a_retained_version_with_pending_jobs(query: JanitorQuery) -> None:
    """The abandoned timeline's compactions are installed by neither timeline, or by both."""
    query.batches(6)
    for job in query.service.submitted:
        query.service.run(job)
    back = query.job.batch_id - RETENTION
    query.job.restart(batch_id=back)
    query.clock.advance(3 * HOUR)
    query.batches(RETENTION + 3)
    for _ in range(3):
        query.clock.advance(3 * HOUR)
        query.sweep()
        query.batches(1)
    query.check()


@pytest.mark.long
def test_a_file_that_is_uploaded_and_not_named_yet_stays(query: JanitorQuery) -> None:
    """In a batch that takes very long, the file is old when its manifest is written."""
    prepared(query)
    job = query.job
    with job.subtask(script_function(Style.SYNCHRONOUS, [COUNT])) as slow:
        group = key_group_of("slow", job.max_parallelism)
        slow.process([Script("slow", 0, [("n.update", 7)])], ["slow"], [group])
        slow.drain()
        slow.take_rows()
        engine = slow.engine
        engine.hand_over()
        committed = engine.backend.commit(job.batch_id + 1)
        query.clock.advance(30 * HOUR)
        query.sweep()
        query.sweep()
        made = slow._making
        assert made is not None
        made.commit(committed, descriptions=engine.descriptions())
    job.batch_id += 1
    assert query.live() <= query.names()
    assert job.peek(COUNT, "slow") == 7
    assert job.peek(COUNT, "all") == 1


@pytest.mark.long
def test_a_reader_of_an_old_version_keeps_it(query: JanitorQuery) -> None:
    query.batches(3)
    with open_version(query.storage, uid=query.job.uid, lease=timedelta(days=30)) as reader:
        query.batches(8)
        for _ in range(3):
            query.clock.advance(3 * HOUR)
            query.sweep()
        files = {file.name for parent in reader.parents for file in parent.files}
        assert files <= query.names()
        assert reader.parents[0].range == KeyGroupRange(0, 7)
