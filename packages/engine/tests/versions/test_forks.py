"""Forks: the pins that hold the source's files, and races between two forks."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from forebay_engine.versions import Janitor, OperatorStorage, RestoreFrom
from forebay_engine.versions.choosing.pins import lasting_holders, list_pins
from forebay_engine.versions.choosing.savepoints import (
    create_savepoint,
    delete_savepoint,
    list_savepoints,
    read_savepoint,
)
from forebay_engine.versions.format.folder import renamed, split
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.storage import Crash, Fault, FaultyStorage

FROM = RestoreFrom("source")


@pytest.fixture
def root():
    return MemoryStorage(f"memory://{uuid.uuid4()}")


@pytest.fixture
def folder(root, make_query):
    """Return a function from a name to a query with operator ``op`` in one state directory."""
    return lambda name: make_query(OperatorStorage(root, f"{name}/op"))


def sweep(run, version, retention=2):
    """Run the janitor twice: files are deleted one pass after the manifests that named them."""
    janitor = Janitor(run.query.storage, run_key=run.key, retention=retention, min_age=timedelta(0))
    janitor.sweep(version)
    janitor.sweep(version)


@pytest.mark.long
def test_the_source_runs_on_for_60_versions_with_its_janitor(folder, expected):
    source, fork = folder("source").run(2), folder("fork").run(2)
    source.batches(0, 9)
    fork.batch(0, restore=FROM)
    fork.batch(1, restore=FROM)
    for batch in range(10, 70):
        source.batch(batch)
        if batch % 10 == 9:
            sweep(source, batch + 1)
    assert len(source.query.storage.list_folders("versions")) < 10
    again = fork.query.run(4)
    assert again.opened(2) == expected(*range(10), 0, 1)


def test_a_fork_lets_go_when_it_names_no_file_of_the_source_any_more(folder):
    source, fork = folder("source").run(1), folder("fork").run(1)
    source.batches(0, 4)
    fork.batches(0, 2, restore=FROM)
    sweep(fork, 3)
    assert lasting_holders(source.query.storage) == ["fork fork/op"]
    fork.batches(3, 12)  # now the toy has rewritten everything
    sweep(fork, 13)
    assert lasting_holders(source.query.storage) == []
    assert fork.query.storage.list("sources") == []
    source.batches(5, 9)
    sweep(source, 10)
    assert len(source.query.storage.list("data")) <= 5


def test_what_a_savepoint_of_a_fork_names_stays_held(folder, expected):
    source, fork = folder("source").run(1), folder("fork").run(1)
    source.batches(0, 4)
    fork.batch(0, restore=FROM)
    create_savepoint(fork.query.storage, "early", uid="op")
    fork.batches(1, 12)
    sweep(fork, 13)
    source.batches(5, 20)
    sweep(source, 21)
    assert lasting_holders(source.query.storage) == ["fork fork/op"]
    third = folder("third").run(2)
    asked = RestoreFrom("fork", savepoint="early")
    third.batch(0, restore=asked)
    assert lasting_holders(source.query.storage) == ["fork fork/op", "fork third/op"]
    delete_savepoint(fork.query.storage, "early", uid="op")
    sweep(fork, 13)
    sweep(source, 21)
    assert third.query.run(1).opened(1) == expected(*range(5), 0, 0)
    last = third.query.run(1)
    last.batches(1, 12)
    for run, version in ((last, 13), (fork, 13)):
        sweep(run, version)
    assert lasting_holders(source.query.storage) == []


def test_a_version_that_there_is_not_is_warned_of(folder, expected, caplog):
    source, fork = folder("source").run(1), folder("fork").run(1)
    source.batches(0, 2)
    assert fork.opened(0, restore=RestoreFrom("source", version=3)) == expected(*range(3))
    assert not caplog.records
    again = folder("again").run(1)
    assert again.opened(0, restore=RestoreFrom("source", version=9)) == expected(*range(3))
    (record,) = caplog.records
    assert "version 9 of query 'source': there is no such version, and version 3 below it" in (
        record.getMessage()
    )


def test_the_version_is_chosen_once(folder, expected):
    source, query = folder("source").run(1), folder("fork")
    source.batches(0, 4)
    query.run(1).begin(0, restore=FROM)  # dies before its manifest
    source.batches(5, 6)
    second = query.run(2)
    assert second.opened(0, restore=FROM) == expected(*range(5))
    second.batch(0, restore=FROM)
    source.batch(7)
    replayed = query.run(2)
    assert replayed.opened(0, restore=FROM) == expected(*range(5))
    other = query.run(2)
    assert other.opened(0, restore=RestoreFrom("source", version=7)) == expected(*range(7))


def test_a_query_that_begins_anew_after_it_went_on_chooses_anew(folder, expected):
    source, query = folder("source").run(1), folder("fork")
    source.batch(0)
    query.run(1).batches(0, 3, restore=FROM)
    source.batch(1)
    assert query.run(1).opened(0, restore=FROM) == expected(0, 1)


def test_state_that_is_there_is_opened_whatever_is_asked_for(folder, expected):
    folder("source").run(1).batches(0, 4)
    fork = folder("fork")
    fork.run(1).batches(0, 1)
    assert fork.run(1).opened(2, restore=FROM) == expected(0, 1)


def test_two_tasks_choose_and_one_decides(folder, root, expected):
    source, fork = folder("source").run(1), folder("fork").run(2)
    source.batches(0, 4)
    started = []

    def between(operation, name):
        """Another task of the run decides just before this one puts the record."""
        if operation == "put_if_absent" and name.startswith("fork/op/runs/") and not started:
            started.append(name)
            source.batch(5)
            fork.begin(0, 1, restore=FROM).commit()

    slow = OperatorStorage(FaultyStorage(root, latency=between), "fork/op")
    task = fork.begin(0, 0, restore=FROM, storage=slow)
    task.commit()
    assert task.version.source.version == 6
    assert len(fork.query.storage.list("sources")) == 1
    assert len(list_pins(source.query.storage)) == 1
    opened = fork.query.run(1).opened(1)
    assert len(set(opened.values())) == 1


@pytest.mark.parametrize("request_number", range(30))
def test_a_crash_at_any_request_leaves_a_fork_that_can_begin(
    folder, root, request_number, expected
):
    source, query = folder("source").run(1), folder("fork")
    source.batches(0, 4)
    faulty = FaultyStorage(root, Fault(skip=request_number, error=Crash, count=None))
    first = query.run(1)
    try:
        first.begin(0, restore=FROM, storage=OperatorStorage(faulty, "fork/op")).commit()
    except Crash:
        query.run(1).batch(0, restore=FROM)
    assert query.run(1).opened(1) == expected(*range(5), 0)
    last = query.run(1)
    last.batches(1, 12)
    sweep(last, 13)
    assert query.storage.list("sources") == []
    source.batches(5, 14)
    assert lasting_holders(source.query.storage) == []


def test_a_file_that_is_gone_is_found_before_anything_is_decided(folder):
    source, fork = folder("source").run(1), folder("fork").run(1)
    source.batches(0, 4)
    source.query.storage.delete([source.query.storage.list("data")[0].name])
    with pytest.raises(CorruptStateError, match=r"version 5 .*is missing"):
        fork.begin(0, restore=FROM)
    assert fork.query.storage.list() == []
    assert lasting_holders(source.query.storage) == []


def test_a_fork_of_its_own_past(folder, expected):
    query = folder("source")
    query.run(1).batches(0, 4)
    create_savepoint(query.storage, "before", uid="op", version=3)
    again = query.run(1)
    again.batch(0, restore=RestoreFrom("source", savepoint="before"))
    assert query.run(1).opened(1) == expected(0, 1, 2, 0)


def test_savepoints_keep_what_they_name(folder, expected):
    source = folder("source").run(2)
    source.batches(0, 4)
    storage = source.query.storage
    saved = create_savepoint(storage, "before the change", uid="op")
    assert (saved.version, saved.backend) == (5, "toy")
    with pytest.raises(ConfigurationError, match="has a savepoint 'before the change' already"):
        create_savepoint(storage, "before the change", uid="op")
    source.batches(5, 30)
    sweep(source, 31)
    asked = RestoreFrom("source", savepoint="before the change")
    fork = folder("fork").run(1)
    assert fork.opened(0, restore=asked) == expected(*range(5))
    assert [one.name for one in list_savepoints(storage)] == ["before the change"]
    delete_savepoint(storage, "before the change", uid="op")
    with pytest.raises(ConfigurationError, match="no savepoint 'x'; it has: none"):
        read_savepoint(storage, "x", uid="op")
    sweep(source, 31)
    assert folder("fork").run(1).opened(0, restore=asked) == expected(*range(5))


@pytest.mark.parametrize("name", ["", "fork x"])
def test_names_that_savepoints_cannot_have(folder, name):
    source = folder("source").run(1)
    source.batch(0)
    with pytest.raises(ConfigurationError):
        create_savepoint(source.query.storage, name, uid="op")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"version": 1, "savepoint": "x"}, "a version or a savepoint"),
        ({"version": 0}, "counted from 1"),
        ({"query": ""}, "the query id is an empty string"),
    ],
)
def test_what_restore_from_refuses(how, message):
    with pytest.raises(ConfigurationError, match=message):
        RestoreFrom(how.pop("query", "q"), **how)


def test_restoring_needs_the_state_directory(query):
    with pytest.raises(ConfigurationError, match="needs the operator's folder"):
        query.run(1).begin(0, restore=FROM)


@pytest.mark.parametrize(
    ("name", "named_by", "reader", "expected"),
    [
        ("data/1/x", "q/a", "q/a", "data/1/x"),
        ("data/1/x", "q/a", "q/b", "from/q/a/data/1/x"),
        ("from/q/a/data/1/x", "q/b", "q/c", "from/q/a/data/1/x"),
        ("from/q/a/data/1/x", "q/b", "q/a", "data/1/x"),
    ],
)
def test_names_across_folders(name, named_by, reader, expected):
    assert renamed(name, named_by=named_by, reader=reader) == expected
    assert split(expected, reader) == ("q/a", "data/1/x")
