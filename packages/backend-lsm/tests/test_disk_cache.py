"""The disk cache is shared and verified, keeps within its budget, and never causes a failure."""

from __future__ import annotations

import os

import pytest

from forebay_backend_lsm.disk_cache import CachedRanges, DiskCache
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import CountingStorage

BUDGET = 64 * 4096


def files_of(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_one_process_puts_another_gets(tmp_path):
    DiskCache(str(tmp_path), BUDGET).put("a", b"content")
    other = DiskCache(str(tmp_path), BUDGET)
    assert other.get("a") == b"content"
    assert other.get("b") is None


@pytest.mark.parametrize("position", [0, 3, -1])
def test_a_damaged_file_counts_as_absent_and_goes(tmp_path, position):
    cache = DiskCache(str(tmp_path), BUDGET)
    cache.put("a", b"content")
    (path,) = files_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert cache.get("a") is None
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("length", [0, 4, 10])
def test_a_truncated_file_counts_as_absent(tmp_path, length):
    cache = DiskCache(str(tmp_path), BUDGET)
    cache.put("a", b"content")
    (path,) = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get("a") is None


@pytest.mark.long
def test_what_was_not_used_for_longest_goes_first(tmp_path):
    cache = DiskCache(str(tmp_path), BUDGET)
    for number in range(1000):
        cache.put(str(number), b"x" * 500)
        for path in files_of(tmp_path) if number == 100 else ():
            os.utime(path, (1, 1))
    assert sum(path.stat().st_size for path in files_of(tmp_path)) <= 1.2 * BUDGET
    assert [n for n in range(100) if cache.get(str(n)) is not None] == []
    assert [n for n in range(900, 1000) if cache.get(str(n)) is not None]


@pytest.mark.long
def test_processes_together_stay_within_the_budget(tmp_path):
    for process in range(4):
        cache = DiskCache(str(tmp_path), BUDGET)
        for number in range(250):
            cache.put(f"{process}-{number}", b"x" * 500)
    assert sum(path.stat().st_size for path in files_of(tmp_path)) <= 1.2 * BUDGET


def test_what_is_read_is_used(tmp_path):
    cache = DiskCache(str(tmp_path), BUDGET)
    cache.put("a", b"content")
    (path,) = files_of(tmp_path)
    os.utime(path, (1, 1))
    assert cache.get("a") == b"content"
    assert path.stat().st_mtime > 1


def test_what_is_larger_than_its_share_is_not_kept(tmp_path):
    cache = DiskCache(str(tmp_path), BUDGET)
    cache.put("a", b"x" * 5000)
    assert cache.get("a") is None


def test_a_disk_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = DiskCache(str(blocked), BUDGET)
    cache.put("a", b"content")
    assert cache.get("a") is None


def test_a_disk_that_cannot_be_written_warns_once_a_minute(tmp_path, monkeypatch, caplog):
    now = 0.0
    monkeypatch.setattr("forebay_backend_lsm.disk_cache.time.monotonic", lambda: now)
    (tmp_path / "file").write_text("")
    cache = DiskCache(str(tmp_path / "file" / "folder"), 1 << 20)
    told = []
    for now in (0.0, 0.1, 59.9, 60.0, 61.0, 125.0):
        caplog.clear()
        cache.put("a", b"x")
        told += [now for record in caplog.records if record.levelname == "WARNING"]
    assert told == [0.0, 60.0, 125.0]
    assert "could not write" in caplog.text


def test_ranges_are_read_from_storage_once(tmp_path):
    inner = CountingStorage(MemoryStorage(f"memory://{tmp_path.name}"))
    inner.put("f", bytes(range(200)))
    cached = CachedRanges(inner, str(tmp_path), BUDGET)
    inner.reset()
    expected = [bytes(range(10, 15)), bytes(range(50, 60))]
    for _ in range(2):
        assert cached.get_ranges("f", [(10, 5), (50, 10)]) == expected
    assert cached.get_ranges("f", [(50, 10), (0, 2)]) == [expected[1], b"\0\1"]
    assert inner.counts["get_ranges"] == 2
    assert inner.bytes_read == 17


def test_other_requests_go_to_storage(tmp_path):
    inner = MemoryStorage(f"memory://{tmp_path.name}")
    cached = CachedRanges(inner, str(tmp_path), BUDGET)
    cached.put("a/b", b"1")
    assert not cached.put_if_absent("a/b", b"2")
    assert cached.get("a/b") == b"1"
    assert [info.name for info in cached.list()] == ["a/b"]
    assert cached.list_folders() == ["a"]
    assert cached.child("a").get("b") == b"1"
    cached.delete(["a/b"])
    assert inner.list() == []
