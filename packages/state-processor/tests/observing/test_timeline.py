"""One list of an operator's folder shows its versions with their figures."""

from datetime import timedelta

import attrs
import pytest

from forebay_engine.versions.choosing.opening import runs_by_rank
from forebay_engine.versions.choosing.pins import Pin
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.cleaning.deleted_figures import remember
from forebay_engine.versions.format.epochs import Epochs
from forebay_engine.versions.format.markers import list_version
from forebay_state_processor.observing import (
    HistoryReader,
    key_groups_of,
    list_operator,
    timeline_of,
)
from forebay_state_processor.observing.key_groups import GROUP_ROWS
from forebay_testing.storage import CountingStorage

ROWS = {"rows_in": 30, "rows_out": 5}


def numbers(timeline):
    return [version.version for version in timeline.versions]


def test_one_request_shows_all_versions_with_their_subtasks(job, storage):
    job.versions(1, 3, metrics=ROWS)
    counting = CountingStorage(storage)
    timeline = list_operator(counting).timeline
    assert counting.counts == {"list": 1}
    assert numbers(timeline) == [3, 2, 1]
    newest = timeline.newest
    assert (newest.batch, newest.parallelism, newest.batch_ms) == (2, 2, 3_000)
    assert [one.range.start for one in newest.subtasks] == [0, 4]
    assert [newest.count(name) for name in ("rows_in", "rows_out", "state_bytes")] == [60, 10, 200]
    assert newest.count("keys") is None, "this backend does not count them"
    assert timeline.of_batch(0).version == 1
    assert timeline.of_batch(7) is None


def test_rates_and_growth_are_per_second(job, storage):
    job.versions(1, 4, metrics=ROWS)
    job.version(5, metrics=ROWS, files=3)
    timeline = list_operator(storage).timeline
    assert timeline.rate("rows_in") == 6.0
    assert timeline.rate("rows_in", last=1) == 6.0
    assert timeline.growth("state_bytes") == (600 - 200) / 40
    assert timeline.growth("keys") is None
    assert timeline.seconds_between() == [10.0] * 4
    assert timeline_of([]).rate("rows_in") is None


def test_a_version_counts_when_all_subtasks_have_committed(job, storage):
    job.versions(1, 2)
    listing = list_operator(storage)
    assert listing.begun() == {}
    job.clock.advance(timedelta(seconds=3))
    began = job.clock.now
    made = [job.begin(3, subtask) for subtask in (0, 1)]
    job.commit(made[0])
    listing = list_operator(storage)
    assert numbers(listing.timeline) == [2, 1]
    assert listing.begun() == {0: began, 1: began}
    job.commit(made[1])
    assert numbers(list_operator(storage).timeline) == [3, 2, 1]


def test_of_several_attempts_the_last_one_counts_and_only_once(job, storage):
    job.version(1, metrics=ROWS)
    again = job.begin(1, 0)
    job.commit(again, metrics={"rows_in": 31})
    newest = list_operator(storage).timeline.newest
    assert newest.count("rows_in") == 31 + 30
    assert newest.subtasks[0].attempt_id == again.attempt_id


def test_a_run_that_went_back_hides_what_it_made_again(job, storage):
    job.versions(1, 6, run="a", epoch=1)
    job.versions(4, 5, run="b", epoch=2)
    timeline = list_operator(storage).timeline
    assert [(one.version, one.epoch) for one in timeline.versions] == [
        (5, 2),
        (4, 2),
        (3, 1),
        (2, 1),
        (1, 1),
    ]
    assert [(one.version, one.epoch) for one in timeline.abandoned] == [(6, 1), (5, 1), (4, 1)]


def test_a_run_that_has_completed_nothing_hides_nothing(job, storage):
    job.versions(1, 3, run="a", epoch=1)
    job.commit(job.begin(2, 0, run="b", epoch=2))
    assert numbers(list_operator(storage).timeline) == [3, 2, 1]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_runs_with_equal_epochs_the_one_that_readers_choose_counts(job, storage, order):
    """Two drivers that start at once may mint the same number; the higher run key is newer."""
    for run in order:
        job.versions(1, 2, run=run)
    listing = list_version(storage, 2)
    chosen, left = runs_by_rank(listing, Epochs([]))
    assert chosen == max(listing.run_keys)
    timeline = list_operator(storage).timeline
    assert {one.run_key for one in timeline.versions} == {chosen}
    assert {one.run_key for one in timeline.abandoned} == {left}


def test_the_history_continues_the_timeline_and_is_read_once(job, storage):
    job.versions(1, 30, metrics=ROWS)
    for first, last in ((1, 10), (11, 20)):
        gone = [m for v in range(first, last + 1) for m in list_version(storage, v).objects]
        remember(storage, [made for made in gone if made.manifest])
        if first == 1:
            storage.delete([made.name for made in gone])
    counting = CountingStorage(storage)
    listing, reader = list_operator(counting), HistoryReader(counting)
    assert numbers(listing.timeline) == list(range(30, 10, -1))
    assert numbers(reader.timeline(listing, 20)) == list(range(30, 10, -1))
    assert counting.counts == {"list": 1}
    whole = reader.timeline(listing, 1_000)
    assert numbers(whole) == list(range(30, 0, -1)), "versions in both places count once"
    assert whole.of_batch(0).count("rows_in") == 60
    assert counting.counts == {"list": 1, "get": 2}
    reader.timeline(listing, 1_000)
    assert counting.counts == {"list": 1, "get": 2}


def test_the_listing_shows_pins_savepoints_and_compactions(job, storage, clock):
    job.versions(1, 2)
    prefix = "data/fffffffffffd/compaction-" + "ab" * 12 + "/"
    storage.put(f"{prefix}claim", b"x")
    clock.advance(timedelta(seconds=5))
    storage.put(f"{prefix}run-{'cd' * 12}/heartbeat-000001", b"x")
    storage.put("epochs/00000001-0-" + "a" * 16 + "-" + "b" * 16, b"x")
    create_savepoint(storage, "before v2", uid="op", version=2)
    with Pin(storage, 2, timedelta(minutes=1)):
        listing = list_operator(storage)
        assert [pin.version for pin in listing.reader_pins(clock.now)] == [2]
        later = clock.now + timedelta(minutes=2)
        assert listing.reader_pins(later) == []
    assert listing.savepoints == ["before v2"]
    (job_folder,) = listing.compactions
    assert (job_folder.version, job_folder.is_done) == (2, False)
    assert job_folder.seen - job_folder.begun == timedelta(seconds=5)
    assert listing.data_files == 4 + 2


@pytest.mark.parametrize(("key", "known"), [("entries", True), ("cells", True), ("other", False)])
def test_key_groups_have_shares_of_the_cells_that_the_backend_counts(job, key, known):
    manifests = job.version(1, files=2)
    counted = [
        attrs.evolve(one, files=[attrs.evolve(file, meta={key: 20}) for file in one.files])
        for one in manifests
    ]
    assert key_groups_of(counted).cells == ([10.0] * 8 if known else None)
    mixed = [counted[0], manifests[1]]
    assert key_groups_of(mixed).cells is None


@pytest.mark.parametrize("counted", [True, False])
def test_key_groups_have_shares_of_files_and_their_rows(job, counted):
    rows = {GROUP_ROWS: [1, 9, 0, 2]} if counted else {}
    groups = key_groups_of(job.version(1, metrics=rows, files=2))
    assert groups.bytes == [50.0] * 8
    assert groups.files == [2] * 8
    assert groups.cells is None
    assert groups.rows == ([1, 9, 0, 2] * 2 if counted else None)
    assert groups.hottest(3) == ({1: 9, 5: 9, 3: 2} if counted else {})
