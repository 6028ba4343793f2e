"""Parts of a version, chosen keys, keys written as JSON, and pins that another process renews."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from forebay_engine.versions.choosing.finality import newest_shown
from forebay_engine.versions.choosing.pins import LEASE, Pin, list_pins, renew_pin
from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.codecs import codec_for
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.json_keys import keys_from_json, namespace_from_json
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_content import VersionPart

N = ValueStateDescriptor("n", int)
SEEN = ListStateDescriptor("seen", str)
KEYS = [f"user {number}" for number in range(40)]


@pytest.fixture
def job(make_job):
    job = make_job(N, SEEN, parallelism=4, max_parallelism=16, key_type=str)
    job.scripts([(key, [("n.update", at)]) for at, key in enumerate(KEYS)])
    job.scripts([(key, [("seen.add", key)]) for key in KEYS[:5]])
    job.scripts([])
    return job


def columns(reader, *names):
    rows = reader.read_all().to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


@pytest.mark.long
def test_parts_together_are_the_whole_and_each_opens_its_own_manifests(job, read):
    whole = read()
    parts = []
    for start in range(0, 16, 2):
        groups = KeyGroupRange(start, start + 1)
        part = snapshot_of(
            whole.source,
            newest_shown(job.storage, provisional=False),
            part=VersionPart(groups, whole.now_us),
        )
        with part:
            assert len(part.manifests) == 1
            parts += columns(part.table(), "key", "n", "seen", "key_group")
    assert sorted(parts, key=str) == columns(whole.table(), "key", "n", "seen", "key_group")
    assert len(parts) == len(KEYS)


def test_a_part_expires_at_the_time_that_it_is_given(make_job, read):
    ttl = StateTtlConfig(timedelta(seconds=10), cleanup=())
    job = make_job(ValueStateDescriptor("short", int, ttl=ttl), max_parallelism=2, key_type=str)
    job.scripts([(key, [("short.update", 1)]) for key in KEYS[:8]])
    job.clock.advance(timedelta(seconds=60))
    job.do(KEYS[0], ("short.update", 2))
    job.do(KEYS[0])
    whole = read()
    for now_us, shown in ((whole.now_us, 1), (None, 8)):
        part = VersionPart(KeyGroupRange(0, 1), now_us)
        at = newest_shown(job.storage, provisional=False)
        with snapshot_of(whole.source, at, part=part) as snapshot:
            assert len(columns(snapshot.to_arrow("short"), "key", "value")) == shown


def test_chosen_keys_in_all_namespaces_and_in_one(make_job, read):
    job = make_job(N, SEEN, key_type=str)
    job.do("ann", ("n.update", 1), ("seen.add", "x"))
    job.do("ann", ("namespace", "w"), ("n.update", 2))
    job.do("bob", ("n.update", 3))
    job.do("bob")
    snapshot = read()
    every = [("ann", '"w"', 2), ("ann", None, 1)]
    assert columns(snapshot.to_arrow("n", keys=["ann"]), "key", "namespace", "value") == every
    one = snapshot.to_arrow("n", keys=["ann", "nobody"], namespace="w")
    assert columns(one, "key", "namespace", "value") == every[:1]
    joined = snapshot.table(keys=["ann"], namespace=None)
    assert columns(joined, "key", "n", "seen") == [("ann", 1, ["x"])]
    assert columns(snapshot.table(keys=["ann"]), "key", "n") == [("ann", 1), ("ann", 2)]


def test_chosen_keys_of_a_map_are_flattened_too(make_job, read):
    job = make_job(MapStateDescriptor("m", str, int), key_type=str)
    job.do("ann", ("m.put", "a", 1), ("m.put", "b", 2))
    job.do("ann")
    flat = read().to_arrow("m", keys=["ann"], namespace=None, flat=True)
    assert columns(flat, "key", "user_key", "value") == [("ann", "a", 1), ("ann", "b", 2)]


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key_type", "text", "keys"),
    [
        (str, '["ann", "bob"]', ["ann", "bob"]),
        (int, "[7]", [7]),
        (tuple[str, int], '[["ann", 7]]', [("ann", 7)]),
        (date, '["2024-05-01"]', [date(2024, 5, 1)]),
        (datetime, '["2024-05-01T12:00:00+00:00"]', [NOON]),
        (Decimal, '["1.50", 2]', [Decimal("1.50"), Decimal(2)]),
        (bytes, '["AAE="]', [b"\0\1"]),
        (UUID, '["00000000-0000-0000-0000-000000000007"]', [UUID(int=7)]),
    ],
)
def test_keys_as_json(key_type, text, keys):
    assert keys_from_json(text, codec_for(key_type, what="the key").description) == keys


@pytest.mark.parametrize("text", ["ann", '"ann"', "{}", '["2024-05-32"]', '["ann", 7]', "[[1, 2]]"])
def test_what_is_no_key(text):
    kind = tuple[date, int] if text.startswith("[[") else date
    with pytest.raises(ConfigurationError, match="key"):
        keys_from_json(text, codec_for(kind, what="the key").description)


def test_namespaces_as_json():
    assert namespace_from_json('["a", [1]]') == ("a", (1,))
    assert namespace_from_json("null") is None
    with pytest.raises(ConfigurationError, match="no namespace in JSON"):
        namespace_from_json("a")


def test_another_process_renews_a_pin(job):
    storage = job.storage
    pin = Pin(storage, 1)

    def renewals():
        return sorted(one.renewal for one in list_pins(storage) if one.id == pin.id)

    put = list_pins(storage)[0].modified
    assert renew_pin(storage, pin.id, now=put + LEASE / 5)
    assert renewals() == [0], "three quarters of the lease remain"
    assert renew_pin(storage, pin.id, now=put + LEASE / 2)
    assert renewals() == [0, 1]
    storage.delete([one.name for one in list_pins(storage)])
    assert not renew_pin(storage, pin.id, now=put)
