"""The history remembers the figures of manifests that the janitor deleted."""

from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.pins import Pin
from forebay_engine.versions.cleaning import deleted_figures as history
from forebay_engine.versions.cleaning.deleted_figures import HistoryBlock, read_block
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.markers import list_version
from forebay_state_processor.observing import HistoryReader, list_operator
from forebay_testing.storage import CountingStorage, Crash, Fault, FaultKind, FaultyStorage

HOUR = timedelta(hours=1)


@pytest.fixture
def sweep(query, clock):
    def run_pass(run, committed, storage=None, *, retention=2, dry_run=False):
        clock.advance(2 * HOUR)
        janitor = Janitor(
            storage or query.storage,
            run_key=run.key,
            retention=retention,
            min_age=HOUR,
            dry_run=dry_run,
        )
        return janitor.sweep(committed)

    return run_pass


def blocks(storage):
    return [HistoryBlock.parse(info.name) for info in storage.list("history")]


def remembered(storage):
    return [made for block in blocks(storage) for made in read_block(storage, block)]


def manifests(storage, *versions):
    return [m for version in versions for m in list_version(storage, version).manifests]


def test_a_pass_remembers_the_manifests_that_it_deletes(query, sweep):
    run = query.run(2)
    run.batches(0, 9)
    there = manifests(query.storage, *range(1, 8))
    swept = sweep(run, 10)
    assert sorted(remembered(query.storage), key=lambda made: made.name) == sorted(
        there, key=lambda made: made.name
    )
    assert {made.name for made in there} < set(swept.names), "and the markers"
    assert [(block.oldest, block.newest) for block in blocks(query.storage)] == [(1, 7)]


def test_a_dry_run_remembers_nothing(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    sweep(run, 10, dry_run=True)
    assert blocks(query.storage) == []


def test_a_pass_that_is_repeated_after_a_crash_writes_the_same_object(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    there = manifests(query.storage, *range(1, 8))
    crashing = FaultyStorage(
        query.storage, Fault(operation="delete", name="versions/*", error=Crash)
    )
    with pytest.raises(Crash):
        sweep(run, 10, crashing)
    before = [info.name for info in query.storage.list("history")]
    sweep(run, 10)
    assert [info.name for info in query.storage.list("history")] == before
    assert len(remembered(query.storage)) == len(there)


def test_a_torn_object_is_made_good_by_the_next_pass(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    torn = FaultyStorage(
        query.storage,
        Fault(name="history/*", kind=FaultKind.TORN, error=Crash),
    )
    with pytest.raises(Crash):
        sweep(run, 10, torn)
    assert remembered(query.storage) == [], "a reader takes a torn object for absent"
    sweep(run, 10)
    assert {made.by.version for made in remembered(query.storage)} == set(range(1, 8))


def test_clearing_goes_on_where_the_history_cannot_be_written(query, sweep, caplog):
    run = query.run(1)
    run.batches(0, 9)
    full = FaultyStorage(query.storage, Fault(operation="put", name="history/*", count=None))
    assert len(sweep(run, 10, full).names) == 14
    assert "the figures of these versions are lost" in caplog.text


def test_a_pinned_version_is_not_remembered_until_it_is_deleted(query, sweep):
    run = query.run(1)
    run.batches(0, 9)
    with Pin(query.storage, 3, timedelta(days=1)):
        sweep(run, 10)
        assert {made.by.version for made in remembered(query.storage)} == {1, 2, 4, 5, 6, 7}
    sweep(run, 10)
    assert {made.by.version for made in remembered(query.storage)} == set(range(1, 8))


def test_both_timelines_are_remembered(query, sweep):
    first = query.run(1, data="a")
    first.batches(0, 5)
    back = query.run(1, data="b")
    back.batches(3, 12)
    sweep(back, 13)
    runs = {(made.by.version, made.by.run_key) for made in remembered(query.storage)}
    assert {run for version, run in runs if version == 5} == {first.key, back.key}


def test_versions_are_forgotten_when_they_are_old(query, sweep, monkeypatch):
    monkeypatch.setattr(history, "KEPT_VERSIONS", 6)
    run = query.run(1)
    for committed in (10, 20, 30):
        run.batches(committed - 10, committed - 1)
        sweep(run, committed)
    assert {made.by.version for made in remembered(query.storage)} == set(range(18, 28))


@pytest.mark.slow
def test_a_thousand_versions_are_remembered_and_listed(query, sweep):
    run = query.run(1)
    for committed in range(20, 1_201, 20):
        run.batches(committed - 20, committed - 1)
        sweep(run, committed)
    counting = CountingStorage(query.storage)
    timeline = HistoryReader(counting).timeline(list_operator(counting), history.KEPT_VERSIONS)
    found = [one.version for one in timeline.versions]
    assert found[:1_000] == list(range(1_200, 200, -1))
    assert len(found) <= 1_000 + 20, "an object is forgotten with its newest version"
    assert counting.counts == {"list": 1, "get": len(blocks(query.storage))}
