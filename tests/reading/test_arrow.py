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
from forebay_state_api.testing import ManualClock

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
    (row,) = rows(snapshot.to_arrow("cards", flat=True))
    assert (row["user_key"], row["value"], row["written"]) == ("x", 7, START)


def test_what_has_no_type_comes_as_json(snapshot):
    (row,) = rows(snapshot.to_arrow("anything"))
    assert row["value"] == '{"n": [1, "AA=="]}'


@pytest.mark.parametrize("join_bytes", [1, 1 << 20])
def test_the_whole_operator(snapshot, join_bytes):
    first, second, third = rows(snapshot.table(join_bytes=join_bytes))
    assert first["seen"] == [1.5, 2.5]
    assert first["cards"] == [("x", 7)]
    assert first["last written"] == START
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
