"""A process uses its cache only for exactly the right manifest, and keeps within its budget."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from forebay_backend_heap import backend
from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.cache import size_of
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.keys import KeyGroupRange

ALL = KeyGroupRange(0, 15)


@pytest.fixture
def spec(kit):
    return kit.spec("s", value=int)


def put(kit, job, spec, key, value):
    batch = job.begin([spec])
    batch.put("s", key, value)
    job.commit(batch)


def put_all(job, spec, value):
    """Write every key: the commit then writes a snapshot and no delta."""
    batch = job.begin([spec])
    for key in range(2000):
        batch.put(spec.name, key, value)
    job.commit(batch)
    assert not job.history[-1][0].state.meta["recent"]


@pytest.fixture
def filled(job, spec):
    put_all(job, spec, 0)
    job.storage.reads.clear()
    return job


def test_the_opened_manifest_is_not_read(kit, filled, spec):
    for i in range(3):
        put(kit, filled, spec, i, i)
    assert filled.begin([spec]).content("s")[None, 2] == 2
    assert filled.storage.reads == []


@pytest.fixture
def behind(kit, filled, spec):
    """A process caches a version of a job; another one has committed two since."""
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)
    kit.new_process(other)
    put(kit, filled, spec, 2, 2)
    put(kit, filled, spec, 3, 3)
    kit.new_process(held)
    filled.storage.reads.clear()
    return filled


def deltas(job):
    """Return the deltas that lead from the version cached in `behind` to the newest one."""
    return [file.name for file in job.history[-1][0].state.files][-2:]


def test_an_ancestor_reads_only_the_deltas_since(behind, spec):
    content = behind.begin([spec]).content("s")
    assert [content[None, key] for key in range(5)] == [0, 1, 2, 3, 0]
    assert behind.storage.reads == deltas(behind)


def test_an_ancestor_catches_up_over_a_snapshot_and_an_idle_batch(kit, filled, spec):
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)
    kit.new_process(other)
    filled.options |= {"snapshot-factor": 0.0}
    put(kit, filled, spec, 2, 2)
    filled.commit(filled.begin([spec]))
    state = filled.history[-1][0].state
    assert [file.meta["role"] for file in state.files] == ["snapshot"]
    kit.new_process(held)
    filled.storage.reads.clear()
    assert filled.begin([spec]).content("s")[None, 2] == 2
    assert filled.storage.reads == [state.meta["recent"][1]["file"][0]]
    assert set(filled.storage.reads) < set(state.protected)


@attrs.frozen
class Narrow:
    a: int


@attrs.frozen
class Wide:
    a: int
    b: int = 7


def test_an_ancestor_catches_up_over_a_change_of_type(kit, filled):
    narrow, wide = kit.spec("r", value=Narrow), kit.spec("r", value=Wide)
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    batch = filled.begin([narrow])
    for key in range(500):
        batch.put("r", key, Narrow(key))
    filled.commit(batch)
    kit.new_process(other)
    batch = filled.begin([wide])
    batch.put("r", 1, Wide(1, 55))
    filled.commit(batch)
    kit.new_process(held)
    content = filled.begin([wide]).content("r")
    assert content[None, 1] == Wide(1, 55)
    assert content[None, 2] == Wide(2, 7)


def test_an_ancestor_too_far_back_is_not_used(kit, filled, spec):
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 0, 1)
    kit.new_process(other)
    for i in range(9):
        put(kit, filled, spec, i, 2)
    kit.new_process(held)
    filled.storage.reads.clear()
    assert filled.begin([spec]).content("s")[None, 8] == 2
    assert filled.history[-1][0].state.files[0].name in filled.storage.reads


def test_a_lost_attempt_is_not_used(kit, filled, spec):
    batch = filled.begin([spec])
    batch.put("s", 1, 666)
    filled.end(batch)  # installed, but the version was made by another attempt
    assert filled.begin([spec]).content("s")[None, 1] == 0
    assert filled.storage.reads


def test_a_batch_that_dies_before_installed_leaves_nothing(kit, filled, spec):
    batch = filled.begin([spec])
    batch.put("s", 1, 666)
    filled.end(batch, install=False)
    assert filled.begin([spec]).content("s")[None, 1] == 0
    batch = filled.begin([spec])
    batch.put("s", 1, 666)
    batch.backend.close()
    batch.backend.close()
    assert filled.begin([spec]).content("s")[None, 1] == 0


def test_a_replay_of_an_older_version_reads_that_one(kit, filled, spec):
    put(kit, filled, spec, 1, 1)
    put(kit, filled, spec, 1, 2)
    assert filled.begin([spec], version=2).content("s")[None, 1] == 1
    del filled.history[3:]
    put(kit, filled, spec, 1, 3)
    assert filled.begin([spec]).content("s")[None, 1] == 3


def test_between_batches_a_process_catches_up_with_others(behind, spec):
    HeapBackend.catch_up(behind.opening(ALL))
    assert behind.storage.reads == deltas(behind)
    content = behind.begin([spec]).content("s")
    assert [content[None, key] for key in range(5)] == [0, 1, 2, 3, 0]
    assert behind.storage.reads == deltas(behind), "opening had nothing left to read"


@pytest.fixture
def cut_off(kit, filled, spec):
    """A process caches a version from which no deltas lead to another process's newest one."""
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)
    kit.new_process(other)
    put_all(filled, spec, 5)
    put(kit, filled, spec, 2, 2)
    kit.new_process(held)
    filled.storage.reads.clear()
    return filled


def test_where_no_deltas_lead_a_copy_is_read_anew_between_batches(cut_off, spec):
    HeapBackend.catch_up(cut_off.opening(ALL))
    files = [file.name for file in cut_off.history[-1][0].state.files]
    assert cut_off.storage.reads == files
    content = cut_off.begin([spec]).content("s")
    assert [content[None, key] for key in range(4)] == [5, 5, 2, 5]
    assert cut_off.storage.reads == files, "opening had nothing left to read"


def test_a_lost_attempt_is_read_anew_between_batches(kit, filled, spec):
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    batch = filled.begin([spec])
    batch.put("s", 1, 666)
    filled.end(batch)  # installed, but the version is made by another attempt
    kit.new_process(other)
    put(kit, filled, spec, 2, 2)
    kit.new_process(held)
    HeapBackend.catch_up(filled.opening(ALL))
    filled.storage.reads.clear()
    content = filled.begin([spec]).content("s")
    assert [content[None, key] for key in range(3)] == [0, 0, 2]
    assert filled.storage.reads == []


def test_what_is_read_anew_under_a_later_declaration_waits_for_it(kit, filled):
    narrow, wide = kit.spec("r", value=Narrow), kit.spec("r", value=Wide)
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    batch = filled.begin([narrow])
    batch.put("r", 1, Narrow(1))
    filled.commit(batch)
    kit.new_process(other)
    put_all(filled, wide, Wide(1, 55))
    kit.new_process(held)
    HeapBackend.catch_up(filled.opening(ALL))
    filled.storage.reads.clear()
    assert filled.begin([wide]).content("r")[None, 2] == Wide(1, 55)
    assert filled.storage.reads == []


def test_who_keeps_nothing_catches_up_with_nothing(kit, behind):
    kit.new_process()
    HeapBackend.catch_up(behind.opening(ALL))
    assert behind.storage.reads == []


def test_catching_up_never_goes_back(kit, behind, spec):
    behind.begin([spec])
    put(kit, behind, spec, 4, 4)
    behind.storage.reads.clear()
    HeapBackend.catch_up(behind.opening(ALL, version=3))
    assert behind.begin([spec]).content("s")[None, 4] == 4
    assert behind.storage.reads == []


def test_a_copy_that_cannot_catch_up_is_dropped(behind, spec):
    lost = behind.history[-1][0].state.files[-1].name
    data = behind.storage.get(lost)
    behind.storage.delete([lost])
    with pytest.raises(CorruptStateError, match=lost):
        HeapBackend.catch_up(behind.opening(ALL))
    behind.storage.put(lost, data)
    assert behind.begin([spec]).content("s")[None, 3] == 3


def test_opening_waits_for_what_is_catching_up(behind, spec, monkeypatch):
    reading, opening, storage = threading.Event(), threading.Event(), behind.storage

    def slow(name):
        reading.set()
        assert opening.wait(100)
        return type(storage).get(storage, name)

    monkeypatch.setattr(storage, "get", slow)
    take = backend.CACHE.take

    def told(address):
        opening.set()
        return take(address)

    monkeypatch.setattr(backend.CACHE, "take", told)
    with ThreadPoolExecutor(1) as pool:
        caught_up = pool.submit(HeapBackend.catch_up, behind.opening(ALL))
        assert reading.wait(100)
        assert behind.begin([spec]).content("s")[None, 3] == 3
        caught_up.result()
    assert sorted(storage.reads) == sorted(deltas(behind))


def test_a_copy_is_kept_up_for_eight_versions_after_its_last_use(kit, filled, spec):
    path, groups = filled.path, [ALL]
    assert HeapBackend.cached_ranges(path, filled.version) == [], (
        "this process has made that version"
    )
    assert HeapBackend.cached_ranges(path, filled.version + 1) == groups
    assert HeapBackend.cached_ranges("another", filled.version + 1) == []
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)  # opens version 1
    kit.new_process(other)
    for _ in range(8):
        put(kit, filled, spec, 2, 2)
    kit.new_process(held)
    HeapBackend.catch_up(filled.opening(ALL, version=8))
    assert HeapBackend.cached_ranges(path, 9) == groups
    assert HeapBackend.cached_ranges(path, 10) == []


def test_a_copy_that_was_brought_along_is_the_first_to_be_dropped(kit, behind, spec):
    other = kit.Job(behind.storage, path="other", cache_bytes=1 << 40)
    put(kit, other, spec, 1, 1)
    HeapBackend.catch_up(attrs.evolve(behind.opening(ALL), cache_bytes=backend.CACHE.size - 1))
    behind.storage.reads.clear()
    assert other.begin([spec]).content("s") == {(None, 1): 1}
    assert behind.storage.reads == []
    behind.begin([spec])
    assert behind.storage.reads


def test_another_range_is_another_copy(kit, filled, spec):
    part = filled.begin([spec], KeyGroupRange(0, 7))
    assert len(part.content("s")) == 1000
    assert filled.begin([spec]).content("s")[None, 15] == 0


def test_a_copy_under_an_older_declaration_is_read_anew(kit, filled, spec):
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)
    kit.new_process(other)
    newer = kit.spec("s", value=float | None)
    put(kit, filled, newer, 2, 2.5)
    kit.new_process(held)
    content = filled.begin([newer]).content("s")
    assert [content[None, key] for key in (1, 2)] == [1.0, 2.5]


def test_after_a_rescale_nobody_catches_up_from_before_it(kit, filled, spec):
    held, other = kit.new_process(), kit.new_process()
    kit.new_process(held)
    put(kit, filled, spec, 1, 1)
    kit.new_process(other)
    for parallelism in (2, 1):
        ranges = filled.ranges(parallelism)
        filled.history.append([filled.end(filled.begin([spec], groups)) for groups in ranges])
    assert filled.history[-1][0].state.meta["recent"] == []
    kit.new_process(held)
    filled.storage.reads.clear()
    assert filled.begin([spec]).content("s")[None, 1] == 1
    assert filled.storage.reads


def test_the_budget_drops_the_least_recently_used(kit, storage, spec):
    cache = kit.new_process()
    jobs = [kit.Job(storage, path=f"job{i}", cache_bytes=1 << 40) for i in range(3)]
    for job in jobs:
        batch = job.begin([spec])
        for key in range(1000):
            batch.put("s", key, key * 1000)
        job.commit(batch)
    assert cache.size > 3 * 1000 * 50
    jobs[0].cache_bytes = cache.size - 1
    jobs[0].commit(jobs[0].begin([spec]))
    storage.reads.clear()
    jobs[2].commit(jobs[2].begin([spec]))
    jobs[0].begin([spec])
    assert storage.reads == []
    jobs[1].begin([spec])
    assert storage.reads


def test_no_budget_keeps_nothing(kit, job, spec):
    cache = kit.new_process()
    job.cache_bytes = 0
    put(kit, job, spec, 1, 1)
    assert cache.size == 0
    assert job.begin([spec]).content("s") == {(None, 1): 1}


@attrs.frozen
class Point:
    x: int
    label: str


SHAPES = {
    "tuples": (Shape.POINT, tuple[int, int], lambda i: (i * 1000, i << 33)),
    "blobs": (Shape.POINT, bytes, lambda i: b"%06d" % i * 200),
    "objects": (Shape.POINT, Point, lambda i: Point(i * 1000, f"p{i}")),
    "lists": (Shape.LIST, int, lambda i: [i * 1000 + j for j in range(20)]),
    "maps": (Shape.MAP, float, lambda i: {f"k{i}-{j}": j + 0.5 for j in range(5)}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_is_near_the_truth(kit, job, shape):
    of_table, value, make = SHAPES[shape]
    spec = kit.spec("s", of_table, value=value, user_key=str, key=str)
    tracemalloc.start()
    try:
        batch = job.begin([spec])
        cells = batch.tables["s"].space(None).cells
        for i in range(3000):
            cells[f"user-{i}"] = make(i)
        truth = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 * truth < size_of(batch.backend._resident) < 1.3 * truth
