"""Schedule 10: the janitor against pending jobs, a writer, another janitor, and rollbacks."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from datetime import timedelta

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.keys import KeyGroupRange, key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing import (
    ClockedStorage,
    Crash,
    Fault,
    FaultyStorage,
    ImmediateCompaction,
    KeyedJob,
    ManualClock,
)
from forebay_state_api.testing.scripts import Script, Style, script_function
from forebay_state_api.versions.epochs import list_epochs
from forebay_state_api.versions.janitor import Janitor, JanitorPass
from forebay_state_api.versions.layout import data_version
from forebay_state_api.versions.manifest import is_named
from forebay_state_api.versions.reader import open_version

COUNT = ValueStateDescriptor("n", int)
HOUR = timedelta(hours=1)
RETENTION = 2


class Place:
    """One query whose jobs run when the test says so, and its janitor."""

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
        """Every retained version is whole, and the newest one holds what was written last."""
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


@pytest.fixture
def place() -> Place:
    return Place()


def test_what_a_pending_job_reads_and_writes_stays(place: Place) -> None:
    place.batches(2)
    (job, *_) = place.service.submitted
    inputs = {file.name for file in job.inputs}
    keeper = ImmediateCompaction(place.root, hold=True)
    for _ in range(6):
        place.storage.put(f"{job.output_prefix}half", b"an output under way")
        keeper.run(job)
        place.clock.advance(3 * HOUR)
        place.sweep()
        assert inputs <= place.names()
        assert f"{job.output_prefix}0000" in place.names()
        assert job.result_name in place.names()
    place.check()


def test_after_the_install_the_inputs_go_when_no_version_needs_them(place: Place) -> None:
    place.batches(2)
    (job, *_) = place.service.submitted
    place.service.run(job)
    place.batches(RETENTION + 4)
    for _ in range(3):
        place.clock.advance(3 * HOUR)
        place.sweep()
    assert {file.name for file in job.inputs}.isdisjoint(place.names())
    place.check()


def test_what_a_dropped_job_left_goes(place: Place) -> None:
    """A zombie writes its outputs after another submission took its place."""
    place.batches(2)
    (job, *_) = place.service.submitted
    place.service.forget()
    place.batches(RETENTION + 8)
    ImmediateCompaction(place.root, hold=True).run(job)
    assert job.result_name in place.names()
    for _ in range(3):
        place.clock.advance(3 * HOUR)
        place.sweep()
    assert not [name for name in place.names() if name.startswith(job.output_prefix)]
    place.check()


def test_nothing_but_what_is_needed_stays(place: Place) -> None:
    for _ in range(12):
        place.batches(1)
        for job in list(place.service.submitted):
            if not place.service.poll(job.id).phase.ended:
                place.service.run(job)
    for _ in range(2):
        place.clock.advance(3 * HOUR)
        swept = place.sweep()
    place.check()
    needed: set[str] = set()
    for version in range(swept.base, place.job.batch_id + 1):
        with open_version(place.storage, uid=place.job.uid, version=version) as reader:
            for manifest in reader.manifests:
                needed |= manifest.names
    unneeded = {name for name in place.names() if not is_named(name, needed)}
    assert all((data_version(name) or 0) >= swept.base for name in unneeded)


def prepared(place: Place) -> None:
    """Much to delete, and jobs in every state: installed, done, under way, lost."""
    for number in range(9):
        place.batches(1)
        for job in place.service.submitted[: number // 2]:
            if not place.service.poll(job.id).phase.ended:
                place.service.run(job)
    place.clock.advance(3 * HOUR)
    place.sweep()
    place.clock.advance(3 * HOUR)


def interleaved(place: Place, step: int, other: Callable[[], None]) -> bool:
    """Sweep, and let ``other`` happen before request ``step``; whether there was one."""
    done: list[str] = []
    counter = itertools.count()

    def latency(operation: str, name: str) -> None:
        if next(counter) == step:
            done.append(f"{operation} {name}")
            other()

    place.sweep(FaultyStorage(place.storage, latency=latency))
    return bool(done)


def every_step(other: Callable[[Place], None]) -> int:
    """Try ``other`` at every request of a pass; how many there were."""
    for step in itertools.count():
        place = Place()
        prepared(place)
        if not interleaved(place, step, lambda place=place: other(place)):
            return step
        place.check()
        place.batches(2)
        place.check()
    raise AssertionError


def test_a_batch_commits_at_any_moment_of_a_pass() -> None:
    def batch(place: Place) -> None:
        place.batches(1, minutes=0)

    assert every_step(batch) > 5


def test_a_job_ends_and_is_installed_at_any_moment_of_a_pass() -> None:
    def install(place: Place) -> None:
        for job in place.service.submitted:
            if not place.service.poll(job.id).phase.ended:
                place.service.run(job)
        place.batches(1, minutes=0)

    assert every_step(install) > 5


def test_a_second_janitor_at_any_moment_of_a_pass() -> None:
    def another(place: Place) -> None:
        place.sweep()

    assert every_step(another) > 5


def test_a_janitor_that_dies_at_any_moment() -> None:
    for step in itertools.count():
        place = Place()
        prepared(place)
        broken = FaultyStorage(place.storage, Fault(skip=step, error=Crash))
        try:
            place.sweep(broken)
        except Crash:
            place.check()
            place.batches(1)
            place.sweep()
            place.check()
        else:
            break
    assert step > 5


def test_going_back_to_a_retained_version_with_pending_jobs(place: Place) -> None:
    """The abandoned timeline's compactions are installed by neither, or by both."""
    place.batches(6)
    for job in place.service.submitted:
        place.service.run(job)
    back = place.job.batch_id - RETENTION
    place.job.restart(batch_id=back)
    place.clock.advance(3 * HOUR)
    place.batches(RETENTION + 3)
    for _ in range(3):
        place.clock.advance(3 * HOUR)
        place.sweep()
        place.batches(1)
    place.check()


def test_a_file_that_is_uploaded_and_not_named_yet_stays(place: Place) -> None:
    """A batch that takes for ever: its file is old when its manifest comes."""
    prepared(place)
    job = place.job
    with job.subtask(script_function(Style.SYNCHRONOUS, [COUNT])) as slow:
        group = key_group_of("slow", job.max_parallelism)
        slow.process([Script("slow", 0, [("n.update", 7)])], ["slow"], [group])
        slow.drain()
        slow.take_rows()
        engine = slow.engine
        engine.hand_over()
        committed = engine.backend.commit(job.batch_id + 1)
        place.clock.advance(30 * HOUR)
        place.sweep()
        place.sweep()
        made = slow._making
        assert made is not None
        made.commit(committed, descriptions=engine.descriptions())
    job.batch_id += 1
    assert place.live() <= place.names()
    assert job.peek(COUNT, "slow") == 7
    assert job.peek(COUNT, "all") == 1


def test_a_reader_of_an_old_version_keeps_it(place: Place) -> None:
    place.batches(3)
    with open_version(place.storage, uid=place.job.uid, lease=timedelta(days=30)) as reader:
        place.batches(8)
        for _ in range(3):
            place.clock.advance(3 * HOUR)
            place.sweep()
        files = {file.name for parent in reader.parents for file in parent.files}
        assert files <= place.names()
        assert reader.parents[0].range == KeyGroupRange(0, 7)
