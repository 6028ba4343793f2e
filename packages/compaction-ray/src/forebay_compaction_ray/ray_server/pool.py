"""Workers as Ray actors: a process each, with one job per slot, that answers pings meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import ray
import ray.exceptions

from forebay_compaction_ray.gateway.worker_handle import WorkerLostError
from forebay_compaction_ray.messages import JobProgress, Outcome, Submission, WorkerInfo
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.worker.body import WorkerBody

CONTROL: Final = "control"
_CONTROL_CALLS: Final = 4


class RayWorker:
    """The handle of one actor; implements `WorkerHandle`."""

    def __init__(self, actor: Any) -> None:
        self._actor: Final = actor

    async def describe(self, marks: Mapping[str, str]) -> WorkerInfo:
        return cast("WorkerInfo", await self._control("describe", dict(marks)))

    async def run(self, submission: Submission) -> Outcome:
        return cast("Outcome", await _answer(self._actor.run.remote(submission)))

    async def ping(self) -> Mapping[str, JobProgress]:
        return cast("Mapping[str, JobProgress]", await self._control("ping"))

    async def abort(self, job_id: str) -> None:
        await self._control("abort", job_id)

    async def check(self, storage: str) -> Mapping[str, str]:
        return cast("Mapping[str, str]", await self._control("check", storage))

    def kill(self) -> None:
        ray.kill(self._actor)

    async def _control(self, method: str, *args: object) -> Any:
        call = getattr(self._actor, method).options(concurrency_group=CONTROL)
        return await _answer(call.remote(*args))


def worker_starter(spec: GatewaySpec) -> Callable[[], RayWorker]:
    """Return a function that starts an actor, which waits if no node has room for it.

    Ray neither restarts them, which is the gateway's task, nor retries calls, which would run a job
    twice. Its log of calls, which slows each job, is off; ``forebay compaction status`` shows jobs.
    """
    actor_class = ray.remote(
        concurrency_groups={CONTROL: _CONTROL_CALLS}, enable_task_events=False
    )(WorkerBody)
    placed = actor_class.options(
        num_cpus=spec.worker_cpus,
        resources=dict(spec.worker_resources),
        max_concurrency=spec.limits.slots,
        scheduling_strategy="SPREAD",
    )
    return lambda: RayWorker(placed.remote(dict(spec.storages)))


async def _answer(ref: Any) -> Any:
    try:
        return await ref
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        first, *others = str(error).strip().splitlines() or [""]
        cause = f": {others[-1].strip()}" if others else ""  # where a traceback names the error
        raise WorkerLostError(f"{type(error).__name__}: {first}{cause}") from error
