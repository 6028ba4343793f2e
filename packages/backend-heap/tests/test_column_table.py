"""Point tables by columns, over batches, processes, rescales and changes of the face."""

from __future__ import annotations

import random

import attrs
import numpy as np
import pytest

from forebay_backend_heap import column_space, value_columns
from forebay_backend_heap.column_table import ColumnTable
from forebay_backend_heap.table import HeapTable
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract import columns
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.contract.columns import CellColumns, EncodedKeys
from forebay_state_api.contract.expiry import Expiry
from forebay_state_api.errors import ColumnValueError


def spec(value, *, ttl=False):
    return TableSpec(
        name="v",
        shape=Shape.POINT,
        kind="value",
        key=codec_for(int, what="key"),
        value=codec_for(value, what="state 'v'"),
        ttl=ttl,
    )


def group_of(key):
    return key % 16


RECORDS = spec(tuple[int, str | None])
COLUMNS = attrs.evolve(RECORDS, columns=True)


def keys_of(keys):
    return EncodedKeys.of(COLUMNS.key, keys, [*map(group_of, keys)])


def put(batch, cells, namespace=None, name="v"):
    """Write by columns."""
    table = batch.tables[name]
    columns = CellColumns.of(table.spec.value, [*cells], [*cells.values()], ttl=table.spec.ttl)
    table.apply_columns(table.spec, namespace, keys_of(cells), columns)


def get(batch, keys, namespace=None, name="v"):
    """Read by columns."""
    table = batch.tables[name]
    return table.get_columns(table.spec, namespace, keys_of(keys)).cells(table.spec.value)


def content(job, spec, ranges=None):
    """Return what a reader sees: (namespace, key) → cell."""
    found = {}
    for groups in ranges or job.ranges(1):
        batch = job.begin([], groups)
        for changes in batch.backend.export(attrs.evolve(spec, columns=False), 3):
            for namespace, points in changes.points.items():
                pairs = zip(points.keys, points.values, strict=True)
                found |= {(namespace, key): value for key, value in pairs}
        batch.backend.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("hash_values", [None, 2])
@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_faces_processes_and_ranges_shows_one_state(
    kit, job, process, monkeypatch, seed, hash_values
):
    """The largest snapshots are small, files are folded, spaces are compacted, hashes collide."""
    monkeypatch.setattr(column_space, "_SPARSE_FROM", 4)
    monkeypatch.setattr(value_columns, "_SLACK", 16)
    if hash_values:
        few = np.uint64(hash_values)
        good = columns.hashes_of
        monkeypatch.setattr(columns, "hashes_of", lambda texts: good(texts) % few + np.uint64(1))
    job.options |= {"max-deltas": 3}
    drawn, model, held = random.Random(seed), {}, kit.Process()
    for number in range(25):
        if drawn.random() < 0.3:
            held = kit.Process()
        process(held)
        own = drawn.choice([RECORDS, COLUMNS])
        manifests = []
        for groups in job.ranges(drawn.choice([1, 1, 2])):
            batch = job.begin([own], groups)
            for namespace in (None, "w"):
                keys = [key for key in range(60) if group_of(key) in groups]
                cells = {
                    key: drawn.choice([ABSENT, (number, None), (-number << 33, "x" * number)])
                    for key in drawn.sample(keys, drawn.randint(0, 20))
                }
                if own.columns:
                    assert get(batch, keys, namespace) == [
                        model.get((namespace, key), ABSENT) for key in keys
                    ]
                    put(batch, cells, namespace)
                else:
                    for key, cell in cells.items():
                        batch.put("v", key, cell, namespace)
                model |= {(namespace, key): cell for key, cell in cells.items()}
            manifests.append(job.end(batch))
        job.history.append(manifests)
        model = {key: cell for key, cell in model.items() if cell is not ABSENT}
        assert content(job, RECORDS) == model
    job_keys = sum(manifest.state.keys or 0 for manifest in job.history[-1])
    assert job_keys in (0, len(model))


def test_a_run_by_columns_holds_columns_and_a_run_by_records_dictionaries(job):
    batch = job.begin([COLUMNS])
    assert type(batch.tables["v"]) is ColumnTable
    put(batch, {1: (1, "a"), 2: (2, None)})
    job.commit(batch)
    batch = job.begin([RECORDS])
    assert type(batch.tables["v"]) is HeapTable
    assert batch.content("v") == {(None, 1): (1, "a"), (None, 2): (2, None)}
    batch.put("v", 3, (3, "c"))
    job.commit(batch)
    batch = job.begin([COLUMNS])
    assert type(batch.tables["v"]) is ColumnTable
    assert get(batch, [1, 2, 3]) == [(1, "a"), (2, None), (3, "c")]


def test_in_the_process_that_holds_the_state_nothing_is_read(job):
    batch = job.begin([COLUMNS])
    put(batch, {1: (1, "a")})
    job.commit(batch)
    reads = len(job.storage.reads)
    batch = job.begin([COLUMNS])
    assert get(batch, [1]) == [(1, "a")]
    assert len(job.storage.reads) == reads


def test_what_another_process_wrote_is_caught_up_by_columns(kit, job, process):
    mine, other = kit.Process(), kit.Process()
    process(mine)
    batch = job.begin([COLUMNS])
    put(batch, {1: (1, "a"), 2: (2, "b")})
    job.commit(batch)
    process(other)
    batch = job.begin([COLUMNS])
    put(batch, {2: ABSENT, 3: (3, "c")})
    job.commit(batch)
    process(mine)
    batch = job.begin([COLUMNS])
    assert type(batch.tables["v"]) is ColumnTable
    assert get(batch, [1, 2, 3]) == [(1, "a"), ABSENT, (3, "c")]


@pytest.mark.parametrize("caught_up", [False, True])
def test_a_value_that_columns_cannot_hold_is_kept_by_cells(kit, job, process, caught_up):
    mine, other = kit.Process(), kit.Process()
    own = spec(int)
    by_columns = attrs.evolve(own, columns=True)
    process(mine)
    batch = job.begin([by_columns if caught_up else own])
    job.commit(batch)
    process(other)
    batch = job.begin([own])
    batch.put("v", 1, 1 << 70)
    batch.put("v", 2, 2)
    job.commit(batch)
    process(mine if caught_up else kit.Process())
    batch = job.begin([by_columns])
    table = batch.tables["v"]
    assert type(table) is HeapTable
    assert get(batch, [2]) == [2]
    with pytest.raises(ColumnValueError, match="key 1:"):
        get(batch, [2, 1])
    put(batch, {2: 3})
    job.commit(batch)
    batch = job.begin([by_columns])
    assert batch.tables["v"] is table, "it is not decoded again with each batch"
    assert content(job, own) == {(None, 1): 1 << 70, (None, 2): 3}


def test_the_files_of_both_faces_have_the_same_content(job):
    cells = {key: (key << 20, None if key % 3 else "text" * key) for key in range(50)}
    batch = job.begin([COLUMNS])
    put(batch, cells)
    put(batch, cells, "w")
    by_columns = batch.backend._resident.delta()
    batch = job.begin([RECORDS])
    for namespace in (None, "w"):
        for key in sorted(cells, key=group_of):
            batch.put("v", key, cells[key], namespace)
    batch.hand_over()
    by_records = batch.backend._resident.delta()
    for one, other in zip(by_columns, by_records, strict=True):
        assert one.description == other.description
        assert one.namespaces == other.namespaces
        assert one.groups.tolist() == other.groups.tolist()
        assert one.counts.tolist() == other.counts.tolist()
        assert [c.checksum for c in one.chunks] == [c.checksum for c in other.chunks]


def test_a_frozen_copy_does_not_follow_later_changes(job):
    batch = job.begin([COLUMNS])
    put(batch, {1: (1, "a"), 2: (2, "b")})
    table = batch.tables["v"]
    frozen = table.frozen()
    before = frozen.everything(batch.backend._resident.groups)
    put(batch, {1: (5, "other"), 2: ABSENT, 3: (3, "c" * 100)})
    after = frozen.everything(batch.backend._resident.groups)
    assert [c.checksum for s in before for c in s.chunks] == [
        c.checksum for s in after for c in s.chunks
    ]
    frozen.thaw()
    assert not len(frozen)
    assert len(table) == 2


def test_overwritten_texts_and_deleted_cells_leave_memory(job, monkeypatch):
    monkeypatch.setattr(value_columns, "_SLACK", 1000)
    monkeypatch.setattr(column_space, "_SPARSE_FROM", 100)
    batch = job.begin([COLUMNS])
    put(batch, {key: (key, "x" * 100) for key in range(1000)})
    job.commit(batch)
    sizes = []
    for number in range(30):
        batch = job.begin([COLUMNS])
        put(batch, dict.fromkeys(range(1000), (number, "y" * 100)))
        job.commit(batch)
        sizes.append(job_size(job))
    assert max(sizes) < 3 * sizes[0]
    batch = job.begin([COLUMNS])
    put(batch, dict.fromkeys(range(990), ABSENT))
    job.commit(batch)
    assert job_size(job) < sizes[0] / 10
    batch = job.begin([COLUMNS])
    assert get(batch, [989, 990]) == [ABSENT, (29, "y" * 100)]


def job_size(job):
    """The bytes that the table of the newest version takes."""
    batch = job.begin([COLUMNS])
    job.end(batch)
    return batch.tables["v"].memory_size()


TIMED = attrs.evolve(spec(int, ttl=True), columns=True)


def test_a_column_of_another_type_is_refused(job):
    batch = job.begin([COLUMNS])
    table = batch.tables["v"]
    cells = CellColumns.of(COLUMNS.value, [1], [(1, "a")], ttl=False)
    floats = attrs.evolve(cells.columns[0], values=np.array([1.5]))
    with pytest.raises(TypeError, match="a column of float64 where the state has one of int64"):
        table.apply_columns(
            COLUMNS, None, keys_of([1]), attrs.evolve(cells, columns=(floats, cells.columns[1]))
        )


def test_a_sweep_goes_on_where_the_last_one_stopped(job):
    batch = job.begin([TIMED])
    put(batch, {key: (key, key) for key in range(10)})
    job.commit(batch)
    swept = []
    for _ in range(5):
        batch = job.begin([TIMED])
        swept.append(batch.tables["v"].sweep(3, 4))
        job.commit(batch)
    assert sum(swept) == 5
    assert content(job, TIMED) == {(None, key): (key, key) for key in range(5, 10)}
    batch = job.begin([TIMED])
    assert batch.tables["v"].sweep(1000, 100) == 5
    assert batch.tables["v"].sweep(1000, 100) == 0


def test_snapshots_and_folds_drop_what_has_expired(job):
    expiring = attrs.evolve(TIMED, compaction_expiry=Expiry(10))
    batch = job.begin([expiring])
    put(batch, {1: (0, 1), 2: (100, 2)})
    put(batch, {1: (0, 1)}, "w")
    resident = batch.backend._resident
    dropped = resident.clean_up(50)
    assert sum(section.cells for section in dropped) == 2
    assert get(batch, [1, 2]) == [ABSENT, (100, 2)]
    assert get(batch, [1], "w") == [ABSENT]
    assert batch.tables["v"].removed == 2


@pytest.mark.parametrize("seed", range(4))
def test_sweeps_of_both_faces_drop_what_has_expired_and_nothing_else(kit, job, process, seed):
    drawn, model, held = random.Random(seed), {}, kit.Process()
    for now in range(10, 300, 10):
        held = kit.Process() if drawn.random() < 0.3 else held
        process(held)
        own = attrs.evolve(TIMED, columns=drawn.random() < 0.5)
        batch = job.begin([own])
        cells = {key: (now - drawn.randint(0, 9), key) for key in drawn.sample(range(60), 9)}
        for namespace in (None, "w"):
            if own.columns:
                put(batch, cells, namespace)
            else:
                for key, cell in cells.items():
                    batch.put("v", key, cell, namespace)
            model |= {(namespace, key): cell for key, cell in cells.items()}
        batch.hand_over()
        checks = drawn.choice([1, 7, 1000])
        batch.tables["v"].sweep(checks, now - 50)
        state = job.commit(batch)
        found = content(job, TIMED)
        assert state.keys == len(found)
        assert {key: cell for key, cell in model.items() if cell[0] > now - 50}.items() <= (
            found.items()
        )
        assert found.items() <= model.items()
        if checks == 1000:
            assert min(time for time, _ in found.values()) > now - 50
        model = found
