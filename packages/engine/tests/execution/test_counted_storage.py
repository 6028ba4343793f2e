"""Requests are counted as stores bill them."""

from __future__ import annotations

import pytest

from forebay_engine.execution import counted_storage
from forebay_engine.execution.counted_storage import CountedStorage, RequestCounts
from forebay_state_api.errors import StorageError
from forebay_testing.backends.subject import memory_storage
from forebay_testing.storage import Fault, FaultyStorage


@pytest.fixture
def counts():
    return RequestCounts()


@pytest.fixture
def storage(counts):
    return CountedStorage(memory_storage(), counts).child("below")


def test_requests_are_counted_by_kind(storage, counts):
    storage.put("a", b"12345")
    assert storage.put_if_absent("b", b"")
    assert storage.get("a") == b"12345"
    storage.get_ranges("a", [(0, 2), (2, 1)])
    storage.list()
    storage.list_page()
    storage.list_folders()
    storage.delete(["a"])
    assert counts.by_kind() == {"get": 3, "list": 3, "put": 2, "delete": 1}
    assert counts.read_bytes == 8


def test_each_range_is_a_request_unless_it_is_empty(storage, counts):
    storage.put("a", b"12345")
    assert storage.get_ranges("a", [(0, 1), (1, 0), (2, 3)]) == [b"1", b"", b"345"]
    assert counts.by_kind()["get"] == 2


def test_each_deleted_object_counts(storage, counts):
    storage.delete(str(number) for number in range(3))
    assert counts.by_kind()["delete"] == 3


@pytest.mark.parametrize(("names", "requests"), [(0, 1), (1, 1), (3, 1), (4, 2), (7, 3)])
@pytest.mark.parametrize("method", ["list", "list_page"])
def test_each_page_of_a_list_is_a_request(storage, counts, monkeypatch, method, names, requests):
    monkeypatch.setattr(counted_storage, "_PAGE", 3)
    for number in range(names):
        storage.put(f"a{number}", b"")
    getattr(storage, method)()
    assert counts.by_kind()["list"] == requests


@pytest.mark.parametrize(("size", "requests"), [(4, 1), (5, 4), (8, 4), (9, 5)])
def test_an_object_in_parts_is_begun_written_and_completed(
    storage, counts, monkeypatch, size, requests
):
    monkeypatch.setattr(counted_storage, "PART_BYTES", 4)
    storage.put("a", b"1" * size)
    assert counts.by_kind()["put"] == requests


def test_a_request_that_fails_counts(counts):
    storage = CountedStorage(FaultyStorage(memory_storage(), Fault(count=None)), counts)
    for request in (
        lambda: storage.put("a", b""),
        lambda: storage.put_if_absent("a", b""),
        lambda: storage.get("a"),
        lambda: storage.get_ranges("a", [(0, 1)]),
        storage.list,
        lambda: storage.delete(["a", "b"]),
    ):
        with pytest.raises(StorageError):
            request()
    assert counts.by_kind() == {"get": 2, "list": 1, "put": 2, "delete": 2}
