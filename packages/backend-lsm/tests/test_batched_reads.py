"""Batched reads over several runs return the newest cells and make few requests."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from forebay_backend_lsm.cache import CACHE
from forebay_state_api.contract.changes import ABSENT, Shape
from forebay_state_api.errors import CorruptStateError, StorageError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import Fault, FaultKind, FaultyStorage

KEYS = [f"key {n}" for n in range(1500)]


def history(operator, spec, kit, runs=6, *, seed=1):
    """Write several runs of puts and deletes; return the resulting content."""
    rng = random.Random(seed)
    model = {}
    for _ in range(runs):
        count = rng.choice([3, 40, 600, 1500])
        changes = {k: rng.choice([ABSENT, rng.randrange(10**9)]) for k in rng.sample(KEYS, count)}
        operator.commit((spec, kit.points(changes)))
        model |= changes
    return model


@pytest.mark.parametrize("cache", [0, 1 << 14, 1 << 28])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_the_newest_cell_counts(new_operator, kit, cache, seed):
    operator, spec = new_operator(block_cache_bytes=cache), kit.spec()
    model = history(operator, spec, kit, seed=seed)
    keys = [*KEYS, "none", *KEYS[:5]]
    expected = [model.get(key, ABSENT) for key in keys]
    assert operator.read(spec, keys) == expected
    CACHE.clear()
    table = operator.table(spec)
    for _ in range(3):
        some = random.Random(seed).sample(range(len(keys)), 300)
        found = table.get_many(None, [(kit.group_of(keys[i]), keys[i]) for i in some])
        assert found == [expected[i] for i in some]
    assert operator.read(spec, keys) == expected


def test_cells_with_a_time(new_operator, kit):
    operator, spec = new_operator(), kit.spec(ttl=True)
    operator.commit((spec, kit.points({"a": (7, 1), "b": (8, 2)})))
    operator.commit((spec, kit.points({"b": ABSENT, "c": (9, 3)})))
    assert operator.read(spec, ["a", "b", "c"]) == [(7, 1), ABSENT, (9, 3)]


def test_a_cold_batch_is_read_in_one_round_of_requests(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    for run in range(4):
        operator.commit((spec, kit.points(dict.fromkeys(KEYS[run::4], run))))
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    assert operator.read(spec, KEYS) == [n % 4 for n in range(len(KEYS))]
    blocks = sum(len(run.residence.counts) for run in table.files)
    assert blocks > 50
    assert operator.storage.counts == {"get_ranges": 4}, "neighbouring blocks are read together"


def test_blocks_are_read_once_while_there_is_room(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    model = history(operator, spec, kit)
    CACHE.clear()
    operator.read(spec, KEYS)
    operator.storage.reset()
    assert operator.read(spec, KEYS) == [model.get(key, ABSENT) for key in KEYS]
    assert operator.storage.requests == []


def test_missing_keys_cost_no_request(new_operator, kit):
    operator, spec = new_operator(), kit.spec()
    history(operator, spec, kit)
    CACHE.clear()
    table = operator.table(spec)
    operator.storage.reset()
    asked = [(n % 16, f"missing {n}") for n in range(100)]
    assert table.get_many(None, asked) == [ABSENT] * 100
    assert operator.storage.bytes_read < 20 * 600, "a filter lets few of them pass"


def test_entries_below_a_clear_are_gone(new_operator, kit):
    operator, spec = new_operator(), kit.spec(shape=Shape.MAP)
    entries = {str(n): n for n in range(300)}
    operator.commit((spec, kit.entered({"k": entries, "other": entries})))
    operator.commit((spec, kit.entered({"k": {"1": 10, "2": 20}}, cleared=True)))
    operator.commit((spec, kit.entered({"k": {"2": ABSENT, "3": 30}})))
    for cached in (True, False):
        if not cached:
            CACHE.clear()
        table = operator.table(spec)
        asked = [(kit.group_of(k), k, e) for k in ("k", "other") for e in ("0", "1", "2", "3")]
        found = table.get_entries(None, asked)
        assert found == [ABSENT, 10, ABSENT, 30, 0, 1, 2, 3]


def test_damage_that_is_found_in_a_block_names_all(new_operator, kit):
    operator, spec = new_operator(block_cache_bytes=0), kit.spec()
    operator.commit((spec, kit.points(dict.fromkeys(KEYS, 1))))
    (file,) = operator.last.files
    data = bytearray(operator.storage.get(file.name))
    data[2000] ^= 1
    operator.storage.put(file.name, bytes(data))
    table = operator.table(spec)
    with pytest.raises(CorruptStateError, match=rf"{file.name}.*'s'.*block.*'operator'.*version 1"):
        table.get_many(None, [(kit.group_of(key), key) for key in KEYS])


def test_a_file_that_goes_while_it_is_open(new_operator, kit):
    operator, spec = new_operator(block_cache_bytes=0), kit.spec()
    operator.commit((spec, kit.points(dict.fromkeys(KEYS, 1))))
    table = operator.table(spec)
    operator.storage.delete([operator.last.files[0].name])
    with pytest.raises(CorruptStateError, match=r"it is missing.*version 1"):
        table.get_many(None, [(kit.group_of(key), key) for key in KEYS])


def test_a_failing_storage_surfaces_and_loses_nothing(new_operator, kit):
    faulty = FaultyStorage(MemoryStorage("memory://lsm-reads-fault"))
    operator, spec = new_operator(faulty, block_cache_bytes=0), kit.spec()
    model = history(operator, spec, kit)
    table = operator.table(spec)
    faulty.faults.append(Fault(operation="get_ranges", skip=1))
    asked = [(kit.group_of(key), key) for key in KEYS]
    with pytest.raises(StorageError, match="injected"):
        table.get_many(None, asked)
    assert table.get_many(None, asked) == [model.get(key, ABSENT) for key in KEYS]


def test_the_disk_cache_answers_for_storage(new_operator, kit, tmp_path):
    operator = new_operator(block_cache_bytes=0, disk_cache_dir=str(tmp_path))
    spec = kit.spec()
    model = history(operator, spec, kit)
    expected = [model.get(key, ABSENT) for key in KEYS]
    assert operator.read(spec, KEYS) == expected
    operator.storage.reset()
    assert operator.read(spec, KEYS) == expected
    assert operator.storage.counts["get_ranges"] == 0


def test_damage_that_the_disk_cache_has_kept_is_read_anew(new_operator, kit, tmp_path):
    faulty = FaultyStorage(MemoryStorage("memory://lsm-reads-altered"))
    operator = new_operator(faulty, block_cache_bytes=0, disk_cache_dir=str(tmp_path))
    spec = kit.spec()
    operator.commit((spec, kit.points(dict.fromkeys(KEYS, 1))))
    faulty.faults.append(Fault(operation="get_ranges", kind=FaultKind.ALTERED))
    assert operator.read(spec, KEYS) == [1] * len(KEYS)
    assert operator.read(spec, KEYS) == [1] * len(KEYS)


@pytest.mark.long
def test_nothing_is_started_before_the_first_read():
    code = """
import threading
import forebay_backend_lsm
from forebay_state_api.plugins import plugins
plugins().backend("lsm")
print(threading.active_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
