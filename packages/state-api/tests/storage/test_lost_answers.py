"""A put-if-absent whose response is lost, on stand-ins for S3, GCS and Azure: one caller wins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from forebay_engine.versions.choosing.pins import list_pins
from forebay_engine.versions.choosing.savepoints import create_savepoint, list_savepoints
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.reference import ReferenceBackend

from .stand_ins import S3, StandIn

COUNT = ValueStateDescriptor("n", int)


def opened(server: StandIn) -> ObjectStorage:
    return open_storage(server.url("state"), server.options)


def every(n: int) -> Callable[[str], bool]:
    """Loses the answer to each ``n``-th put."""
    puts = count(1)
    return lambda operation: operation == "put" and next(puts) % n == 0


def test_the_winner_knows_its_own_object_again(server: StandIn) -> None:
    storage = opened(server)
    puts = iter([True, False])
    server.loses = lambda operation: operation == "put" and next(puts)
    assert storage.put_if_absent("one", b"mine") is True
    assert server.seen.count("put") == 2
    server.loses = lambda _: False
    assert storage.put_if_absent("one", b"another's") is False


@pytest.mark.long
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_of_rivals_wins_whoever_loses_answers(server: StandIn, n: int) -> None:
    server.loses = every(n)
    rivals, objects = 4, 5
    barrier = threading.Barrier(rivals)

    def rival(number: int) -> list[bool]:
        storage = opened(server)
        barrier.wait()
        return [storage.put_if_absent(f"r/{i}", b"%d" % number) for i in range(objects)]

    with ThreadPoolExecutor(rivals) as pool:
        won = list(pool.map(rival, range(rivals)))
    for i in range(objects):
        winners = [number for number in range(rivals) if won[number][i]]
        assert len(winners) == 1
        assert server.objects[f"state/r/{i}"].data == b"%d" % winners[0]


def test_the_store_tries_nothing_again_by_itself(server: StandIn) -> None:
    """Otherwise we would not know about the earlier requests."""
    storage = open_storage(server.url("state"), {**server.options, "retry-budget": 0.0})
    server.busy = lambda _: True
    for request in (
        lambda: storage.put("one", b"1"),
        lambda: storage.put_if_absent("one", b"1"),
        lambda: storage.get("one"),
        lambda: storage.get_ranges("one", [(0, 1)]),
        storage.list,
        storage.list_page,
        storage.list_folders,
        lambda: storage.delete(["one"]),
    ):
        server.seen.clear()
        with pytest.raises(StorageError, match="503"):
            request()
        assert len(server.seen) == 1


@pytest.mark.parametrize("server", [S3], indirect=True)
def test_conditional_puts_that_met_are_sent_again(server: StandIn) -> None:
    """S3 answers one of them so; it is not that the object exists."""
    server.conflicts = 2
    assert opened(server).put_if_absent("one", b"mine") is True
    assert server.seen.count("put") == 3


@pytest.mark.long
def test_versions_and_savepoints_live_with_lost_answers(server: StandIn) -> None:
    """Every put of a job is done, and every other one is said to have failed."""
    job = KeyedJob(ReferenceBackend, opened(server), descriptors=[COUNT])
    server.loses = every(2)
    for number in range(4):
        job.restart(parallelism=1 + number % 2)
        assert job.do("a", ("n.value",), ("n.update", number))[0] == (
            number - 1 if number else None
        )
    for name in ("first", "second"):
        saved = create_savepoint(job.storage, name, uid=job.uid)
        assert saved.pin in {pin.name for pin in list_pins(job.storage)}
    with pytest.raises(ConfigurationError, match="has a savepoint 'first' already"):
        create_savepoint(job.storage, "first", uid=job.uid)
    assert [one.name for one in list_savepoints(job.storage)] == ["first", "second"]


@pytest.mark.long
def test_nobody_wins_only_where_the_error_says_so(server: StandIn) -> None:
    server.loses = lambda operation: operation in {"put", "get"}
    storage = open_storage(server.url("state"), {**server.options, "retry-budget": 0.2})
    with pytest.raises(StorageError, match="could not write 'one'"):
        storage.put_if_absent("one", b"mine")


def test_of_many_ranges_only_those_that_failed_are_asked_for_again(server: StandIn) -> None:
    storage = opened(server)
    storage.put("one", bytes(range(256)))
    requests = count(1)
    server.busy = lambda _: next(requests) % 5 == 0
    server.seen.clear()
    ranges = [(start, 2) for start in range(0, 240, 8)]
    assert storage.get_ranges("one", ranges) == [bytes([start, start + 1]) for start, _ in ranges]
    assert server.seen.count("get") <= 2.5 * len(ranges), (
        "all at once, then each, and a fifth again"
    )


def test_of_many_objects_only_those_that_failed_are_deleted_again(server: StandIn) -> None:
    storage = opened(server)
    names = [f"one/{i:02}" for i in range(30)]
    for name in names:
        storage.put(name, b"")
    requests = count(1)
    server.busy = lambda _: next(requests) % 5 == 0
    server.seen.clear()
    storage.delete(names)
    assert server.objects == {}
    assert server.seen.count("delete") <= 2.5 * len(names)


def test_an_answer_that_breaks_off_is_asked_for_again(server: StandIn) -> None:
    """The status came, and half of the body."""
    storage = opened(server)
    storage.put("one", bytes(range(256)))
    requests = count(1)
    server.breaks_off = lambda operation: operation == "get" and next(requests) % 2 == 1
    server.seen.clear()
    assert storage.get("one") == bytes(range(256))
    assert storage.get_ranges("one", [(0, 100), (200, 56)]) == [
        bytes(range(100)),
        bytes(range(200, 256)),
    ]
    assert server.seen.count("get") > 3
    server.breaks_off = lambda operation: operation == "list" and next(requests) % 2 == 0
    assert [info.name for info in storage.list()] == ["one"]
