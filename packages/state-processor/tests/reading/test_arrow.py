"""State as Arrow tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError
from forebay_testing import ManualClock

TTL = StateTtlConfig(timedelta(hours=1))
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def snapshot(make_job, read):
    job = make_job(
        ValueStateDescriptor("count", int),
        ValueStateDescriptor("last", "user string, at timestamp", ttl=TTL),
        ListStateDescriptor("seen", float),
        MapStateDescriptor("cards", str, int, ttl=TTL),
        ValueStateDescriptor("anything"),
        clock=ManualClock(START),
        key_type=str,
        parallelism=2,
    )
    job.do(
        "a",
        ("count.update", 1),
        ("last.update", ("ann", START)),
        ("seen.add", 1.5),
        ("seen.add", 2.5),
        ("cards.put", "x", 7),
        ("anything.update", {"n": [1, b"\x00"]}),
    )
    job.do("b", ("count.update", 2), ("namespace", "w"), ("count.update", 3))
    return read(provisional=True)


def rows(reader):
    return sorted(reader.read_all().to_pylist(), key=repr)


def test_a_point_state(snapshot):
    assert rows(snapshot.to_arrow("count")) == [
        {"key": "a", "namespace": None, "key_group": snapshot.key_group_of("a"), "value": 1},
        {"key": "b", "namespace": '"w"', "key_group": snapshot.key_group_of("b"), "value": 3},
        {"key": "b", "namespace": None, "key_group": snapshot.key_group_of("b"), "value": 2},
    ]


def test_ttl_and_structs(snapshot):
    (row,) = rows(snapshot.to_arrow("last"))
    assert row["value"] == {"user": "ann", "at": START}
    assert row["written"] == START
    assert row["expires"] == START + timedelta(hours=1)


def test_nested_and_flat(snapshot):
    (row,) = rows(snapshot.to_arrow("seen"))
    assert row["value"] == [1.5, 2.5]
    flat = rows(snapshot.to_arrow("seen", flat=True))
    assert [(row["position"], row["value"]) for row in flat] == [(0, 1.5), (1, 2.5)]
    (row,) = rows(snapshot.to_arrow("cards"))
    assert row["value"] == [("x", 7)]
    assert row["written"] == [("x", START)]
    assert row["expires"] == [("x", START + TTL.ttl)]
    (row,) = rows(snapshot.to_arrow("cards", flat=True))
    assert (row["user_key"], row["value"], row["written"]) == ("x", 7, START)
    assert row["expires"] == START + TTL.ttl


def test_what_has_no_type_comes_as_json(snapshot):
    (row,) = rows(snapshot.to_arrow("anything"))
    assert row["value"] == '{"n": [1, "AA=="]}'


@pytest.mark.parametrize("join_bytes", [1, 1 << 20])
def test_the_whole_operator(snapshot, join_bytes):
    first, second, third = rows(snapshot.table(join_bytes=join_bytes))
    assert first["seen"] == [1.5, 2.5]
    assert first["cards"] == [("x", 7)]
    assert (first["last written"], first["last expires"]) == (START, START + TTL.ttl)
    assert first["cards written"] == [("x", START)]
    assert first["cards expires"] == [("x", START + TTL.ttl)]
    assert second["last expires"] is second["cards expires"] is None
    assert (second["key"], second["namespace"], second["count"]) == ("b", '"w"', 3)
    assert (third["key"], third["namespace"], third["count"], third["seen"]) == ("b", None, 2, None)
    only = snapshot.table(["count"])
    assert only.schema.names == ["key", "namespace", "key_group", "count"]


def test_the_c_stream(snapshot):
    assert pa.table(snapshot).num_rows == 3


def test_an_int_beyond_64_bits_is_named(make_job, read):
    job = make_job(ValueStateDescriptor("big", int))
    job.do("k", ("big.update", 1 << 70))
    with pytest.raises(ConfigurationError, match="column 'value' has a value that does not fit"):
        read(provisional=True).to_arrow("big").read_all()


def aging(make_job, ttl=TTL):
    """A job of every shape with a TTL, with times that differ, expired ones among them."""
    clock = ManualClock(START)
    job = make_job(
        ValueStateDescriptor("point", int, ttl=ttl),
        ListStateDescriptor("list", int, ttl=ttl),
        MapStateDescriptor("map", str, int, ttl=ttl),
        ValueStateDescriptor("plain", int),
        clock=clock,
        key_type=str,
        parallelism=2,
    )
    for n in range(4):
        written = [("point.update", n), ("list.add", n), ("map.put", f"m{n}", n)]
        job.do("b", *written, ("plain.update", n))
        job.do(f"only {n}", *written[n % 3 :][:1])
        clock.advance(timedelta(minutes=25))
    return job


@pytest.mark.long
def test_every_shape_expires_as_its_own_table_says(make_job, read):
    aging(make_job)
    snapshot = read(provisional=True)
    whole = snapshot.table().read_all()
    whole.validate(full=True)
    found = {row["key"]: row for row in whole.to_pylist()}
    assert len(found["b"]["list written"]) == 3  # of four elements one has expired
    for state in ("point", "list", "map"):
        alone = rows(snapshot.to_arrow(state))
        assert alone
        for row in alone:
            joined = found[row["key"]]
            assert joined[f"{state} written"] == row["written"]
            assert joined[f"{state} expires"] == row["expires"]
            assert row["expires"] == plus(row["written"], TTL.ttl)
        held = {row["key"] for row in alone}
        assert all(row[f"{state} expires"] is None for key, row in found.items() if key not in held)


def plus(written, ttl):
    if not isinstance(written, list):
        return written + ttl
    return [(at[0], at[1] + ttl) if isinstance(at, tuple) else at + ttl for at in written]


@pytest.mark.long
def test_keys_that_are_looked_up_have_the_same_columns(make_job, read):
    aging(make_job)
    snapshot = read(provisional=True)
    whole = rows(snapshot.table())
    keys = [row["key"] for row in whole]
    assert rows(snapshot.table(keys=keys, namespace=None)) == whole
    assert snapshot.table(keys=keys).schema == snapshot.table().schema


@pytest.mark.long
def test_what_outlives_all_dates_has_no_time_of_expiry(make_job, read):
    aging(make_job, StateTtlConfig(timedelta.max))
    snapshot = read(provisional=True)
    (row,) = [row for row in rows(snapshot.table()) if row["key"] == "b"]
    assert row["point written"] == START + timedelta(minutes=75)
    assert row["point expires"] is None
    assert row["list expires"] == [None] * 4
    assert sorted(row["map expires"]) == [(f"m{n}", None) for n in range(4)]
    assert {row["expires"] for row in rows(snapshot.to_arrow("list", flat=True))} == {None}


TIMES = ("last written", "last expires")
NAMES = ("Key", "key_2", "namespace", "key_group", "last", *TIMES, "a value")


def test_names_of_states_that_are_taken(make_job, read):
    job = make_job(*(ValueStateDescriptor(name, str, ttl=TTL) for name in NAMES), key_type=str)
    job.do("k", *((f"{name}.update", name) for name in NAMES))
    snapshot = read(provisional=True)
    (row,) = rows(snapshot.table())
    assert len(row) == 3 + 3 * len(NAMES)
    assert (row["key"], row["namespace"], row["last"]) == ("k", None, "last")
    for name in {*NAMES} - {"last"}:
        assert row[f"{name} value"] == name
    assert row["last written"] == row["last written written"]
    assert snapshot.table(["key_group"]).schema.names[3:] == [
        "key_group value",
        "key_group written",
        "key_group expires",
    ]
