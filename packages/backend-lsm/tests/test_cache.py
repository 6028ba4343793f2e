"""The cache of a process keeps blocks and stays within its budget."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from forebay_backend_lsm.cache import CachedBlocks, NewBlocks, OpenFile, ProcessCache

KIB = 1024


def residence(blocks):
    return CachedBlocks(np.ones(blocks, np.int64), has_times=False)


def put(cache, found, *numbers, size=KIB):
    cache.insert(NewBlocks.of([(found, [(n, raw(n, size)) for n in numbers])]))


def raw(number, size=KIB):
    return bytes([number % 256]) * size


def cache_of(budget):
    cache = ProcessCache()
    cache.resize(budget)
    return cache


def kept(cache, found, size=KIB):
    """Return the cached blocks, and check the content of each."""
    there = []
    for number in range(len(found.bases)):
        content = cache.copy(found, number, size)
        if content is not None:
            assert content == raw(number, size)
            there.append(number)
    return there


def opened(memory_bytes):
    """Return an open file that takes ``memory_bytes`` and has no tables."""
    file = OpenFile(SimpleNamespace(sections={}, memory_bytes=memory_bytes))
    assert file.memory_bytes == memory_bytes
    return file


@pytest.mark.long
@pytest.mark.parametrize("budget", [64 * KIB, 100 * KIB, 1 << 20])
def test_blocks_stay_within_the_budget(budget):
    count = 5 * budget // (2 * KIB)
    cache, found = cache_of(budget), residence(count)
    for number in range(count):
        put(cache, found, number)
        assert cache.held_bytes <= budget
    there = kept(cache, found)
    assert budget / 2 <= KIB * len(there) <= budget
    assert there[-1] == count - 1


@pytest.mark.long
def test_what_is_used_outlives_what_is_not():
    cache, found = cache_of(256 * KIB), residence(1500)
    used = range(20)
    for number in range(1500):
        put(cache, found, number)
        for one in used:
            if cache.copy(found, one, KIB) is None:
                put(cache, found, one)
    before = found.bases[:20].copy()
    assert set(used) <= set(kept(cache, found))
    assert (before >= 0).all()


@pytest.mark.long
def test_used_blocks_are_kept_when_their_segment_makes_way():
    cache, found = cache_of(64 * KIB), residence(1000)
    put(cache, found, 0)
    for number in range(1, 1000):
        assert cache.copy(found, 0, KIB) == raw(0), f"gone when {number} came"
        put(cache, found, number)


@pytest.mark.parametrize("budget", [0, 1, 100])
def test_without_a_budget_nothing_is_kept(budget):
    cache, found = cache_of(budget), residence(2)
    put(cache, found, 0)
    cache.keep(("path", "file"), opened(1000))
    assert kept(cache, found) == []
    assert cache.held_bytes == 0


def test_a_block_larger_than_a_segment_is_not_kept():
    cache, found = cache_of(64 * KIB), residence(2)
    cache.insert(NewBlocks.of([(found, [(0, raw(0, 5 * KIB)), (1, raw(1))])]))
    assert kept(cache, found) == [1]


def test_another_budget_and_clearing_forget_every_block():
    cache, found = cache_of(64 * KIB), residence(4)
    for act in (lambda: cache.resize(128 * KIB), cache.clear):
        put(cache, found, *range(4))
        assert kept(cache, found) == [0, 1, 2, 3]
        act()
        assert kept(cache, found) == []
    put(cache, found, 1)
    cache.resize(128 * KIB)
    assert kept(cache, found) == [1], "the same budget changes nothing"


def test_open_files_take_room_from_blocks():
    cache, found = cache_of(64 * KIB), residence(200)
    put(cache, found, *range(64))
    cache.keep(("path", "a"), opened(32 * KIB))
    assert cache.held_bytes <= 64 * KIB
    assert 20 <= len(kept(cache, found)) <= 32
    put(cache, found, *range(64, 200))
    assert cache.held_bytes <= 64 * KIB


def test_a_file_larger_than_the_budget_displaces_no_other():
    cache = cache_of(100)
    kept_file = cache.keep(("path", "a"), opened(40))
    cache.keep(("path", "b"), opened(101))
    assert cache.held_bytes == 40
    assert cache.file(("path", "a"), never) is kept_file


def never():
    raise AssertionError


def test_the_file_that_was_not_opened_for_longest_goes():
    cache = cache_of(100)
    files = {name: opened(40) for name in "abc"}
    for name in "ab":
        cache.keep(("path", name), files[name])
    unused = lambda: pytest.fail("it is open")
    assert cache.file(("path", "a"), unused) is files["a"]
    cache.keep(("path", "c"), files["c"])
    assert cache.file(("path", "a"), unused) is files["a"]
    reopened = SimpleNamespace(sections={}, memory_bytes=10)
    assert cache.file(("path", "b"), lambda: reopened).file is reopened
    assert cache.file(("elsewhere", "a"), lambda: reopened).file is reopened


@pytest.mark.long
def test_threads_may_use_it_at_once():
    cache, found = cache_of(64 * KIB), residence(300)
    faults = []

    def work(seed):
        random = np.random.default_rng(seed)
        for number in random.integers(0, 300, 1000).tolist():
            content = cache.copy(found, number, KIB)
            if content is None:
                put(cache, found, number)
            elif content != raw(number):
                faults.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
