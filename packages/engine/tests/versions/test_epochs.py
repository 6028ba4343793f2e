"""Epochs are totally ordered, and a run decides once which version it continues."""

import itertools
import uuid

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
from forebay_state_api.errors import FencedError


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
