"""Transient failures are retried within a budget; everything else fails at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import pytest

from forebay_engine.versions.format.epochs import read_record
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import StorageError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.retry import RetryingStorage, RetryPolicy
from forebay_testing import CountingStorage, Crash, Fault, FaultKind, FaultyStorage


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s

    def retry(self, budget_s: float) -> RetryPolicy:
        return RetryPolicy(
            budget_s=budget_s, clock=lambda: self.now_s, sleep=self.sleep, jitter=lambda: 1.0
        )


def passing() -> StorageError:
    return StorageError("the wind blows", transient=True)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def faulty() -> FaultyStorage:
    return FaultyStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))


def requests(storage: RetryingStorage) -> list[tuple[str, object]]:
    """Every kind of request, by what it gives where an object ``a`` exists."""
    return [
        ("put", lambda: storage.put("b", b"2")),
        ("put_if_absent", lambda: storage.put_if_absent("c", b"3")),
        ("get", lambda: storage.get("a")),
        ("get_ranges", lambda: storage.get_ranges("a", [(0, 1)])),
        ("list", storage.list),
        ("list_page", storage.list_page),
        ("list_folders", storage.list_folders),
        ("delete", lambda: storage.delete(["b"])),
    ]


def test_every_request_that_fails_some_times_and_then_works(
    faulty: FaultyStorage, time: Time
) -> None:
    faulty.put("a", b"1")
    storage = RetryingStorage(faulty, time.retry(30)).child("folder")
    storage.put("a", b"1")
    for operation, request in requests(storage):
        faulty.faults[:] = [Fault(operation=operation, count=4, error=passing)]
        time.pauses.clear()
        request()
        assert time.pauses == [0.05, 0.1, 0.2, 0.4]
    assert [info.name for info in storage.list()] == ["a", "c"]


def test_the_budget_ends_it_with_an_error_that_says_so(faulty: FaultyStorage, time: Time) -> None:
    faulty.faults.append(Fault(count=None, error=passing))
    storage = RetryingStorage(faulty, time.retry(1))
    with pytest.raises(StorageError, match=r"the wind blows \(tried 5 times in 0.8 s\)") as caught:
        storage.get("a")
    assert not caught.value.transient
    assert time.now_s <= 1


def test_pauses_grow_to_a_longest_one(faulty: FaultyStorage, time: Time) -> None:
    faulty.faults.append(Fault(count=None, error=passing))
    with pytest.raises(StorageError):
        RetryingStorage(faulty, time.retry(60)).get("a")
    assert max(time.pauses) == 5.0


def test_without_a_budget_nothing_is_tried_again(faulty: FaultyStorage, time: Time) -> None:
    faulty.faults.append(Fault(error=passing))
    with pytest.raises(StorageError, match=r"^the wind blows$"):
        RetryingStorage(faulty, time.retry(0)).get("a")
    assert time.pauses == []


@pytest.mark.parametrize("error", [lambda: StorageError("for good"), Crash, ValueError])
def test_what_will_not_pass_is_not_tried_again(
    faulty: FaultyStorage, time: Time, error: object
) -> None:
    counted = CountingStorage(faulty)
    faulty.faults.append(Fault(error=error))
    with pytest.raises((StorageError, Crash, ValueError)):
        RetryingStorage(counted, time.retry(30)).get("a")
    assert counted.counts["get"] == 1


def test_put_if_absent_knows_its_own_object_again(faulty: FaultyStorage, time: Time) -> None:
    """The first try took effect, and only its answer was lost."""
    faulty.faults.append(
        Fault(operation="put_if_absent", kind=FaultKind.AFTER, count=2, error=passing)
    )
    storage = RetryingStorage(faulty, time.retry(30))
    assert storage.put_if_absent("mine", b"1") is True
    assert storage.put_if_absent("mine", b"1") is False


def test_put_if_absent_leaves_a_rival_the_winner(faulty: FaultyStorage, time: Time) -> None:
    faulty.put("theirs", b"2")
    faulty.faults.append(Fault(operation="put_if_absent", error=passing))
    assert RetryingStorage(faulty, time.retry(30)).put_if_absent("theirs", b"1") is False


def test_the_last_error_keeps_its_kind(faulty: FaultyStorage, time: Time) -> None:
    """Callers who expect "there is no such object" get it, whatever failed before."""
    faulty.faults.append(Fault(operation="get", count=2, error=passing))
    storage = RetryingStorage(faulty, time.retry(30))
    with pytest.raises(ObjectNotFoundError, match=r"no object 'a' in .*\(tried 3 times in"):
        storage.get("a")
    faulty.faults.append(Fault(operation="get", count=2, error=passing))
    assert read_record(storage, "0" * 16) is None


def test_the_last_error_keeps_what_it_says_of_itself(faulty: FaultyStorage, time: Time) -> None:
    class QuotaError(StorageError):
        def __init__(self, used: int, limit: int) -> None:
            super().__init__(f"{used} of {limit} bytes are used", transient=True)
            self.used = used

    faulty.faults.append(Fault(count=None, error=lambda: QuotaError(5, 4)))
    with pytest.raises(QuotaError, match=r"5 of 4 bytes are used \(tried 5 times") as caught:
        RetryingStorage(faulty, time.retry(1)).list()
    assert (caught.value.used, caught.value.transient) == (5, False)


class Flaky(CountingStorage):
    """Every fifth range, and every fifth name, fails transiently."""

    def _checked(self, items: Iterable[object]) -> None:
        for _ in items:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked % 5 == 0:
                raise passing()

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self._checked(ranges)
        return super().get_ranges(name, ranges)

    def delete(self, names: Iterable[str]) -> None:
        doomed = [*names]
        self._checked(doomed)
        super().delete(doomed)


def test_of_many_only_those_that_failed_are_asked_for_again(
    faulty: FaultyStorage, time: Time
) -> None:
    """All at once would fail for ever."""
    flaky = Flaky(faulty)
    storage = RetryingStorage(flaky, time.retry(1))
    storage.put("a", bytes(range(100)))
    assert storage.get_ranges("a", [(i, 1) for i in range(100)]) == [bytes([i]) for i in range(100)]
    names = [f"d/{i}" for i in range(20)]
    for name in names:
        storage.put(name, b"")
    storage.delete(names)
    assert [info.name for info in storage.list()] == ["a"]
    assert flaky.asked <= 2 * (100 + 20)
