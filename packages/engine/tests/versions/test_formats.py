"""Objects of the protocol that another release wrote, or that were stored under a wrong name."""

import re

import pytest

from forebay_engine.versions.choosing.forks import release_unused
from forebay_engine.versions.choosing.pins import (
    lasting_holders,
    lasting_name,
    list_pins,
    pinned_files,
)
from forebay_engine.versions.choosing.savepoints import create_savepoint, list_savepoints
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.epochs import read_record, record_name
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.manifest import FORMAT, Manifest
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.errors import CorruptStateError


@pytest.fixture
def payload(query):
    query.run(1).batch(0)
    (made,) = list_version(query.storage, 1).manifests
    return unseal(query.storage.get(made.name))


def read(payload):
    return Manifest.unsealed(seal(payload), "the manifest")


def test_what_a_newer_release_added_to_a_manifest_is_ignored(payload):
    added = {**payload, "one_more": 1, "made": {**payload["made"], "colour": "red"}}
    assert read(added) == read(payload)


def test_what_an_older_release_left_out_has_its_default(payload):
    assert not read({name: value for name, value in payload.items() if name != "times"}).times


def test_a_file_that_the_manifest_holds(payload):
    names = ["data/ffffffffffff/a-1", "data/ffffffffffff/b-2"]
    files = [[names[0], 3, 0, 7, {}, b"abc"], [names[1], 5, 0, 7, {}]]
    found = read({**payload, "files": files, "protected": []})
    assert [file.data for file in found.files] == [b"abc", None]
    assert found.names == {names[1]}
    assert Manifest.unsealed(found.sealed(), "the manifest") == found


def test_a_manifest_of_the_first_format_is_read(payload):
    assert read({**payload, "format": 1}) == read(payload)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (FORMAT + 1, f"the manifest has format {FORMAT + 1}, of a newer release of Forebay; this"),
        (0, "the manifest has format 0, which no release wrote; this one reads format "),
        ("x", "the manifest has format 'x', which no release wrote"),
    ],
)
def test_a_manifest_of_another_format(payload, number, message):
    with pytest.raises(CorruptStateError, match=re.escape(message)):
        read({**payload, "format": number})


@pytest.mark.parametrize("lost", ["format", "made", "files", "descriptions"])
def test_a_manifest_that_lacks_a_field(payload, lost):
    del payload[lost]
    with pytest.raises(CorruptStateError, match=f"the manifest is damaged.*{lost}"):
        read(payload)


@pytest.fixture
def record(query):
    run = query.run(1)
    run.batch(0)
    return record_name(run.key), run.key


@pytest.mark.parametrize(
    "content",
    [
        b"",
        seal({}),
        seal({"since": 0, "run": "0"}),
        seal({"files": None}),
        b"anything, long enough",
    ],
)
def test_a_run_record_that_is_something_else(query, record, content):
    name, run_key = record
    query.storage.put(name, content)
    with pytest.raises(CorruptStateError, match=name) as found:
        read_record(query.storage, run_key)
    assert type(found.value) is CorruptStateError


def test_a_run_record_of_another_run(query, record):
    name, run_key = record
    other = query.run(1)
    other.batch(1)
    query.storage.put(name, query.storage.get(record_name(other.key)))
    with pytest.raises(CorruptStateError, match=f"{name}.*another run's record"):
        read_record(query.storage, run_key)


def test_what_a_newer_release_added_to_a_record_is_ignored(query, record):
    name, run_key = record
    before = read_record(query.storage, run_key)
    query.storage.put(name, seal({**unseal(query.storage.get(name)), "one_more": 1}))
    assert read_record(query.storage, run_key) == before


def test_savepoints_under_one_anothers_names(query):
    query.run(1).batch(0)
    create_savepoint(query.storage, "one", uid="op")
    create_savepoint(query.storage, "two", uid="op")
    two = query.storage.get("savepoints/two")
    query.storage.put("savepoints/one", two)
    with pytest.raises(CorruptStateError, match=r"savepoints/one.*it is savepoint 'two'"):
        list_savepoints(query.storage)
    query.storage.put("savepoints/one", seal({**unseal(two), "name": "one", "one_more": 1}))
    assert [saved.name for saved in list_savepoints(query.storage)] == ["one", "two"]
    query.storage.put("savepoints/one", seal({}))
    with pytest.raises(CorruptStateError, match="savepoints/one"):
        list_savepoints(query.storage)


def test_a_pin_that_is_something_else_protects_everything(storage):
    storage.put(lasting_name(3), seal({"since": 0}))
    (pin,) = list_pins(storage)
    assert pinned_files(storage, pin) is None
    with pytest.raises(CorruptStateError, match=pin.name):
        lasting_holders(storage)


def test_a_hold_that_is_something_else(storage):
    storage = OperatorStorage(storage, "query/op")
    name = f"{layout.SOURCES}/{random_id()}"
    storage.put(name, seal({"files": None}))
    (info,) = storage.list(layout.SOURCES)
    with pytest.raises(CorruptStateError, match=name):
        release_unused(storage, (), info.modified)
