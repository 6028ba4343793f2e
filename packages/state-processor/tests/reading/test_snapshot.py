"""Look-ups, scans and timers of a version, without the classes of the job."""

from __future__ import annotations

import enum
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import attrs
import pytest

from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.format.epochs import RunVersion
from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    Codec,
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading import ALL, Position, open_state
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_testing import ManualClock


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@attrs.frozen
class Account:
    """A record of the job's own."""

    owner: str
    colour: Colour
    opened: date
    limits: list[Decimal]


class Tag(NamedTuple):
    text: str


class TagCodec(Codec[Tag]):
    id = "tag"
    version = 1
    immutable = True

    def encode(self, value):
        return value.text.encode()

    def decode(self, data):
        return Tag(data.decode())

    def describe(self):
        return "Tag"

    def compatible_with(self, stored_description):
        return stored_description == "Tag"


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other):
        return (one[0] + other[0], one[1] + other[1])


ACCOUNT = ValueStateDescriptor("account", Account)
TAG = ValueStateDescriptor("tag", TagCodec())
SEEN = ListStateDescriptor("seen", int)
BY_DAY = MapStateDescriptor("by_day", date, float)
SORTED = SortedMapStateDescriptor("sorted", int, str)
MEAN = AggregatingStateDescriptor("mean", Mean(), tuple[int, int])
ANN = Account("ann", Colour.RED, date(2026, 1, 2), [Decimal("1.50")])


@pytest.fixture
def job(make_job):
    job = make_job(
        ACCOUNT, TAG, SEEN, BY_DAY, SORTED, MEAN, key_type=tuple[str, int], parallelism=2
    )
    job.do(
        ("ann", 1),
        ("account.update", ANN),
        ("tag.update", Tag("x")),
        ("seen.add", 3),
        ("seen.add", 4),
        ("by_day.put", date(2026, 1, 3), 1.5),
        ("sorted.put", 2, "two"),
        ("sorted.put", 1, "one"),
        ("mean.add", 5),
    )
    job.do(("bob", 2), ("seen.add", 9))
    job.do(("cid", 3), ("seen.add", 1))  # the version before it is final
    return job


def test_what_the_classes_of_the_job_become(job, read):
    snapshot = read()
    assert (snapshot.version, snapshot.final) == (2, True)
    account = snapshot.get("account", ("ann", 1))
    assert account == ("ann", "RED", date(2026, 1, 2), [Decimal("1.50")])
    assert account.colour == "RED"
    assert snapshot.get("tag", ("ann", 1)) == b"x"
    assert snapshot.get("mean", ("ann", 1)) == (5, 1)
    assert snapshot.get_many("seen", [("ann", 1), ("bob", 2), ("cid", 3)]) == [[3, 4], [9], []]
    assert snapshot.get("by_day", ("ann", 1)) == {date(2026, 1, 3): 1.5}
    assert snapshot.get("sorted", ("ann", 1)) == {1: "one", 2: "two"}
    assert snapshot.get("account", ("bob", 2)) is None
    assert snapshot.key_type == "tuple[str, int]"
    assert snapshot.states["by_day"].type == "date → float | None"


def test_a_scan_yields_what_look_ups_find(job, read):
    snapshot = read()
    for name in snapshot.states:
        for row in snapshot.scan(name):
            assert snapshot.get(name, row.key) == row.value
            assert snapshot.key_group_of(row.key) == row.key_group
    assert {row.key for row in snapshot.scan("seen")} == {("ann", 1), ("bob", 2)}


def test_a_complete_version_is_shown_only_where_asked_for(job, read):
    assert read(provisional=True).version == 3
    assert not read(provisional=True).final
    with pytest.raises(ConfigurationError, match="is the empty one before the first"):
        read(version=0)
    with pytest.raises(ConfigurationError, match="no final version 3; the newest complete"):
        read(version=3)
    assert read(version=1).get("seen", ("bob", 2)) == []


def test_a_version_that_is_named_outright_says_whether_it_is_final(job, read):
    newest = read(provisional=True)
    source = newest.source
    for version, final in ((1, True), (2, True), (3, False)):
        with snapshot_of(source, RunVersion(version=version, run_key=newest.run)) as snapshot:
            assert repr(snapshot).endswith(f"version {version}, run {newest.run}>")
            assert snapshot.final is final
            assert repr(snapshot).endswith(", final>" if final else ", provisional>")


@pytest.mark.long
def test_a_restart_makes_the_version_that_it_continues_final(job, read):
    job.restart()
    job.do(("ann", 1), ("seen.add", 5))
    assert read().version == 3


@pytest.mark.long
def test_after_going_back_the_new_timeline_is_shown(job, read):
    abandoned = read(provisional=True)
    job.restart(batch_id=1)
    job.do(("ann", 1), ("seen.add", 77))
    job.do(("ann", 1), ("seen.add", 78))
    assert read(version=2).get("seen", ("ann", 1)) == [3, 4, 77]
    assert read(version=2).run == job.run_key != abandoned.run
    old = read(version=3, run=abandoned.run)
    assert old.get("seen", ("cid", 3)) == [1]
    assert not old.final


def test_a_savepoint_is_opened_by_its_name(job, read):
    create_savepoint(job.storage, "before", version=1, uid="operator")
    snapshot = read(version="before")
    assert snapshot.version == 1
    assert snapshot.get("seen", ("bob", 2)) == []


def test_namespaces(make_job, read):
    job = make_job(SEEN)
    job.do("k", ("namespace", "w1"), ("seen.add", 1), ("namespace", None), ("seen.add", 2))
    snapshot = read(provisional=True)
    assert snapshot.get("seen", "k", "w1") == [1]
    assert snapshot.get("seen", "k") == [2]
    assert {row.namespace for row in snapshot.scan("seen")} == {None, "w1"}
    assert [row.value for row in snapshot.scan("seen", namespace="w1")] == [[1]]
    assert len([*snapshot.scan("seen", namespace=ALL)]) == 2


@pytest.mark.parametrize("ttl", [None, StateTtlConfig(timedelta(hours=1))], ids=["", "ttl"])
def test_sorted_maps_are_in_the_order_of_their_keys(make_job, read, ttl):
    job = make_job(SortedMapStateDescriptor("s", tuple[int, str], int, ttl=ttl), key_type=str)
    keys = [(number * 7 % 20 - 10, "x") for number in range(20)]
    for some in (keys[:12], keys[12:]):
        job.do("a", *(("s.put", key, 1) for key in some))
    with read(provisional=True) as snapshot:
        assert [*snapshot.get("s", "a")] == sorted(keys)
        (row,) = snapshot.scan("s")
        assert [*row.value] == sorted(keys)
        assert row.written is None or [*row.written] == sorted(keys)
        (value,) = snapshot.to_arrow("s").read_all()["value"].to_pylist()
        assert [tuple(key.values()) for key, _ in value] == sorted(keys)


@pytest.mark.parametrize("directory", [5, b"state", None])
def test_a_directory_that_is_none_is_refused(directory):
    with pytest.raises(ConfigurationError, match="a directory is a path or a URL"):
        open_state(directory, query="q", uid="u")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"version": -1}, "a version is a number from 0 to 281,474,976,710,655"),
        ({"version": 10**30}, "a version is a number from 0"),
        ({"version": 1.5}, "a version is a number from 0"),
        ({"version": True}, "a version is a number from 0"),
        ({"version": "a\ud83d"}, "the name of the savepoint is not valid text"),
        ({"version": 1, "run": "../../x"}, "run= is the key of a run, 16 hex digits"),
        ({"version": 1, "run": 5}, "run= is the key of a run"),
        ({"query": 5}, "the query id is a string, not 5"),
        ({"uid": None}, "the uid is a string, not None"),
        ({"uid": "a\ud83d"}, "the uid is not valid text"),
    ],
    ids=str,
)
def test_what_no_version_can_have_is_refused_where_it_is_asked_for(job, tmp_path, asked, said):
    with pytest.raises(ConfigurationError, match=said):
        open_state(str(tmp_path), **{"query": "query", "uid": "operator", **asked})


@pytest.mark.parametrize("text", ["9" * 60 + "@1f0c2a9e6b3d4875", "281474976710656@", "7", "x@y"])
def test_a_position_that_is_none(text):
    with pytest.raises(ConfigurationError, match="is not a position"):
        Position.parse(text)


def test_halves_of_surrogate_pairs_in_namespaces_are_escaped(make_job, read):
    job = make_job(ValueStateDescriptor("n", int), key_type=str)
    job.do("a", ("namespace", "x\ud83d"), ("n.update", 1))
    with read(provisional=True) as snapshot:
        for table in (snapshot.to_arrow("n").read_all(), snapshot.table().read_all()):
            assert table["namespace"].to_pylist() == [r'"x\ud83d"']
            assert json.loads(table["namespace"][0].as_py()) == "x\ud83d"


def test_a_missing_directory_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = f"there is no directory {tmp_path / 'stat'}"
    with pytest.raises(ConfigurationError, match=missing):
        open_state("stat", query="q", uid="u")
    with pytest.raises(ConfigurationError, match=missing):
        open_state("stat", query="q", uid="u", follow=True)
    assert not [*tmp_path.iterdir()]


def test_what_has_expired_is_left_out(make_job, read):
    ttl = StateTtlConfig(timedelta(minutes=10), cleanup=())
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    value = ValueStateDescriptor("value", int, ttl=ttl)
    entries = MapStateDescriptor("entries", str, int, ttl=ttl)
    job = make_job(value, entries, clock=clock)
    job.do("k", ("value.update", 1), ("entries.put", "old", 1))
    clock.advance(timedelta(minutes=6))
    job.do("k", ("entries.put", "new", 2))
    clock.advance(timedelta(minutes=6))
    job.do("other", ("value.update", 3))
    snapshot = read(provisional=True)
    assert snapshot.get("value", "k") is None
    assert snapshot.get("entries", "k") == {"new": 2}
    assert [row.key for row in snapshot.scan("value")] == ["other"]
    written = datetime(2026, 1, 1, 0, 6, tzinfo=UTC)
    assert [row.written for row in snapshot.scan("entries")] == [{"new": written}]
    assert read(provisional=True, show_expired=True).get("entries", "k") == {"old": 1, "new": 2}
    assert snapshot.states["value"].ttl == timedelta(minutes=10)


def test_a_closed_snapshot_says_so_and_leaves_no_pin(job, read, tmp_path):
    snapshot = read()
    assert [*tmp_path.rglob("pins/*")]
    snapshot.close()
    assert not [*tmp_path.rglob("pins/*")]
    with pytest.raises(ConfigurationError, match="is closed"):
        snapshot.get("seen", ("ann", 1))


@pytest.mark.parametrize("key", [1, ("ann",), ("ann", "1"), None])
def test_a_key_of_another_type_is_named(job, read, key):
    with pytest.raises(ConfigurationError, match=r"has keys of type tuple\[str, int\]"):
        read().get("seen", key)


def test_unknown_names_list_the_known_ones(job, read):
    with pytest.raises(ConfigurationError, match=r"no state .sen.; its states: .account., ."):
        read().get("sen", ("ann", 1))
    with pytest.raises(ConfigurationError, match=r"no operator state .x.; .* none"):
        read().operator_state("x")
