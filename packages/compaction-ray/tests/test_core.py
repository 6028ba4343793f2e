"""The gateway's core over scripted workers, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import functools

import attrs
import pytest
from compaction_ray_toys import Clock, ScriptedPool, settle, submission

from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.workers import round_robin
from forebay_compaction_ray.messages import JobProgress
from forebay_compaction_ray.wire import RefusedError
from forebay_state_api.backend import StateFile
from forebay_state_api.compaction import CompactionFault, CompactionPhase
from forebay_state_api.keys import KeyGroupRange

LIMITS = GatewayLimits(queue=3, jobs_per_client=5, inputs=4, job_bytes=10_000)


class Stage:
    def __init__(self, *, limits=LIMITS, formats=("toy",), **of_core):
        self.clock = Clock()
        self.pool = ScriptedPool(formats=formats)
        self.core = GatewayCore(
            self.pool, limits, storages=["default"], clock=self.clock, **of_core
        )
        _stages.append(self)

    async def up(self, workers=1):
        self.core.scale(workers)
        await settle()
        return self.pool.workers

    async def later(self, seconds):
        """Let time pass as a gateway does: in ticks."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + 1.0)
            self.core.tick()
            await settle()

    async def submit(self, number=1, **given):
        view = self.core.submit(submission(number, **given))
        await settle()
        return view.job_id

    async def phase(self, job_id):
        return (await self.core.poll(job_id)).phase


_stages: list[Stage] = []


async def closing(test):
    try:
        await test()
    finally:
        while _stages:
            await _stages.pop().core.close()


def in_loop(test):
    @functools.wraps(test)
    def run(**given):
        asyncio.run(closing(lambda: test(**given)))

    return run


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
    assert view.started
    assert stage.core.metrics.value("jobs_finished_total", outcome="done") == 1
    assert stage.core.metrics.value("bytes_in_total") == 7


@in_loop
async def test_jobs_wait_in_order_and_learn_their_position():
    stage = Stage()
    (worker,) = await stage.up()
    jobs = [await stage.submit(n) for n in (1, 2, 3)]
    assert [(await stage.core.poll(j)).position for j in jobs] == [0, 0, 1]
    worker.end(jobs[0])
    await settle()
    assert worker.ran == jobs[:2]
    assert (await stage.core.poll(jobs[2])).position == 0


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
async def test_a_later_attempt_stops_the_earlier_one_and_an_earlier_one_is_refused():
    stage = Stage()
    workers = await stage.up(2)
    one = await stage.submit(attempt=1)
    two = await stage.submit(attempt=2)
    assert await stage.phase(one) is CompactionPhase.ABORTED
    assert await stage.phase(two) is CompactionPhase.RUNNING
    assert sum(one in w.aborted for w in workers) == 1
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(attempt=1))
    assert refused.value.code == "superseded"


@in_loop
async def test_the_late_success_of_a_superseded_attempt_changes_nothing():
    stage = Stage()
    workers = await stage.up(2)
    one = await stage.submit(attempt=1)
    await settle()
    worker = next(w for w in workers if one in w.running)
    worker.aborts_at_once = False
    await stage.submit(attempt=2)
    await stage.later(LIMITS.abort_timeout_s + 1)
    assert worker.killed == [True]
    assert await stage.phase(one) is CompactionPhase.ABORTED


@in_loop
async def test_a_prefix_is_used_once():
    stage = Stage()
    await stage.up()
    first = submission()
    stage.core.submit(first)
    reused = attrs.evolve(first, job=attrs.evolve(first.job, attempt=2, id="another"))
    with pytest.raises(RefusedError, match="used before") as refused:
        stage.core.submit(reused)
    assert refused.value.fault is CompactionFault.PERMANENT


@in_loop
async def test_a_full_queue_is_a_refusal_that_passes():
    stage = Stage()
    await stage.up()
    for number in range(4):
        await stage.submit(number, client=f"c{number}")
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(9))
    assert refused.value.code == "queue_full"
    assert refused.value.fault is CompactionFault.TRANSIENT
    assert refused.value.retry_after_s > 0
    assert stage.core.metrics.value("jobs_rejected_total", reason="queue_full") == 1


@in_loop
async def test_a_client_has_its_share():
    stage = Stage(limits=attrs.evolve(LIMITS, queue=100))
    await stage.up()
    for number in range(5):
        await stage.submit(number)
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(9))
    assert refused.value.code == "client_full"
    await stage.submit(9, client="another")


def file(name, size=1):
    return StateFile(name=name, size=size, range=KeyGroupRange(0, 1))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (submission(storage="other"), "unknown_storage"),
        (submission(file_format="parquet"), "unknown_format"),
        (submission(inputs=[file("../secret")]), "names"),
        (submission(inputs=[file("/etc/passwd")]), "names"),
        (submission(inputs=[file("a\x00b")]), "names"),
        (submission(inputs=[file("s3://bucket/x")]), "names"),
        (submission(inputs=[file("a", 10_001)]), "too_large"),
        (submission(inputs=[file("a", -1)]), "malformed"),
        (submission(inputs=[file(f"a{n}") for n in range(5)]), "too_large"),
    ],
)
def test_what_can_never_run_is_refused_for_good(given, code):
    async def check():
        stage = Stage()
        await stage.up()
        with pytest.raises(RefusedError) as refused:
            stage.core.submit(given)
        assert (refused.value.code, refused.value.fault) == (code, CompactionFault.PERMANENT)

    asyncio.run(closing(check))


@in_loop
async def test_output_prefixes_are_below_the_operator():
    stage = Stage()
    await stage.up()
    for prefix in ("../x/", "data/x", "/data/x/"):
        given = submission()
        with pytest.raises(RefusedError) as refused:
            stage.core.submit(
                attrs.evolve(given, job=attrs.evolve(given.job, output_prefix=prefix))
            )
        assert refused.value.code == "names"


@in_loop
async def test_a_job_of_a_format_that_no_worker_has_ends_once_workers_are_up():
    stage = Stage(formats=("other",))
    early = await stage.submit()
    assert await stage.phase(early) is CompactionPhase.QUEUED
    await stage.up()
    view = await stage.core.poll(early)
    assert (view.phase, view.fault) == (CompactionPhase.FAILED, CompactionFault.PERMANENT)
    assert view.code == "unknown_format"


@in_loop
async def test_a_dead_worker_loses_its_job_and_comes_back():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.die()
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    two = await stage.submit(2)
    assert await stage.phase(two) is CompactionPhase.RUNNING
    assert worker.ran == [one, two]


@in_loop
async def test_a_job_that_was_given_to_the_next_life_of_a_worker_is_not_lost_with_the_last():
    """It died while it had nothing to do, and nobody noticed until it was pinged."""
    stage = Stage()
    (worker,) = await stage.up()
    worker.die()
    one = await stage.submit()
    await stage.later(1.0)
    assert await stage.phase(one) is CompactionPhase.RUNNING
    worker.end(one)
    await settle()
    assert await stage.phase(one) is CompactionPhase.DONE
    assert stage.core.metrics.value("jobs_lost_total", cause="died") == 0


@in_loop
async def test_work_that_kills_two_workers_gets_no_third():
    stage = Stage()
    (worker,) = await stage.up()
    for attempt in (1, 2):
        job_id = await stage.submit(attempt=attempt)
        worker.die()
        await settle()
    view = await stage.core.poll(job_id)
    assert (view.phase, view.code) == (CompactionPhase.FAILED, "worker_crashed")
    third = await stage.core.poll(await stage.submit(attempt=3))
    assert (third.code, third.fault) == ("worker_crashed", CompactionFault.TRANSIENT)
    assert len(worker.ran) == 2


@in_loop
async def test_a_worker_that_was_taken_away_says_nothing_about_its_work():
    stage = Stage()
    await stage.up(1)
    for attempt in (1, 2, 3):
        job_id = await stage.submit(attempt=attempt)
        stage.core.scale(0)
        await stage.later(LIMITS.drain_timeout_s)
        assert await stage.phase(job_id) is CompactionPhase.LOST
        await stage.up(1)
    assert await stage.phase(await stage.submit(attempt=4)) is CompactionPhase.RUNNING


@in_loop
async def test_a_silent_worker_gets_no_jobs_and_is_killed_in_the_end():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.answers = False
    await stage.later(LIMITS.ping_every_s * LIMITS.ping_misses + 2)
    assert stage.core.describe()["worker_list"][0]["state"] == "suspect"
    two = await stage.submit(2)
    assert await stage.phase(two) is CompactionPhase.QUEUED
    await stage.later(LIMITS.stall_timeout_s)
    assert worker.killed == [True]
    assert await stage.phase(one) is CompactionPhase.LOST
    assert await stage.phase(two) is CompactionPhase.RUNNING


@in_loop
async def test_a_worker_that_answers_again_is_trusted_again():
    stage = Stage()
    (worker,) = await stage.up()
    worker.answers = False
    await stage.later(10)
    worker.answers = True
    await stage.later(2)
    assert worker.killed == []
    assert stage.core.hello()["workers"] == 1


@in_loop
async def test_a_job_that_makes_no_step_is_lost_although_its_worker_answers():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.progress[one] = JobProgress(bytes_in=5, bytes_out=1, age_s=LIMITS.stall_timeout_s)
    await stage.later(4)
    assert worker.killed == [True]
    assert await stage.phase(one) is CompactionPhase.LOST
    assert stage.core.metrics.value("jobs_lost_total", cause="stalled") == 1


@in_loop
async def test_what_a_killed_worker_tells_later_is_ignored():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    kept = worker.running[one]
    worker.running = {}  # the process goes on although it was killed: a zombie
    worker.progress[one] = JobProgress(bytes_in=0, bytes_out=0, age_s=99.0)
    stage.core.crew.kill(stage.core.crew.workers["w0"], "stalled", "no step")
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    worker.running[one] = kept
    worker.end(one)
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    assert stage.core.hello()["workers"] == 1


@in_loop
async def test_aborting_is_asked_first_and_killing_later():
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    one = await stage.submit()
    stage.core.abort(one)
    await settle()
    assert worker.aborted == [one]
    assert await stage.phase(one) is CompactionPhase.RUNNING
    await stage.later(LIMITS.abort_timeout_s)
    assert worker.killed == [True]
    assert await stage.phase(one) is CompactionPhase.ABORTED


@in_loop
async def test_a_waiting_job_is_aborted_without_having_begun():
    stage = Stage()
    one = await stage.submit()
    view = stage.core.abort(one)
    assert (view.phase, view.started) == (CompactionPhase.ABORTED, False)
    assert stage.core.abort("nobody").phase is CompactionPhase.UNKNOWN


@in_loop
async def test_entries_that_jobs_dropped_are_counted_by_why():
    stage = Stage()
    (worker,) = await stage.up()
    for dropped in ({"overwritten": 3, "expired": 2, "of a later release": 1}, {"deleted": 1}):
        one = await stage.submit()
        worker.end(one, entries_in=9, entries_dropped=7, dropped=dropped)
        await settle()
    told = stage.core.describe()["metrics"]
    found = {name: n for name, n in told.items() if name.startswith("entries_dropped")}
    assert found == {
        'entries_dropped_total{why="deleted"}': 1,
        'entries_dropped_total{why="expired"}': 2,
        'entries_dropped_total{why="overwritten"}': 3,
        'entries_dropped_total{why="untold"}': 2 + 6,
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
    assert worker.killed == [True]


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


@in_loop
async def test_a_submission_that_comes_after_its_job_was_given_up_begins_nothing():
    stage = Stage()
    (worker,) = await stage.up()
    late = submission(1)
    stage.core.submit(late)
    await settle()
    await stage.later(late.job.lease_s + 1)
    with pytest.raises(RefusedError, match="was taken before") as refused:
        stage.core.submit(late)
    assert refused.value.fault is CompactionFault.TRANSIENT
    assert worker.ran == [late.job.id]


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
async def test_scaling_up_takes_waiting_jobs_and_down_lets_running_ones_end():
    stage = Stage()
    await stage.up(1)
    one, two = await stage.submit(1), await stage.submit(2)
    first, second = await stage.up(2)
    assert await stage.phase(two) is CompactionPhase.RUNNING
    stage.core.scale(0)
    assert stage.core.describe()["running"] == 2
    assert first.killed == second.killed == []
    first.end(one)
    await settle()
    await stage.later(1)
    assert first.killed == [False]
    assert await stage.phase(one) is CompactionPhase.DONE
    await stage.later(LIMITS.drain_timeout_s)
    assert second.killed == [False]
    assert await stage.phase(two) is CompactionPhase.LOST
    assert stage.core.describe()["worker_list"] == []


@in_loop
async def test_a_worker_that_never_comes_up_gets_no_jobs():
    stage = Stage()
    stage.core.scale(2)
    stage.pool.workers[0].up = False
    await settle()
    assert stage.core.hello()["workers"] == 1
    await stage.submit(1)
    await stage.submit(2)
    assert stage.pool.workers[0].ran == []


@in_loop
async def test_draining_refuses_and_ends_with_the_last_job():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    stage.core.drain()
    with pytest.raises(RefusedError) as refused:
        stage.core.submit(submission(2))
    assert refused.value.code == "draining"
    assert stage.core.hello()["state"] == "draining"
    assert not stage.core.drained.is_set()
    worker.end(one)
    await settle()
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
async def test_the_least_occupied_worker_is_the_one_with_least_left_to_read():
    stage = Stage(limits=attrs.evolve(LIMITS, slots=2))
    first, second = await stage.up(2)
    one = await stage.submit(1, size=5000)
    two = await stage.submit(2, size=4000)
    assert (one in first.ran, two in second.ran) == (True, True)
    first.progress[one] = JobProgress(bytes_in=4900, bytes_out=0, age_s=0.0)
    await stage.later(3)
    three = await stage.submit(3)
    assert three in first.ran


@in_loop
async def test_round_robin_gives_each_its_turn():
    stage = Stage(limits=attrs.evolve(LIMITS, slots=2), policy=round_robin)
    first, second = await stage.up(2)
    await stage.submit(1, size=9000)
    await stage.submit(2, size=1)
    await stage.submit(3, size=1)
    assert (len(first.ran), len(second.ran)) == (2, 1)


@pytest.mark.parametrize("paused_s", [70.0, 3600.0])
@in_loop
async def test_a_gateway_that_was_suspended_asks_before_it_kills(paused_s):
    stage = Stage()
    workers = await stage.up(3)
    await stage.submit()
    await stage.later(5)
    stage.clock.now += paused_s
    stage.core.tick()
    await settle()
    assert [worker.killed for worker in workers] == [[], [], []]
    workers[1].answers = False
    await stage.later(LIMITS.stall_timeout_s + 5)
    assert [worker.killed for worker in workers] == [[], [True], []]


@in_loop
async def test_a_gateway_that_was_suspended_gives_an_abort_its_time():
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    one = await stage.submit()
    stage.core.abort(one)
    stage.clock.now += 100
    stage.core.tick()
    worker.end(one, CompactionPhase.ABORTED)
    await stage.later(LIMITS.abort_timeout_s)
    assert worker.killed == []
    assert await stage.phase(one) is CompactionPhase.ABORTED


@in_loop
async def test_one_answer_about_a_step_long_ago_is_not_enough():
    """Worker and gateway were both suspended: the job makes its next step at once."""
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.progress[one] = JobProgress(bytes_in=5, bytes_out=1, age_s=3600.0)
    stage.core.tick()
    await settle()
    worker.progress[one] = JobProgress(bytes_in=5, bytes_out=1, age_s=0.0)
    await stage.later(LIMITS.stall_timeout_s)
    assert worker.killed == []


@in_loop
async def test_ended_jobs_are_forgotten_when_there_are_too_many():
    stage = Stage(limits=attrs.evolve(LIMITS, remembered=3, queue=100))
    (worker,) = await stage.up()
    jobs = []
    for number in range(6):
        jobs.append(await stage.submit(number))
        worker.end(jobs[-1])
        await settle()
        stage.clock.now += 1
    phases = [await stage.phase(j) for j in jobs]
    assert phases[0] is CompactionPhase.UNKNOWN
    assert phases[-1] is CompactionPhase.DONE
    assert stage.core.describe()["remembered"] <= 4


@in_loop
async def test_closing_ends_all_workers():
    stage = Stage()
    workers = await stage.up(2)
    one = await stage.submit()
    await stage.core.close()
    assert [w.killed for w in workers] == [[False], [False]]
    assert await stage.phase(one) is CompactionPhase.LOST


@in_loop
async def test_checking_a_storage_asks_a_worker():
    stage = Stage()
    with pytest.raises(RefusedError) as refused:
        await stage.core.check("default")
    assert refused.value.code == "no_worker"
    await stage.up()
    assert await stage.core.check("default") == {"it is there": ""}
    with pytest.raises(RefusedError) as refused:
        await stage.core.check("other")
    assert refused.value.code == "unknown_storage"


@in_loop
async def test_metrics_can_be_read_by_prometheus():
    stage = Stage()
    (worker,) = await stage.up()
    worker.end(await stage.submit())
    await settle()
    stage.core.tick()
    lines = stage.core.metrics.to_text().splitlines()
    assert "# TYPE forebay_compaction_jobs_submitted_total counter" in lines
    assert 'forebay_compaction_workers{state="ready"} 1' in lines
    assert 'forebay_compaction_jobs_finished_total{outcome="done"} 1' in lines
