"""Epochs are totally ordered, and a run decides once which version it continues."""

import itertools
import uuid
from datetime import timedelta

import pytest

from forebay_engine.versions.format.epochs import (
    UNKNOWN_SPARK_RUN,
    EpochEntry,
    Epochs,
    RunIdentity,
    RunRecord,
    RunVersion,
    decide_record,
    list_epochs,
    mint,
    read_record,
)
from forebay_state_api.errors import CorruptStateError, FencedError
from forebay_testing.storage import CountingStorage


def identity(**changes):
    return RunIdentity(**({"keyed_uuid": "k", "app_id": "a", "run_id": "r"} | changes))


def test_every_part_makes_another_run_key():
    changes = [{}, {"keyed_uuid": "x"}, {"app_id": "x"}, {"run_id": "x"}]
    changes += [{"run_id": None}, {"app_id": None}, {"app_id": "ar", "run_id": ""}]
    keys = [identity(**change).key for change in changes]
    assert len(set(keys)) == len(keys)
    assert identity().key == identity().key


def test_the_spark_run_is_empty_where_it_is_unknown():
    known = identity(run_id=str(uuid.uuid4()))
    assert known.known_spark_run == known.spark_run
    assert identity(run_id="the user's").known_spark_run == ""


def test_only_sparks_own_run_ids_identify_a_spark_run():
    run_id = str(uuid.uuid4())
    one, other = (identity(run_id=run_id, keyed_uuid=key) for key in "ab")
    assert one.spark_run == other.spark_run != UNKNOWN_SPARK_RUN
    assert identity(run_id="my group").spark_run == UNKNOWN_SPARK_RUN
    assert identity(run_id=None).spark_run == UNKNOWN_SPARK_RUN


def test_a_rank_is_the_highest_number_and_then_the_key():
    runs = {"a" * 16: (1, 4), "b" * 16: (4,), "c" * 16: (3,)}
    entries = [EpochEntry(n, 0, key, UNKNOWN_SPARK_RUN) for key, ns in runs.items() for n in ns]
    for order in itertools.permutations(entries):
        epochs = Epochs(order)
        assert epochs.newest().run_key == "b" * 16
        assert epochs.of_run("a" * 16).number == 4
        assert epochs.rank("c" * 16, 1) == (3, "c" * 16)
        assert epochs.rank("d" * 16, 2) == (2, "d" * 16)


def test_numbers_of_any_length_are_read_back():
    for number in (1, 99_999_999, 100_000_000):
        entry = EpochEntry(number, 0, "a" * 16, UNKNOWN_SPARK_RUN)
        assert EpochEntry.parse(entry.name) == entry


def test_an_entry_tells_everything_in_its_name(storage):
    run = identity(run_id=str(uuid.uuid4()))
    epochs = mint(storage, run, 17, list_epochs(storage))
    storage.put("epochs/.DS_Store", b"")
    (entry,) = list_epochs(storage).entries
    assert epochs.entries == [entry]
    assert (entry.number, entry.since) == (1, 17)
    assert (entry.run_key, entry.spark_run) == (run.key, run.spark_run)


def test_the_first_record_holds(storage):
    first = RunRecord(
        since=3,
        origin=RunVersion(version=3, run_key="x"),
        keyed_uuid="k",
        app_id=None,
        run_id="r",
        details={"source": ["plain", 1]},
    )
    second = RunRecord(
        since=3, origin=RunVersion(version=0, run_key=None), keyed_uuid="k", app_id=None, run_id="r"
    )
    key = first.identity.key
    assert read_record(storage, key) is None
    assert decide_record(storage, key, first) == first
    assert decide_record(storage, key, second) == first
    assert read_record(storage, key) == first


def test_a_run_whose_entry_was_pruned_cannot_come_back(query):
    older = query.run()
    older.batch(0)
    query.run().batch(1)
    entry = list_epochs(query.storage).of_run(older.key)
    query.storage.delete([entry.name])
    with pytest.raises(FencedError, match="cleaned up"):
        older.begin(1).commit()
    older.memory.forget()
    with pytest.raises(FencedError, match="cleaned up"):
        older.begin(1)


def test_a_list_decides_where_the_get_finds_a_number_whose_run_died(query):
    run = query.run(1)
    run.batch(0)
    query.storage.put("taken/00000002", b"the run that took it died")
    run.batch(1)
    query.run(1).batch(2)
    assert [entry.number for entry in list_epochs(query.storage).entries] == [1, 3]
    with pytest.raises(FencedError):
        run.begin(2).commit()


def test_a_process_lists_again_after_ten_minutes(query, clock):
    older = query.run(1)
    older.batch(0)
    query.run(1).begin(1)
    query.storage.delete(["taken/00000002"])  # as after a directory was put back, or by hand
    older.begin(1).commit()
    clock.advance(timedelta(minutes=10))
    with pytest.raises(FencedError):
        older.begin(2).commit()


def test_a_clock_that_goes_back_costs_a_list(query, clock):
    run = query.run(1)
    run.batch(0)
    clock.advance(timedelta(seconds=-1))
    storage = CountingStorage(query.storage)
    run.begin(1, storage=storage).commit()
    assert ("list", "epochs") in storage.requests


def test_a_run_whose_versions_are_gone_does_not_begin_with_empty_state_again(query):
    run = query.run(1)
    run.batch(0)
    query.storage.delete([info.name for info in query.storage.list("versions")])
    for _ in range(2):
        with pytest.raises(CorruptStateError, match=r"version 1 .* is missing"):
            run.begin(1)
        run.memory.forget()
