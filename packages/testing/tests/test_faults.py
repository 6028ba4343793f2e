"""Storages for tests fail, count and use the clock as configured."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from forebay_state_api.errors import StorageError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.storage import (
    ClockedStorage,
    CountingStorage,
    Crash,
    Fault,
    FaultKind,
    FaultyStorage,
)


@pytest.fixture
def inner():
    return MemoryStorage(f"memory://{uuid4()}")


def test_a_fault_before_leaves_nothing(inner):
    with pytest.raises(StorageError, match="injected"):
        FaultyStorage(inner, Fault(operation="put")).put("a", b"1")
    assert inner.list() == []


def test_a_fault_after_leaves_the_effect(inner):
    storage = FaultyStorage(inner, Fault(kind=FaultKind.AFTER, error=Crash))
    with pytest.raises(Crash):
        storage.put_if_absent("a", b"1")
    assert inner.get("a") == b"1"


@pytest.mark.parametrize("operation", ["put", "put_if_absent"])
def test_a_torn_put_leaves_the_first_half(inner, operation):
    storage = FaultyStorage(inner, Fault(kind=FaultKind.TORN))
    with pytest.raises(StorageError):
        getattr(storage, operation)("a", b"1234")
    assert inner.get("a") == b"12"


def test_an_altered_byte(inner):
    inner.put("a", b"1234")
    storage = FaultyStorage(inner, Fault(kind=FaultKind.ALTERED, count=None))
    assert storage.get("a") == b"1224"
    assert storage.get_ranges("a", [(0, 1), (1, 3)]) == [b"0", b"234"]


def test_faults_are_chosen_by_operation_name_and_count(inner):
    storage = FaultyStorage(inner, Fault(operation="p*", name="x/b*", skip=1, count=2))
    child = storage.child("x")
    child.put("b1", b"")
    child.put("c", b"")
    for name in ("b2", "b3"):
        with pytest.raises(StorageError):
            child.put(name, b"")
    child.put("b4", b"")
    child.delete(["b1"])
    assert [info.name for info in storage.list("x")] == ["x/b4", "x/c"]
    assert storage.list_folders() == ["x"]


def test_latency_sees_every_request_with_its_full_name(inner):
    seen = []
    storage = FaultyStorage(inner, latency=lambda *request: seen.append(request))
    storage.child("x").put("a", b"")
    storage.delete(["x/a", "x/b"])
    assert seen == [("put", "x/a"), ("delete", "x/a"), ("delete", "x/b")]


def test_requests_and_bytes_are_counted(inner):
    storage = CountingStorage(inner)
    child = storage.child("x")
    child.put("a", b"1234")
    assert child.put_if_absent("a", b"12") is False
    child.get("a")
    child.get_ranges("a", [(0, 1), (1, 2)])
    assert storage.counts == {"put": 1, "put_if_absent": 1, "get": 1, "get_ranges": 1}
    assert storage.requests[0] == ("put", "x/a")
    assert (storage.bytes_written, storage.bytes_read) == (6, 7)
    storage.reset()
    assert (storage.requests, storage.bytes_written, storage.bytes_read) == ([], 0, 0)


def test_objects_bear_the_clocks_time(inner):
    clock = ManualClock()
    storage = ClockedStorage(inner, clock)
    storage.put("x/a", b"")
    clock.advance(timedelta(hours=1))
    assert storage.put_if_absent("x/b", b"")
    assert not storage.put_if_absent("x/a", b"")
    times = [info.modified for info in storage.child("x").list()]
    assert times == [clock.now - timedelta(hours=1), clock.now]


def test_the_clock_stands_until_it_is_moved():
    clock = ManualClock(datetime(1970, 1, 2, tzinfo=UTC))
    assert clock.now_us == 86_400_000_000
    clock.advance(timedelta(microseconds=5))
    assert clock.now_us == 86_400_000_005
    clock.set(datetime(1970, 1, 1, tzinfo=UTC))
    assert clock.now_us == 0
    with pytest.raises(ValueError, match="aware"):
        clock.set(datetime(1970, 1, 1))  # noqa: DTZ001 - it is refused
