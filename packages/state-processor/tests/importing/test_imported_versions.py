"""Versions that were written outside a job: who opens them, and what is left of half of one."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from forebay_engine.execution.declared_state import spec_of
from forebay_engine.stored.restore import default_options
from forebay_engine.versions import OperatorStorage, RestoreFrom
from forebay_engine.versions.choosing.heads import list_heads, recovery_for
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.recovery import put_recovery
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.markers import list_version
from forebay_engine.versions.publishing import (
    ImportedPart,
    ImportTarget,
    check_vacant,
    open_replaced,
    publish,
)
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    FencedError,
    StorageError,
)
from forebay_state_api.keys import key_group_of, key_group_range_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_processor.importing.subtask_part import ImportedTimer, PartWriter
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob
from forebay_testing.storage import Fault, FaultyStorage

HOME = "file:/production/checkpoint"
GROUPS = 8
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = ("a", "b", "c", "d", "e", "f")

TOTAL = ValueStateDescriptor("total", int)
SEEN = ListStateDescriptor("seen", str)
BY_DAY = MapStateDescriptor("by day", str, int)
LAST = ValueStateDescriptor("last", int, ttl=StateTtlConfig(timedelta(hours=1)))
STATES = (TOTAL, SEEN, BY_DAY, LAST)


class Keeper(KeyedProcessFunction):
    """Adds to every state and returns all of them; a timer returns its time."""

    def open(self, context):
        self.total, self.seen, self.by_day, self.last = (context._declare(one) for one in STATES)

    def process_element(self, row, ctx):
        key, amount = row
        self.total.update((self.total.value() or 0) + amount)
        self.seen.add(key)
        self.by_day.put("monday", amount)
        last = self.last.value()
        self.last.update(amount)
        yield key, self.total.value(), [*self.seen.get()], dict(self.by_day.items()), last

    def on_timer(self, at, ctx):
        yield ctx.current_key, at


@pytest.fixture(params=["heap", pytest.param("lsm", marks=pytest.mark.slow), "shelf"])
def backend(request, shelf_backend):
    """Each of our backends, and one of a third party.

    By default lsm is in ``packages/state-processor/tests/reading/test_import_round_trip.py``.
    """
    return plugins().backend(request.param)


@pytest.fixture
def root():
    return MemoryStorage(f"memory://{uuid.uuid4()}")


def job_of(root, backend, *, query="query", parallelism=2, **how):
    return KeyedJob(
        backend,
        root,
        options=default_options(backend),
        parallelism=parallelism,
        max_parallelism=GROUPS,
        key_type=str,
        query=query,
        **how,
    )


def parts(job, target, totals, *, timers=(), now_us=0):
    """Write the parts of a version in which each key of ``totals`` has content."""
    made = []
    specs = [spec_of(one, job.key_codec, job.uid)[0] for one in STATES]
    for subtask in range(target.parallelism):
        groups = key_group_range_of(subtask, target.parallelism, GROUPS)
        opening = Opening.outside_job(job.storage, job.uid, groups, job.options, now_us=now_us)
        mine = [(key, group, n) for key, n in totals.items() if (group := group_of(key)) in groups]
        with PartWriter(job.backend_class, opening) as writer:
            for spec in specs:
                cells = [(key, group, content(spec, key, n, now_us)) for key, group, n in mine]
                writer.apply(spec, Changes.whole(spec.shape, None, cells))
            writer.add_timers(
                job.key_codec,
                [ImportedTimer(group_of(k), 1, at, k) for k, at in timers if group_of(k) in groups],
            )
            made.append(writer.commit(target.version, subtask, ttl_us={"last": 3_600_000_000}))
    return made


def group_of(key):
    return key_group_of(key, GROUPS)


def content(spec, key, n, now_us):
    if spec.shape is Shape.LIST:
        return [key] * 2
    if spec.shape is Shape.MAP:
        return {"sunday": n}
    return (now_us, n) if spec.ttl else n


def imported(job, target, totals, **how):
    check_vacant(job.storage, target, job.uid)
    return publish(
        job.storage,
        target,
        parts(job, target, totals, **how),
        uid=job.uid,
        backend=job.backend_class.name,
        now_us=0,
    )


FIRST = ImportTarget(version=1, max_parallelism=GROUPS, parallelism=2)


def test_a_query_begins_with_an_imported_first_version(root, backend):
    clock = ManualClock()
    due = (clock.now_us // 60_000_000 + 5) * 60_000_000
    made = job_of(root, backend, query="old", clock=clock)
    imported(made, FIRST, {"a": 7, "b": 8}, timers=[("b", due)], now_us=clock.now_us)

    job = job_of(root, backend, query="new", restore=RestoreFrom("old"), parallelism=3, clock=clock)
    clock.advance(timedelta(minutes=10))
    found = sorted(job.run(Keeper(), [("a", 1), ("z", 2)]), key=repr)
    assert found == [
        ("a", 8, ["a", "a", "a"], {"sunday": 7, "monday": 1}, 7),
        ("b", EPOCH + timedelta(microseconds=due)),
        ("z", 2, ["z"], {"monday": 2}, None),
    ]
    clock.advance(timedelta(hours=2))
    (row,) = job.run(Keeper(), [("b", 1)])
    assert row[4] is None  # the imported value has expired, an hour after it was written


def streamed(job, batches, clock):
    """Run batches as a stream with a checkpoint does."""
    for rows in batches:
        times = {} if job.checkpoint is None else dict(job.checkpoint.times_ms)
        times[job.batch_id] = clock.now_us // 1_000
        job.checkpoint = Checkpoint(location=HOME, times_ms=times)
        job.run(Keeper(), rows)
        clock.advance(timedelta(seconds=10))


def replacing(job, version):
    """The target that replaces a version as the checkpoint knows it."""
    with open_replaced(
        job.storage,
        uid=job.uid,
        version=version,
        location=HOME,
        batch_ms=job.checkpoint.time_of(version),
    ) as reader:
        return ImportTarget.replacing(job.storage, reader)


@pytest.mark.long
def test_a_restart_takes_the_copy_that_replaced_its_version(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[(key, 1) for key in KEYS]] * 3, clock)
    before = job.run_key
    imported(job, replacing(job, 3), {"a": 100}, now_us=clock.now_us)
    job.restart()
    clock.advance(timedelta(minutes=1))
    found = dict(row[:2] for row in job.run(Keeper(), [("a", 1), ("b", 1)]))
    assert found == {"a": 101, "b": 1}
    with open_version(job.storage, uid=job.uid, version=3, run_key=before) as reader:
        assert reader.manifests  # the replaced copy stays until the janitor deletes it


@pytest.mark.long
def test_a_batch_that_spark_did_not_commit_runs_again_on_the_replaced_version(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[(key, 1) for key in KEYS]] * 3, clock)
    # The checkpoint has committed two batches: its next one is batch 2, which opens version 2.
    imported(job, replacing(job, 2), {"a": 100}, now_us=clock.now_us)
    job.restart(batch_id=2)
    found = dict(row[:2] for row in job.run(Keeper(), [(key, 1) for key in KEYS]))
    assert found == {"a": 101, **dict.fromkeys("bcdef", 1)}


def test_a_query_that_still_runs_is_fenced(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[("a", 1)]] * 2, clock)
    imported(job, replacing(job, 2), {"a": 100}, now_us=clock.now_us)
    with pytest.raises(FencedError, match="belongs to a newer run"):
        job.run(Keeper(), [("a", 1)])


def test_a_part_can_be_sent_by_the_process_that_wrote_it(root, backend):
    job = job_of(root, backend)
    for part in parts(job, FIRST, {"a": 1, "b": 2}, timers=[("b", 5)]):
        sent = ImportedPart.unpacked(part.packed())
        assert (sent.range, sent.committed.files) == (part.range, [*part.committed.files])
        assert sent.packed() == part.packed()


def test_state_that_is_there_is_not_overwritten(root, backend):
    job = job_of(root, backend)
    job.run(Keeper(), [("a", 1)])
    with pytest.raises(ConfigurationError, match="has state already"):
        imported(job, FIRST, {"a": 1})


@pytest.mark.parametrize("before", range(6))
def test_nothing_is_imported_if_a_request_fails(root, backend, before):
    """One of the requests fails: epoch, record, two markers, two manifests."""
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[(key, 1) for key in KEYS]] * 2, clock)
    target = replacing(job, 2)
    made = parts(job, target, {"a": 100})
    faulty = FaultyStorage(root, Fault(operation="put*", skip=before))
    broken = OperatorStorage(faulty, job.operator)
    how = {"uid": job.uid, "backend": backend.name, "now_us": 0}
    with pytest.raises(StorageError):
        publish(broken, target, made, **how)
    job.restart()
    (row,) = job.run(Keeper(), [("a", 1)])
    assert row[1] == 3


def test_an_import_that_failed_can_be_repeated(root, backend):
    job = job_of(root, backend)
    made = parts(job, FIRST, {"a": 1})
    faulty = FaultyStorage(root, Fault(name="*/manifest-*", skip=1))
    with pytest.raises(StorageError):
        publish(
            OperatorStorage(faulty, job.operator),
            FIRST,
            made,
            uid=job.uid,
            backend=backend.name,
            now_us=0,
        )
    imported(job, FIRST, {"a": 5})
    new = job_of(root, backend, query="new", restore=RestoreFrom("query"))
    (row,) = new.run(Keeper(), [("a", 1)])
    assert row[1] == 6


def streams(job):
    """Let a job run as a stream does: every batch makes a version."""
    job.checkpoint = Checkpoint(location=HOME, times_ms={0: 1_000})
    return job


@pytest.mark.long
def test_the_job_of_that_name_begins_with_the_import(root, backend):
    clock = ManualClock()
    job = streams(job_of(root, backend, parallelism=3, clock=clock))
    imported(job, FIRST, {"a": 7, "b": 8}, now_us=clock.now_us)
    rows = [("a", 1), ("z", 2)]
    expected = [
        ("a", 8, ["a", "a", "a"], {"sunday": 7, "monday": 1}, 7),
        ("z", 2, ["z"], {"monday": 2}, None),
    ]
    job.run(Keeper(), rows, crash=True)
    job.restart()
    assert sorted(job.run(Keeper(), rows)) == expected
    job.restart(batch_id=0)  # Spark did not commit the batch
    assert sorted(job.run(Keeper(), rows)) == expected
    assert job.run(Keeper(), [("b", 1)])[0][1] == 9


@pytest.mark.parametrize("folder", ["runs", "epochs"])
def test_a_query_does_not_begin_without_an_import_of_which_something_is_missing(
    root, backend, folder
):
    job = streams(job_of(root, backend))
    imported(job, FIRST, {"a": 7})
    (name,) = [one.name for one in job.storage.list(folder)]
    data = job.storage.get(name)
    job.storage.delete([name])
    with pytest.raises(CorruptStateError, match=f"{name} in .* is missing"):
        job.run(Keeper(), [("a", 1)])
    job.storage.put(name, data)
    assert job.run(Keeper(), [("a", 1)])[0][1] == 8


def test_a_mended_version_is_not_passed_over_because_its_record_is_missing(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[("a", 1)]] * 2, clock)
    run_key = imported(job, replacing(job, 2), {"a": 100}, now_us=clock.now_us)
    job.storage.delete([f"runs/{run_key}"])
    job.restart()
    with pytest.raises(
        CorruptStateError, match=f"runs/{run_key} in .* is missing.*forebay recover"
    ):
        job.run(Keeper(), [("a", 1)])
    epochs = list_epochs(job.storage)
    (chosen,) = [one for one in list_heads(job.storage, epochs) if one.run_key == run_key]
    put_recovery(job.storage, epochs, recovery_for(chosen, job.storage, epochs))
    assert job.run(Keeper(), [("a", 1)])[0][1] == 101


def test_an_import_that_is_truncated_is_not_passed_over(root, backend):
    job = streams(job_of(root, backend))
    run_key = imported(job, FIRST, {"a": 7})
    name = list_version(job.storage, 1).of_run(run_key).manifests[0].name
    job.storage.put(name, job.storage.get(name)[:-7])
    with pytest.raises(CorruptStateError, match=f"truncated .*{name}"):
        job.run(Keeper(), [("a", 1)])


def test_a_mended_version_that_is_truncated_is_not_passed_over(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[("a", 1)]] * 2, clock)
    run_key = imported(job, replacing(job, 2), {"a": 100}, now_us=clock.now_us)
    name = list_version(job.storage, 2).of_run(run_key).manifests[0].name
    job.storage.put(name, job.storage.get(name)[:-7])
    job.restart()
    with pytest.raises(CorruptStateError, match=f"truncated .*{name}"):
        job.run(Keeper(), [("a", 1)])
    imported(job, replacing(job, 2), {"a": 200}, now_us=clock.now_us)
    job.restart()
    assert job.run(Keeper(), [("a", 1)])[0][1] == 201


def test_a_query_without_its_checkpoint_does_not_begin_with_a_mended_version(root, backend):
    clock = ManualClock()
    job = job_of(root, backend, clock=clock)
    streamed(job, [[("a", 1)]], clock)
    imported(job, replacing(job, 1), {"a": 100}, now_us=clock.now_us)
    job.restart(batch_id=0)
    job.checkpoint = None
    assert job.run(Keeper(), [("a", 1)])[0][1] == 1


def test_an_operator_that_is_new_in_a_query_begins_with_the_import(root, backend):
    job = job_of(root, backend)
    imported(job, FIRST, {"a": 7})
    job.batch_id = 5
    assert job.run(Keeper(), [("a", 1)])[0][1] == 8


def test_an_import_of_another_max_parallelism_is_refused(root, backend):
    job = job_of(root, backend)
    imported(job, FIRST, {"a": 7})
    job.max_parallelism = 16
    with pytest.raises(ConfigurationError, match="max_parallelism=8"):
        job.run(Keeper(), [("a", 1)])


def test_an_import_and_other_state_to_begin_with_are_refused(root, backend):
    imported(job_of(root, backend, query="old"), FIRST, {"a": 7})
    imported(job_of(root, backend, query="new"), FIRST, {"a": 7})
    job = job_of(root, backend, query="new", restore=RestoreFrom("old"))
    with pytest.raises(ConfigurationError, match="has an imported first version"):
        job.run(Keeper(), [("a", 1)])
    job = job_of(root, backend, query="new", restore=RestoreFrom("new", allow_non_restored=True))
    assert job.run(Keeper(), [("a", 1)])[0][1] == 8


def test_a_query_that_goes_back_to_an_import_that_was_deleted_is_refused(root, backend):
    job = streams(job_of(root, backend))
    made = imported(job, FIRST, {"a": 7})
    job.run(Keeper(), [("a", 1)])
    gone = list_version(job.storage, 1).of_run(made)
    job.storage.delete([one.name for one in gone.objects])
    job.restart(batch_id=0)
    with pytest.raises(ConfigurationError, match="went back to batch 0"):
        job.run(Keeper(), [("a", 1)])


def published(job, storage, totals):
    how = {"uid": job.uid, "backend": job.backend_class.name, "now_us": 0}
    return publish(storage, FIRST, parts(job, FIRST, totals), **how)


class Between(OperatorStorage):
    """Calls a function before the n-th request that changes something."""

    def __init__(self, job, root, request, do):
        super().__init__(root, job.operator)
        self.left, self.do = request, do

    def _request(self):
        self.left -= 1
        if self.left == -1:
            self.do()

    def put(self, name, data):
        self._request()
        self.inner.put(name, data)

    def put_if_absent(self, name, data):
        self._request()
        return self.inner.put_if_absent(name, data)


@pytest.mark.parametrize("request_number", range(7))
def test_of_two_imports_at_once_at_most_one_succeeds(root, backend, request_number):
    """The second one runs as a whole before one of the first one's six requests, or after them."""
    job, second = job_of(root, backend), []

    def other():
        try:
            published(job, job.storage, {"a": 200})
            second.append(200)
        except ConfigurationError:
            pass

    storage = Between(job, root, request_number, other)
    try:
        published(job, storage, {"a": 100})
        first = [100]
    except (ConfigurationError, FencedError):
        first = []
    if not second and request_number == 6:
        other()
    assert len(first + second) == 1
    assert job.run(Keeper(), [("a", 1)])[0][1] == 1 + sum(first + second)


@pytest.mark.parametrize("request_number", range(6))
def test_a_query_that_begins_during_an_import_wins_or_has_all_of_it(root, backend, request_number):
    job, found = job_of(root, backend), []

    def starts():
        job.restart()
        found.append(job.run(Keeper(), [("a", 1)])[0][1])

    with pytest.raises((ConfigurationError, FencedError)):
        published(job, Between(job, root, request_number, starts), {"a": 100})
    assert found == [1]
    job.restart(batch_id=1)
    assert job.run(Keeper(), [("a", 1)])[0][1] == 2


@pytest.mark.long
@pytest.mark.parametrize("request_number", range(1, 6))
def test_a_query_that_begins_during_a_replacement_wins(root, backend, request_number):
    """It begins before one of the requests of the import that follow its epoch."""
    clock = ManualClock()
    job, found = job_of(root, backend, clock=clock), []
    streamed(job, [[("a", 1)]] * 2, clock)
    target = replacing(job, 2)

    def starts():
        job.restart()
        streamed(job, [[("a", 1)]], clock)
        found.append(job.batch_id)

    made = parts(job, target, {"a": 100}, now_us=clock.now_us)
    storage = Between(job, root, request_number, starts)
    with pytest.raises(FencedError, match="stop the query, then import again"):
        publish(storage, target, made, uid=job.uid, backend=job.backend_class.name, now_us=0)
    assert found == [3]
    assert job.run(Keeper(), [("a", 1)])[0][1] == 4


def test_a_query_that_begins_right_after_a_replacement_has_the_copy(root, backend):
    """It begins before the import looks for newer runs."""
    clock = ManualClock()
    job, found = job_of(root, backend, clock=clock), []
    streamed(job, [[("a", 1)]] * 2, clock)
    target = replacing(job, 2)
    made = parts(job, target, {"a": 100}, now_us=clock.now_us)

    def starts(operation, name):
        whole = (operation, name) == ("list", "epochs") and len(
            list_version(job.storage, 2).manifests
        ) == 4
        if whole and not found:
            found.append(None)
            job.restart()
            streamed(job, [[("a", 1)]], clock)

    storage = FaultyStorage(job.storage, latency=starts)
    publish(storage, target, made, uid=job.uid, backend=job.backend_class.name, now_us=0)
    assert found
    assert job.run(Keeper(), [("a", 1)])[0][1] == 102


def test_an_import_that_ends_while_a_query_begins_is_taken(root, backend):
    """It ends before the query's epoch entry, so it did not see the query."""
    for attempt in range(50):
        job = job_of(root, backend, query=f"query {attempt}")
        real = job.storage
        job.storage = Between(job, root, 0, partial(published, job, real, {"a": 100}))
        try:
            assert job.run(Keeper(), [("a", 1)])[0][1] == 101
        except FencedError:  # the epochs have one number, and the import's key is the higher one
            continue
        return
