"""Commits write deltas, snapshots and folds, in proportion to what changes."""

from __future__ import annotations

import pytest

from forebay_backend_heap import folding
from forebay_state_api.contract.changes import ABSENT, Shape


def roles(state):
    return [file.meta["role"] for file in state.files]


def change(kit, job, spec, keys, value=0):
    batch = job.begin([spec])
    for key in keys:
        batch.put(spec.name, key, value)
    return job.commit(batch)


@pytest.fixture
def spec(kit):
    return kit.spec("s", value=int)


def test_the_first_commit_is_a_snapshot(kit, job, spec):
    state = change(kit, job, spec, range(100))
    assert roles(state) == ["snapshot"]
    assert state.keys == 100
    assert state.bytes_written == state.bytes_total == state.files[0].size


def test_nothing_changed_writes_nothing(kit, job, spec):
    before = change(kit, job, spec, range(100))
    job.storage.writes.clear()
    state = change(kit, job, spec, [])
    assert job.storage.writes == []
    assert state.files == before.files
    assert (state.keys, state.bytes_written) == (100, 0)


def test_an_empty_state_has_no_files(kit, job, spec):
    assert change(kit, job, spec, []).files == ()
    change(kit, job, spec, range(10))
    assert change(kit, job, spec, range(10), ABSENT).files == ()
    assert job.begin([spec]).content("s") == {}


def test_a_commit_writes_a_delta(kit, job, spec):
    big = change(kit, job, spec, range(5000))
    state = change(kit, job, spec, [3, 4])
    assert roles(state) == ["snapshot", "delta"]
    assert state.bytes_written == state.files[1].size < big.bytes_written / 50
    assert state.bytes_total == big.bytes_total + state.bytes_written


def test_the_deltas_never_outgrow_the_snapshot(kit, storage, spec):
    job = kit.Job(storage, options={"snapshot-factor": 1.0})
    change(kit, job, spec, range(2000))
    written, seen = 0, set()
    for i in range(40):
        state = change(kit, job, spec, range(i * 17, i * 17 + 300), i)
        seen.add(tuple(roles(state)))
        sizes = dict.fromkeys(("snapshot", "delta"), 0)
        for file in state.files:
            sizes[file.meta["role"]] += file.size
        assert sizes["delta"] <= sizes["snapshot"]
        written += state.bytes_written
    assert ("snapshot",) in seen
    assert ("snapshot", "delta", "delta") in seen
    bytes_per_cell = state.bytes_total / sum(file.meta["cells"] for file in state.files)
    assert written < 3 * 40 * 300 * bytes_per_cell


def test_a_delta_stands_beside_the_snapshot_for_those_that_hold_the_parent(kit, job, spec):
    change(kit, job, spec, range(1000))
    while True:
        state = change(kit, job, spec, range(300))
        if roles(state) == ["snapshot"]:
            break
    step = state.meta["recent"][-1]
    assert step["parent"] == job.history[-2][0].id
    assert step["file"][0] in state.protected
    assert step["file"][0] in job.storage.names()


def test_a_commit_that_rewrites_every_cell_is_a_snapshot_alone(kit, job, spec):
    change(kit, job, spec, range(1000))
    job.storage.writes.clear()
    state = change(kit, job, spec, range(1000), 1)
    assert roles(state) == ["snapshot"]
    assert len(job.storage.writes) == 1
    assert state.meta["recent"] == []


def test_most_cells_rewritten_and_a_snapshot_due_is_a_snapshot_alone(kit, storage, spec):
    job = kit.Job(storage, options={"snapshot-factor": 1.0})
    change(kit, job, spec, range(1000))
    assert roles(change(kit, job, spec, range(900), 1)) == ["snapshot", "delta"]
    job.storage.writes.clear()
    assert roles(change(kit, job, spec, range(900), 2)) == ["snapshot"]
    assert len(job.storage.writes) == 1


def test_snapshot_factor_is_obeyed(kit, storage, spec):
    job = kit.Job(storage, options={"snapshot-factor": 10.0})
    change(kit, job, spec, range(1000))
    for i in range(10):
        assert roles(change(kit, job, spec, range(800), i)) == ["snapshot"] + ["delta"] * (i + 1)


@pytest.mark.long
def test_max_deltas_is_obeyed_at_a_cost_in_proportion_to_the_deltas(kit, storage, spec):
    job = kit.Job(storage, options={"max-deltas": 4})
    change(kit, job, spec, range(20_000))
    written = []
    for i in range(100):
        state = change(kit, job, spec, [i * 7 % 500], i)
        assert roles(state)[0] == "snapshot"
        assert len(state.files) <= 5
        written.append(state.bytes_written)
        assert set(state.protected).isdisjoint(f.name for f in state.files)
    assert max(written) < state.files[0].size / 5
    kit.new_process()
    assert job.begin([spec]).content("s")[None, 99 * 7 % 500] == 99


def test_a_fold_keeps_of_each_cell_the_newest(kit, storage, spec):
    job = kit.Job(storage, options={"max-deltas": 2, "snapshot-factor": 100.0})
    change(kit, job, spec, range(1000))
    for i in range(30):
        state = change(kit, job, spec, range(10), i)
    assert sum(file.meta["cells"] for file in state.files[1:]) == 20


def test_large_sections_are_folded_by_copying(kit, storage, spec, monkeypatch):
    monkeypatch.setattr(folding, "MERGE_BELOW", 5)
    job = kit.Job(storage, options={"max-deltas": 2, "snapshot-factor": 100.0})
    change(kit, job, spec, range(1000))
    for keys in ([1, 2], range(10), [1], [3], range(5, 12), [6]):
        state = change(kit, job, spec, keys, len(list(keys)))
    assert sum(file.meta["cells"] for file in state.files[1:]) == 2 + 10 + 2 + 7 + 1
    kit.new_process()
    content = job.begin([spec]).content("s")
    assert [content[None, key] for key in range(12)] == [10, 1, 10, 1, 10, 7, 1, 7, 7, 7, 7, 7]


def test_a_fold_takes_over_what_another_declaration_wrote(kit, storage, spec):
    job = kit.Job(storage, options={"max-deltas": 2, "snapshot-factor": 100.0})
    change(kit, job, spec, range(100))
    change(kit, job, spec, [1, 2], 1)
    newer = kit.spec("s", value=float)
    for key in (2, 3, 4, 5):
        change(kit, job, newer, [key], 2.5)
    kit.new_process()
    content = job.begin([newer]).content("s")
    assert [content[None, key] for key in range(7)] == [0.0, 1.0, 2.5, 2.5, 2.5, 2.5, 0.0]


def test_undeclared_states_survive_snapshots_and_folds(kit, storage, spec):
    job = kit.Job(storage, options={"max-deltas": 2})
    other = kit.spec("other", Shape.LIST, value=str)
    batch = job.begin([spec, other])
    batch.put("s", 1, 1)
    batch.append("other", 2, ["a"])
    job.commit(batch)
    batch = job.begin([other])
    batch.append("other", 2, ["b"])
    batch.append("other", 3, ["c"])
    job.commit(batch)
    for i in range(20):
        state = change(kit, job, spec, range(i * 10), i)
        assert state.keys == len({1, *range(i * 10)}) + 2
    kit.new_process()
    assert job.begin([other]).content("other") == {(None, 2): ["a", "b"], (None, 3): ["c"]}


def test_a_rescale_rewrites_nothing(kit, job, spec):
    change(kit, job, spec, range(1000))
    change(kit, job, spec, range(20), 1)
    for parallelism in (2, 1, 3, 1):
        job.storage.writes.clear()
        kit.new_process()
        manifests = []
        for groups in job.ranges(parallelism):
            batch = job.begin([spec], groups)
            assert len(batch.content("s")) == sum(kit.group_of(k) in groups for k in range(1000))
            manifests.append(job.end(batch))
        job.history.append(manifests)
        assert job.storage.writes == []
    batch = job.begin([spec])
    batch.put("s", 5, 7)
    state = job.commit(batch)
    assert len(job.storage.writes) == 1
    kit.new_process()
    assert job.begin([spec]).content("s") == {
        (None, k): 7 if k == 5 else int(k < 20) for k in range(1000)
    }
    assert state.keys == 1000


def test_what_is_folded_stays_newer_than_what_is_not(kit, storage, spec):
    job = kit.Job(storage, options={"max-deltas": 3, "snapshot-factor": 100.0})
    change(kit, job, spec, range(3000))
    for keys, value in ([range(1500), 1], [[1], 2], [[2], 3], [[3], 4], [[4], 5]):
        state = change(kit, job, spec, keys, value)
    assert len(state.files) == 4
    kit.new_process()
    content = job.begin([spec]).content("s")
    assert [content[None, key] for key in range(6)] == [1, 2, 3, 4, 5, 1]


def test_a_snapshot_knows_the_groups_of_all_cells(kit, storage, spec):
    job = kit.Job(storage, options={"snapshot-factor": 0.0})
    expected = dict.fromkeys(range(10), 0)
    change(kit, job, spec, range(10))
    for gone, new in ([0], [30]), ([30, 5], [0]), ([], [47]), ([47], [48, 5]):
        batch = job.begin([spec])
        for key in gone:
            batch.put("s", key, ABSENT)
            del expected[key]
        for key in new:
            batch.put("s", key, 1)
            expected[key] = 1
        assert roles(job.commit(batch)) == ["snapshot"]
        for groups in job.ranges(16):
            content = job.begin([spec], groups).content("s")
            assert content == {(None, k): v for k, v in expected.items() if k % 16 in groups}
