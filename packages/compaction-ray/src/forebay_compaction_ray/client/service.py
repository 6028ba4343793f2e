"""The compaction service ``ray``: sends jobs to gateways, and runs the others in this process."""

from __future__ import annotations

import functools
import os
import platform
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.gateway import ANSWER_S, Gateway
from forebay_compaction_ray.client.gateways import Gateways
from forebay_compaction_ray.client.job import TrackedJob
from forebay_compaction_ray.client.lifecycle import Event, Kind, State, Trouble
from forebay_compaction_ray.client.walk import Surroundings, Walk
from forebay_compaction_ray.events import ENDPOINT_UP, IN_FLIGHT, key_of, shown
from forebay_compaction_ray.options import PREFIX, SETTINGS, RemoteOptions
from forebay_state_api.compaction.local_service import LocalCompactionService
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.contract.compactor import Compactor
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import Setting

_THREADS: Final = "forebay-remote-compaction"
_INFLIGHT: Final = 64
"""Jobs that are followed concurrently: more than a process ever has, so that none waits here."""
_REMEMBERED: Final = 256
_FIRST_ANSWER_S: Final = 0.25
"""Longest wait of a task for the state of a job that another process submitted; once."""
_END_S: Final = 5.0
_HERE: Final = {
    CompactionPhase.DONE: Event.DONE_HERE,
    CompactionPhase.FAILED: Event.FAILED_HERE,
}


class RemoteCompactionService(CompactionService):
    """Sends jobs to gateways. A call waits for the network at most a quarter of a second.

    Jobs continue when this process ends. The next task that opens the state asks the gateways for
    them, and finds their results in storage in any case. A job that no gateway takes, or that has
    failed as often as the settings allow, is compacted by a thread of this process or fails the
    task, according to ``request.failure-strategy``: see `forebay_compaction_ray.client.lifecycle`.
    """

    name: ClassVar[str] = "ray"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    options: ClassVar[Mapping[str, Setting]] = SETTINGS
    options_prefix: ClassVar[str] = PREFIX
    required_option: ClassVar[str] = "address"

    def __init__(
        self,
        storage: ObjectStorage,
        options: RemoteOptions,
        *,
        find_compactor: Callable[[str], Compactor] | None = None,
        clock: Callable[[], float] = time.monotonic,
        answer_s: float = ANSWER_S,
    ) -> None:
        """Send jobs of ``storage``, the state directory. Opens nothing yet.

        ``answer_s`` is the longest wait for a connection and an answer of a gateway.
        """
        self.counters: Final = Counts()
        """Events so far, by name: see `EVENTS`. Each submission reports them to its gateway."""
        self.gateways: Final = Gateways(
            storage, options, self.counters, clock=clock, answer_s=answer_s
        )
        """The gateways, as this process sees them."""
        find = find_compactor or plugins().compactor
        self._options: Final = options
        self._clock: Final = clock
        self._local: Final = LocalCompactionService(storage, find)
        self._here: Final = Surroundings(
            storage=storage,
            options=options,
            gateways=self.gateways,
            local=self._local,
            find_compactor=find,
            counts=self.counters,
            client=f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}",
            clock=clock,
        )
        self._jobs: OrderedDict[str, TrackedJob] = OrderedDict()
        self._lock: Final = threading.Lock()
        self._walks: Final = DaemonPool(_THREADS, _INFLIGHT)
        self._calls: Final = DaemonPool(_THREADS)

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> RemoteCompactionService:
        """Return a client without threads and connections; reads the files that options name."""
        return cls(storage, RemoteOptions.of(options))

    def submit(self, job: CompactionJob) -> None:
        stays = self._reason_to_stay(job)
        state = State.OFFERED if stays is None else State.TROUBLED
        tracked = TrackedJob(job.id, job, state, self._clock(), stays)
        with self._lock:
            if job.id in self._jobs:
                return
            self._remember(tracked)
        if stays is not None:
            Walk(tracked, self._here).run()  # the local service runs it on its own thread
            return
        self.counters.add("submitted")
        if not self._walks.do_if_possible(Walk(tracked, self._here).run):
            self.counters.add("lost")
            tracked.advance(Event.HAND_BACK, None, "no thread was left for it")

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        tracked, is_new = self._tracked(job_id)
        if is_new and any(self.gateways.up().values()):
            tracked.wait(lambda state: state is not State.ASKED, _FIRST_ANSWER_S)
        began_s = self._clock()
        state = tracked.wait(lambda state: state.ended or state is State.LOCAL, timeout_s)
        if state is State.LOCAL:
            self._hear_local(tracked, max(0.0, timeout_s - (self._clock() - began_s)))
        elif state is State.UNKNOWN:
            self._forget(job_id)  # the next poll asks the gateways again
        return tracked.status

    def abort(self, job_id: str) -> None:
        with self._lock:
            tracked = self._jobs.get(job_id)
        if tracked is not None and tracked.state is State.LOCAL:
            self._local.abort(job_id)
            return
        if tracked is not None and tracked.job is not None:
            tracked.advance(Event.UNWANTED)
        self._tell(tracked, lambda gateway: gateway.abort(job_id))

    def release(self, job_id: str) -> None:
        tracked = self._forget(job_id)
        self._local.release(job_id)
        if tracked is None or tracked.address:
            self._tell(tracked, lambda gateway: gateway.release(job_id))
        if tracked is not None:
            tracked.advance(Event.UNWANTED)

    def discard(self, job_id: str) -> None:
        self.counters.add("stale")
        self.release(job_id)

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:
        with self._lock:
            tracked = self._jobs.get(job.id)
        if tracked is not None and tracked.state in (State.LOCAL, State.DONE):
            return
        try:
            self._here.read(job, result.outputs)
        except CorruptStateError:
            self.counters.add("verify_failures")
            raise

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of `CLIENT` by key.

        An endpoint is up unless its last call was not answered, which includes one that has not
        been used yet.
        """
        with self._lock:
            jobs = list(self._jobs.values())
        in_flight = sum(not (job.state is State.LOCAL or job.state.ended) for job in jobs)
        counts = {key_of(event): number for event, number in self.counters.all().items()}
        up = {
            shown(ENDPOINT_UP.key, (("endpoint", address),)): float(answers)
            for address, answers in self.gateways.up().items()
        }
        return {**counts, IN_FLIGHT.key: in_flight, **up}

    def close(self) -> None:
        """Release connections and threads. Jobs at gateways continue."""
        with self._lock:
            jobs = list(self._jobs.values())
        self._calls.close(_END_S)
        for tracked in jobs:
            if tracked.state is not State.LOCAL:
                tracked.advance(Event.LEAVE)
        self.gateways.close()
        self._walks.close(_END_S)
        self._local.close()

    def _reason_to_stay(self, job: CompactionJob) -> Trouble | None:
        """Return why a job is not offered to any gateway, if it is not."""
        if sum(file.size for file in job.inputs) < self._options.min_bytes:
            return Trouble(Kind.STAYS, "it is small", "small")
        if self._options.fall_back and job.attempt > self._options.request_retries + 1:
            return Trouble(Kind.FAILED, f"{job.attempt - 1} attempts have failed", "attempts")
        return None

    def _tracked(self, job_id: str) -> tuple[TrackedJob, bool]:
        """Return a job, and whether it was not known: then the gateways are asked about it."""
        with self._lock:
            tracked = self._jobs.get(job_id)
            if tracked is not None:
                return tracked, False
            tracked = TrackedJob(job_id, None, State.ASKED, self._clock())
            self._remember(tracked)
        if not self._walks.do_if_possible(Walk(tracked, self._here).run):
            tracked.advance(Event.NOWHERE)
        return tracked, True

    def _hear_local(self, tracked: TrackedJob, timeout_s: float) -> None:
        status = self._local.poll(tracked.id, timeout_s)
        if status.phase.ended:
            event = _HERE.get(status.phase, Event.STOPPED_HERE)
            tracked.advance(event, status.fault, status.message)
            self._local.release(tracked.id)

    def _tell(self, tracked: TrackedJob | None, what: Callable[[Gateway], object]) -> None:
        address = "" if tracked is None else tracked.address
        self._calls.do_if_possible(functools.partial(self.gateways.tell, address, what))

    def _remember(self, tracked: TrackedJob) -> None:
        self._jobs[tracked.id] = tracked
        ended = [job_id for job_id, t in self._jobs.items() if t.state.ended]
        for job_id in ended[: max(0, len(self._jobs) - _REMEMBERED)]:
            del self._jobs[job_id]

    def _forget(self, job_id: str) -> TrackedJob | None:
        with self._lock:
            return self._jobs.pop(job_id, None)
