"""Workers die, fall silent, are killed, start and end; and the policy picks one for a job."""

from __future__ import annotations

import asyncio
import time

import attrs
import pytest
from compaction_ray_toys import (
    LIMITS,
    ScriptedStorages,
    Stage,
    counted,
    in_loop,
    settle,
    submission,
)

from forebay_compaction_ray.gateway.workers import least_occupied, round_robin
from forebay_compaction_ray.messages import NO_STORAGE, JobProgress
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase


@in_loop
async def test_a_dead_worker_loses_its_job_and_is_replaced():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.die()
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    two = await stage.submit(2)
    assert await stage.phase(two) is CompactionPhase.RUNNING
    assert [w.ran for w in stage.pool.workers] == [[one], [two]]
    (shown,) = stage.core.describe()["worker_list"]
    assert (shown["id"], shown["error"]) == ("w1", "worker w0 died: it died")


@in_loop
async def test_a_worker_that_died_unnoticed_loses_the_next_job():
    """It died while idle: the next ping, or the next job, finds out."""
    stage = Stage()
    (worker,) = await stage.up()
    worker.die()
    one = await stage.submit()
    assert await stage.phase(one) is CompactionPhase.LOST
    assert counted(stage.core, "worker_restarts") == 1
    stage.pool.workers[-1].die()
    await stage.later(LIMITS.ping_every_s)
    assert await stage.phase(await stage.submit()) is CompactionPhase.RUNNING
    assert counted(stage.core, "worker_restarts") == 2


@in_loop
async def test_a_worker_that_dies_before_it_is_up_is_replaced():
    stage = Stage()
    stage.core.worker_set.scale(1)
    stage.pool.workers[0].die()
    await settle()
    assert stage.core.hello().workers == 1


@in_loop
async def test_a_job_that_kills_its_workers_takes_none_away():
    stage = Stage()
    await stage.up(2)
    for _ in range(5):
        job_id = await stage.submit()
        next(w for w in stage.pool.workers if w.running).die()
        await settle()
        assert await stage.phase(job_id) is CompactionPhase.LOST
    assert stage.core.hello().workers == 2


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
    assert worker.killed
    assert await stage.phase(one) is CompactionPhase.LOST
    assert await stage.phase(two) is CompactionPhase.RUNNING


@in_loop
async def test_a_killed_worker_that_still_answers_gets_no_job():
    """Killing takes time, as it does in Ray."""
    stage = Stage()
    (worker,) = await stage.up()
    worker.dies_at_once = False
    worker.progress[one := await stage.submit()] = JobProgress(bytes_in=5, steps=1)
    await stage.later(LIMITS.stall_timeout_s + 2)
    assert worker.killed
    two = await stage.submit(2)
    assert [w.ran for w in stage.pool.workers] == [[one], [two]]


@in_loop
async def test_a_worker_that_answers_again_is_trusted_again():
    stage = Stage()
    (worker,) = await stage.up()
    worker.answers = False
    await stage.later(10)
    worker.answers = True
    await stage.later(2)
    assert not worker.killed
    assert stage.core.hello().workers == 1


@in_loop
async def test_a_job_that_makes_no_step_is_lost_although_its_worker_answers():
    stage = Stage()
    (worker,) = await stage.up()
    one = await stage.submit()
    worker.progress[one] = JobProgress(bytes_in=5, steps=1)
    await stage.later(LIMITS.stall_timeout_s - 2)
    worker.progress[one] = JobProgress(bytes_in=5, steps=2)
    await stage.later(LIMITS.stall_timeout_s)
    assert not worker.killed
    await stage.later(2)
    assert worker.killed
    assert await stage.phase(one) is CompactionPhase.LOST
    assert counted(stage.core, "jobs_lost", cause="stalled") == 1


@in_loop
async def test_what_a_killed_worker_tells_later_is_ignored():
    stage = Stage()
    (zombie,) = await stage.up()
    zombie.dies_at_once = False  # its process continues although it was killed
    one = await stage.submit()
    stage.core.worker_set.end(stage.core.worker_set.workers["w0"], "stalled", "no step")
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    zombie.end(one)
    zombie.die()
    await settle()
    assert await stage.phase(one) is CompactionPhase.LOST
    assert stage.core.hello().workers == 1
    assert counted(stage.core, "worker_restarts") == 1


@in_loop
async def test_scaling_up_takes_waiting_jobs_and_down_lets_running_ones_end():
    stage = Stage()
    await stage.up(1)
    one, two = await stage.submit(1), await stage.submit(2)
    first, second = await stage.up(2)
    assert await stage.phase(two) is CompactionPhase.RUNNING
    stage.core.worker_set.scale(0)
    assert stage.core.describe()["running"] == 2
    assert not first.killed
    assert not second.killed
    first.end(one)
    await settle()
    await stage.later(1)
    assert first.killed
    assert await stage.phase(one) is CompactionPhase.DONE
    await stage.later(LIMITS.drain_timeout_s)
    assert second.killed
    assert await stage.phase(two) is CompactionPhase.LOST
    assert stage.core.describe()["worker_list"] == []


@in_loop
async def test_a_worker_that_never_comes_up_gets_no_jobs():
    stage = Stage()
    stage.core.worker_set.scale(2)
    stage.pool.workers[0].up = False
    await settle()
    assert stage.core.hello().workers == 1
    await stage.submit(1)
    await stage.submit(2)
    assert stage.pool.workers[0].ran == []


@in_loop
async def test_the_least_occupied_worker_is_the_one_with_least_left_to_read():
    stage = Stage(limits=attrs.evolve(LIMITS, slots=2))
    first, second = await stage.up(2)
    one = await stage.submit(1, size=5000)
    two = await stage.submit(2, size=4000)
    assert (one in first.ran, two in second.ran) == (True, True)
    first.progress[one] = JobProgress(bytes_in=4900, steps=1)
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


@pytest.mark.parametrize("policy", [round_robin, least_occupied])
@in_loop
async def test_a_new_worker_takes_its_turn_and_no_more(policy):
    stage = Stage(policy=policy)
    first, second = await stage.up(2)

    async def run(count):
        for number in range(count):
            job_id = await stage.submit(number)
            next(w for w in stage.pool.workers if job_id in w.running).end(job_id)
            await settle()

    await run(10)
    third = (await stage.up(3))[2]
    await run(9)
    assert (len(first.ran), len(second.ran), len(third.ran)) == (8, 8, 3)


@in_loop
async def test_a_worker_without_the_storage_takes_no_jobs_and_says_why():
    stage = Stage()
    stage.core.worker_set.scale(2)
    blind, sees = stage.pool.workers
    blind.marks = {}
    await settle()
    assert stage.core.hello().workers == 1
    for number in range(3):
        await stage.submit(number)
    assert (blind.ran, len(sees.ran)) == ([], 1)
    shown = stage.core.describe()["worker_list"][0]
    assert (shown["state"], shown["problems"]) == ("unfit", {"default": "not mounted"})
    assert shown["error"] == "storage default: not mounted"
    assert await stage.core.check("default", "w0") == {"it is the gateway's storage": "not mounted"}
    blind.marks = {"default": "mark"}
    await stage.later(LIMITS.ping_every_s)
    assert len(blind.ran) == 1


@in_loop
async def test_one_job_finds_all_workers_that_have_lost_the_storage():
    stage = Stage()
    workers = await stage.up(4)
    job_id = await stage.submit()
    first = next(worker for worker in workers if worker.ran)
    lost = [first, *[worker for worker in workers if worker is not first][:2]]
    for worker in lost:
        worker.marks = {}
    given = {"code": NO_STORAGE, "message": "not mounted"}
    first.end(job_id, CompactionPhase.FAILED, CompactionFault.TRANSIENT, **given)
    await settle()
    view = await stage.core.poll(job_id)
    assert (view.fault, view.code) == (CompactionFault.TRANSIENT, NO_STORAGE)
    states = [shown["state"] for shown in stage.core.describe()["worker_list"]]
    assert (states.count("unfit"), states.count("ready")) == (3, 1)
    for worker in lost:
        worker.marks = {"default": "mark"}
    await stage.later(LIMITS.ping_every_s)
    assert stage.core.hello().workers == 4


class LosingStorages(ScriptedStorages):
    """The gateway's machine loses the directory when `lost` is set."""

    lost = False

    async def look(self):
        await super().look()
        if self.lost:
            self.marks["default"], self.problems["default"] = "mark", "it has no mark here"

    async def mark_again(self, name):
        self.lost = False
        self.marks[name] = "another"
        del self.problems[name]


@pytest.mark.parametrize("answers", [True, False])
@in_loop
async def test_a_mark_stays_while_a_worker_may_find_it(answers):
    stage = Stage(limits=attrs.evolve(LIMITS, check_s=0.01))
    storages = stage.core.worker_set._storages = LosingStorages("default")
    workers = await stage.up(2)
    workers[0].marks = {}
    workers[1].answers = answers
    storages.lost = True
    await stage.core.worker_set.look()
    assert storages.marks == {"default": "mark"}
    workers[1].marks, workers[1].answers = {}, True
    await stage.core.worker_set.look()
    assert storages.marks == {"default": "another"}


@in_loop
async def test_a_mark_stays_while_workers_are_suspect():
    """The gateway may have lost them with the directory: the fault is its machine's."""
    stage = Stage(limits=attrs.evolve(LIMITS, check_s=0.01))
    storages = stage.core.worker_set._storages = LosingStorages("default")
    for worker in await stage.up(2):
        worker.answers = False
    await stage.later(LIMITS.ping_every_s * LIMITS.ping_misses)
    assert stage.core.worker_set.counts()["suspect"] == 2
    storages.lost = True
    await stage.core.worker_set.look()
    assert storages.marks == {"default": "mark"}


@in_loop
async def test_a_mark_stays_until_the_first_worker_has_looked():
    stage = Stage()
    storages = stage.core.worker_set._storages = LosingStorages("default")
    storages.lost = True
    stage.core.worker_set.scale(1)
    (worker,) = stage.pool.workers
    worker.marks, worker.up = {}, False
    await stage.core.worker_set.look()
    assert storages.lost, "its mark was not given up"
    worker.up = True
    await stage.later(2 * LIMITS.ping_every_s)
    assert not storages.lost


@in_loop
async def test_a_worker_that_loses_the_storage_while_it_drains_ends():
    stage = Stage()
    (worker,) = await stage.up()
    job_id = await stage.submit()
    stage.core.worker_set.scale(0)
    worker.marks = {}
    worker.end(job_id, CompactionPhase.FAILED, CompactionFault.TRANSIENT, code=NO_STORAGE)
    await settle()
    await stage.later(LIMITS.ping_every_s)
    assert worker.killed
    assert stage.core.describe()["worker_list"] == []


@in_loop
async def test_no_job_waits_for_workers_none_of_which_has_the_storage():
    stage = Stage()
    stage.core.worker_set.scale(1)
    stage.pool.workers[0].marks = {}
    early = await stage.submit()
    await stage.later(LIMITS.ping_every_s)
    view = await stage.core.poll(early)
    assert (view.phase, view.code) == (CompactionPhase.FAILED, "no_storage")
    assert view.fault is CompactionFault.TRANSIENT
    with pytest.raises(RefusedError, match="not mounted") as refused:
        stage.core.submit(submission(2))
    assert refused.value.code == "no_storage"


@in_loop
async def test_a_storage_that_the_gateway_cannot_read_is_read_again():
    stage = Stage()
    stage.storages.troubles["default"] = "throttled"
    (worker,) = await stage.up()
    hello = stage.core.hello()
    assert (hello.workers, hello.storages["default"]["problem"]) == (0, "throttled")
    stage.storages.troubles.clear()
    await stage.later(LIMITS.ping_every_s)
    assert stage.core.hello().workers == 1
    await stage.submit()
    assert len(worker.ran) == 1


@in_loop
async def test_the_last_error_of_a_worker_is_shown():
    stage = Stage()
    stage.core.worker_set.scale(2)
    never, other = stage.pool.workers
    never.fault = ImportError("libfoo.so.1: cannot open shared object file")
    await settle()

    def shown(index):
        found = stage.core.describe()["worker_list"][index]
        return found["state"], found["error"]

    assert shown(0) == ("starting", f"it cannot start: {never.fault}")
    assert shown(1) == ("ready", "")
    job_id = await stage.submit()
    other.end(job_id, CompactionPhase.FAILED, CompactionFault.TRANSIENT, message="OOM")
    await settle()
    assert shown(1) == ("ready", "a job failed: OOM")
    never.fault = None
    await stage.later(1)
    assert shown(0)[0] == "ready"


@in_loop
async def test_only_jobs_that_were_done_count_as_done():
    stage = Stage()
    (worker,) = await stage.up()
    worker.end(await stage.submit(1))
    await settle()
    worker.end(await stage.submit(2), CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    await settle()
    stage.abort(await stage.submit(3))
    await settle()
    await stage.submit(4)
    assert stage.core.describe()["worker_list"][0]["done"] == 1


@in_loop
async def test_a_check_of_a_storage_that_does_not_answer_says_so():
    stage = Stage(limits=attrs.evolve(LIMITS, check_s=0.01))
    (worker,) = await stage.up()
    worker.check = lambda _: asyncio.Event().wait()
    assert await stage.core.check("default", "w0") == {
        "it answers": "it did not answer within 0.01 s"
    }


def suspend(monkeypatch, seconds):
    """Let the machine's clock go on without a tick."""
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + seconds)


@pytest.mark.parametrize("paused_s", [70.0, 3600.0])
@in_loop
async def test_a_gateway_that_was_suspended_asks_before_it_kills(monkeypatch, paused_s):
    stage = Stage()
    workers = await stage.up(3)
    one = await stage.submit(lease_s=30.0)
    workers[0].progress[one] = JobProgress(bytes_in=5, steps=1)
    await stage.later(5)
    suspend(monkeypatch, paused_s)
    stage.core.tick()
    await settle()
    assert [worker.killed for worker in workers] == [False, False, False]
    assert await stage.phase(one) is CompactionPhase.RUNNING, "its owner could not ask either"
    del workers[0].progress[one]
    workers[1].answers = False
    await stage.later(LIMITS.stall_timeout_s + 5)
    assert [worker.killed for worker in workers] == [False, True, False, False]


@in_loop
async def test_a_gateway_that_was_suspended_gives_an_abort_its_time(monkeypatch):
    stage = Stage()
    (worker,) = await stage.up()
    worker.aborts_at_once = False
    one = await stage.submit()
    stage.abort(one)
    suspend(monkeypatch, 100)
    stage.core.tick()
    worker.end(one, CompactionPhase.ABORTED)
    await stage.later(LIMITS.abort_timeout_s)
    assert not worker.killed
    assert await stage.phase(one) is CompactionPhase.ABORTED
