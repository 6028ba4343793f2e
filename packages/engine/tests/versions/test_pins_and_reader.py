"""Readers from outside pin a version before they read it; pins are renewed and expire."""

import threading
from datetime import timedelta

import pytest

from forebay_engine.versions.choosing.finality import newest_shown
from forebay_engine.versions.choosing.pins import (
    LONGEST_LEASE,
    Pin,
    lasting_holders,
    list_pins,
    newest_renewals,
    pinned_files,
)
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.forwarding import ForwardingStorage
from forebay_testing.storage import CountingStorage

HOUR = timedelta(hours=1)


def test_a_pin_expires_unless_it_is_renewed(storage, clock):
    pin = Pin(storage, 7, lease=HOUR)
    clock.advance(timedelta(minutes=50))
    pin.renew()
    clock.advance(timedelta(minutes=50))
    (entry,) = newest_renewals(list_pins(storage))
    assert (entry.version, entry.renewal, entry.expired(clock.now)) == (7, 1, False)
    clock.advance(timedelta(minutes=10))
    assert entry.expired(clock.now)


def test_a_pin_protects_everything_until_it_names_files(storage):
    with Pin(storage, 7) as pin:
        (entry,) = list_pins(storage)
        assert pinned_files(storage, entry) is None
        pin.renew(["data/b", "data/a"])
        pin.renew()
        (entry,) = list_pins(storage)
        assert pinned_files(storage, entry) == {"data/a", "data/b"}
    assert list_pins(storage) == []
    assert pinned_files(storage, entry) == frozenset()


def test_the_newest_complete_version_is_opened(query, expected, toy_state):
    run = query.run(2)
    run.batches(0, 2)
    run.begin(3, 0).commit()
    with open_version(query.storage, uid="op") as reader:
        assert (reader.version, reader.run_key) == (3, run.key)
        assert toy_state(query.storage, reader.parents) == expected(0, 1, 2)
        (entry,) = list_pins(query.storage)
        named = frozenset().union(*(manifest.names for manifest in reader.manifests))
        assert pinned_files(query.storage, entry) == named
    assert list_pins(query.storage) == []


def test_a_version_of_a_run_whose_manifests_are_all_truncated(query):
    run = query.run(2)
    run.batch(0)
    torn = list_version(query.storage, 1).manifests
    for one in torn:
        query.storage.put(one.name, query.storage.get(one.name)[:-7])
    with pytest.raises(CorruptStateError, match=f"truncated.*{torn[0].name}.*{torn[1].name}"):
        open_version(query.storage, uid="op", version=1, run_key=run.key)


def test_a_named_version_and_a_part_of_it(query, toy_state):
    query.run(2).batches(0, 4)
    with open_version(query.storage, uid="op", version=2, range=KeyGroupRange(3, 4)) as reader:
        state = toy_state(query.storage, reader.parents)
    assert state == {3: ("0", "1"), 4: ("0", "1")}
    assert [manifest.made.subtask for manifest in reader.manifests] == [0, 1]


def test_it_pins_before_it_looks(query):
    query.run(1).batch(0)
    storage = CountingStorage(query.storage)
    open_version(storage, uid="op", version=1).close()
    requests = [(operation, name.split("/")[0]) for operation, name in storage.requests]
    pinned = requests.index(("put", "pins"))
    assert ("get", "versions") not in requests[:pinned]
    assert requests[pinned + 1 :][:3] == [
        ("list", "versions"),
        ("get", "versions"),
        ("list", "data"),
    ]


class Meeting(ForwardingStorage):
    """Answers a request for a manifest when two of them wait."""

    def __init__(self, inner):
        super().__init__(inner)
        self._two = threading.Barrier(2)

    def get(self, name):
        if "/manifest-" in name:
            self._two.wait(100)
        return super().get(name)


def test_manifests_are_read_side_by_side(query):
    query.run(4).batch(0)
    with open_version(Meeting(query.storage), uid="op") as reader:
        assert [one.made.subtask for one in reader.manifests] == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [None, 4])
def test_nothing_is_stored(query, version):
    with pytest.raises(ConfigurationError, match="no state of operator 'op' is stored"):
        open_version(query.storage, uid="op", version=version)


def test_a_look_for_the_newest_version_asks_nothing_twice(query):
    query.run().batches(0, 3)
    storage = CountingStorage(query.storage)
    shown = newest_shown(storage, provisional=False)
    assert shown is not None
    assert shown.at.version == 3  # nothing says that the newest one is final
    assert len(storage.requests) == len(set(storage.requests)) == 6


def test_what_is_there_instead_is_listed(storage, make_query):
    folders = {name: OperatorStorage(storage, name) for name in ("q/join", "q/a=3ab", "old/jion")}
    storage.put(".compaction/endpoints", b"")
    with pytest.raises(ConfigurationError, match="the state directory holds no query's state"):
        open_version(folders["q/join"], uid="join")
    for one in folders.values():
        make_query(one).run(1).batch(0)
    message = "is stored in .*: query 'q' has state of 'a:b', 'join'; did you mean 'join'[?]$"
    with pytest.raises(ConfigurationError, match=message):
        open_version(OperatorStorage(storage, "q/jion"), uid="jion")
    message = r"nothing is stored of query 'p'; there are 'old' \('jion'\), 'q' \('a:b', 'join'\)$"
    with pytest.raises(ConfigurationError, match=message):
        open_version(OperatorStorage(storage, "p/jion"), uid="jion")


def test_a_missing_or_short_file_is_found_and_the_pin_let_go(query):
    query.run(1).batch(0)
    (file,) = query.storage.list("data")
    query.storage.put(file.name, b"")
    with pytest.raises(CorruptStateError, match="has 0 bytes"):
        open_version(query.storage, uid="op")
    query.storage.delete([file.name])
    with pytest.raises(CorruptStateError, match=f"{file.name}.*version 1.*is missing"):
        open_version(query.storage, uid="op")
    assert list_pins(query.storage) == []


@pytest.mark.parametrize(
    "lease",
    [timedelta.max, timedelta(days=3_651), timedelta(0), timedelta(hours=-1), 3600],
    ids=str,
)
def test_a_lease_is_bounded_where_it_is_given(storage, lease):
    with pytest.raises(ConfigurationError, match="lease is a timedelta of 1 second to 3650 days"):
        Pin(storage, 7, lease=lease)
    assert list_pins(storage) == []


@pytest.mark.parametrize("seconds", [10**11, 10**100])
def test_a_pin_with_a_lease_that_no_clock_can_add_holds_for_the_longest(storage, clock, seconds):
    storage.put(f"pins/7-{'0' * 24}-{seconds}-000000", b"")
    (entry,) = list_pins(storage)
    assert (entry.lease, entry.expired(clock.now)) == (LONGEST_LEASE, False)
    assert lasting_holders(storage) == []
