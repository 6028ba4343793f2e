"""Commits, openings and spills: number of files and bytes, cached content, raised errors."""

from __future__ import annotations

import random

import attrs
import pytest

from forebay_backend_lsm.cache import CACHE
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.contract.files import ParentState
from forebay_state_api.errors import CorruptStateError, StateMigrationError, StorageError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import Fault, FaultyStorage

KEYS = [f"key {n}" for n in range(2000)]


def test_a_version_that_changed_anything_is_one_file(new_operator, kit):
    operator = new_operator()
    value, numbers = kit.spec("v"), kit.spec("l", Shape.LIST)
    for version in range(1, 4):
        operator.commit(
            (value, kit.points({"a": version})), (numbers, kit.appended({"a": [version]}))
        )
        assert len(operator.last.files) == version
        assert operator.last.bytes_written == operator.last.files[-1].size
    assert operator.storage.counts["put"] == 3
    assert operator.last.bytes_total == sum(file.size for file in operator.last.files)


def test_a_version_without_changes_writes_nothing(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    operator.commit((spec, kit.points({"a": 1})))
    before = operator.last
    operator.storage.reset()
    operator.commit()
    operator.commit((kit.spec("l", Shape.LIST), kit.appended({"a": []})))
    assert (operator.last.files, operator.last.bytes_written) == (before.files, 0)
    assert operator.storage.counts["put"] == 0
    assert operator.read(spec, ["a"]) == [1]


def test_opening_reads_indexes_and_filters_only(new_operator, kit):
    operator, spec = new_operator(block_bytes=4096), kit.spec(value=bytes)
    for n in range(3):
        values = random.Random(n)
        operator.commit((spec, kit.points({key: values.randbytes(500) for key in KEYS})))
    CACHE.clear()
    operator.storage.reset()
    operator.table(spec)
    tails = [file.meta["tail"] for file in operator.last.files]
    assert operator.storage.counts == {"get_ranges": 3}
    assert operator.storage.bytes_read == sum(tails) < operator.last.bytes_total / 20


def test_a_process_reads_nothing_that_it_has_written(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    for n in range(3):
        operator.commit((spec, kit.points(dict.fromkeys(KEYS, n))))
    operator.storage.reset()
    assert operator.read(spec, KEYS) == [2] * len(KEYS)
    assert operator.storage.requests == []


def test_changes_that_outgrow_the_memtable_become_files(new_operator, kit):
    operator, spec = new_operator(memtable_bytes=100_000), kit.spec()
    backend = operator.open()
    table = backend.table(spec)
    for n in range(6):
        table.apply(kit.points(dict.fromkeys(KEYS[n * 100 : n * 100 + 1000], n)))
    spilled = operator.storage.counts["put"]
    assert 1 <= spilled <= 3
    expected = [min(5, n // 100) for n in range(1500)]
    asked = [(kit.group_of(key), key) for key in KEYS[:1500]]
    assert table.get_many(None, asked) == expected
    state = backend.commit(1)
    assert len(state.files) == operator.storage.counts["put"]
    assert state.bytes_written == sum(file.size for file in state.files)
    backend.close()
    parent = ParentState(
        manifest_id="1",
        range=kit.GROUPS,
        whole=True,
        files=state.files,
        meta=state.meta,
        descriptions={"s": spec.description()},
    )
    CACHE.clear()
    reopened = operator.open(version=1, parents=[parent]).table(spec)
    assert reopened.get_many(None, asked) == expected


def test_several_hand_overs_make_one_file(new_operator, kit):
    operator = new_operator()
    value, numbers = kit.spec("v"), kit.spec("l", Shape.LIST)
    mapped = kit.spec("m", Shape.MAP)
    operator.commit(
        (value, kit.points({"a": 1, "b": 2})),
        (numbers, kit.appended({"a": [1]}, replaced=True)),
        (mapped, kit.entered({"a": {"x": 1}})),
        (value, kit.points({"a": ABSENT, "c": 3})),
        (numbers, kit.appended({"a": [2]})),
        (mapped, kit.entered({"a": {"y": 2}}, cleared=True)),
    )
    assert len(operator.last.files) == 1
    assert operator.read(value, ["a", "b", "c"]) == [ABSENT, 2, 3]
    assert operator.scanned(numbers, "a") == [1, 2]
    assert operator.scanned(mapped, "a") == [("y", 2)]


@pytest.mark.parametrize("opened", [KeyGroupRange(0, 7), KeyGroupRange(5, 5), KeyGroupRange(8, 15)])
def test_a_part_of_the_key_groups_is_read_of_the_same_files(new_operator, kit, opened):
    operator, spec = new_operator(), kit.spec()
    numbers = kit.spec("l", Shape.LIST)
    operator.commit((spec, kit.points(dict.fromkeys(KEYS, 1))))
    operator.commit((numbers, kit.appended({key: [1] for key in KEYS})))
    (whole,) = operator.parents
    files = [attrs.evolve(file, range=opened) for file in whole.files]
    clipped = attrs.evolve(whole, range=opened, whole=False, files=files)
    backend = operator.open(range=opened, parents=[clipped])
    found = backend.table(spec).get_many(None, [(kit.group_of(key), key) for key in KEYS])
    inside = [kit.group_of(key) in opened for key in KEYS]
    assert [value is not ABSENT for value in found] == inside
    table = backend.table(numbers)
    for key, mine in [*zip(KEYS, inside, strict=True)][::50]:
        pages = [*table.scan(None, kit.group_of(key), key).pages(10)]
        assert pages == ([[1]] if mine else [])
    assert backend.commit(3).files == files, "nothing is written"


def test_parents_of_several_ranges_are_read_as_one(new_operator, kit):
    spec = kit.spec()
    halves = [KeyGroupRange(0, 7), KeyGroupRange(8, 15)]
    storage, parents = MemoryStorage("memory://lsm-halves"), []
    for n, half in enumerate(halves):
        operator = new_operator(storage)
        operator.range = half
        own = {key: n for key in KEYS if kit.group_of(key) in half}
        operator.commit((spec, kit.points(dict.fromkeys(own, -1))))
        operator.commit((spec, kit.points(own)))
        parents += operator.parents
    whole = new_operator(storage)
    backend = whole.open(version=2, parents=parents)
    asked = [(kit.group_of(key), key) for key in KEYS]
    expected = [int(kit.group_of(key) >= 8) for key in KEYS]
    assert backend.table(spec).get_many(None, asked) == expected
    backend.table(spec).apply(kit.points({KEYS[0]: 7}))
    ranges = [file.range for file in backend.commit(3).files]
    assert ranges == [halves[0], halves[0], halves[1], halves[1], kit.GROUPS]


def test_states_that_are_not_asked_for_are_kept(new_operator, kit):
    operator = new_operator()
    kept, other = kit.spec("kept"), kit.spec("other")
    operator.commit((kept, kit.points({"a": 1})), (other, kit.points({"a": 2})))
    operator.commit((other, kit.points({"a": 3})))
    assert operator.read(kept, ["a"]) == [1]


def test_a_table_that_was_stored_otherwise_is_refused(new_operator, kit):
    operator = new_operator()
    operator.commit((kit.spec(), kit.points({"a": 1})))
    with pytest.raises(StateMigrationError, match="'s'"):
        operator.table(kit.spec(value=str))


def test_values_of_an_older_type_are_read_beside_those_of_the_new_one(new_operator, kit):
    operator, old, new = new_operator(), kit.spec(value=int), kit.spec(value=float)
    operator.commit((old, kit.points({"a": 1, "b": 2})))
    operator.commit((new, kit.points({"b": 2.5})))
    found = operator.read(new, ["a", "b"])
    assert [repr(value) for value in found] == ["1.0", "2.5"]


def test_a_write_that_fails_surfaces_and_the_batch_runs_again(new_operator, kit):
    faulty = FaultyStorage(MemoryStorage("memory://lsm-backend-fault"))
    operator, spec = new_operator(faulty), kit.spec()
    operator.commit((spec, kit.points({"a": 1})))
    faulty.faults.append(Fault(operation="put"))
    with pytest.raises(StorageError, match="injected"):
        operator.commit((spec, kit.points({"a": 2})))
    assert operator.read(spec, ["a"]) == [1]
    operator.commit((spec, kit.points({"a": 2})))
    assert operator.read(spec, ["a"]) == [2]


def test_a_damaged_index_is_found_at_the_opening(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    operator.commit((spec, kit.points(dict.fromkeys(KEYS, 1))))
    (file,) = operator.last.files
    data = bytearray(operator.storage.get(file.name))
    data[-50] ^= 1
    operator.storage.put(file.name, bytes(data))
    CACHE.clear()
    with pytest.raises(CorruptStateError, match=rf"{file.name}.*'operator'.*version 1"):
        operator.open()


def test_an_uncommitted_batch_leaves_nothing(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    operator.commit((spec, kit.points({"a": 1})))
    backend = operator.open()
    backend.table(spec).apply(kit.points({"a": 2}))
    backend.commit(2)
    backend.close()
    assert operator.read(spec, ["a"]) == [1]
