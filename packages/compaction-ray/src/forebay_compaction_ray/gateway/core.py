"""The gateway itself: jobs, queue, workers. An asyncio class over a pool, without network or Ray.

Everything runs on one event loop. All time-dependent work happens in `tick`, which the owner calls
every `GatewayLimits.ping_every_s` seconds, and by which the gateway counts time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from forebay_compaction_ray.events import EVENTS, counted_by
from forebay_compaction_ray.gateway.admission import check_submission
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.gateway.worker_handle import WorkerHandle
from forebay_compaction_ray.gateway.worker_set import WorkerSet
from forebay_compaction_ray.gateway.workers import (
    GatewayJob,
    Policy,
    Worker,
    WorkerPhase,
    least_occupied,
)
from forebay_compaction_ray.messages import (
    NO_STORAGE,
    Greeting,
    Hello,
    JobView,
    Outcome,
    Submission,
)
from forebay_compaction_ray.protocol import MESSAGE_BYTES, RefusedError
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

_log = logging.getLogger(__name__)

_SAME: Final = "it is the gateway's storage"
"""Promised by a worker that finds the gateway's mark."""
_AGAIN: Final = frozenset({CompactionPhase.FAILED, CompactionPhase.ABORTED, CompactionPhase.LOST})
"""Outcomes after which a job may be submitted again: each run writes its own file names."""


class GatewayCore:
    """Takes jobs, gives them to workers, and tracks their state.

    A job ends as done, failed, aborted, or lost with its worker. The gateway never gives it to a
    second worker by itself; unless it is done, its owner may submit it again.
    """

    def __init__(
        self,
        start: Callable[[], WorkerHandle],
        limits: GatewayLimits,
        *,
        storages: GatewayStorages,
        policy: Policy = least_occupied,
    ) -> None:
        """Begin without workers, which ``start`` starts: see `follow`."""
        self.boot: Final = secrets.token_hex(8)
        self.limits: Final = limits
        self._job_limits: Final = {"inputs": limits.inputs, "job_bytes": limits.job_bytes}
        self.storages: Final = storages
        self.metrics: Final = Metrics()
        self._policy: Final = policy
        self._ticks = 0
        self._jobs: dict[str, GatewayJob] = {}
        self._queue: Final[dict[str, GatewayJob]] = {}
        """The jobs that wait for a worker, in order of arrival."""
        self._turns: Final = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._draining_s: float | None = None
        self._closed = False
        self.draining: Final = asyncio.Event()
        self.drained: Final = asyncio.Event()
        self.stopping: Final = asyncio.Event()
        self.worker_set: Final = WorkerSet(
            start,
            limits,
            storages,
            clock=self._now,
            metrics=self.metrics,
            spawn=self._spawn,
            changed=self._dispatch,
            lost=self._lose,
        )

    # -- requests of clients ------------------------------------------------------------------

    def hello(self) -> Greeting:
        """Return the description that a client needs before it submits."""
        return Greeting(
            boot=self.boot,
            state="serving" if self._draining_s is None else "draining",
            formats=tuple(sorted(self.worker_set.formats)),
            storages=self.storages.to_plain(),
            workers=self.worker_set.counts()[WorkerPhase.READY.value],
            limits={**self._job_limits, "message_bytes": MESSAGE_BYTES},
        )

    async def greet(self, hello: Hello) -> Greeting:
        """Answer a client, after another look at the storages if it reads other marks there."""
        self.hear(hello.events)
        names = hello.marks.keys() & set(self.storages.names)
        if any(hello.marks[name] != self.storages.marks.get(name) for name in names):
            with suppress(TimeoutError):
                async with asyncio.timeout(self.limits.check_s):
                    await self.worker_set.look()
        return self.hello()

    def hear(self, events: Mapping[str, int]) -> None:
        """Count the events that a client reports; ignore events that this release does not know."""
        for key in EVENTS.keys() & events.keys():
            metric, value = counted_by(key)
            (label,) = metric.labels
            self.metrics[metric.key].labels(**{label: value}).inc(events[key])

    def submit(self, submission: Submission) -> JobView:
        """Accept a job; if it waits, runs or is done here, only return its state.

        Raises `RefusedError`.
        """
        try:
            known = self._jobs.get(submission.job.id)
            if known is not None and known.phase not in _AGAIN:
                known.asked_s = self._now()
                return known.view
            return self._take(submission).view
        except Exception as refused:
            reason = getattr(refused, "code", "error")
            self.metrics["jobs_rejected"].labels(reason=reason).inc()
            raise

    async def poll(self, job_id: str, wait_s: float = 0.0) -> JobView:
        """Return the state of a job; wait for its end, at most ``wait_s`` seconds.

        Raises `RefusedError` for a negative or endless wait.
        """
        if not 0 <= wait_s < math.inf:
            raise RefusedError("malformed", f"a wait of {wait_s} s: expected 0 or more")
        if (entry := self._jobs.get(job_id)) is None:
            return _unknown(job_id)
        if not entry.phase.ended:
            entry.asked_s = self._now()
            with suppress(TimeoutError):  # the job continues: the answer holds its state
                async with asyncio.timeout(min(wait_s, self.limits.poll_wait_s)):
                    await entry.ended.wait()
            entry.asked_s = self._now()
        return entry.view

    def release(self, job_id: str) -> None:
        """Forget a job, aborting it first if it has not ended. Deletes no object."""
        entry = self._jobs.pop(job_id, None)
        if entry is not None:
            self._abort(entry, "released")

    def describe(self) -> dict[str, Any]:
        """Return the status of the gateway, its jobs and its workers as plain data."""
        self._gauge()
        return {
            **self.hello().to_plain(),
            "queue": len(self._queue),
            "running": sum(e.phase is CompactionPhase.RUNNING for e in self._jobs.values()),
            "remembered": len(self._jobs),
            "worker_list": [w.to_plain(self._now()) for w in self.worker_set.workers.values()],
            "metrics": self.metrics.to_plain(),
        }

    async def check(self, storage: str, worker_id: str) -> Mapping[str, str]:
        """Let a worker look for a storage's mark and probe it; return promise → the problem."""
        if storage not in self.storages.names:
            raise RefusedError("unknown_storage", f"this gateway has no storage {storage!r}")
        worker = self.worker_set.workers.get(worker_id)
        if worker is None or worker.phase is WorkerPhase.STARTING:
            return {"it can be examined": f"worker {worker_id!r} is not up"}
        try:
            async with asyncio.timeout(self.limits.check_s):
                await self.storages.look()
                await self.worker_set.look_at(worker)
                if worker.info.problems:  # the mark itself may be gone
                    await self.worker_set.look()
                if problem := worker.info.problems.get(storage):
                    return {_SAME: problem}
                found = await self.worker_set.ask(worker, worker.handle.check(storage))
        except TimeoutError:
            return {"it answers": f"it did not answer within {self.limits.check_s:g} s"}
        return {"it answers": "it died"} if found is None else {_SAME: "", **found}

    # -- calls of the owner -------------------------------------------------------------------

    def follow(
        self, *, workers: int | None = None, draining: bool = False, stopping: bool = False
    ) -> None:
        """Carry out an operator's orders; the gateway's owner carries out `stopping`."""
        if workers is not None:
            self.worker_set.scale(workers)
        if draining:
            self.drain()
        if stopping:
            self.stopping.set()

    def drain(self) -> None:
        """Accept no more jobs; `drained` is set when the last one is done."""
        if self._draining_s is None:
            self._draining_s = self._now()
            self.draining.set()
        self._check_drained()

    def tick(self) -> None:
        """Do time-dependent work: leases, silent workers, drains."""
        self._ticks += 1
        now = self._now()
        for worker in list(self.worker_set.workers.values()):
            self._insist_on_aborts(worker)
        for entry in list(self._jobs.values()):
            if now - entry.asked_s >= entry.submission.job.lease_s:
                self.release(entry.id)
        self._forget_oldest()
        self.worker_set.tick()
        if self._draining_s is not None:
            if now - self._draining_s >= self.limits.drain_timeout_s:
                for entry in list(self._jobs.values()):
                    self._abort(entry, "drain")
            self._check_drained()
        self._dispatch()
        self._refuse_hopeless()
        self._gauge()

    async def close(self) -> None:
        """End all workers; running jobs are lost, and waiting jobs never start."""
        self._closed = True
        self.worker_set.close()
        self.storages.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- jobs ---------------------------------------------------------------------------------

    def _take(self, submission: Submission) -> GatewayJob:
        if self._draining_s is not None:
            raise RefusedError("draining", "the gateway is draining and accepts no more jobs")
        check_submission(submission, self._job_limits, self.storages.names)
        entry = GatewayJob(
            submission=submission,
            asked_s=self._now(),
            view=JobView(job_id=submission.job.id, phase=CompactionPhase.QUEUED),
        )
        if (refused := self.worker_set.refusal(entry.submission)) is not None:
            raise refused
        if len(self._queue) >= self.limits.queue:
            raise RefusedError("queue_full", f"the queue is full: {len(self._queue)} jobs wait")
        self._jobs[entry.id] = entry
        self.metrics["jobs_submitted"].inc()
        self._queue[entry.id] = entry
        self._dispatch()
        return entry

    def _dispatch(self) -> None:
        """Give waiting jobs to workers, in order of arrival, while a worker has room."""
        if self._closed or not self.worker_set.have_room:
            return
        for entry in list(self._queue.values()):
            if workers := self.worker_set.takers(entry):
                del self._queue[entry.id]
                self._start(entry, self._policy(workers))
                if not self.worker_set.have_room:
                    return

    def _refuse_hopeless(self) -> None:
        """End the waiting jobs that no current worker can take."""
        for entry in list(self._queue.values()):
            if (refused := self.worker_set.refusal(entry.submission)) is not None:
                del self._queue[entry.id]
                self._end(entry, CompactionPhase.FAILED, refused.message, refused.code)

    def _start(self, entry: GatewayJob, worker: Worker) -> None:
        running, info = CompactionPhase.RUNNING, worker.info
        entry.view = attrs.evolve(entry.view, phase=running, worker=info.boot, node=info.node)
        entry.worker, entry.moved_s = worker, self._now()
        worker.jobs[entry.id] = entry
        worker.turn = next(self._turns)
        self.metrics["queue_seconds"].observe(time.monotonic() - entry.submitted_s)
        self._spawn(self._run(entry, worker))

    async def _run(self, entry: GatewayJob, worker: Worker) -> None:
        try:
            outcome = await self.worker_set.ask(worker, worker.handle.run(entry.submission))
        except Exception as fault:  # noqa: BLE001 - a job must end
            _log.exception("job %s on %s", entry.id, worker.id)
            what = f"the worker could not be given the job: {fault!r}"
            self.worker_set.note(worker, what)
            self._end(entry, CompactionPhase.FAILED, what, "internal")
        else:
            if outcome is not None and not entry.phase.ended:
                self._account(worker, entry, outcome)
                how = outcome.phase, outcome.message, outcome.code
                self._end(entry, *how, verdict=outcome.fault)
        finally:
            del worker.jobs[entry.id]
            self._dispatch()
            self._check_drained()

    def _account(self, worker: Worker, entry: GatewayJob, outcome: Outcome) -> None:
        worker.done += outcome.phase is CompactionPhase.DONE
        if outcome.code == NO_STORAGE:
            self.worker_set.blame(worker, entry.submission.storage, outcome.message)
        elif outcome.phase is CompactionPhase.FAILED:
            self.worker_set.note(worker, f"a job failed: {outcome.message}")
        self.metrics.add_outcome(outcome)

    def _lose(self, entry: GatewayJob, cause: str, message: str) -> None:
        """Mark a job as lost with its worker; whether it continues or is done is unknown."""
        if entry.phase.ended:
            return
        if entry.abort_asked_s is not None:
            self._end(entry, CompactionPhase.ABORTED, message)
            return
        self.metrics["jobs_lost"].labels(cause=cause).inc()
        self._end(entry, CompactionPhase.LOST, message, "worker_lost")

    def _abort(self, entry: GatewayJob, cause: str) -> None:
        if entry.phase.ended or entry.abort_asked_s is not None:
            return
        self.metrics["jobs_aborted"].labels(cause=cause).inc()
        entry.view = attrs.evolve(entry.view, code=cause)
        if entry.phase is CompactionPhase.QUEUED:
            del self._queue[entry.id]
            self._end(entry, CompactionPhase.ABORTED, f"aborted: {cause}")
            return
        entry.abort_asked_s = self._now()
        worker = entry.worker
        assert worker is not None
        self._spawn(self._ask_to_stop(worker, entry))

    def _end(
        self,
        entry: GatewayJob,
        phase: CompactionPhase,
        message: str,
        code: str = "",
        *,
        verdict: CompactionFault | None = None,
    ) -> None:
        """End a job. A failure without a worker's verdict may pass."""
        if entry.phase.ended:
            return
        code = code or entry.view.code
        transient = CompactionFault.TRANSIENT if phase is CompactionPhase.FAILED else None
        fault = verdict or transient
        entry.view = attrs.evolve(entry.view, phase=phase, fault=fault, code=code, message=message)
        entry.ended.set()
        self.metrics["jobs_finished"].labels(outcome=phase.value).inc()
        _log.info("job %s attempt %d: %s %s", entry.id, entry.submission.job.attempt, phase, code)
        self._check_drained()

    # -- time ---------------------------------------------------------------------------------

    def _now(self) -> float:
        """Return the time in seconds; it counts ticks.

        A suspended gateway receives nothing, so silence during that time must not count.
        """
        return self._ticks * self.limits.ping_every_s

    def _insist_on_aborts(self, worker: Worker) -> None:
        """Repeat aborts, which may overtake their job; kill a worker that does not obey."""
        for entry in worker.jobs.values():
            asked = entry.abort_asked_s
            if asked is not None and self._now() - asked >= self.limits.abort_timeout_s:
                self.worker_set.end(worker, "abort", "was killed: a job did not stop when asked to")
                return
            if asked is not None:
                self._spawn(self._ask_to_stop(worker, entry))

    async def _ask_to_stop(self, worker: Worker, entry: GatewayJob) -> None:
        await self.worker_set.ask(worker, worker.handle.abort(entry.id))

    def _forget_oldest(self) -> None:
        ended = [entry for entry in self._jobs.values() if entry.phase.ended]
        ended.sort(key=lambda entry: entry.asked_s)
        for entry in ended[: -self.limits.remembered]:
            del self._jobs[entry.id]

    def _check_drained(self) -> None:
        busy = self._queue or any(worker.jobs for worker in self.worker_set.workers.values())
        if self._draining_s is not None and not busy:
            self.drained.set()

    def _gauge(self) -> None:
        self.metrics["jobs_queued"].set(len(self._queue))
        for phase, count in self.worker_set.counts().items():
            self.metrics["workers"].labels(state=phase).set(count)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _unknown(job_id: str) -> JobView:
    return JobView(job_id=job_id, phase=CompactionPhase.UNKNOWN)
