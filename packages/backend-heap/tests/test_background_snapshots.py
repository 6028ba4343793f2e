"""Snapshots in the background: consistent, installed later, lost without harm."""

from __future__ import annotations

import random
import threading

import pytest

from forebay_backend_heap import background_snapshots, snapshot
from forebay_backend_heap.background_snapshots import SnapshotThread
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import StorageError

CELLS = 4000
FEW = range(600)


@pytest.fixture(autouse=True)
def small_snapshots_are_planned(monkeypatch):
    monkeypatch.setattr(snapshot, "PLANNED_FROM", 0)


@pytest.fixture
def spec(kit):
    return kit.spec("s", value=int)


@pytest.fixture
def worker(kit):
    return kit.new_process()


@pytest.fixture
def job(kit, storage, worker):
    return kit.Job(storage, options={"snapshot-factor": 0.5})


def roles(state):
    return [file.meta["role"] for file in state.files]


def change(job, spec, keys, value=0):
    batch = job.begin([spec])
    for key in keys:
        batch.put(spec.name, key, value)
    return job.commit(batch)


def due(job, spec):
    """Commit until a snapshot is planned; return the plan."""
    change(job, spec, range(CELLS))
    value = 0
    while "planned" not in (state := change(job, spec, FEW, value := value + 1)).meta:
        assert value < 20
    return state.meta["planned"]


def content(job, spec, groups=None):
    return {key: value for (_, key), value in job.begin([spec], groups).content("s").items()}


class TestInstalling:
    def test_a_commit_that_finds_a_snapshot_due_writes_its_delta_only(self, job, spec, storage):
        plan = due(job, spec)
        state = job.history[-1][0].state
        assert set(roles(state)[1:]) == {"delta"}
        assert plan["name"] in state.protected
        assert plan["after"] == state.files[-1].name
        assert plan["name"] not in storage.names()

    def test_the_next_commit_names_it_in_place_of_what_it_covers(self, job, spec, worker, storage):
        plan = due(job, spec)
        worker.background.run()
        state = change(job, spec, [1], -1)
        assert state.files[0].name == plan["name"]
        assert roles(state) == ["snapshot", "delta"]
        assert "planned" not in state.meta
        assert state.bytes_written == sum(file.size for file in state.files)
        assert len(storage.get(plan["name"])) == state.files[0].size

    def test_it_is_installed_by_a_commit_that_changes_nothing(self, job, spec, worker, storage):
        due(job, spec)
        worker.background.run()
        storage.writes.clear()
        assert roles(change(job, spec, [])) == ["snapshot"]
        assert storage.writes == []

    def test_the_thread_compacts_the_index_of_groups(self, job, spec, worker):
        due(job, spec)
        worker.background.run()
        batch = job.begin([spec])
        table = batch.tables["s"]
        assert table._groups.held > CELLS + len(FEW)
        batch.put("s", 1, -1)
        job.commit(batch)
        assert table._groups.held == CELLS + 1

    def test_deltas_of_batches_in_between_stay(self, kit, job, spec, worker):
        plan = due(job, spec)
        for value in (-1, -2, -3):
            state = change(job, spec, [1], value)
            assert state.meta["planned"] == plan
            assert plan["name"] in state.protected
        worker.background.run()
        assert roles(change(job, spec, [2], -4)) == ["snapshot", *["delta"] * 4]
        before = content(job, spec)
        kit.new_process()
        assert content(job, spec) == before
        assert (before[1], before[2]) == (-3, -4)

    def test_a_fold_leaves_the_deltas_that_it_covers(self, kit, job, spec, worker):
        job.options["max-deltas"] = 4
        plan = due(job, spec)
        for value in range(12):
            state = change(job, spec, [value % 3], value)
            deltas = [file.name for file in state.files]
            assert plan["after"] in deltas
            assert len(deltas) - deltas.index(plan["after"]) <= 5
        worker.background.run()
        assert len(change(job, spec, [5], -5).files) <= 6
        before = content(job, spec)
        kit.new_process()
        assert content(job, spec) == before

    def test_processes_that_hold_the_state_read_no_snapshot(self, kit, job, spec, worker, storage):
        due(job, spec)
        worker.background.run()
        change(job, spec, [1], -1)
        other = kit.new_process()
        change(job, spec, [1], -2)
        assert other is not worker
        kit.new_process(worker)
        storage.reads.clear()
        assert content(job, spec)[1] == -2
        assert storage.reads == [job.history[-1][0].state.files[-1].name]


def test_writing_takes_a_quarter_of_the_time(monkeypatch):
    worked = iter([0.0, 0.002, 0.002, 0.502, 0.502])
    slept = []
    monkeypatch.setattr(background_snapshots.time, "thread_time", lambda: next(worked))
    monkeypatch.setattr(background_snapshots.time, "sleep", slept.append)
    pause = background_snapshots.Pauses()
    pause()
    pause()
    assert slept == [pytest.approx(0.006), 0.1]


def test_a_copy_keeps_the_state_of_its_version(kit, job):
    """Later batches change dictionaries, lists and maps in place."""
    specs = [
        kit.spec("s", value=int),
        kit.spec("l", Shape.LIST, value=int),
        kit.spec("m", Shape.MAP, value=int, user_key=str),
        kit.spec("undeclared", Shape.LIST, value=int),
    ]
    batch = job.begin(specs)
    for key in range(40):
        batch.put("s", key, 1, namespace=key % 2)
        batch.append("l", key, [1])
        batch.entries("m", key, {"a": 1, "b": 1})
    batch.append("undeclared", 1, [1])
    job.commit(batch)
    kit.new_process()
    batch = job.begin(specs[:3])
    resident = batch.backend._resident
    expected, copy = packed(resident), resident.frozen()
    for key in range(0, 50, 2):
        batch.put("s", key, ABSENT if key % 4 else 2, namespace=0)
        batch.entries("m", key, {"a": ABSENT, "b": 2})
        batch.append("l", key, [2], replace=key % 4 == 0)
    job.commit(batch)
    batch = job.begin(specs)
    batch.append("undeclared", 1, [2])
    job.commit(batch)
    assert packed(copy) == expected
    assert packed(resident) != expected


def packed(resident):
    sections = resident.snapshot()
    return [(s.table, s.groups.tolist(), [bytes(c.data) for c in s.chunks]) for s in sections]


class TestOtherProcesses:
    def test_they_find_it_in_storage(self, kit, job, spec, worker):
        plan = due(job, spec)
        worker.background.run()
        kit.new_process()
        state = change(job, spec, [1], -1)
        assert state.files[0].name == plan["name"]
        before = content(job, spec)
        kit.new_process()
        assert content(job, spec) == before

    def test_they_look_less_and_less_often(self, kit, job, spec, storage, monkeypatch):
        due(job, spec)
        kit.new_process()
        listed = []
        monkeypatch.setattr(
            storage, "list", lambda prefix="": listed.append(prefix) or list[object]()
        )
        looks = []
        for value in range(9):
            change(job, spec, [1], value)
            looks.append(len(listed))
        assert looks == [1, 2, 2, 3, 3, 3, 3, 4, 4]

    def test_the_process_that_writes_it_does_not_look(self, job, spec, storage, monkeypatch):
        due(job, spec)
        monkeypatch.setattr(storage, "list", None)
        change(job, spec, [1], -1)

    @pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:9], lambda d: b"x" + d[1:]])
    def test_a_damaged_file_is_not_installed(self, kit, job, spec, worker, storage, damage):
        plan = due(job, spec)
        worker.background.run()
        storage.put(plan["name"], damage(storage.get(plan["name"])))
        kit.new_process()
        assert change(job, spec, [1], -1).files[0].name != plan["name"]
        assert content(job, spec)[1] == -1


class TestAbandoned:
    def grow(self, job, spec):
        """Commit until a snapshot is installed; return its size of deltas before, in snapshots."""
        value = 100
        while True:
            before = job.history[-1][0].state.files
            state = change(job, spec, FEW, value := value + 1)
            assert value < 130
            if state.files[0].name != before[0].name:
                return sum(file.size for file in before[1:]) / before[0].size

    def test_the_commit_writes_one_when_the_deltas_have_grown_to_twice_the_size(
        self, kit, job, spec, storage
    ):
        plan = due(job, spec)
        kit.new_process()  # the first one was killed
        assert 0.5 < self.grow(job, spec) <= 1.0
        state = job.history[-1][0].state
        assert "planned" not in state.meta
        assert plan["name"] not in [*state.protected, *storage.names()]
        kit.new_process()
        assert set(content(job, spec)) == set(range(CELLS))

    def test_one_that_comes_later_is_not_used(self, kit, job, spec, worker):
        plan = due(job, spec)
        self.grow(job, spec)
        worker.background.run()
        for value in range(3):
            state = change(job, spec, [1], value)
            assert plan["name"] not in [*state.protected, *(file.name for file in state.files)]

    def test_a_store_that_refuses_it(self, job, spec, worker, storage, monkeypatch, caplog):
        def refuse(name, data):
            raise StorageError("full")

        plan = due(job, spec)
        with monkeypatch.context() as patch:
            patch.setattr(storage, "put", refuse)
            with pytest.raises(StorageError):
                worker.background.run()
        assert worker.snapshots.is_free
        assert change(job, spec, [1], -1).meta["planned"] == plan
        assert 0.5 < self.grow(job, spec) <= 1.0

    def test_a_process_without_a_thread(self, kit, job, spec, worker, monkeypatch):
        monkeypatch.setattr(worker.background, "do_if_possible", lambda work: False)
        due(job, spec)
        assert worker.snapshots.is_free
        assert 0.5 < self.grow(job, spec) <= 1.0

    def test_a_manifest_that_never_became_durable_begins_none(self, kit, job, spec, worker):
        change(job, spec, range(CELLS))
        for value in range(12):
            batch = job.begin([spec])
            for key in FEW:
                batch.put("s", key, value)
            manifest = job.end(batch, install=False)
            if "planned" in manifest.state.meta:
                break
            change(job, spec, FEW, value)
        else:
            pytest.fail("no snapshot was planned")
        assert worker.background.work == []
        assert worker.snapshots.is_free

    def test_a_rescale_drops_the_plan(self, kit, job, spec, worker):
        plan = due(job, spec)
        worker.background.run()
        manifests = [job.end(job.begin([spec], groups)) for groups in job.ranges(2)]
        job.history.append(manifests)
        state = change(job, spec, [1], -1)
        for one in [*(manifest.state for manifest in manifests), state]:
            assert one.meta.get("planned") != plan
            assert plan["name"] not in [*one.protected, *(file.name for file in one.files)]
        kit.new_process()
        assert content(job, spec)[1] == -1

    def test_the_twin_of_an_attempt_never_uses_its_snapshot(self, kit, job, spec, worker):
        """Both attempts plan a snapshot of one version; their states differ."""
        due(job, spec)
        version = job.version
        winner = job.history.pop()[0]
        twin = kit.new_process()
        batch = job.begin([spec])
        for key in FEW:
            batch.put("s", key, 77)
        job.history.append([job.end(batch)])
        assert job.history[-1][0].state.meta["planned"] != winner.state.meta["planned"]
        worker.background.run()
        twin.background.run()
        assert change(job, spec, [1], -1).files[0].meta["version"] == version
        kit.new_process()
        assert content(job, spec) == {k: 77 if k in FEW else 0 for k in range(CELLS)} | {1: -1}


class TestBounds:
    def test_a_process_writes_one_at_a_time(self, kit, job, spec, worker, storage):
        due(job, spec)
        other = kit.Job(storage, path="other", options=job.options)
        change(other, spec, range(CELLS))
        for value in range(5):
            state = change(other, spec, FEW, value)
            assert "planned" not in state.meta
            if value == 2:
                break
        worker.background.run()
        assert "planned" in change(other, spec, FEW, 9).meta

    def test_a_state_of_which_no_copy_fits_is_written_by_the_commit(self, kit, storage, spec):
        job = kit.Job(storage, options={"snapshot-factor": 0.5}, cache_bytes=30_000)
        change(job, spec, range(CELLS))
        check_commits_write_snapshots(job, spec)

    def test_a_small_one_is_written_by_the_commit(self, job, spec, monkeypatch):
        monkeypatch.undo()
        change(job, spec, range(CELLS))
        check_commits_write_snapshots(job, spec)


def check_commits_write_snapshots(job, spec):
    """Check that no commit plans a snapshot, and that some write one."""
    seen = set()
    for value in range(8):
        state = change(job, spec, FEW, value)
        assert "planned" not in state.meta
        seen.add(state.files[0].meta["version"])
    assert len(seen) > 1


def test_the_thread_of_a_process_writes(kit, job, spec, worker, monkeypatch):
    """The real thread; the test waits until it has written."""
    done = threading.Event()
    pool = DaemonPool("test-heap-snapshot")
    thread = SnapshotThread(pool)
    monkeypatch.setattr("forebay_backend_heap.backend.THREAD", lambda: thread)
    plan = due(job, spec)
    pool.do(done.set)
    assert done.wait(30)
    assert thread.is_free
    assert change(job, spec, [1], -1).files[0].name == plan["name"]
    pool.close(5)


class Schedule:
    """Random commits, twins, deaths, rescales and returns to older versions of one job."""

    def __init__(self, kit, storage, rng):
        self.kit, self.rng = kit, rng
        self.specs = [kit.spec("s", value=int), kit.spec("l", Shape.LIST, value=int)]
        options = {
            "snapshot-factor": rng.choice([0.3, 1.0]),
            "max-deltas": rng.choice([2, 5]),
            "held-bytes": rng.choice([0, 400, 2_000]),
        }
        self.job = kit.Job(storage, options=options)
        self.models = [{}]
        self.processes = [kit.new_process(), kit.new_process()]
        self.commit(range(CELLS // 4))

    def step(self):
        actions = [self.commit, self.write, self.die, self.twin, self.go_back]
        self.rng.choices(actions, [20, 8, 1, 1, 1])[0]()

    def commit(self, keys=None, *, lost=False):
        keys = keys or self.rng.sample(range(CELLS // 4), self.rng.choice([1, 20, 100]))
        changes = {key: self.rng.choice([ABSENT, 1, 2, 3]) for key in keys}
        model = dict(self.models[-1])
        for key, value in changes.items():
            model[key] = [] if value is ABSENT else [*model.get(key, ()), value]
        parallelism = self.rng.choice([1] * 15 + [2])
        manifests = [self.subtask(groups, changes) for groups in self.job.ranges(parallelism)]
        if not lost:
            self.job.history.append(manifests)
            self.models.append({key: value for key, value in model.items() if value})

    def subtask(self, groups, changes):
        self.kit.new_process(self.rng.choice(self.processes))
        batch = self.job.begin(self.specs, groups)
        expected = {k: v for k, v in self.models[-1].items() if self.kit.group_of(k) in groups}
        assert {key: value for (_, key), value in batch.content("l").items()} == expected
        newest = {key: value[-1] for key, value in expected.items()}
        assert {key: value for (_, key), value in batch.content("s").items()} == newest
        for key, value in changes.items():
            if self.kit.group_of(key) in groups:
                batch.put("s", key, value)
                gone = value is ABSENT
                batch.append("l", key, [] if gone else [value], replace=gone)
        return self.job.end(batch, install=self.rng.random() < 0.95)

    def twin(self):
        self.commit(lost=True)

    def write(self):
        self.rng.choice(self.processes).background.run()

    def die(self):
        self.processes[self.rng.randrange(2)] = self.kit.new_process()

    def go_back(self):
        for _ in range(min(self.rng.randrange(4), len(self.models) - 2)):
            self.models.pop()
            self.job.history.pop()


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 200))]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_every_schedule_opens_what_was_committed(kit, storage, seed):
    schedule = Schedule(kit, storage, random.Random(seed))
    for _ in range(60):
        schedule.step()
