"""Mounts that go, directories that are emptied, and marks that are deleted while a service runs."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from compaction_ray_toys import (
    PATIENCE_S,
    QUICK,
    Concatenation,
    ThreadPool,
    begun,
    ended,
    happened,
    job,
    running,
)

from forebay_compaction_ray import storage_mark
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.storage.opening import open_storage

pytestmark = pytest.mark.long

STRATEGIES = pytest.mark.parametrize("strategy", ["fallback", "fail"])


@pytest.fixture
def empty(tmp_path):
    return open_storage(str(tmp_path / "empty"))


class Blind(Concatenation):
    """Finds none of its inputs, as over an empty directory."""

    def compact(self, given, here, cancelled):
        self.runs += 1
        raise CorruptStateError(f"{given.inputs[0].name}: it is missing")


@contextlib.contextmanager
def served(state_dir, remote, workers=2, **given):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=workers, **given) as gateway:
        yield gateway


def states(gateway):
    return [w["state"] for w in gateway.on_loop(gateway.core.describe)["worker_list"]]


def unmount(gateway, empty, *numbers):
    for number in numbers:
        gateway.pool.bodies[number]._opened["default"] = empty


@STRATEGIES
def test_workers_that_lose_their_mount_get_no_jobs_until_it_is_back(
    state_dir, storage, remote, own, client_of, empty, strategy
):
    """Most workers are of a bad machine; the first job that fails at one finds the others."""
    with served(state_dir, remote, workers=6) as gateway:
        client = client_of(gateway.address, failure_strategy=strategy)
        assert ended(client, job(1)).phase is CompactionPhase.DONE
        unmount(gateway, empty, 0, 1, 2, 3)
        for number in range(2, 8):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
        assert (own.runs, remote.runs) == (0, 7)
        assert happened(client, "lost") <= 2
        assert states(gateway) == ["unfit"] * 4 + ["ready"] * 2
        unmount(gateway, storage, 0, 1, 2, 3)
        while states(gateway) != ["ready"] * 6:
            pass


def test_under_fail_one_machine_cannot_stop_a_query(state_dir, storage, own, client_of):
    """Its marks are as they were, and its files are not; a later worker does the job."""
    bad = Blind()
    with served(state_dir, Concatenation(), workers=4) as gateway:
        for body in gateway.pool.bodies[:3]:
            body._compactors = lambda: {"toy": bad}
        client = client_of(gateway.address, failure_strategy="fail")
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert bad.runs > 4
    assert own.runs == 0


def wipe(state_dir):
    for path in Path(state_dir).iterdir():
        shutil.rmtree(path)


def delete_mark(state_dir):
    (Path(state_dir) / storage_mark.NAME).unlink()


def test_a_damaged_mark_heals_when_it_is_deleted(state_dir, storage, remote, own, client_of):
    with served(state_dir, remote) as gateway:
        storage.put(storage_mark.NAME, b"something else, and longer than a header")
        client = client_of(gateway.address)
        assert ended(client, job(1)).phase is CompactionPhase.DONE
        assert own.runs == 1
        delete_mark(state_dir)
        assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert own.runs == 1


@STRATEGIES
@pytest.mark.parametrize("damage", [wipe, delete_mark])
def test_a_mark_that_was_deleted_is_put_again(state_dir, remote, own, client_of, strategy, damage):
    """Also if another gateway has put it, and under `fail` at once."""
    with served(state_dir, remote) as gateway, served(state_dir, remote) as other:
        client = client_of(gateway.address, failure_strategy=strategy)
        if damage is delete_mark:
            assert ended(client, job(1)).phase is CompactionPhase.DONE
        before = gateway.core.storages.marks["default"]
        damage(state_dir)
        storage = open_storage(state_dir)
        for number in range(1, 10):
            storage.put(f"query/op/data/in{number}", bytes([number]) * 100)
        for address in (gateway.address, other.address):
            late = client_of(address, failure_strategy=strategy, request_retries=5)
            for number in range(2, 6):
                assert ended(late, job(number)).phase is CompactionPhase.DONE
        marks = {g.core.storages.marks["default"] for g in (gateway, other)}
        assert marks == {storage_mark.read(storage)} != {before}
    assert own.runs == 0


def test_a_running_job_of_an_emptied_directory_ends(state_dir, remote, client_of):
    with served(state_dir, remote, workers=1) as gateway:
        client = client_of(gateway.address, request_retries=0)
        given = begun(client, remote)
        wipe(state_dir)
        remote.go.set()
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.FAILED
        while states(gateway) != ["ready"]:
            pass
        mark = storage_mark.read(open_storage(state_dir))
        assert mark == gateway.core.storages.marks["default"]


def test_a_service_goes_on_when_only_the_machine_of_the_gateway_loses_the_directory(
    state_dir, storage, remote, own, client_of, empty
):
    with served(state_dir, remote) as gateway:
        mark = storage_mark.read(storage)
        gateway.core.storages._open = lambda url, options: empty
        client = client_of(gateway.address)
        refresh = client_of(gateway.address).gateways.at(gateway.address)
        described = refresh.hello(marks={"default": "another"}).storages["default"]
        assert described["mark"] == mark
        assert "it has no mark on" in described["problem"]
        assert ended(client, job(1)).phase is CompactionPhase.DONE
        assert storage_mark.read(empty) is None
        unmount(gateway, empty, 0, 1)
        theirs = refresh.hello(marks={"default": "another"}).storages["default"]
        assert theirs["mark"] == storage_mark.read(empty) != mark
        assert ended(client, job(2)).phase is CompactionPhase.DONE
        assert happened(client, "fallbacks") == 1
        gateway.core.storages._open = lambda url, options: storage
        unmount(gateway, storage, 0, 1)
        assert ended(client, job(3)).phase is CompactionPhase.DONE
        assert happened(client, "fallbacks") == 1, "it has healed"
    assert own.runs == 1
