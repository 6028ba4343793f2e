"""The client and its gateways: absent, without workers, and back."""

from __future__ import annotations

import itertools

import pytest
from compaction_ray_toys import (
    PATIENCE_S,
    QUICK,
    Clock,
    Concatenation,
    Hurried,
    ThreadPool,
    begun,
    black_hole,
    counted,
    dead_address,
    ended,
    happened,
    job,
    running,
)

from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_compaction_ray.client.job import TrackedJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

# -- no gateway ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_dead_port(client_of, own, strategy):
    client = client_of(dead_address(), failure_strategy=strategy, clock=Hurried())
    status = ended(client, job())
    if strategy == "fallback":
        assert status.phase is CompactionPhase.DONE
        assert own.runs == happened(client, "fallbacks") == 1
    else:
        assert (status.phase, status.fault) == (
            CompactionPhase.FAILED,
            CompactionFault.UNAVAILABLE,
        )
        assert "UNAVAILABLE" in status.message
        assert own.runs == 0


def test_a_gateway_that_accepts_and_never_answers(client_of, own):
    with black_hole() as address:
        client = client_of(address, answer_s=0.1)
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert own.runs == 1
        assert ended(client, job(2)).phase is CompactionPhase.DONE
        assert happened(client, "unreachable") == 2


def test_the_next_address_is_asked(client_of, gateway, remote):
    for _ in range(2):
        client = client_of(dead_address(), gateway.address, dead_address())
        assert ended(client, job()).phase is CompactionPhase.DONE
    assert remote.runs == 2


def test_endpoints_change_while_the_job_runs(client_of, gateway, storage, remote, own):
    client = client_of(dead_address(), request_retries=0)
    clock = client.gateways.endpoints
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    Endpoints(storage).add(gateway.address)
    clock._read_s = None
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 1)
    Endpoints(storage).remove(*client.gateways.endpoints.last_known)
    clock._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 2)
    assert client.gateways.endpoints.last_known == ()


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_when_all_gateways_were_removed_jobs_run_here(client_of, gateway, storage, own, strategy):
    """They were removed on purpose, so that is no reason to fail."""
    Endpoints(storage).remove(gateway.address)
    client = client_of(gateway.address, failure_strategy=strategy)
    assert ended(client, job(1, attempt=1)).phase is CompactionPhase.DONE
    assert ended(client, job(2, attempt=9)).phase is CompactionPhase.DONE
    assert own.runs == 2
    Endpoints(storage).add(gateway.address)
    client.gateways.endpoints._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert own.runs == 2, "a gateway has returned"


def test_a_job_that_is_lost_when_all_gateways_were_removed_fails_nobody(
    client_of, gateway, storage, remote, own
):
    client = client_of(gateway.address, failure_strategy="fail", request_retries=0)
    given = begun(client, remote)
    Endpoints(storage).remove(gateway.address)
    client.gateways.endpoints._read_s = None
    gateway.on_loop(lambda: gateway.core._abort(gateway.core._jobs[given.id], "drain"))
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert own.runs == 1


@pytest.mark.long
def test_a_task_waits_once_for_a_gateway_that_does_not_answer(client_of, monkeypatch):
    waits, wait = [], TrackedJob.wait

    def spied(self, until, timeout_s):
        waits.append(timeout_s)
        return wait(self, until, timeout_s)

    monkeypatch.setattr(TrackedJob, "wait", spied)
    with black_hole() as address:
        client = client_of(address)
        for _ in range(5):
            assert client.poll("somebody's").phase is CompactionPhase.UNKNOWN
    assert sorted(waits) == [0.0] * 5 + [0.25]


# -- reported events ----------------------------------------------------------------------------


def test_a_gateway_that_is_back_is_told_what_happened_meanwhile(client_of, gateway, storage):
    client = client_of(dead_address())
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    Endpoints(storage).add(gateway.address)
    client.gateways.endpoints._read_s = None
    for number in (2, 3):
        assert ended(client, job(number)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    events = {
        name.partition('"')[2][:-2]: n for name, n in metrics.items() if "client_events" in name
    }
    assert metrics['forebay_compaction_client_fallbacks_total{cause="unreachable"}'] == 1
    assert events["submitted"] == 3
    assert events["unreachable"] >= 1
    assert metrics["forebay_compaction_entries_read_total"] == 2
    assert metrics['forebay_compaction_entries_dropped_total{cause="expired"}'] == 0


def test_what_is_counted_is_declared(client_of):
    with pytest.raises(KeyError, match="hiccup"):
        client_of(dead_address()).counters.add("hiccup")


def test_a_stale_result_is_counted_and_told(client_of, gateway):
    client = client_of(gateway.address)
    given = job(1)
    assert ended(client, given).phase is CompactionPhase.DONE
    client.discard(given.id)  # the gateway learns of it from a thread
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    assert metrics['forebay_compaction_client_events_total{event="stale"}'] == 1


@pytest.mark.long
def test_another_gateway_gets_the_job_that_one_has_failed_at(
    state_dir, storage, gateway, remote, client_of, own
):
    failing = Concatenation()
    failing.fault = MemoryError()
    pool = ThreadPool({"default": state_dir}, {"toy": failing})
    with running(pool, storages=["default"], limits=QUICK) as first:
        client = client_of(first.address, gateway.address, request_retries=1)
        client.gateways._turns = itertools.repeat(0)  # as if other jobs took the other turns
        for number in (1, 2):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert (failing.runs, remote.runs, own.runs) == (2, 2, 0)


def test_a_gateway_without_workers_keeps_no_job_while_another_works(
    state_dir, storage, gateway, remote, client_of, own
):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as empty:
        client = client_of(empty.address, gateway.address, failure_strategy="fail")
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
        assert counted(empty.core, "jobs_submitted") == 0
    assert (remote.runs, own.runs) == (4, 0)


@pytest.mark.long
def test_a_job_leaves_a_queue_without_workers_when_another_gateway_is_back(
    state_dir, storage, gateway, remote, client_of, own, monkeypatch
):
    monkeypatch.setattr("forebay_compaction_ray.client.job._QUEUED_POLL_S", 0.1)
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as empty:
        client = client_of(empty.address, failure_strategy="fail")
        given = job()
        client.submit(given)
        while counted(empty.core, "jobs_submitted") == 0:
            client.poll(given.id, 0.01)
        Endpoints(storage).add(gateway.address)
        client.gateways.endpoints._read_s = None
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)


def test_the_log_has_one_line_a_minute_about_one_of_two_gateways(client_of, gateway, caplog):
    clock = Clock()
    client = client_of(dead_address(), gateway.address, clock=clock)
    client.gateways._turns = itertools.repeat(0)  # the dead one is first each time
    for minute in (1, 2):
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
        clock.now += 60
        assert sum(r.levelname == "WARNING" for r in caplog.records) == minute
        assert client.outage() is None
