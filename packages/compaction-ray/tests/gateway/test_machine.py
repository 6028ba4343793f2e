"""In any order of events, every entry is live exactly once, and all work gets done.

The model's owner of the state follows the protocol, but carelessly: it takes any result that it
finds, even of earlier attempts and zombies, and only the names of the live files keep it from
taking one twice. The gateway's reports on a job are compared with the job's true outcome, which
exposes a loss that is reported as a fault.
"""

from __future__ import annotations

import asyncio
import math

import attrs
import pytest
from compaction_ray_toys import (
    ALL,
    ScriptedPool,
    ScriptedStorages,
    ScriptedWorker,
    settle,
    submission,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay_compaction_ray.gateway.core import GatewayCore
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile

LIMITS = GatewayLimits(queue=3, ping_every_s=10.0)
OPERATORS = 3
ATTEMPTS = 3
"""After this many failed attempts the owner does the work itself."""
NUMBERS = st.integers(0, OPERATORS - 1)
ANY = st.integers(0, 9)
WAYS = st.sampled_from(["straight", "straight", "straight", "slow", "twice"])


@attrs.define
class Pending:
    """A job that the owner's manifest names."""

    submission: Submission
    sent: bool = False
    """Whether a gateway may have it, or may still get it."""
    boot: str = ""
    """The incarnation of the gateway that certainly took it."""
    locally: bool = False

    @property
    def id(self):
        return self.submission.job.id


@attrs.define
class Owner:
    """The owner of one operator's files."""

    number: int
    live: list[str] = attrs.field(factory=list)
    """Names of live files, the oldest first."""
    files: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    """The entries of all files that were ever live, by name."""
    written: int = 0
    pending: Pending | None = None
    jobs: list[object] = attrs.field(factory=list)
    """All that were ever submitted."""
    stopped: bool = False
    """By a fault that no other attempt will help."""

    def write(self):
        name = f"data/{self.number}-{self.written}"
        self.files[name] = (self.written, self.written + 1)
        self.live.append(name)
        self.written += 2

    def plan(self):
        """Make a job for all live files."""
        inputs = [StateFile(name=n, size=10, range=ALL, meta={}) for n in self.live]
        self._name(submission(self.number, inputs=inputs))

    def again(self):
        """Return the same work under another id and prefix."""
        old = self.pending.submission.job
        fresh = submission(self.number, inputs=old.inputs, attempt=old.attempt + 1)
        self._name(fresh)

    def _name(self, given):
        self.pending = Pending(given)
        self.jobs.append(given.job)

    def install(self, job, entries):
        """Replace the inputs by the output, unless one of them is no longer live."""
        inputs = [file.name for file in job.inputs]
        if not set(inputs) <= set(self.live):
            return
        output = f"{job.output_prefix}0000"
        self.files[output] = entries
        at = self.live.index(inputs[0])
        self.live = [name for name in self.live if name not in inputs]
        self.live.insert(at, output)


@attrs.define
class Truth:
    """The true events, known to the gateway or not."""

    results: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    """Prefix → entries of the output below it."""
    reported: dict[str, CompactionFault | None] = attrs.field(factory=dict)
    """Job → the outcome that a worker reported."""
    lost: set[str] = attrs.field(factory=set)
    """Jobs whose worker ended."""
    zombies: list[Submission] = attrs.field(factory=list)
    """Jobs that abandoned processes still run."""
    begun: set[str] = attrs.field(factory=set)
    """Prefixes below which anything was ever written."""
    wrong: list[str] = attrs.field(factory=list)
    """Violations: events that must never happen, and did."""

    def begin(self, given):
        self.begun.add(given.job.output_prefix)


class Process(ScriptedWorker):
    """A worker that remembers its jobs, and may continue them after it was given up."""

    truth: Truth

    def __init__(self, worker_id, truth):
        super().__init__(worker_id)
        self.truth = truth
        self.given = {}

    async def run(self, given):
        if self.dead:
            self.truth.lost.add(given.job.id)
        self.truth.begin(given)
        self.given[given.job.id] = given
        return await super().run(given)

    def die(self):
        for job_id in self.running:
            self.truth.lost.add(job_id)
            self.truth.zombies.append(self.given[job_id])
        super().die()


class Processes(ScriptedPool):
    worker_class = Process


class GatewayAndOwners(RuleBasedStateMachine):
    @initialize(workers=st.integers(1, 4))
    def begin(self, workers):
        self.loop = asyncio.new_event_loop()
        self.truth = Truth()
        self.owners = [Owner(n) for n in range(OPERATORS)]
        self.late: list[tuple[Pending, str]] = []
        """Delayed submissions; with where another copy has already arrived, if one has."""
        self.asked: dict[str, float] = {}
        """Jobs that the gateway must know → when it was last asked about them."""
        self.stopped: set[str] = set()
        """Jobs that were asked to stop."""
        self._begin_again(workers)

    def run(self, work):
        async def both():
            result = await work
            await settle()
            return result

        return self.loop.run_until_complete(both())

    def do(self, what, *args):
        """Call the core on its loop."""

        async def call():
            return what(*args)

        return self.run(call())

    @precondition(lambda self: self.truth.begun)
    @rule(workers=st.integers(1, 4))
    def begin_again(self, workers):
        """Restart the gateway's process; as far as it knows, its workers end with it."""
        self.run(self.core.close())
        self._begin_again(workers)

    def _begin_again(self, workers):
        self.asked.clear()
        self.pool = Processes(truth=self.truth)
        self.core = GatewayCore(self.pool.start, LIMITS, storages=ScriptedStorages("default"))
        self.do(self.core.worker_set.scale, workers)

    def _running(self):
        return [(w, job_id) for w in self.pool.workers for job_id in w.running]

    # -- owners -------------------------------------------------------------------------------

    @rule(number=NUMBERS)
    def write(self, number):
        self.owners[number].write()

    @rule(number=NUMBERS, again=st.booleans(), way=WAYS)
    def submit(self, number, again, way):
        """Submit new work, or with ``again`` work without a sign of life that may still run."""
        owner = self.owners[number]
        if owner.pending is None:
            owner.write()
            owner.plan()
        elif again and not owner.stopped:
            self._again(owner)
        self._send(owner.pending, way)

    def _again(self, owner):
        owner.again()
        if owner.pending.submission.job.attempt > ATTEMPTS:
            self._compact_here(owner.pending)

    def _compact_here(self, pending):
        pending.locally = True
        self.truth.begin(pending.submission)
        self._write_result(pending.submission)

    def _send(self, pending, way):
        if pending.locally or (pending.sent and pending.boot != self.core.boot):
            return  # the client sends a job to a single incarnation of one gateway
        if way == "slow":
            if not pending.sent:
                self.late.append((pending, ""))
            pending.sent = True
            return
        if self._arrive(pending) and way == "twice":
            self.late.append((pending, self.core.boot))

    @rule(which=ANY)
    def arrive_late(self, which):
        if self.late:
            pending, boot = self.late.pop(which % len(self.late))
            if boot in ("", self.core.boot):
                self._arrive(pending)

    def _arrive(self, pending):
        try:
            self.do(self.core.submit, pending.submission)
        except RefusedError as refused:
            assert refused.code in ("queue_full", "draining")  # noqa: PT017 - either may be
            return False
        pending.sent, pending.boot = True, self.core.boot
        self.asked[pending.id] = self.core._now()
        return True

    @rule(number=NUMBERS)
    def submit_the_same(self, number):
        """A job that was not done may be submitted again under its id and prefix."""
        pending = self.owners[number].pending
        if pending is not None and pending.id in self.asked and not pending.locally:
            self._arrive(pending)

    @rule(number=NUMBERS)
    def open(self, number):
        """Act as the next micro-batch: ask, look for the result, then install it or give up."""
        owner, pending = self.owners[number], self.owners[number].pending
        if pending is None:
            return
        phase, fault = CompactionPhase.DONE, None
        if not pending.locally:
            view = self._poll(pending)
            phase, fault = view.phase, view.fault
        job = pending.submission.job
        if not phase.ended:
            return
        if job.output_prefix in self.truth.results:
            self._install(owner, job)
        elif fault in (CompactionFault.PERMANENT, CompactionFault.CORRUPTION):
            owner.stopped = True
        elif phase is not CompactionPhase.UNKNOWN:
            self._release(pending)
            self._again(owner)

    def _poll(self, pending):
        view = self.run(self.core.poll(pending.id))
        if pending.id in self.asked:
            self.asked[pending.id] = self.core._now()
        self._check(pending, view)
        return view

    def _check(self, pending, view):
        """Check that the gateway's view of a job matches its true outcome."""
        job_id, job = pending.id, pending.submission.job
        assert (view.phase is CompactionPhase.UNKNOWN) == (job_id not in self.asked)
        if view.phase is CompactionPhase.DONE:
            assert job.output_prefix in self.truth.results
        elif view.phase is CompactionPhase.LOST:
            assert job_id in self.truth.lost
        elif view.phase is CompactionPhase.ABORTED:
            assert job_id in self.stopped
        elif view.phase is CompactionPhase.FAILED:
            assert view.fault is self.truth.reported.get(job_id, "nobody said so")

    @rule(number=NUMBERS, which=ANY)
    def install_anything(self, number, which):
        """Install any stored result, of any attempt: only names can prevent it."""
        owner = self.owners[number]
        found = [job for job in owner.jobs if job.output_prefix in self.truth.results]
        if found:
            self._install(owner, found[which % len(found)])

    def _install(self, owner, job):
        owner.install(job, self.truth.results[job.output_prefix])
        pending = owner.pending
        if pending is not None:
            inputs = {file.name for file in pending.submission.job.inputs}
            if not inputs <= set(owner.live):
                self._release(pending)
                owner.pending, owner.stopped = None, False

    def _release(self, pending):
        self.stopped.add(pending.id)
        self.do(self.core.release, pending.id)
        self.asked.pop(pending.id, None)

    @rule(number=NUMBERS)
    def abort(self, number):
        pending = self.owners[number].pending
        if pending is not None:
            self.stopped.add(pending.id)
            self._abort(pending.id)

    @rule(number=NUMBERS)
    def leave_the_queue(self, number):
        """A job that certainly never began is done by its owner, under the same prefix."""
        pending = self.owners[number].pending
        if pending is None or pending.locally:
            return
        if not pending.sent:
            self._compact_here(pending)
            return
        self.stopped.add(pending.id)
        view = self._abort(pending.id)
        if view is not None and view.phase is CompactionPhase.ABORTED and not view.worker:
            self._compact_here(pending)

    def _abort(self, job_id):
        """Do with one job what an overlong drain does with all; return the view of it."""
        if (entry := self.core._jobs.get(job_id)) is None:
            return None
        self.do(self.core._abort, entry, "drain")
        return entry.view

    # -- workers ------------------------------------------------------------------------------

    @rule(which=ANY)
    def finish(self, which):
        if running := self._running():
            worker, job_id = running[which % len(running)]
            self._write_result(worker.given[job_id])
            self._end(worker, job_id, CompactionPhase.DONE, None)

    @rule(which=ANY, fault=st.sampled_from(list(CompactionFault)))
    def fail(self, which, fault):
        if running := self._running():
            self._end(*running[which % len(running)], CompactionPhase.FAILED, fault)

    def _end(self, worker, job_id, phase, fault):
        self.truth.reported[job_id] = fault
        self.do(worker.end, job_id, phase, fault)

    def _write_result(self, given):
        owner = self.owners[given.job.options["number"]]
        entries = [e for file in given.job.inputs for e in owner.files[file.name]]
        self.truth.results[given.job.output_prefix] = tuple(entries)

    @rule(which=ANY)
    def die(self, which):
        self.do(self.pool.workers[which % len(self.pool.workers)].die)

    @rule(which=ANY)
    def zombie_finishes(self, which):
        zombies = self.truth.zombies
        if zombies:
            self._write_result(zombies.pop(which % len(zombies)))

    @rule(which=ANY, answers=st.booleans(), obeys=st.booleans())
    def behave(self, which, answers, obeys):
        worker = self.pool.workers[which % len(self.pool.workers)]
        worker.answers, worker.aborts_at_once = answers, obeys

    @rule(count=st.integers(0, 3))
    def scale(self, count):
        self.do(self.core.worker_set.scale, count)

    @rule(seconds=st.sampled_from([1.0, 10.0, 70.0, 700.0]))
    def wait(self, seconds):
        """Let time pass in ticks."""
        for _ in range(math.ceil(seconds / LIMITS.ping_every_s)):
            self.do(self.core.tick)
        over = {j for j, s in self.asked.items() if self.core._now() - s >= LEASE_S}
        for job_id in over:
            del self.asked[job_id]

    # -- invariants ---------------------------------------------------------------------------

    @invariant()
    def every_entry_is_live_once_and_in_order(self):
        for owner in getattr(self, "owners", ()):
            found = [entry for name in owner.live for entry in owner.files[name]]
            assert found == list(range(owner.written))

    @invariant()
    def nothing_went_wrong(self):
        assert not hasattr(self, "truth") or self.truth.wrong == []

    def teardown(self):
        if not hasattr(self, "core"):
            return
        self._finish_all()
        self.run(self.core.close())
        self.loop.close()

    def _finish_all(self):
        """Once the trouble is over, all work gets done except work with a permanent fault."""
        for worker in self.pool.workers:
            worker.answers = worker.aborts_at_once = True
        self.scale(2)
        for _ in range(3 * ATTEMPTS):
            if all(o.pending is None or o.stopped for o in self.owners):
                break
            self.wait(10.0)
            for owner in self.owners:
                self._go_on(owner)
            for _ in range(OPERATORS):
                self.finish(0)
            for owner in self.owners:
                self.open(owner.number)
        for owner in self.owners:
            assert owner.pending is None or self._cannot_be_done(owner.pending), owner
        self.every_entry_is_live_once_and_in_order()

    def _go_on(self, owner):
        pending = owner.pending
        if pending is None or owner.stopped or pending.locally:
            return
        if not pending.sent:
            self._send(pending, "straight")
        elif pending.id not in self.asked:
            self.submit(owner.number, again=True, way="straight")

    def _cannot_be_done(self, pending):
        fault = self.truth.reported.get(pending.id)
        return fault in (CompactionFault.PERMANENT, CompactionFault.CORRUPTION)


LEASE_S = submission().job.lease_s

pytestmark = pytest.mark.timeout(600)  # minimising a failure takes long

TestGatewayAndOwners = pytest.mark.long(GatewayAndOwners.TestCase)
TestGatewayAndOwners.settings = settings(stateful_step_count=40, deadline=None)


def test_an_owner_does_itself_what_too_many_workers_died_of():
    machine = GatewayAndOwners()
    machine.begin(workers=1)
    machine.submit(again=False, number=0, way="straight")
    machine.die(which=0)
    machine.open(number=0)
    machine.submit(again=True, number=0, way="straight")
    machine.die(which=0)
    machine.submit(again=True, number=0, way="straight")
    assert machine.owners[0].pending.locally
    assert machine.truth.wrong == []
    machine.teardown()
