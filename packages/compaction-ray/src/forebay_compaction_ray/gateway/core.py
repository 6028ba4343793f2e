"""The gateway itself: jobs, queue, workers. An asyncio class over a pool, without network or Ray.

Everything runs on one event loop. The clock is a function, and all time-dependent work happens in
`tick`, which the owner calls every `GatewayLimits.ping_every_s` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

from cachetools import FIFOCache, LRUCache

from forebay_compaction_ray.events import EVENTS
from forebay_compaction_ray.gateway.admission import check_submission
from forebay_compaction_ray.gateway.clock import WakingClock
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import DROPPED, Metrics
from forebay_compaction_ray.gateway.pool import Pool, WorkerLostError
from forebay_compaction_ray.gateway.worker_set import WorkerSet
from forebay_compaction_ray.gateway.workers import GatewayJob, Policy, Worker, least_occupied
from forebay_compaction_ray.messages import JobView, Outcome, Submission
from forebay_compaction_ray.protocol import permanent, transient
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

_log = logging.getLogger(__name__)

_BUSY_RETRY_S: Final = 1.0
_DEATHS_REMEMBERED: Final = 4096
_IDS_REMEMBERED: Final = 16384
_FATAL: Final = frozenset({"died", "silent", "stalled"})
"""Causes of a worker's end that the work may have triggered."""
_LATE_TICKS: Final = 2
"""Tick periods that count at most when a tick is late because the gateway was suspended."""
_FORGOTTEN_AT_ONCE: Final = 32
"""Jobs that are forgotten together, so that not every job pays for sorting them."""


class GatewayCore:
    """Takes jobs, gives them to workers, and tracks their state.

    A job ends once: as done, failed, aborted, or lost with its worker. It is never given to a
    second worker; its owner may submit it again under another id and prefix.
    """

    def __init__(
        self,
        pool: Pool,
        limits: GatewayLimits,
        *,
        storages: Collection[str],
        policy: Policy = least_occupied,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without workers: see `scale`."""
        self.boot: Final = secrets.token_hex(8)
        self.limits: Final = limits
        self.storages: Final = tuple(sorted(storages))
        self.metrics: Final = Metrics()
        self._policy: Final = policy
        self._clock: Final = clock
        self._awake: Final = WakingClock(clock, _LATE_TICKS * limits.ping_every_s)
        """The clock that measures workers."""
        self._jobs: dict[str, GatewayJob] = {}
        self._by_work: defaultdict[str, list[GatewayJob]] = defaultdict(list)
        self._active: Counter[str] = Counter()
        """Number of jobs that have not ended, by client."""
        self._queue: list[GatewayJob] = []
        self._deaths: LRUCache[str, int] = LRUCache(_DEATHS_REMEMBERED)
        self._forgotten: FIFOCache[str, None] = FIFOCache(_IDS_REMEMBERED)
        """Ids of jobs that were taken: a late submission must not start one again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining_s: float | None = None
        self._closed = False
        self.draining: Final = asyncio.Event()
        self.drained: Final = asyncio.Event()
        self.worker_set: Final = WorkerSet(
            pool,
            limits,
            clock=self._awake,
            metrics=self.metrics,
            spawn=self._spawn,
            changed=self._dispatch,
            lost=self._lose,
        )

    # -- requests of clients ------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Return the description that a client needs before it submits."""
        return {
            "boot": self.boot,
            "state": "serving" if self._draining_s is None else "draining",
            "formats": sorted(self.worker_set.formats),
            "storages": list(self.storages),
            "workers": self.worker_set.ready,
        }

    def hear(self, events: Mapping[str, Any]) -> None:
        """Count the events that a client reports; ignore events that this release does not know."""
        for key in EVENTS.keys() & events.keys():
            event, _, cause = key.partition(":")
            if (count := int(events[key])) > 0:
                name = f"client_{event}_total" if cause else "client_events_total"
                labels = {"cause": cause} if cause else {"event": event}
                self.metrics.add(name, count, **labels)

    def submit(self, submission: Submission) -> JobView:
        """Take a job; for a job that is already known, only return its state.

        Raises `RefusedError`.
        """
        try:
            known = self._jobs.get(submission.job.id)
            if known is not None and known.submission.job.attempt == submission.job.attempt:
                known.asked_s = self._clock()
                return self._view(known)
            return self._view(self._take(submission, known))
        except Exception as refused:
            self.metrics.add("jobs_rejected_total", reason=getattr(refused, "code", "error"))
            raise

    async def poll(self, job_id: str, wait_s: float = 0.0, *, own: bool = True) -> JobView:
        """Return the state of a job; wait for its end, at most ``wait_s`` seconds.

        ``own``: the caller submitted the job.
        """
        entry = self._jobs.get(job_id)
        if entry is None:
            return JobView(job_id=job_id, phase=CompactionPhase.UNKNOWN, boot=self.boot)
        entry.asked_s = self._clock()
        entry.watched |= not own
        if wait_s > 0 and not entry.phase.ended:
            try:
                async with asyncio.timeout(min(wait_s, self.limits.poll_wait_s)):
                    await entry.ended.wait()
            except TimeoutError:
                pass  # the job continues: the answer holds its state
            entry.asked_s = self._clock()
        return self._view(entry)

    def abort(self, job_id: str, cause: str = "asked") -> JobView:
        """Ask a job to stop; an unknown job counts as stopped."""
        entry = self._jobs.get(job_id)
        if entry is None:
            return JobView(job_id=job_id, phase=CompactionPhase.UNKNOWN, boot=self.boot)
        self._abort(entry, cause)
        return self._view(entry)

    def acknowledge(self, job_id: str) -> None:
        """Forget a job whose owner has learned that it is done, unless others ask about it too."""
        entry = self._jobs.get(job_id)
        if entry is not None and entry.phase is CompactionPhase.DONE and not entry.watched:
            self._forget(entry)

    def release(self, job_id: str) -> None:
        """Forget a job, aborting it first if it has not ended. Deletes no object."""
        entry = self._jobs.get(job_id)
        if entry is not None:
            self._forget(entry)
            self._abort(entry, "released")

    def describe(self) -> dict[str, Any]:
        """Return everything there is to know about the gateway, its jobs and workers."""
        self._gauge()
        return {
            **self.hello(),
            "queue": len(self._queue),
            "running": sum(e.phase is CompactionPhase.RUNNING for e in self._jobs.values()),
            "remembered": len(self._jobs),
            "worker_list": self.worker_set.to_plain(),
            "metrics": self.metrics.to_plain(),
        }

    async def check(self, storage: str) -> Mapping[str, str]:
        """Let a worker probe a storage; raises `RefusedError` if no worker is up."""
        if storage not in self.storages:
            raise permanent("unknown_storage", f"this gateway has no storage {storage!r}")
        worker = self.worker_set.any_ready()
        if worker is None:
            raise transient("no_worker", "no worker is up", retry_after_s=_BUSY_RETRY_S)
        try:
            return await worker.handle.check(storage)
        except WorkerLostError as lost:
            raise transient("no_worker", str(lost), retry_after_s=_BUSY_RETRY_S) from lost

    # -- calls of the owner -------------------------------------------------------------------

    def scale(self, count: int) -> None:
        """Change the number of workers: start some, or end some as soon as their jobs end."""
        self.worker_set.scale(count)

    def drain(self) -> None:
        """Take no more jobs; `drained` is set when the last one has ended."""
        if self._draining_s is None:
            self._draining_s = self._clock()
            self.draining.set()
        self._check_drained()

    def tick(self) -> None:
        """Do time-dependent work: leases, silent workers, drains."""
        self._awake.tick()
        now = self._clock()
        for entry in list(self._jobs.values()):
            if now - entry.asked_s >= entry.submission.job.lease_s:
                self.release(entry.id)
        for worker in list(self.worker_set.workers.values()):
            self._kill_if_deaf(worker)
        self.worker_set.tick()
        if self._draining_s is not None:
            if now - self._draining_s >= self.limits.drain_timeout_s:
                for entry in list(self._jobs.values()):
                    self._abort(entry, "drain")
            self._check_drained()
        self._dispatch()
        self._gauge()

    async def close(self) -> None:
        """End all workers; running jobs are lost, and waiting jobs never start."""
        self._closed = True
        self.worker_set.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- jobs ---------------------------------------------------------------------------------

    def _take(self, submission: Submission, known: GatewayJob | None) -> GatewayJob:
        if self._draining_s is not None:
            raise transient("draining", "the gateway takes no more jobs", retry_after_s=0.0)
        if submission.job.id in self._forgotten:
            raise transient("forgotten", "the job was taken before, and was released or given up")
        check_submission(submission, self.limits, self.storages)
        self._check_format(submission)
        work = submission.work
        self._supersede(submission, work, known)
        self._check_room(submission)
        now = self._clock()
        entry = GatewayJob(submission=submission, work=work, submitted_s=now, asked_s=now)
        if known is not None:
            self._remove(known)
        self._jobs[entry.id] = entry
        self._by_work[work].append(entry)
        self._active[submission.client] += 1
        self.metrics.add("jobs_submitted_total")
        if self._deaths.get(work, 0) >= self.limits.deaths:
            self._fail_crashed(entry)
        else:
            self._queue.append(entry)
            self._dispatch()
        self._forget_some()
        return entry

    def _check_format(self, submission: Submission) -> None:
        formats = self.worker_set.formats
        if formats and submission.job.format not in formats:
            raise permanent(
                "unknown_format",
                f"no worker has a compactor for files of format {submission.job.format!r}; "
                f"installed there: {', '.join(sorted(formats))}",
            )

    def _check_room(self, submission: Submission) -> None:
        if len(self._queue) >= self.limits.queue:
            raise transient(
                "queue_full", f"{len(self._queue)} jobs wait", retry_after_s=_BUSY_RETRY_S
            )
        own = self._active[submission.client]
        if own >= self.limits.jobs_per_client:
            raise transient("client_full", f"{own} of your jobs wait", retry_after_s=_BUSY_RETRY_S)

    def _supersede(self, submission: Submission, work: str, known: GatewayJob | None) -> None:
        """Stop older attempts at the same work; refuse the job if it is the older one."""
        same = list(self._by_work.get(work, ()))
        if known is not None and known not in same:
            same.append(known)
        attempt = submission.job.attempt
        if any(entry.submission.job.attempt > attempt for entry in same):
            raise transient("superseded", f"a later attempt than {attempt} was submitted")
        prefix = submission.job.output_prefix
        if any(entry.submission.job.output_prefix == prefix for entry in same):
            raise permanent("names", f"the output prefix {prefix!r} was used before")
        for entry in same:
            if entry.submission.job.attempt < attempt:
                self._abort(entry, "superseded")

    def _dispatch(self) -> None:
        """Give waiting jobs to workers, in order of arrival."""
        if self._closed:
            return
        for entry in list(self._queue):
            workers = self.worker_set.takers(entry.submission.job.format)
            if workers:
                self._queue.remove(entry)
                self._start(entry, self._policy(workers))
            elif not self.worker_set.may_take(entry.submission.job.format):
                self._queue.remove(entry)
                what = f"no worker has a compactor for {entry.submission.job.format!r}"
                self._end(
                    entry, CompactionPhase.FAILED, CompactionFault.PERMANENT, "unknown_format", what
                )

    def _start(self, entry: GatewayJob, worker: Worker) -> None:
        now = self._clock()
        entry.phase, entry.worker, entry.started_s = CompactionPhase.RUNNING, worker, now
        worker.jobs[entry.id] = entry
        worker.given += 1
        self.metrics.add("queue_seconds_total", now - entry.submitted_s)
        self._spawn(self._run(entry, worker))

    async def _run(self, entry: GatewayJob, worker: Worker) -> None:
        try:
            outcome = await worker.handle.run(entry.submission)
        except WorkerLostError as lost:
            if entry.id in worker.jobs:  # else the worker was killed and has restarted
                self.worker_set.died(worker, f"died: {lost}")
        except Exception as fault:  # noqa: BLE001 - a job must end
            _log.exception("job %s on %s", entry.id, worker.id)
            what = f"the worker could not be given the job: {fault!r}"
            self._end(entry, CompactionPhase.FAILED, CompactionFault.PERMANENT, "internal", what)
        else:
            self._account(entry, outcome)
            self._end(entry, outcome.phase, outcome.fault, "", outcome.message)
        finally:
            worker.jobs.pop(entry.id, None)
            self._dispatch()
            self._check_drained()

    def _account(self, entry: GatewayJob, outcome: Outcome) -> None:
        if entry.phase.ended:
            return
        self.metrics.add("run_seconds_total", outcome.seconds)
        self.metrics.add("cpu_seconds_total", outcome.cpu_seconds)
        self.metrics.add("bytes_in_total", outcome.bytes_in)
        self.metrics.add("bytes_out_total", outcome.bytes_out)
        self.metrics.add("entries_in_total", outcome.entries_in)
        unexplained = outcome.entries_dropped
        for why in DROPPED:
            count = outcome.dropped.get(why, 0)
            self.metrics.add("entries_dropped_total", count, why=why)
            unexplained -= count
        if unexplained > 0:
            self.metrics.add("entries_dropped_total", unexplained, why="untold")

    def _lose(self, entry: GatewayJob, cause: str, message: str) -> None:
        """Mark a job as lost with its worker; whether it continues or is done is unknown."""
        if entry.phase.ended:
            return
        if entry.abort_asked_s is not None:
            self._end(entry, CompactionPhase.ABORTED, None, "", message)
            return
        self.metrics.add("jobs_lost_total", cause=cause)
        if cause in _FATAL:
            self._deaths[entry.work] = self._deaths.get(entry.work, 0) + 1
        if self._deaths.get(entry.work, 0) >= self.limits.deaths:
            self._fail_crashed(entry)
        else:
            self._end(entry, CompactionPhase.LOST, None, "worker_lost", message)

    def _fail_crashed(self, entry: GatewayJob) -> None:
        deaths = self._deaths[entry.work]
        what = f"{deaths} workers died at this work; it gets no further worker"
        fault = CompactionFault.TRANSIENT
        self._end(entry, CompactionPhase.FAILED, fault, "worker_crashed", what)

    def _abort(self, entry: GatewayJob, cause: str) -> None:
        if entry.phase.ended or entry.abort_asked_s is not None:
            return
        self.metrics.add("aborts_total", cause=cause)
        entry.code = cause
        if entry.phase is CompactionPhase.QUEUED:
            self._queue.remove(entry)
            self._end(entry, CompactionPhase.ABORTED, None, cause, f"aborted: {cause}")
            return
        entry.abort_asked_s = self._awake()
        assert entry.worker is not None
        self._spawn(self._ask_to_stop(entry, entry.worker))

    async def _ask_to_stop(self, entry: GatewayJob, worker: Worker) -> None:
        try:
            await worker.handle.abort(entry.id)
        except WorkerLostError as lost:
            if entry.id in worker.jobs:
                self.worker_set.died(worker, f"died: {lost}")

    def _end(
        self,
        entry: GatewayJob,
        phase: CompactionPhase,
        fault: CompactionFault | None,
        code: str,
        message: str,
    ) -> None:
        if entry.phase.ended:
            return
        entry.phase, entry.fault = phase, fault
        entry.code, entry.message = code or entry.code, message
        client = entry.submission.client
        self._active[client] -= 1
        if not self._active[client]:
            del self._active[client]
        entry.ended.set()
        self.metrics.add("jobs_finished_total", outcome=phase.value)
        _log.info("job %s attempt %d: %s %s", entry.id, entry.submission.job.attempt, phase, code)
        self._check_drained()

    # -- time ---------------------------------------------------------------------------------

    def _kill_if_deaf(self, worker: Worker) -> None:
        now = self._awake()
        for entry in worker.jobs.values():
            asked = entry.abort_asked_s
            if asked is not None and now - asked >= self.limits.abort_timeout_s:
                self.worker_set.kill(worker, "abort", "a job did not stop when asked to")
                return

    def _forget_some(self) -> None:
        over = len(self._jobs) - self.limits.remembered
        if over <= 0:
            return
        ended = [entry for entry in self._jobs.values() if entry.phase.ended]
        for entry in sorted(ended, key=lambda e: e.asked_s)[: over + _FORGOTTEN_AT_ONCE]:
            self._forget(entry)

    def _forget(self, entry: GatewayJob) -> None:
        self._remove(entry)
        self._forgotten[entry.id] = None

    def _remove(self, entry: GatewayJob) -> None:
        del self._jobs[entry.id]
        same = self._by_work[entry.work]
        same.remove(entry)
        if not same:
            del self._by_work[entry.work]

    def _check_drained(self) -> None:
        if self._draining_s is None:
            return
        busy = any(worker.jobs for worker in self.worker_set.workers.values())
        if not busy and all(entry.phase.ended for entry in self._jobs.values()):
            self.drained.set()

    def _gauge(self) -> None:
        self.metrics.set("queue_depth", len(self._queue))
        for phase, count in self.worker_set.counts().items():
            self.metrics.set("workers", count, state=phase)

    def _view(self, entry: GatewayJob) -> JobView:
        waiting = entry.phase is CompactionPhase.QUEUED
        return entry.view(position=self._queue.index(entry) if waiting else 0, boot=self.boot)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
