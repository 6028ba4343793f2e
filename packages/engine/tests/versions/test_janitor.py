"""The janitor deletes state that nobody can open, and nothing else. See also test_schedules."""

import uuid
from datetime import timedelta

import attrs
import pytest

from forebay_engine.versions.choosing.pins import Pin, list_pins
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.cadence import is_due
from forebay_engine.versions.cleaning.janitor import RECORD_AGE, Janitor
from forebay_engine.versions.format.epochs import list_epochs, record_name
from forebay_engine.versions.format.manifest import is_named
from forebay_state_api.contract.file_names import LAST_VERSION, compaction_prefix, data_version
from forebay_testing.storage import Crash, Fault, FaultyStorage

HOUR = timedelta(hours=1)


@pytest.fixture
def sweep(query, clock):
    def run_pass(run, committed, retention=2, *, wait=2 * HOUR, **how):
        clock.advance(wait)
        storage = how.pop("storage", query.storage)
        janitor = Janitor(storage, run_key=run.key, retention=retention, min_age=HOUR, **how)
        return janitor.sweep(committed)

    return run_pass


def versions(storage):
    return {(1 << 48) - 1 - int(folder, 16) for folder in storage.list_folders("versions")}


def file_versions(storage):
    return {data_version(info.name) for info in storage.list("data")}


def test_it_is_due_every_ten_versions_of_subtask_0():
    assert [v for v in range(1, 31) if is_due(v, 0)] == [10, 20, 30]
    assert not is_due(10, 1)
    assert is_due(5, 0, every=5)


def test_versions_that_are_skipped_count():
    odd = range(1, 40, 2)
    assert [v for v in odd if is_due(v, 0, opened=max(v - 2, 0))] == [11, 21, 31]
    assert is_due(45, 0, opened=2)


def test_versions_go_first_and_files_in_a_later_pass(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    everything = file_versions(query.storage)
    sweep(run, 10)
    assert versions(query.storage) == {8, 9, 10}
    assert file_versions(query.storage) == everything
    sweep(run, 10)
    assert file_versions(query.storage) < everything
    assert 8 in file_versions(query.storage)


def test_nothing_young_goes(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    assert sweep(run, 10, wait=timedelta(minutes=59)).names == ()


def test_a_dry_run_deletes_nothing(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    before = query.storage.list()
    swept = sweep(run, 10, dry_run=True)
    assert query.storage.list() == before
    assert {name.split("/")[0] for name in swept.names} == {"versions"}
    assert sweep(run, 10).names == swept.names


def test_nothing_goes_before_there_are_enough_versions(query, sweep):
    run = query.run(1)
    run.batches(0, 1)
    assert sweep(run, 2) == sweep(run, 2)
    assert sweep(run, 2).base == 0


def test_the_base_is_the_version_below_a_floor_that_was_skipped(query, sweep, expected):
    run = query.run(1)
    run.batches(0, 3)
    run.batch(9)
    assert sweep(run, 10, retention=3).base == 4
    assert query.run(1).opened(7) == expected(0, 1, 2, 3)


def test_the_floor_is_its_own_version_not_the_highest(query, sweep):
    query.run(1, data="a").batches(0, 9)
    back = query.run(1, data="b")
    back.batches(3, 4)
    swept = sweep(back, 5)
    assert swept.base == 3
    assert versions(query.storage) == set(range(3, 11))


def test_a_crash_at_any_delete_is_made_good_by_the_next_pass(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    for skip in (3, 1, 0):
        broken = FaultyStorage(query.storage, Fault(operation="delete", skip=skip, error=Crash))
        with pytest.raises(Crash):
            sweep(run, 10, storage=broken)
        assert query.run(1).opened(10)[0] == tuple(map(str, range(10)))
        run = query.run(1)
        run.batch(9)
    sweep(run, 10)
    assert min(versions(query.storage)) == 8


def test_old_epochs_go_and_their_records_much_later(query, sweep):
    older = query.run(1)
    older.batches(0, 2)
    run = query.run(1)
    run.batches(3, 9)
    sweep(run, 10)
    sweep(run, 10)
    assert [entry.run_key for entry in list_epochs(query.storage).entries] == [run.key]
    assert query.storage.get(record_name(older.key))
    sweep(run, 10, wait=RECORD_AGE)
    assert [info.name for info in query.storage.list("runs")] == [record_name(run.key)]


@pytest.mark.long
def test_for_each_batch_leaves_no_trail_of_epochs(query, sweep, expected):
    spark_run = str(uuid.uuid4())
    for batch in range(30):
        run = query.run(1, spark_run=spark_run)
        run.batch(batch)
        sweep(run, batch + 1)
    assert len(list_epochs(query.storage).entries) <= 4
    assert len(query.storage.list("taken")) <= 4
    assert query.run(1, spark_run=spark_run).opened(30) == expected(*range(30))


def test_a_newer_batch_of_the_same_spark_run_does_not_stop_it(query, sweep):
    spark_run = str(uuid.uuid4())
    for batch in range(9):
        query.run(1, spark_run=spark_run).batch(batch)
    run = query.run(1, spark_run=spark_run)
    run.batch(9)
    query.run(1, spark_run=spark_run).begin(10)
    swept = sweep(run, 10)
    assert (swept.overtaken, swept.base) == (False, 8)


def test_entries_above_its_own_stay(query, sweep):
    """The next number follows the highest entry."""
    spark_run = str(uuid.uuid4())
    run = query.run(1, spark_run=spark_run)
    run.batches(0, 9)
    for batch in (10, 11, 12):
        dies = Fault(operation="put_if_absent", name="versions/*", error=Crash)
        begun = query.run(1, spark_run=spark_run)
        with pytest.raises(Crash):
            begun.begin(batch, storage=FaultyStorage(query.storage, dies))
    for _ in range(2):
        sweep(run, 10)
    assert [entry.number for entry in list_epochs(query.storage).entries] == [1, 2, 3, 4]
    assert [info.name for info in query.storage.list("taken")] == ["taken/00000004"]


def test_expired_pins_go(query, sweep, storage):
    run = query.run(1)
    run.batches(0, 9)
    Pin(storage, 2, lease=3 * HOUR)
    Pin(storage, 2, lease=HOUR)
    sweep(run, 10)
    assert len(list_pins(storage)) == 1
    assert 2 in versions(storage)


def test_a_pin_that_no_release_writes_does_not_stop_it(query, sweep, storage):
    run = query.run(1)
    run.batches(0, 9)
    storage.put(f"pins/2-{'0' * 24}-{10**15}-000000", b"not a pin's content")
    swept = sweep(run, 10)
    assert swept.names
    assert 2 in versions(storage)


def test_it_leaves_no_probe(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    sweep(run, 10)
    assert query.storage.list("probes") == []


def test_what_is_not_ours_stays(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    query.storage.put("data/readme", b"")
    query.storage.put("versions/lost/found", b"")
    sweep(run, 10)
    sweep(run, 10)
    names = {info.name for info in query.storage.list()}
    assert {"data/readme", "versions/lost/found"} <= names


def test_what_is_of_a_version_that_nobody_has_begun_goes_after_its_age(query, sweep):
    """A client of a gateway chooses the folder of its jobs, say one that no query ever reaches."""
    run = query.run(1)
    run.batches(0, 9)
    prefixes = [compaction_prefix(version) for version in (LAST_VERSION, 11, 12)]
    for prefix in prefixes:
        query.storage.put(f"{prefix}claim", b"somebody's")
    sweep(run, 10, wait=timedelta(minutes=30))
    assert all(written_below(query, prefix) for prefix in prefixes)
    run.begin(10)  # the task of a long micro-batch
    sweep(run, 10)
    assert [bool(written_below(query, prefix)) for prefix in prefixes] == [False, True, False]


def written_below(query, prefix):
    return [info.name for info in query.storage.list("data") if info.name.startswith(prefix)]


def batch_of_a_job(run, batch, *prefixes):
    """A micro-batch whose manifest names pending compactions by their prefixes."""
    for subtask in range(run.parallelism):
        task = run.begin(batch, subtask)
        task.commit(attrs.evolve(task.write(), protected=prefixes))


def test_a_pending_job_keeps_its_prefix(query, sweep):
    run = query.run(1)
    prefix, abandoned = compaction_prefix(1), compaction_prefix(1)
    for batch in range(10):
        batch_of_a_job(run, batch, prefix)
    for folder in (prefix, abandoned):
        query.storage.put(f"{folder}0000", b"output")
        query.storage.put(f"{folder}inner/heartbeat-000001", b"beat")
    sweep(run, 10)
    sweep(run, 10)
    assert len(written_below(query, prefix)) == 2
    assert written_below(query, abandoned) == []


def test_what_a_job_left_goes_when_no_manifest_names_it_any_more(query, sweep):
    run = query.run(1)
    prefix = compaction_prefix(1)
    batch_of_a_job(run, 0, prefix)
    query.storage.put(f"{prefix}0000", b"output")
    run.batches(1, 9)
    sweep(run, 10)
    assert written_below(query, prefix)
    sweep(run, 10)
    assert written_below(query, prefix) == []


def test_a_pin_keeps_the_prefixes_of_its_version(query, sweep):
    run = query.run(1)
    prefix = compaction_prefix(1)
    batch_of_a_job(run, 0, prefix)
    query.storage.put(f"{prefix}0000", b"output")
    with open_version(query.storage, uid="op", lease=timedelta(days=9)):
        run.batches(1, 9)
        for _ in range(3):
            sweep(run, 10)
        assert written_below(query, prefix)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("data/1/file", True),
        ("data/1/job-1/0000", True),
        ("data/1/job-1/deeper/0000", True),
        ("data/1/job-2/0000", False),
        ("data/1/job-10", False),
        ("data/1/job-1", False),
        ("data/1/file/below", False),
    ],
)
def test_what_a_manifest_names(name, named):
    assert is_named(name, {"data/1/file", "data/1/job-1/"}) is named
