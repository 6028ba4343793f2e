"""Whatever happens in whatever order: at most one install per work, and no entry is lost.

The owner of the state is played as the protocol has it: it submits, looks for a result object,
submits again under a new id and prefix what is lost, and installs each work once. Workers that
were declared lost go on as zombies, and may finish at any later time.
"""

from __future__ import annotations

import asyncio

import attrs
from compaction_ray_toys import Clock, ScriptedPool, settle, submission
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.wire import RefusedError
from forebay_state_api.compaction import CompactionFault, CompactionPhase

LIMITS = GatewayLimits(queue=3, jobs_per_client=4, deaths=2, ping_every_s=10.0)
WORKS = 4


@attrs.define
class Owned:
    """One piece of work of the state's owner."""

    number: int
    attempt: int = 0
    submission: object = None
    installed: list[str] = attrs.field(factory=list)
    locally: bool = False


class GatewayAndOwner(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 3))
    def begin(self, workers):
        self.loop = asyncio.new_event_loop()
        self.clock, self.pool = Clock(), ScriptedPool()
        self.works = [Owned(n) for n in range(WORKS)]
        self.results: set[str] = set()
        """Prefixes under which a result object lies."""
        self.zombies: list[tuple[object, str]] = []
        self.run(self._begin(workers))

    async def _begin(self, workers):
        self.core = GatewayCore(self.pool, LIMITS, storages=["default"], clock=self.clock)
        self.core.scale(workers)

    def run(self, work):
        async def both():
            result = await work
            await settle()
            return result

        return self.loop.run_until_complete(both())

    def _running(self):
        return [(w, job_id) for w in self.pool.workers for job_id in w.running]

    # -- the owner ----------------------------------------------------------------------------

    @rule(number=st.integers(0, WORKS - 1))
    def submit(self, number):
        owned = self.works[number]
        if owned.submission is None and not owned.installed:
            owned.attempt += 1
            owned.submission = submission(number, attempt=owned.attempt)
            self.run(self._submit(owned))

    @rule(number=st.integers(0, WORKS - 1))
    def submit_the_same_again(self, number):
        if self.works[number].submission is not None:
            self.run(self._submit(self.works[number]))

    async def _submit(self, owned):
        try:
            self.core.submit(owned.submission)
        except RefusedError as refused:
            assert refused.fault is CompactionFault.TRANSIENT  # noqa: PT017 - either may be

    @rule(number=st.integers(0, WORKS - 1))
    def open(self, number):
        """As the next micro-batch does: ask, then look for the result, then install or give up."""
        owned = self.works[number]
        if owned.submission is None:
            return
        given = owned.submission.job
        view = self.run(self.core.poll(given.id))
        if not view.phase.ended:
            return
        if given.output_prefix in self.results:
            owned.installed.append(given.output_prefix)
        else:
            assert view.phase is not CompactionPhase.DONE, "done without a result"
        self.run(self._release(given.id))
        owned.submission = None

    async def _release(self, job_id):
        self.core.release(job_id)

    @rule(number=st.integers(0, WORKS - 1))
    def abort(self, number):
        if self.works[number].submission is not None:
            self.run(self._abort(self.works[number].submission.job.id))

    async def _abort(self, job_id):
        self.core.abort(job_id)

    # -- workers ------------------------------------------------------------------------------

    @rule(which=st.integers(0, 9))
    def finish(self, which):
        if running := self._running():
            worker, job_id = running[which % len(running)]
            self._write_result(job_id)
            self.run(self._end(worker, job_id, CompactionPhase.DONE, None))

    @rule(which=st.integers(0, 9), fault=st.sampled_from(list(CompactionFault)))
    def fail(self, which, fault):
        if running := self._running():
            self.run(self._end(*running[which % len(running)], CompactionPhase.FAILED, fault))

    async def _end(self, worker, job_id, phase, fault):
        worker.end(job_id, phase, fault)

    @rule(which=st.integers(0, 9), zombie=st.booleans())
    def die(self, which, zombie):
        worker = self.pool.workers[which % len(self.pool.workers)]
        if zombie:
            self.zombies += [(worker, job_id) for job_id in worker.running]
        self.run(self._die(worker))

    async def _die(self, worker):
        worker.die()

    @rule(which=st.integers(0, 9))
    def zombie_finishes(self, which):
        if self.zombies:
            self._write_result(self.zombies.pop(which % len(self.zombies))[1])

    def _write_result(self, job_id):
        self.results.add(self._prefix_of[job_id])

    @property
    def _prefix_of(self):
        found = getattr(self, "_prefixes", {})
        for owned in self.works:
            if owned.submission is not None:
                found[owned.submission.job.id] = owned.submission.job.output_prefix
        self._prefixes = found
        return found

    @rule(which=st.integers(0, 9), answers=st.booleans())
    def hang(self, which, answers):
        self.pool.workers[which % len(self.pool.workers)].answers = answers

    @rule(count=st.integers(0, 3))
    def scale(self, count):
        self.run(self._scale(count))

    async def _scale(self, count):
        self.core.scale(count)

    @rule(seconds=st.sampled_from([1.0, 10.0, 70.0, 700.0]))
    def wait(self, seconds):
        self.run(self._pass(seconds))

    async def _pass(self, seconds):
        """In ticks, but for what the gateway sleeps through."""
        end = self.clock.now + seconds
        self.clock.now = max(self.clock.now, end - 2 * LIMITS.stall_timeout_s)
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + LIMITS.ping_every_s)
            self.core.tick()
            await settle()

    # -- what must hold -----------------------------------------------------------------------

    @invariant()
    def at_most_one_install(self):
        for owned in getattr(self, "works", ()):
            assert len(owned.installed) <= 1

    @invariant()
    def no_job_is_given_twice(self):
        given = [job_id for w in getattr(self, "pool", ScriptedPool()).workers for job_id in w.ran]
        assert len(given) == len(set(given))

    @invariant()
    def prefixes_are_known(self):
        if hasattr(self, "works"):
            assert len(self._prefix_of) == len(set(self._prefix_of.values()))

    def teardown(self):
        if not hasattr(self, "core"):
            return
        self._finish_all()
        self.run(self.core.close())
        self.loop.close()

    def _finish_all(self):
        """Nothing is lost: whatever happened, each work gets done once the trouble is over."""
        for worker in self.pool.workers:
            worker.answers = True
        self.scale(2)
        for _ in range(8):
            self.wait(10.0)
            for number in range(WORKS):
                self.submit(number)
                self.submit_the_same_again(number)
            for _ in range(WORKS + 2):
                self.finish(0)
            for number in range(WORKS):
                self.open(number)
        for owned in self.works:
            deaths = self.core._deaths.values()
            assert owned.installed or any(d >= LIMITS.deaths for d in deaths), owned


TestGatewayAndOwner = GatewayAndOwner.TestCase
TestGatewayAndOwner.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
