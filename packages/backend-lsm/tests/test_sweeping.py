"""Sweeps for expired content: across declarations, over clears, and from a stored cursor."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from forebay_backend_lsm import sweeping
from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api import (
    CleanupIncrementally,
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

TTL = timedelta(seconds=10)
_numbers = itertools.count()


def ttl(checks):
    return StateTtlConfig(TTL, cleanup=(CleanupIncrementally(checks),))


def new_job(*descriptors):
    return KeyedJob(
        LsmBackend,
        MemoryStorage(f"memory://sweeping{next(_numbers)}"),
        descriptors=descriptors,
        key_type=str,
        forget=CACHE.clear,
    )


def swept(job):
    with open_version(job.storage, uid=job.uid) as reader:
        return reader.parents[0].meta["swept"]


def test_lists_whose_parts_were_stored_under_several_declarations():
    job = new_job(ListStateDescriptor("l", int, ttl=ttl(100)))
    job.scripts([("k", [("l.add_all", [1, 2])]), ("old", [("l.add", 1)])])
    job.clock.advance(TTL / 2)
    job.do("k", ("l.add", 3))
    job.descriptors = [ListStateDescriptor("l", float, ttl=ttl(100))]
    job.restart()
    job.do("k", ("l.add", 4.5))
    written = job.clock.now_us
    job.clock.advance(TTL / 2)
    job.do("other", ("l.get",))
    (state,) = job.descriptors
    assert job.peek(state, "k") == [(written, 3.0), (written, 4.5)]
    assert job.peek(state, "old") == []


@pytest.mark.long
def test_cleared_maps_stay_cleared():
    job = new_job(MapStateDescriptor("m", str, int, ttl=ttl(3)))
    (state,) = job.descriptors
    entries = {f"e{n}": n for n in range(40)}
    job.scripts([("a", [("m.put_all", entries)]), ("b", [("m.put_all", entries)])])
    job.clock.advance(TTL / 2)
    job.do("a", ("m.clear",), ("m.put", "e1", 100))
    written = job.clock.now_us
    job.clock.advance(TTL / 2)
    for _ in range(40):
        job.restart()
        job.do("other", ("m.get", "x"))
    assert job.peek(state, "a") == {"e1": (written, 100)}
    assert job.peek(state, "b") == {}


@pytest.mark.parametrize("step", [2, 50_000])
def test_the_cursor_goes_round(monkeypatch, step):
    monkeypatch.setattr(sweeping, "_STEP", step)
    job = new_job(ValueStateDescriptor("v", int, ttl=ttl(7)))
    (state,) = job.descriptors
    job.scripts([(f"k{n}", [("v.update", n)]) for n in range(20)])
    assert swept(job) == {}, "all were looked at"
    cursors = []
    for _ in range(3):
        job.do("new", ("v.value",))
        cursors.append(swept(job).get("v", 0))
    assert 0 < cursors[0] < cursors[1]
    assert cursors[2] < cursors[1], "it has begun again"
    job.clock.advance(TTL)
    job.do("new", *[("v.value",)] * 3)
    assert all(job.peek(state, f"k{n}") is ABSENT for n in range(20))


def test_a_rescale_begins_anew():
    job = new_job(ValueStateDescriptor("v", int, ttl=ttl(7)))
    job.scripts([(f"k{n}", [("v.update", n)]) for n in range(20)])
    job.do("new", ("v.value",))
    assert swept(job)
    job.restart(parallelism=3)
    job.run(_nothing, [])
    assert swept(job) == {}


def _nothing(row, ctx):
    return []


@pytest.mark.long
def test_a_sorted_map_with_one_address_is_swept_to_its_end():
    """Times begin with the same bytes, so all entries of a map have one address."""
    descriptor = SortedMapStateDescriptor("s", int, int, ttl=ttl(20))
    job = new_job(descriptor)
    first = 1_767_225_600_000_000
    for key in ("k", "other"):
        job.do(key, ("s.put_all", {first + n: n for n in range(300)}))
    job.clock.advance(TTL / 2)
    job.do("k", ("s.put", first + 7, 0))
    job.clock.advance(TTL / 2)
    for _ in range(40):
        job.do("none", *[("s.get", 1)] * 3)
    assert [*job.peek(descriptor, "k")] == [first + 7]
    assert job.peek(descriptor, "other") == {}
