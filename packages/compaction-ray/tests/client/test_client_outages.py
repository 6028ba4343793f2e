"""Outages of the service, and jobs that no gateway has."""

from __future__ import annotations

import pytest
from compaction_ray_toys import (
    PATIENCE_S,
    QUICK,
    Clock,
    Hurried,
    ThreadPool,
    black_hole,
    dead_address,
    ended,
    job,
    running,
)

from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

# -- an outage ----------------------------------------------------------------------------------


def test_an_outage_has_its_beginning_the_address_and_the_cure(client_of, caplog):
    """The log has no warning: each process would have it, and there may be one for each task."""
    caplog.set_level("INFO")
    address = dead_address()
    client = client_of(address)
    assert client.outage() is None
    ended(client, job(1))
    first = client.outage()
    ended(client, job(2))
    assert client.outage().since == first.since
    assert first.why.startswith(f"the gateway {address} cannot be reached: UNAVAILABLE: ")
    assert first.why.endswith(
        "Compactions run in the job's own processes meanwhile. Start a gateway there, or name one "
        "that runs: with `forebay compaction endpoints add`, or in "
        "spark.forebay.compaction.remote.address"
    )
    assert "runs in this process: the gateway" in caplog.text
    assert [r for r in caplog.records if r.levelname == "WARNING"] == []


def test_the_outage_of_a_gateway_that_answers_nothing_says_what_stops_the_query(client_of):
    with black_hole() as address:
        client = client_of(address, failure_strategy="fail", answer_s=0.05, clock=Hurried())
        assert ended(client, job()).fault is CompactionFault.UNAVAILABLE
    why = client.outage().why
    assert f"the gateway {address} cannot be reached: DEADLINE_EXCEEDED" in why
    assert "longer than queue-timeout stops the query" in why


@pytest.mark.long
def test_an_outage_ends_when_a_worker_has_a_job(client_of, state_dir, storage, remote):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as started:
        client = client_of(started.address, queue_timeout_s=0.05)
        ended(client, job(1))
        why = client.outage().why
        assert f"in the queue of {started.address}. " in why
        assert why.endswith(
            "`forebay compaction status` shows the workers, and `scale` orders more"
        )
        started.on_loop(lambda: started.core.worker_set.scale(1))
        while client.outage() is not None:
            ended(client, job(2))
    assert remote.runs > 0


def test_what_other_jobs_may_not_meet_is_no_outage(client_of, gateway, remote, caplog):
    remote.fault = MemoryError()
    client = client_of(gateway.address, request_retries=0)
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert client.counters.all()["fallbacks:attempts"] == 1
    assert client.outage() is None
    assert "runs in this process: failed at" in caplog.text


# -- jobs of another process that no gateway has ------------------------------------------------


def test_with_fail_a_job_that_no_gateway_has_is_lost_after_the_queue_timeout(client_of, gateway):
    """Its owner has given it up by then; it may be submitted again at any time."""
    clock = Clock()
    client = client_of(gateway.address, failure_strategy="fail", clock=clock)
    given = job()
    for clock.now in (1000.0, 1029.9):
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.UNKNOWN
    clock.now = 1030.0
    status = client.poll(given.id, PATIENCE_S)
    assert (status.phase, status.fault) == (CompactionPhase.LOST, None)
    assert "no gateway has it" in status.message
    assert ended(client, given).phase is CompactionPhase.DONE
    assert client.poll(given.id).phase is CompactionPhase.DONE


def test_the_same_if_no_gateway_can_be_asked(client_of):
    clock = Clock()
    client = client_of(dead_address(), failure_strategy="fail", clock=clock)
    assert client.poll("j", PATIENCE_S).phase is CompactionPhase.UNKNOWN
    clock.now += 30.0
    assert client.poll("j", PATIENCE_S).phase is CompactionPhase.LOST


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_job_that_its_process_may_compact_itself_is_left_to_it(client_of, storage, strategy):
    address, clock = dead_address(), Clock()
    if strategy == "fail":
        Endpoints(storage).remove(address)
    client = client_of(address, failure_strategy=strategy, clock=clock)
    for _ in range(3):
        assert client.poll("j", PATIENCE_S).phase is CompactionPhase.UNKNOWN
        clock.now += 30.0


def test_of_many_jobs_that_no_gateway_has_the_newest_are_remembered(client_of, monkeypatch):
    monkeypatch.setattr("forebay_compaction_ray.client.service._REMEMBERED", 4)
    client = client_of(dead_address(), failure_strategy="fail", clock=Clock())
    for number in range(9):
        client.poll(f"j{number}", PATIENCE_S)
    assert list(client._missing_since_s) == ["j5", "j6", "j7", "j8"]
