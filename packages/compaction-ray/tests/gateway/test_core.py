"""The lifecycle of jobs in the gateway's core, with scripted workers and a manual clock."""

from __future__ import annotations

import asyncio
import re

import attrs
import pytest
from compaction_ray_toys import LIMITS, Stage, counted, in_loop, settle, submission
from prometheus_client import generate_latest

from forebay_compaction_ray.gateway.metrics import GATEWAY, Metrics
from forebay_compaction_ray.gateway.worker_handle import WorkerLostError
from forebay_compaction_ray.messages import Outcome
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase


@in_loop
async def test_a_job_goes_to_a_worker_and_ends():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    assert await stage.phase(one) is CompactionPhase.RUNNING
    worker.end(one)
    await settle()
    view = await stage.core.poll(one)
    assert view.phase is CompactionPhase.DONE
    assert counted(stage.core, "jobs_finished", outcome="done") == 1
    assert counted(stage.core, "read_bytes") == 7


@in_loop
async def test_jobs_wait_in_order():
    stage = Stage()
    (worker,) = await stage.up()
    jobs = [await stage.submit(n) for n in (1, 2, 3)]
    worker.end(jobs[0])
    await settle()
    assert worker.ran == jobs[:2]
    stage.abort(jobs[1])
    await settle()
    assert worker.ran == jobs


@in_loop
async def test_the_same_submission_is_taken_once():
    stage = Stage()
    (worker,) = await stage.up()
    given = submission()
    first = stage.core.submit(given)
    await settle()
    again = stage.core.submit(given)
    assert (first.job_id, again.phase) == (again.job_id, CompactionPhase.RUNNING)
    assert len(worker.ran) == 1


@in_loop
async def test_aborting_is_asked_first_and_killing_later():
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    one = await stage.submit()
    stage.abort(one)
    await settle()
    assert worker.aborted == [one]
    assert await stage.phase(one) is CompactionPhase.RUNNING
    await stage.later(LIMITS.abort_timeout_s)
    assert worker.killed
    assert await stage.phase(one) is CompactionPhase.ABORTED


@in_loop
async def test_an_abort_that_overtook_its_job_is_repeated():
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    one = await stage.submit()
    stage.core.release(one)
    await settle()
    worker.aborts_at_once = True
    await stage.later(LIMITS.ping_every_s)
    assert (worker.aborted, worker.running, worker.killed) == ([one, one], {}, False)


@in_loop
async def test_a_waiting_job_is_aborted_without_having_begun():
    stage = Stage()
    one = await stage.submit()
    stage.abort(one)
    view = await stage.core.poll(one)
    assert (view.phase, view.worker) == (CompactionPhase.ABORTED, "")


@in_loop
async def test_entries_that_jobs_dropped_are_counted_by_cause():
    stage = Stage()
    (worker,) = await stage.up()
    for dropped in ({"overwritten": 3, "expired": 2, "of a later release": 1}, {"deleted": 1}):
        one = await stage.submit()
        worker.end(one, entries_in=9, entries_dropped=7, dropped=dropped)
        await settle()
    metrics = stage.core.describe()["metrics"]
    found = {name: n for name, n in metrics.items() if "entries_dropped" in name}
    assert found == {
        'forebay_compaction_entries_dropped_total{cause="deleted"}': 1,
        'forebay_compaction_entries_dropped_total{cause="expired"}': 2,
        'forebay_compaction_entries_dropped_total{cause="overwritten"}': 3,
        'forebay_compaction_entries_dropped_total{cause="untold"}': 2 + 6,
    }


@in_loop
async def test_a_released_job_is_stopped_and_forgotten():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    stage.core.release(one)
    await settle()
    assert worker.aborted == [one]
    assert await stage.phase(one) is CompactionPhase.UNKNOWN
    stage.core.release(one)


@in_loop
async def test_a_released_job_that_does_not_stop_is_stopped_by_killing():
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    stage.core.release(await stage.submit())
    await stage.later(LIMITS.abort_timeout_s + 1)
    assert worker.killed


@in_loop
async def test_a_job_that_nobody_asks_about_is_given_up_after_its_lease():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit(lease_s=30.0)
    await stage.later(20)
    assert await stage.phase(one) is CompactionPhase.RUNNING  # which renews it
    await stage.later(20)
    assert worker.aborted == []
    await stage.later(11)
    assert worker.aborted == [one]
    assert await stage.phase(one) is CompactionPhase.UNKNOWN


@pytest.mark.long
@in_loop
async def test_a_job_that_was_given_up_may_come_again():
    stage = Stage()
    (worker,) = await stage.up()
    late = submission(1)
    stage.core.submit(late)
    await settle()
    await stage.later(late.job.lease_s + 1)
    assert stage.core.submit(late).phase is CompactionPhase.RUNNING
    await settle()
    assert worker.ran == [late.job.id] * 2


@pytest.mark.parametrize("end", ["failed", "aborted", "lost"])
@in_loop
async def test_a_job_that_was_not_done_runs_again_under_its_id(end):
    stage = Stage()
    (worker,) = await stage.up()
    given = submission(1)
    first = stage.core.submit(given).job_id
    await settle()
    match end:
        case "failed":
            worker.end(first, CompactionPhase.FAILED, CompactionFault.PERMANENT)
        case "aborted":
            stage.abort(first)
        case "lost":
            worker.die()
    await settle()
    assert await stage.phase(first) is CompactionPhase(end)
    stage.core.submit(given)
    await settle()
    assert await stage.phase(first) is CompactionPhase.RUNNING
    stage.pool.workers[-1].end(first)
    await settle()
    assert stage.core.submit(given).phase is CompactionPhase.DONE
    assert [job_id for w in stage.pool.workers for job_id in w.ran] == [first] * 2


@in_loop
async def test_the_late_end_of_an_earlier_run_says_nothing_about_the_next():
    stage = Stage()
    (zombie,) = await stage.up()
    zombie.dies_at_once = False  # its process continues although it was killed
    given = submission(1)
    stage.core.submit(given)
    await settle()
    stage.core.worker_set.end(stage.core.worker_set.workers["w0"], "stalled", "no step")
    await settle()
    stage.core.submit(given)
    await settle()
    zombie.end(given.job.id, CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    await settle()
    assert await stage.phase(given.job.id) is CompactionPhase.RUNNING
    stage.pool.workers[1].end(given.job.id)
    await settle()
    assert await stage.phase(given.job.id) is CompactionPhase.DONE


@in_loop
async def test_a_run_of_a_job_does_not_join_an_earlier_one_at_its_worker():
    stage = Stage(limits=attrs.evolve(LIMITS, slots=2))
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    given = submission(1)
    stage.core.submit(given)
    await settle()
    stage.core.release(given.job.id)
    assert stage.core.submit(given).phase is CompactionPhase.QUEUED
    await settle()
    worker.end(given.job.id, CompactionPhase.ABORTED)
    await settle()
    assert await stage.phase(given.job.id) is CompactionPhase.RUNNING


@pytest.mark.long
@in_loop
async def test_failures_are_forgotten_in_time_whoever_asks():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.end(one, CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    await settle()
    for _ in range(10):
        assert await stage.phase(one) is CompactionPhase.FAILED
        await stage.later(60)
    assert await stage.phase(one) is CompactionPhase.UNKNOWN


@in_loop
async def test_a_second_opinion_comes_from_another_worker():
    stage = Stage()
    workers = await stage.up(2)
    given = submission(1)
    stage.core.submit(given)
    await settle()
    first = next(w for w in workers if w.ran)
    first.end(given.job.id, CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    await settle()
    view = await stage.core.poll(given.job.id)
    assert view.worker == f"boot of {first.id}"
    again = attrs.evolve(given, avoid=(view.worker,))
    stage.core.submit(again)
    await settle()
    second = next(w for w in workers if w is not first)
    assert second.ran == [given.job.id]
    second.end(given.job.id, CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    await settle()
    everybody = tuple(f"boot of {worker.id}" for worker in workers)
    stage.core.submit(attrs.evolve(given, avoid=everybody))
    await settle()
    assert await stage.phase(given.job.id) is CompactionPhase.RUNNING


@in_loop
async def test_a_second_opinion_comes_from_another_machine_if_there_is_one():
    stage = Stage()
    workers = await stage.up(3)
    workers[2].node = "another"
    await stage.core.worker_set.look()
    avoid = (f"boot of {workers[0].id}",)
    given = attrs.evolve(submission(1), avoid=avoid)
    stage.core.submit(given)
    await settle()
    assert [len(worker.ran) for worker in workers] == [0, 0, 1]
    view = await stage.core.poll(given.job.id)
    assert (view.worker, view.node) == (f"boot of {workers[2].id}", "another")


@in_loop
async def test_a_second_opinion_is_not_waited_for_when_the_other_worker_is_gone():
    stage = Stage()
    first, second = await stage.up(2)
    await stage.submit(1)
    await stage.submit(2)
    waits = attrs.evolve(submission(3), avoid=(f"boot of {first.id}",))
    assert stage.core.submit(waits).phase is CompactionPhase.QUEUED
    stage.pool.of_workers["up"] = False
    second.die()
    await settle()
    first.end(first.ran[0])
    await settle()
    assert first.ran[1:] == [waits.job.id]


@in_loop
async def test_the_work_of_taking_a_job_does_not_grow_with_the_queue():
    """Counts the workers that are looked at: a scan of the queue would look at them once a job."""
    stage = Stage(limits=attrs.evolve(LIMITS, queue=10_000))
    (worker,) = await stage.up()
    looks = []
    takers = stage.core.worker_set.takers
    stage.core.worker_set.takers = lambda job: looks.append(1) or takers(job)
    for number in range(500):
        stage.core.submit(submission(number))
    await settle()
    for number in range(100):
        worker.end(worker.ran[number])
        await settle()
    assert (len(worker.ran), len(looks)) == (101, 101)


@in_loop
async def test_clients_learn_limits_and_storages_before_they_submit():
    stage = Stage()
    await stage.up()
    hello = stage.core.hello()
    assert hello.limits == {"inputs": 4, "job_bytes": 10_000, "message_bytes": 4 << 20}
    assert hello.storages["default"]["root"] == "/default"
    assert hello.storages["default"]["mark"] == "mark"
    assert hello.workers == 1


@pytest.mark.long
@in_loop
async def test_a_result_is_remembered_as_long_as_the_trigger_needs():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit(lease_s=3 * 3600.0)
    worker.end(one)
    await stage.later(3600)
    assert await stage.phase(one) is CompactionPhase.DONE


@in_loop
async def test_polls_wait_for_the_end():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    waiting = asyncio.create_task(stage.core.poll(one, 5.0))
    await settle()
    assert not waiting.done()
    worker.end(one)
    assert (await waiting).phase is CompactionPhase.DONE
    two = await stage.submit(2)
    assert (await stage.core.poll(two, 0.001)).phase is CompactionPhase.RUNNING


@in_loop
async def test_draining_refuses_and_ends_with_the_last_job():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    stage.core.drain()
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(2))
    assert refused.value.code == "draining"
    assert stage.core.hello().state == "draining"
    assert not stage.core.drained.is_set()
    worker.end(one)
    await settle()
    assert stage.core.drained.is_set()


@in_loop
async def test_a_drain_includes_jobs_that_wait_for_a_worker():
    stage = Stage()
    one = await stage.submit()
    stage.core.drain()
    assert not stage.core.drained.is_set()
    await stage.later(LIMITS.drain_timeout_s)
    assert await stage.phase(one) is CompactionPhase.ABORTED
    assert stage.core.drained.is_set()


@in_loop
async def test_a_drain_ends_in_time():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    stage.core.drain()
    await stage.later(LIMITS.drain_timeout_s + 1)
    assert worker.aborted == [one]
    assert stage.core.drained.is_set()


@in_loop
async def test_ended_jobs_are_forgotten_when_there_are_too_many():
    stage = Stage(limits=attrs.evolve(LIMITS, remembered=3, queue=100))
    (worker,) = await stage.up()
    jobs = []
    for number in range(6):
        jobs.append(await stage.submit(number))
        worker.end(jobs[-1])
        await settle()
        await stage.later(1)
    phases = [await stage.phase(j) for j in jobs]
    assert phases[0] is CompactionPhase.UNKNOWN
    assert phases[-1] is CompactionPhase.DONE
    assert stage.core.describe()["remembered"] == 3


@in_loop
async def test_closing_ends_all_workers():
    stage = Stage()
    workers = await stage.up(2)
    one = await stage.submit()
    await stage.core.close()
    assert [w.killed for w in workers] == [True, True]
    assert await stage.phase(one) is CompactionPhase.LOST


@in_loop
async def test_checking_a_storage_asks_a_worker():
    stage = Stage()
    not_up = {"it can be examined": "worker 'w0' is not up"}
    assert await stage.core.check("default", "w0") == not_up
    (worker,) = await stage.up()
    same = {"it is the gateway's storage": ""}
    assert await stage.core.check("default", "w0") == {**same, "it is there": ""}
    with pytest.raises(RefusedError) as refused:
        await stage.core.check("other", "w0")
    assert refused.value.code == "unknown_storage"

    async def die(storage):
        raise WorkerLostError("gone")

    worker.check = die
    assert await stage.core.check("default", "w0") == {"it answers": "it died"}
    assert await stage.core.check("default", "w0") == not_up


@in_loop
async def test_metrics_can_be_read_by_prometheus():
    stage = Stage()
    (worker,) = await stage.up()
    worker.end(await stage.submit())
    await settle()
    stage.core.tick()
    lines = generate_latest(stage.core.metrics.registry).decode().splitlines()
    assert "# TYPE forebay_compaction_jobs_submitted_total counter" in lines
    assert 'forebay_compaction_workers{state="ready"} 1.0' in lines
    assert 'forebay_compaction_jobs_finished_total{outcome="done"} 1.0' in lines
    assert 'forebay_compaction_queue_seconds_bucket{le="0.01"} 1.0' in lines
    assert not [line for line in lines if "_created" in line]


def test_metrics_are_declared_with_their_labels():
    metrics = Metrics()
    with pytest.raises(KeyError, match="hiccups"):
        metrics["hiccups"].inc()
    with pytest.raises(ValueError, match="label"):
        metrics["jobs_lost"].labels(reason="died").inc()
    for metric in GATEWAY:
        assert re.fullmatch("forebay_compaction(_[a-z]+)+", metric.name)


def test_a_compactor_that_counts_wrongly_ends_its_job_nevertheless():
    metrics = Metrics()
    dropped = {"expired": -3, "deleted": 2, "of a later release": 9}
    outcome = Outcome(phase=CompactionPhase.DONE, entries_in=-1, entries_dropped=1, dropped=dropped)
    metrics.add_outcome(outcome)
    found = metrics.to_plain()
    assert found["forebay_compaction_entries_read_total"] == 0
    assert found['forebay_compaction_entries_dropped_total{cause="deleted"}'] == 2
    assert found['forebay_compaction_entries_dropped_total{cause="expired"}'] == 0
    assert found['forebay_compaction_entries_dropped_total{cause="untold"}'] == 0
