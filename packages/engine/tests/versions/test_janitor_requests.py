"""The janitor's requests: it reads few manifests, keeps up, and deletes nothing that is named."""

import uuid
from collections import Counter
from datetime import timedelta

import attrs
import pytest

from forebay_engine.versions.choosing.pins import Pin
from forebay_engine.versions.cleaning.cadence import FolderPasses, is_due, pass_every, pause
from forebay_engine.versions.cleaning.clearing_marks import cleared_below, marks_among, put_mark
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.cleaning.object_cache import ObjectCache
from forebay_engine.versions.format.epochs import record_name
from forebay_engine.versions.format.manifest import Manifest, put_manifest, read_manifest
from forebay_engine.versions.format.markers import Made, put_marker
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile
from forebay_testing.committing_job import coordinates
from forebay_testing.storage import CountingStorage, Crash, Fault, FaultyStorage

from .clocked_objects import ClockedObjects

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
PAGE = 1_000
DAY = timedelta(days=1)
SLOW = [pytest.mark.slow, pytest.mark.timeout(1_800)]
SOAK = [pytest.mark.soak, pytest.mark.timeout(4 * 3_600)]


class Billed(CountingStorage):
    """Counts a list as a request for each page, as S3 does, and no deletes, which are free."""

    @property
    def billed(self):
        return sum(number for kind, number in self.counts.items() if kind != "delete")

    def list(self, prefix=""):
        found = super().list(prefix)
        self.requests += [("list", prefix)] * (len(found) // PAGE)
        return found


def stored_manifests(storage):
    made = filter(None, map(Made.parse, storage.list("versions")))
    return [one for one in made if one.manifest]


def named_files(storage):
    return {n for m in stored_manifests(storage) for n in read_manifest(storage, m.name).names}


def files(storage):
    return {info.name for info in storage.list("data")}


@pytest.fixture
def counted(query):
    query.storage = Billed(query.storage)
    return query.storage


@pytest.fixture
def sweep(query, clock):
    def run_pass(run, committed, retention=2, *, wait=2 * HOUR, storage=None, **how):
        clock.advance(wait)
        storage = storage or query.storage
        janitor = Janitor(storage, run_key=run.key, retention=retention, min_age=HOUR, **how)
        return janitor.sweep(committed)

    return run_pass


def test_a_pass_reads_the_first_versions_above_the_mark_and_no_others(query, counted, sweep):
    run = query.run(2)
    run.batches(0, 29)
    sweep(run, 10)
    sweep(run, 20)
    counted.reset()
    named = named_files(query.storage)
    counted.reset()
    assert sweep(run, 30).names
    read = [name for kind, name in counted.requests if kind == "get" and "manifest-" in name]
    assert len(read) == 2
    assert {Made.of_whole(name, query.storage.list()[0].modified).by.version for name in read} == {
        18
    }
    assert named <= files(query.storage)


def test_what_a_pass_read_is_not_read_again(query, counted, sweep):
    run = query.run(2)
    run.batches(0, 19)
    with_pin = Pin(query.storage, 5, lease=timedelta(days=1))
    remembered = ObjectCache()
    for _ in range(3):
        sweep(run, 20, remembered=remembered)
    counted.reset()
    sweep(run, 20, remembered=remembered)
    assert [name for kind, name in counted.requests if kind == "get"] == [
        name for kind, name in counted.requests if kind == "get" and "runs/" in name
    ]
    sweep(run, 20)
    assert any("manifest-" in name for kind, name in counted.requests if kind == "get")
    with_pin.close()


def test_two_attempts_of_the_first_version_are_both_read(query, sweep):
    """A later version may rest on either; a late one even after the other was opened."""
    run = query.run(1)
    run.batches(0, 6)
    late = run.begin(7)
    late_written = late.write()
    run.batch(7)
    late.commit(late_written)
    run.batches(8, 9)
    for _ in range(3):
        named = named_files(query.storage)
        sweep(run, 10)
        assert named <= files(query.storage)
    assert query.run(1).opened(8)


def test_after_going_back_both_timelines_keep_their_files(query, sweep):
    older = query.run(1, data="a")
    older.batches(0, 9)
    sweep(older, 10)
    back = query.run(2, data="b")
    back.batches(9, 12)
    for committed in (13, 13, 13):
        named = named_files(query.storage)
        swept = sweep(back, committed)
        assert not named & set(swept.names)
    assert query.run(1).opened(13)


def test_a_pass_that_died_leaves_the_files_to_the_pass_after_the_next(query, sweep):
    run = query.run(2)
    run.batches(0, 19)
    sweep(run, 10)
    dies = Fault(operation="delete", name="versions/*manifest*", skip=5, error=Crash)
    with pytest.raises(Crash):
        sweep(run, 20, storage=FaultyStorage(query.storage, dies))
    named = named_files(query.storage)
    assert {name.split("/")[0] for name in sweep(run, 20).names} == {"versions"}
    assert named <= files(query.storage)
    assert {name.split("/")[0] for name in sweep(run, 20).names} == {"data"}


def test_a_record_that_cannot_be_read_costs_reads_and_nothing_else(query, counted, sweep):
    older = query.run(1, data="a")
    older.batches(0, 14)
    sweep(older, 10)
    run = query.run(1, data="b")
    run.batches(12, 19)
    abandoned = record_name(older.key)
    kept = query.storage.get(abandoned)
    query.storage.delete([abandoned])
    query.storage.put(abandoned, kept[:-3])
    named = named_files(query.storage)
    counted.reset()
    swept = sweep(run, 15, retention=2)
    assert swept.base
    assert not named & set(swept.names)


def test_in_foreach_batch_a_run_costs_one_read_of_its_record(query, counted, sweep):
    spark_run, remembered = str(uuid.uuid4()), ObjectCache()
    for batch in range(40):
        run = query.run(2, spark_run=spark_run)
        run.batch(batch)
        if batch % 10 == 9:
            named = named_files(query.storage)
            counted.reset()
            swept = sweep(run, batch + 1, remembered=remembered)
            assert not named & set(swept.names)
    gets = Counter(name.split("/")[0] for kind, name in counted.requests if kind == "get")
    assert gets["versions"] == 2
    assert gets["runs"] <= 10 + 3 + 1


def test_the_mark_is_above_all_that_was_deleted_and_two_stay(query, sweep):
    run = query.run(1)
    run.batches(0, 39)
    for committed in (10, 20, 30, 40):
        sweep(run, committed)
        versions = {one.by.version for one in stored_manifests(query.storage)}
        assert min(versions) >= cleared_below(query.storage)
    marks = marks_among(query.storage.list("cleared"))
    assert [mark.version for mark in marks] == [38, 28]
    assert (marks[0].retention, marks[0].min_age) == (2, HOUR)


def test_a_lower_mark_takes_no_higher_one_away(storage):
    for version in (30, 10, 20):
        put_mark(storage, version, 2, HOUR)
    assert cleared_below(storage) == 30


class Committed:
    """Writes versions of a run as its tasks do, without opening the version before each."""

    def __init__(self, query, run, clock, trigger):
        self.storage, self.run, self.clock, self.trigger = query.storage, run, clock, trigger
        run.batch(0, max_parallelism=max(8, run.parallelism))
        self.version = 1
        self.names = [
            [file.name for file in read_manifest(self.storage, made.name).files]
            for made in sorted(stored_manifests(self.storage), key=lambda made: made.by.subtask)
        ]

    def batch(self):
        self.clock.advance(self.trigger)
        self.version += 1
        for subtask in range(self.run.parallelism):
            parallelism = self.run.parallelism
            made = coordinates(self.version, subtask, parallelism, max(8, parallelism))
            made = attrs.evolve(made, run_key=self.run.key)
            put_marker(self.storage, made)
            name = data_name(self.version, "delta")
            self.storage.put(name, b"delta")
            kept = [name] if self.version % 7 == 0 else [*self.names[subtask], name]
            self.names[subtask] = kept
            put_manifest(self.storage, _manifest(made, kept))


def _manifest(made, names):
    return Manifest(
        made=made,
        uid="op",
        backend="toy",
        parents=[],
        opened_version=made.version - 1,
        now_us=0,
        files=[StateFile(name=name, size=5, range=made.range) for name in names],
        meta={},
        protected=[],
        descriptions={},
        operator_state={},
        metrics={},
    )


class Worker:
    """The process that makes subtask 0, and its passes."""

    def __init__(self, clock, run, retention, min_age):
        self.run, self.retention, self.min_age = run, retention, min_age
        self.passes = FolderPasses(lambda: clock.now_us / 1e6)

    def after(self, storage, version):
        due = is_due(version, 0, pass_every(self.retention))
        if not (due and self.passes.may_begin(self.min_age)):
            return False
        self.passes.begun()
        Janitor(
            storage,
            run_key=self.run.key,
            retention=self.retention,
            min_age=self.min_age,
            remembered=self.passes.remembered,
        ).sweep(version)
        return True


@pytest.mark.long
def test_a_day_of_versions_leaves_what_the_minimum_age_and_the_pause_hold(query, clock):
    """A batch every 100 s, and a new process every three hours, which learns again."""
    run = query.run(1)
    job = Committed(query, run, clock, timedelta(seconds=100))
    retention, min_age = 10, HOUR
    bound = (min_age + pause(min_age)) // job.trigger + retention + pass_every(retention) + 1
    most_versions = most_files = 0
    worker = Worker(clock, run, retention, min_age)
    for number in range(24 * 36):
        if number % 108 == 0:
            worker = Worker(clock, run, retention, min_age)
        job.batch()
        if worker.after(query.storage, job.version):
            most_versions = max(most_versions, len(query.storage.list("versions")) // 2)
            most_files = max(most_files, len(files(query.storage)))
    assert most_versions <= bound
    assert most_files <= bound + pause(min_age) // job.trigger + 2 * pass_every(retention) + 7
    assert named_files(query.storage) <= files(query.storage)


@pytest.mark.long
@pytest.mark.parametrize(
    ("parallelism", "min_age", "batches"),
    [
        (8, 50 * SECOND, 130),
        pytest.param(64, HOUR, 4_750, marks=SLOW, id="64 subtasks, the default age"),
        pytest.param(64, HOUR, DAY // SECOND, marks=SOAK, id="64 subtasks, a day"),
    ],
)
def test_half_a_request_per_subtask_and_batch_at_most(
    make_query, clock, parallelism, min_age, batches
):
    """A batch a second, and a new process every three hours.

    A pass lists a folder of as many versions as the age has seconds.
    """
    counted = Billed(ClockedObjects(clock))
    query = make_query(counted, clock)
    run = query.run(parallelism)
    job = Committed(query, run, clock, SECOND)
    worker = Worker(clock, run, 10, min_age)
    between = max(10, pause(min_age) // SECOND)
    bound = min_age // SECOND + 10 + between + 1
    requests = measured = most_versions = most_files = 0
    for number in range(batches):
        if number % (3 * HOUR // SECOND) == 0:
            worker = Worker(clock, run, 10, min_age)
        job.batch()
        counted.reset()
        passed = worker.after(counted, job.version)
        if number >= bound:  # the passes delete as much as the batches write
            requests, measured = requests + counted.billed, measured + run.parallelism
            if passed:
                most_versions = max(most_versions, len(counted.list_folders("versions")))
                most_files = max(most_files, len(counted.list_folders("data")))
    assert requests <= 0.5 * measured
    assert 0 < most_versions <= bound, "the age, the retention, and the versions between passes"
    assert most_files <= bound + between + 20, "files go a pass after the manifests that name them"
