"""Starts, describes, pings, kills and removes the workers of a gateway."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

import attrs

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_compaction_ray.gateway.pool import Pool, WorkerLostError
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.gateway.workers import Demand, GatewayJob, Worker, WorkerPhase
from forebay_compaction_ray.messages import Pulse, WorkerInfo
from forebay_compaction_ray.protocol import RefusedError

_log = logging.getLogger(__name__)

_STALLED_PULSES: Final = 2
"""Consecutive ones before a kill: after a suspension of both sides, the first one also counts the
time in which no step was possible."""


class WorkerSet:
    """All workers. A worker counts as up only after it has described itself."""

    def __init__(
        self,
        pool: Pool,
        limits: GatewayLimits,
        storages: GatewayStorages,
        *,
        clock: Callable[[], float],
        metrics: Metrics,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
        lost: Callable[[GatewayJob, str, str], None],
    ) -> None:
        """``changed`` is called when a worker can take jobs, ``lost`` for each job of a dead one.

        ``lost`` gets the job, a word for the cause, and a sentence.
        """
        self._pool: Final = pool
        self._limits: Final = limits
        self._storages: Final = storages
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._spawn: Final = spawn
        self._changed: Final = changed
        self._lost: Final = lost
        self._numbers: Final = itertools.count()
        self.workers: Final[dict[str, Worker]] = {}
        self.formats: set[str] = set()
        """File formats that some present or past worker can compact."""

    @property
    def ready(self) -> int:
        """Number of workers that are able to work."""
        return sum(worker.phase is WorkerPhase.READY for worker in self.workers.values())

    def takers(self, demand: Demand) -> Sequence[Worker]:
        """Return workers that can be given such a job now."""
        slots = self._limits.slots
        return [w for w in self.workers.values() if w.takes(demand, slots)]

    def refusal(self, demand: Demand) -> RefusedError | None:
        """Return why such a job should not wait here, if no worker could take it as things are."""
        if any(worker.suits(demand) for worker in self.workers.values()):
            return None
        if self.formats and demand.format not in self.formats:
            return RefusedError(
                "unknown_format",
                f"no worker has a compactor for files of format {demand.format!r}; "
                f"installed there: {', '.join(sorted(self.formats))}",
            )
        if demand.avoid:
            return RefusedError("no_other_worker", "no other worker can give a second opinion now")
        problems = [
            "" if worker.info is None else worker.info.problems.get(demand.storage, "")
            for worker in self.workers.values()
        ]
        if problems and all(problems):
            return RefusedError(
                "no_storage", f"no worker can use the storage {demand.storage!r}: {problems[0]}"
            )
        return None

    def note(self, worker: Worker, error: str) -> None:
        """Keep the last thing that went wrong at a worker, for display."""
        worker.error, worker.error_s = error, self._clock()

    def counts(self) -> dict[str, int]:
        """Return the number of workers in each state."""
        found = Counter(worker.phase for worker in self.workers.values())
        return {phase.value: found[phase] for phase in WorkerPhase}

    def to_plain(self) -> list[dict[str, Any]]:
        """Describe each worker, for display."""
        now = self._clock()
        return [
            {
                "id": worker.id,
                "state": worker.phase.value,
                "boot": worker.boot,
                "pid": 0 if worker.info is None else worker.info.pid,
                "node": "" if worker.info is None else worker.info.node,
                "version": "" if worker.info is None else worker.info.version,
                "jobs": list(worker.jobs),
                "done": worker.done,
                "problems": {} if worker.info is None else dict(worker.info.problems),
                "error": worker.error,
                "error_age_s": round(now - worker.error_s, 3) if worker.error else 0.0,
                "remaining": worker.remaining,
                "silent_s": round(now - worker.seen_s, 3),
            }
            for worker in self.workers.values()
        ]

    # -- scaling ------------------------------------------------------------------------------

    def scale(self, count: int) -> None:
        """Start or drain workers until ``count`` are left that are not draining."""
        staying = [w for w in self.workers.values() if w.phase is not WorkerPhase.DRAINING]
        for _ in range(count - len(staying)):
            self._begin()
        staying.sort(key=lambda w: (w.phase is WorkerPhase.READY, len(w.jobs), w.remaining))
        for worker in staying[: max(0, len(staying) - count)]:
            worker.phase, worker.draining_s = WorkerPhase.DRAINING, self._clock()
            self._end_if_idle(worker)

    def close(self) -> None:
        """End all of them at once."""
        for worker in list(self.workers.values()):
            self._remove(worker)

    def _begin(self) -> None:
        worker_id = f"w{next(self._numbers)}"
        worker = Worker(id=worker_id, handle=self._pool.start(), seen_s=self._clock())
        self.workers[worker_id] = worker
        self._describe(worker)

    def _end_if_idle(self, worker: Worker) -> None:
        if worker.phase is WorkerPhase.DRAINING and not worker.jobs:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        del self.workers[worker.id]
        worker.handle.kill(restart=False)
        self._lose_jobs(worker, "removed", "its worker was taken away")

    # -- liveness -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Ping all workers, and handle those that have not answered."""
        for worker in list(self.workers.values()):
            self._look_at(worker)

    def died(self, worker: Worker, why: str, *, alive: Collection[str] = ()) -> None:
        """Handle the death of a worker's process, which restarts; it may have jobs ``alive``."""
        if worker.id not in self.workers:
            return
        _log.warning("worker %s %s", worker.id, why)
        self.note(worker, why)
        self._metrics.add("worker_restarts")
        self._begin_again(worker)
        self._lose_jobs(worker, "died", f"its worker {worker.id} {why}", alive)

    def kill(self, worker: Worker, cause: str, why: str) -> None:
        """Kill a worker's process; its jobs are lost, and it restarts."""
        if worker.id not in self.workers:
            return
        _log.warning("worker %s is killed: %s", worker.id, why)
        self.note(worker, f"was killed: {why}")
        self._metrics.add("worker_restarts")
        worker.handle.kill(restart=True)
        worker.killed_boot = worker.boot
        self._begin_again(worker)
        self._lose_jobs(worker, cause, f"its worker {worker.id} was killed: {why}")

    def _begin_again(self, worker: Worker) -> None:
        worker.info, worker.seen_s, worker.stalled = None, self._clock(), 0
        if worker.phase is WorkerPhase.DRAINING:
            self._spawn(self._later_end(worker))
            return
        worker.phase = WorkerPhase.STARTING
        self._describe(worker)

    async def _later_end(self, worker: Worker) -> None:
        if worker.id in self.workers:
            self._remove(worker)

    def _lose_jobs(
        self, worker: Worker, cause: str, message: str, alive: Collection[str] = ()
    ) -> None:
        for entry in [entry for entry in worker.jobs.values() if entry.id not in alive]:
            self._lost(entry, cause, message)
            del worker.jobs[entry.id]

    def _look_at(self, worker: Worker) -> None:
        now, limits = self._clock(), self._limits
        if worker.phase is WorkerPhase.STARTING:
            self._describe(worker)
            return
        if worker.info is not None and worker.info.problems:
            self._describe(worker)
        silent_s = now - worker.seen_s
        if worker.phase is WorkerPhase.DRAINING:
            self._end_if_idle(worker)
            began = worker.draining_s or now
            if worker.id in self.workers and now - began >= limits.drain_timeout_s:
                self._remove(worker)
                return
        elif silent_s >= limits.ping_every_s * limits.ping_misses:
            worker.phase = WorkerPhase.SUSPECT
        if silent_s >= limits.stall_timeout_s:
            self.kill(worker, "silent", f"no answer for {silent_s:.0f} s")
        elif (
            worker.stalled >= _STALLED_PULSES
            and (age_s := _oldest_step(worker)) >= limits.stall_timeout_s
        ):
            self.kill(worker, "stalled", f"no step in a job for {age_s:.0f} s")
        elif not worker.pinged and worker.id in self.workers:
            worker.pinged = True
            self._spawn(self._ping(worker))

    async def _ping(self, worker: Worker) -> None:
        boot = worker.boot
        try:
            pulse = await worker.handle.ping()
        except WorkerLostError as lost:
            if worker.boot == boot:
                self.died(worker, f"died: {lost}")
        else:
            self._seen(worker, pulse)
        finally:
            worker.pinged = False

    def _seen(self, worker: Worker, pulse: Pulse) -> None:
        if pulse.boot != worker.boot:
            if worker.info is not None:
                self.died(worker, "restarted unnoticed", alive=pulse.jobs)
            return
        worker.seen_s = self._clock()
        for job_id, progress in pulse.jobs.items():
            if (entry := worker.jobs.get(job_id)) is not None:
                entry.progress = progress
        stalls = _oldest_step(worker) >= self._limits.stall_timeout_s
        worker.stalled = worker.stalled + 1 if stalls else 0
        if worker.phase is WorkerPhase.SUSPECT and worker.info is not None:
            self._set_up(worker, worker.info)

    def _describe(self, worker: Worker) -> None:
        if not worker.describing:
            worker.describing = True
            self._spawn(self._ask_what_it_is(worker))

    async def _ask_what_it_is(self, worker: Worker) -> None:
        try:
            if self._storages.problems or worker.info is not None:
                await self._storages.look()
            info = await worker.handle.describe(self._storages.marks)
        except Exception as error:  # noqa: BLE001 - also of a plugin that cannot be imported there
            _log.info("worker %s is not up: %r", worker.id, error)
            if worker.id in self.workers and worker.info is None:
                self.note(worker, f"it cannot start: {str(error) or repr(error)}")
        else:
            self._up(worker, info)
        finally:
            worker.describing = False

    def _up(self, worker: Worker, info: WorkerInfo) -> None:
        if worker.id not in self.workers or worker.phase is WorkerPhase.DRAINING:
            return
        if info.boot == worker.killed_boot:
            return  # it is about to end; the next tick asks again
        if worker.info is not None and worker.info.boot != info.boot:
            return  # it has restarted, which the next ping finds out
        worker.seen_s = self._clock()
        self._set_up(worker, info)

    def _set_up(self, worker: Worker, info: WorkerInfo) -> None:
        """Let a worker that has answered take the jobs that it can."""
        problems = {**info.problems, **self._storages.problems}
        for storage, problem in problems.items():
            self.note(worker, f"storage {storage}: {problem}")
        worker.info = attrs.evolve(info, problems=problems)
        blind = bool(problems) and len(problems) == len(self._storages.names)
        worker.phase = WorkerPhase.UNFIT if blind else WorkerPhase.READY
        self.formats.update(info.formats)
        self._changed()


def _oldest_step(worker: Worker) -> float:
    return max((entry.progress.age_s for entry in worker.jobs.values()), default=0.0)
