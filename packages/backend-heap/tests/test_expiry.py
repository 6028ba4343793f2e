"""Folds drop expired content, sweeps know when to look, and the clock is read again."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.cache import CACHE
from forebay_backend_heap.expiry import NEVER, Walk
from forebay_backend_heap.groups import GroupIndex
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api import (
    CleanupInCompaction,
    CleanupIncrementally,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

_numbers = itertools.count()
TTL = timedelta(seconds=10)
FOLDING = {"max-deltas": 4, "snapshot-factor": 1000.0}


def states(cleanup):
    ttl = StateTtlConfig(TTL, cleanup=(cleanup,))
    return [
        ValueStateDescriptor("v", int, ttl=ttl),
        ListStateDescriptor("l", int, ttl=ttl),
        MapStateDescriptor("m", str, int, ttl=ttl),
    ]


def files_of(job):
    with open_version(job.storage, uid=job.uid) as reader:
        return [file for parent in reader.parents for file in parent.files]


@pytest.fixture
def options():
    """Options of `sweeping`'s backend: each commit of a few keys writes a snapshot."""
    return {}


@pytest.fixture
def checks():
    """Cells that `sweeping` checks for each access to a state."""
    return 1000


@pytest.fixture
def sweeping(options, checks):
    """A job whose states are cleaned up by sweeps alone."""
    made = KeyedJob(
        HeapBackend,
        MemoryStorage(f"memory://expiry{next(_numbers)}"),
        descriptors=states(CleanupIncrementally(checks)),
        options=options,
        key_type=str,
    )
    yield made
    CACHE.clear()


@pytest.fixture
def job():
    made = KeyedJob(
        HeapBackend,
        MemoryStorage(f"memory://expiry{next(_numbers)}"),
        descriptors=states(CleanupInCompaction()),
        options=FOLDING,
        key_type=str,
        forget=CACHE.clear,
    )
    yield made
    CACHE.clear()


WRITES = [("v.update", 1), ("l.add", 1), ("m.put", "a", 1)]


@pytest.mark.long
@pytest.mark.parametrize("merge_below", [4096, 1], ids=["small sections", "large sections"])
def test_a_fold_drops_what_has_expired_and_leaves_the_snapshot(job, merge_below, monkeypatch):
    monkeypatch.setattr("forebay_backend_heap.folding.MERGE_BELOW", merge_below)
    job.scripts([(f"first {n}", WRITES) for n in range(300)])
    job.scripts([("old", WRITES), ("mixed", WRITES)])
    job.clock.advance(TTL / 2)
    job.do("mixed", ("l.add", 2), ("m.put", "b", 2))
    job.clock.advance(TTL / 2)
    for number in range(4):
        job.do(f"other {number}", *WRITES)
    files = files_of(job)
    assert [file.meta["role"] for file in files].count("snapshot") == 1
    assert files[0].meta["version"] == 1, "the snapshot was not written again"
    stored = {key: [job.peek(state, key) for state in job.descriptors] for key in ("old", "mixed")}
    later = job.clock.now_us - 5_000_000
    assert stored["old"] == [ABSENT, [], {}]
    assert stored["mixed"] == [ABSENT, [(later, 2)], {"b": (later, 2)}]
    assert job.peek(job.descriptors[0], "first 0") is not ABSENT, "it was not folded"


@pytest.mark.long
def test_a_process_that_holds_an_ancestor_drops_it_too(job):
    job.scripts([(f"first {n}", WRITES) for n in range(300)])
    job.scripts([("old", WRITES)])
    held = CACHE.take((job.storage.url, job.subtask(None).task.range))
    assert held is not None
    job.clock.advance(TTL)
    for number in range(5):
        job.do(f"other {number}", *WRITES)
    CACHE.clear()
    CACHE.put((job.storage.url, job.subtask(None).task.range), held, 1 << 30)
    job.clock.advance(-TTL)
    job.restart(same_process=True)
    assert job.do("old", ("v.value",), ("l.get",), ("m.items",)) == [None, [], []]


def test_sweeps_look_again_when_something_may_have_expired():
    walk = Walk()
    assert walk.is_clean(1_000), "there is nothing"
    walk.wrote(50)
    walk.wrote(70)
    assert walk.is_clean(49)
    assert not walk.is_clean(50)
    walk.rewind()
    assert not walk.is_clean(50), "the first walk may have begun anywhere"
    walk.saw(60)
    walk.saw(NEVER)
    walk.rewind()
    assert walk.is_clean(59)
    assert not walk.is_clean(60)
    walk.saw(90)
    walk.wrote(80)
    walk.rewind()
    assert walk.is_clean(79)
    assert not walk.is_clean(80), "it was written behind the walk"
    walk.wrote_all(95)
    assert walk.is_clean(94)
    assert not walk.is_clean(95)


READS = [("v.value",), ("l.get",), ("m.items",)]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"snapshot-factor": 1000.0}], ids=["snapshots", "deltas"])
@pytest.mark.parametrize("in_one_process", [True, False])
def test_sweeps_find_what_was_written_after_everything_had_expired(sweeping, in_one_process):
    for key in ("early", "late", "latest"):
        sweeping.do(key, *WRITES)
        assert sweeping.peek(sweeping.descriptors[0], key) is not ABSENT
        sweeping.clock.advance(2 * TTL)
        for _ in range(3):
            if not in_one_process:
                CACHE.clear()
            sweeping.do("none", *READS)
        assert [sweeping.peek(state, key) for state in sweeping.descriptors] == [ABSENT, [], {}]


def test_an_opened_state_in_which_nothing_has_expired_is_not_walked_along(sweeping, monkeypatch):
    sweeping.scripts([(f"k{n}", WRITES) for n in range(50)])
    CACHE.clear()
    walks = []
    monkeypatch.setattr(GroupIndex, "walk", lambda *_: walks.append(1))
    for _ in range(2):
        sweeping.clock.advance(TTL / 2)
        assert not walks
        sweeping.do("k1", *WRITES)
    assert walks


@pytest.mark.long
def test_a_sweep_that_is_skipped_misses_nothing_later(sweeping):
    for _ in range(4):
        sweeping.scripts([(f"k{n}", WRITES) for n in range(50)])
        sweeping.clock.advance(timedelta(seconds=1))
    sweeping.clock.advance(timedelta(seconds=8))
    sweeping.do("k1", *WRITES)
    value = sweeping.descriptors[0]
    assert [sweeping.peek(value, f"k{n}") is ABSENT for n in range(3)] == [False] * 3
    sweeping.clock.advance(timedelta(seconds=2))
    sweeping.do("k1", *WRITES)
    stored = [sweeping.peek(value, f"k{n}") for n in range(50)]
    assert [n for n, found in enumerate(stored) if found is not ABSENT] == [1]


@pytest.mark.parametrize("checks", [1])
def test_processes_share_one_walk_also_over_one_that_sweeps_nothing(sweeping, monkeypatch):
    keys = [f"k{n}" for n in range(4)]
    sweeping.scripts([(key, WRITES) for key in keys])
    sweeping.clock.advance(TTL / 2)
    sweeping.scripts([(key, WRITES) for key in keys[:3]])
    sweeping.clock.advance(TTL / 2)
    walked, walk = [], GroupIndex.walk

    def seen(index, count):
        found = walk(index, count)
        walked.extend(key for key, _ in found)
        return found

    monkeypatch.setattr(GroupIndex, "walk", seen)
    read = [("v.value",)]
    for reads in (read, read, [], read, read):
        CACHE.clear()
        sweeping.do("none", *reads)
    assert sorted(walked) == keys


def test_a_walk_forgets_keys_that_are_gone():
    index = GroupIndex()
    index.add(["a", "b", "c", "d"], [1, 2, 3, 4])
    assert index.walk(3) == [("a", 1), ("b", 2), ("c", 3)]
    assert index.walked([{"b": 0, "d": 0}]) == 1
    assert not index.at_end
    assert index.walk(9) == [("d", 4)]
    assert index.at_end
    index.rewind([{"b": 0}])
    assert index.held == 1
    assert index.walk(9) == [("b", 2)]
