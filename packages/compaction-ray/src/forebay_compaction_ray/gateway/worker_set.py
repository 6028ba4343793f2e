"""Starts, describes, pings, kills and removes the workers of a gateway."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_compaction_ray.gateway.single_flight import SingleFlight
from forebay_compaction_ray.gateway.storages import GatewayStorages
from forebay_compaction_ray.gateway.worker_handle import WorkerHandle, WorkerLostError
from forebay_compaction_ray.gateway.workers import GatewayJob, Worker, WorkerPhase
from forebay_compaction_ray.messages import JobProgress, Submission, WorkerInfo
from forebay_compaction_ray.protocol import RefusedError

T = TypeVar("T")

_log = logging.getLogger(__name__)


class WorkerSet:
    """All workers. A worker counts as up only after it has described itself."""

    def __init__(
        self,
        start: Callable[[], WorkerHandle],
        limits: GatewayLimits,
        storages: GatewayStorages,
        *,
        clock: Callable[[], float],
        metrics: Metrics,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
        lost: Callable[[GatewayJob, str, str], None],
    ) -> None:
        """``start`` starts a worker, which may take any time, or for ever without free resources.

        ``changed`` is called when a worker can take jobs, ``lost`` for each job of a dead one;
        it gets the job, a word for the cause, and a sentence.
        """
        self._start: Final = start
        self._limits: Final = limits
        self._storages: Final = storages
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._spawn: Final = spawn
        self._changed: Final = changed
        self._lost: Final = lost
        self._numbers: Final = itertools.count()
        self.workers: Final[dict[str, Worker]] = {}
        self._looks: Final = SingleFlight(self._look_at_all)
        self._looks_soon = False
        self.formats: set[str] = set()
        """File formats that some present or past worker can compact."""

    @property
    def have_room(self) -> bool:
        """Whether some worker could be given another job now."""
        return any(worker.has_room(self._limits.slots) for worker in self.workers.values())

    def takers(self, job: GatewayJob) -> Sequence[Worker]:
        """Return workers that can be given the job now, those to avoid only if no other suits it.

        Workers of other machines come first: workers of one share its mounts and its faults. An
        earlier run of the job may still end at one, which does not get it then.
        """
        suitable = self._suitable(job.submission)
        avoid = set(job.submission.avoid)
        nodes = {w.info.node for w in self.workers.values() if w.info.boot in avoid}
        elsewhere = [w for w in suitable if w.info.node not in nodes]
        others = elsewhere or [w for w in suitable if w.info.boot not in avoid]
        able = [w for w in others or suitable if w.has_room(self._limits.slots)]
        return [worker for worker in able if job.id not in worker.jobs]

    def refusal(self, submission: Submission) -> RefusedError | None:
        """Return why such a job should not wait here, if no current worker can take it."""
        if self._suitable(submission):
            return None
        if self.formats and submission.job.format not in self.formats:
            return RefusedError(
                "unknown_format",
                f"no worker has a compactor for files of format {submission.job.format!r}; "
                f"installed there: {', '.join(sorted(self.formats))}",
            )
        name = submission.storage
        problems = [worker.info.problems.get(name, "") for worker in self.workers.values()]
        if problems and all(problems):
            what = f"no worker can use the storage {name!r}: {problems[0]}"
            return RefusedError("no_storage", what)
        return None

    def _suitable(self, submission: Submission) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.suits(submission)]

    async def look(self) -> None:
        """Read the marks of all storages again, here and at the workers.

        A mark that neither the gateway nor any worker finds was deleted, or its directory: the
        storage is marked again. While a worker finds it, only the others lack the directory.
        One that does not answer may find it, until it is killed, and so may the first one that is
        still to start. Callers that wait share the next look.
        """
        await self._looks()

    async def _look_at_all(self) -> None:
        await self._storages.look()
        found = await self._describe_all()
        asked = {w.id for w in self.workers.values() if w.phase is not WorkerPhase.STARTING}
        if not asked or not found.keys() >= asked:
            return
        gone = [n for n in self._storages.doubted if all(n in found[w].problems for w in asked)]
        for name in gone:
            await self._storages.mark_again(name)
        if gone:
            await self._describe_all()

    async def look_at(self, worker: Worker) -> None:
        """Let a worker read the marks of its storages again."""
        await self._ask_what_it_is(worker)

    def blame(self, worker: Worker, storage: str, problem: str) -> None:
        """Give a worker no more jobs of a storage that it has lost; look who else has."""
        problems = {**worker.info.problems, storage: problem}
        self._set_up(worker, attrs.evolve(worker.info, problems=problems))
        self._look_soon()

    def note(self, worker: Worker, error: str) -> None:
        """Keep the last error of a worker, for display."""
        worker.error, worker.error_s = error, self._clock()

    def counts(self) -> dict[str, int]:
        """Return the number of workers in each state."""
        found = Counter(worker.phase for worker in self.workers.values())
        return {phase.value: found[phase] for phase in WorkerPhase}

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

    def _begin(self, error: str = "") -> None:
        now, worker_id = self._clock(), f"w{next(self._numbers)}"
        worker = Worker(id=worker_id, handle=self._start(), seen_s=now, error=error, error_s=now)
        self.workers[worker_id] = worker
        self._describe(worker)

    def _end_if_idle(self, worker: Worker) -> None:
        if worker.phase is WorkerPhase.DRAINING and not worker.jobs:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        worker.phase = WorkerPhase.DRAINING
        self.end(worker, "removed", "was taken away")

    # -- liveness -----------------------------------------------------------------------------

    def tick(self) -> None:
        """Ping all workers, handle the ones that did not answer, and check problems again."""
        if self._storages.problems or self._is_blind:
            self._look_soon()
        for worker in list(self.workers.values()):
            self._look_after(worker)

    def end(self, worker: Worker, cause: str, why: str) -> None:
        """End a worker's process, unless it was ended before; its jobs are lost.

        Another worker takes its place, unless it was to end anyway.
        """
        if self.workers.pop(worker.id, None) is None:
            return
        worker.handle.kill()
        what = f"worker {worker.id} {why}"
        if worker.phase is not WorkerPhase.DRAINING:
            _log.warning("%s", what)
            self._metrics["worker_restarts"].inc()
            self._begin(error=what)
        for entry in worker.jobs.values():
            self._lost(entry, cause, f"its {what}")

    def _look_after(self, worker: Worker) -> None:
        if worker.phase is WorkerPhase.STARTING or worker.info.problems:
            self._describe(worker)
        now, limits = self._clock(), self._limits
        silent_s = now - worker.seen_s
        if worker.phase is WorkerPhase.STARTING:
            return  # it may wait for room for any time
        if worker.phase is WorkerPhase.DRAINING:
            self._end_if_idle(worker)
            began_s = now if worker.draining_s is None else worker.draining_s
            if now - began_s >= limits.drain_timeout_s:
                self._remove(worker)
        elif silent_s >= limits.ping_every_s * limits.ping_misses:
            worker.phase = WorkerPhase.SUSPECT
        if silent_s >= limits.stall_timeout_s:
            self.end(worker, "silent", f"was killed: no answer for {silent_s:.0f} s")
        elif (still_s := worker.still_s(now)) >= limits.stall_timeout_s:
            self.end(worker, "stalled", f"was killed: no step in a job for {still_s:.0f} s")
        elif not worker.pinged and worker.id in self.workers:
            worker.pinged = True
            self._spawn(self._ping(worker))

    async def ask(self, worker: Worker, answer: Awaitable[T]) -> T | None:
        """Return a worker's answer; ``None`` if the worker has exited without one."""
        try:
            return await answer
        except WorkerLostError as lost:
            self.end(worker, "died", f"died: {lost}")
            return None

    async def _ping(self, worker: Worker) -> None:
        jobs = await self.ask(worker, worker.handle.ping())
        worker.pinged = False
        if jobs is not None:
            self._seen(worker, jobs)

    def _seen(self, worker: Worker, jobs: Mapping[str, JobProgress]) -> None:
        worker.seen_s = self._clock()
        for job_id in jobs.keys() & worker.jobs.keys():
            if worker.jobs[job_id].progress != jobs[job_id]:
                worker.jobs[job_id].moved_s = worker.seen_s
            worker.jobs[job_id].progress = jobs[job_id]
        if worker.phase is WorkerPhase.SUSPECT:
            self._set_up(worker, worker.info)

    @property
    def _is_blind(self) -> bool:
        """Whether each worker that is up has a problem with a storage."""
        up = [w for w in self.workers.values() if w.phase is not WorkerPhase.STARTING]
        return bool(up) and all(worker.info.problems for worker in up)

    def _look_soon(self) -> None:
        if not self._looks_soon:
            self._looks_soon = True
            self._spawn(self._look_now())

    async def _look_now(self) -> None:
        try:
            await self.look()
        finally:
            self._looks_soon = False

    def _describe(self, worker: Worker) -> None:
        if not worker.describing:
            worker.describing = True
            self._spawn(self._describe_once(worker))

    async def _describe_once(self, worker: Worker) -> None:
        try:
            if self._storages.unusable:
                await self._storages.look()
            await self._ask_what_it_is(worker)
        finally:
            worker.describing = False

    async def _describe_all(self) -> Mapping[str, WorkerInfo]:
        """Return worker → its current description; wait only shortly for each."""
        found: dict[str, WorkerInfo] = {}

        async def ask(worker: Worker) -> None:
            if (info := await self._ask_what_it_is(worker)) is not None:
                found[worker.id] = info

        with suppress(TimeoutError):
            patience_s = self._limits.check_s / 2  # so that its caller has an answer in time
            async with asyncio.timeout(patience_s), asyncio.TaskGroup() as group:
                for worker in self.workers.values():
                    if worker.phase is not WorkerPhase.STARTING:
                        group.create_task(ask(worker))
        return found

    async def _ask_what_it_is(self, worker: Worker) -> WorkerInfo | None:
        """Let a worker describe itself; return ``None`` if it cannot."""
        try:
            info = await self.ask(worker, worker.handle.describe(self._storages.marks))
        except Exception as error:  # noqa: BLE001 - also of a plugin that cannot be imported there
            _log.info("worker %s is not up: %r", worker.id, error)
            if worker.phase is WorkerPhase.STARTING:
                self.note(worker, f"it cannot start: {str(error) or repr(error)}")
            return None
        worker.seen_s = self._clock()
        if info is not None:
            self._set_up(worker, info)
        return info

    def _set_up(self, worker: Worker, info: WorkerInfo) -> None:
        """Let a worker that has answered take the jobs that it can."""
        problems = {**info.problems, **self._storages.unusable}
        for storage, problem in problems.items():
            self.note(worker, f"storage {storage}: {problem}")
        worker.info = attrs.evolve(info, problems=problems)
        blind = bool(problems) and len(problems) == len(self._storages.names)
        if worker.phase is not WorkerPhase.DRAINING:
            worker.phase = WorkerPhase.UNFIT if blind else WorkerPhase.READY
        self.formats.update(info.formats)
        self._changed()
