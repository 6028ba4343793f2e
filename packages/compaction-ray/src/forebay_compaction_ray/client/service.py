"""The compaction service ``ray``: sends jobs to gateways, and runs the others in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from forebay_compaction_ray.client.client_context import ClientContext
from forebay_compaction_ray.client.gateway import ANSWER_S
from forebay_compaction_ray.client.gateways import Gateways
from forebay_compaction_ray.client.job import TrackedJob
from forebay_compaction_ray.client.lifecycle import Event, State
from forebay_compaction_ray.events import key_of
from forebay_compaction_ray.options import PREFIX, SETTINGS, RemoteOptions
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionService,
    CompactionStatus,
    ServiceOutage,
)
from forebay_state_api.contract.compactor import Compactor
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import CorruptStateError, StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import Setting

_THREADS: Final = 64
"""Jobs that are followed concurrently: more than a process ever has, so that no job waits here."""
_REMEMBERED: Final = 256
_FIRST_ANSWER_S: Final = 0.25
"""Longest wait of a task for the state of a job that another process submitted; once."""
_END_S: Final = 5.0
_AT_GATEWAY: Final = (State.QUEUED, State.RUNNING)


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
        self._here: Final = ClientContext(
            storage=storage,
            options=options,
            find_compactor=find_compactor or plugins().compactor,
            clock=clock,
        )
        self.counters: Final = self._here.counts
        """Events so far, by name: see `EVENTS`. Each submission reports them to its gateway."""
        self.gateways: Final = Gateways(self._here, answer_s)
        """The gateways, as this process sees them."""
        self._jobs: Final[dict[str, TrackedJob]] = {}
        self._missing_since_s: Final[dict[str, float]] = {}
        """Jobs of other processes that no gateway had when they were asked → since when."""
        self._lock: Final = threading.Lock()
        self._threads: Final = DaemonPool("forebay-remote-compaction", _THREADS)

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> RemoteCompactionService:
        """Return a client without threads and connections; reads the files that options name."""
        return cls(storage, RemoteOptions.of(options))

    def submit(self, job: CompactionJob) -> None:
        tracked, is_new = self._tracked(job.id, job)
        if not is_new:
            return
        if sum(file.size for file in job.inputs) < self._here.options.min_bytes:
            self.counters.add("small")
            tracked.advance(Event.FALL_BACK)
        else:
            self.counters.add("submitted")
        if not self._threads.do_if_possible(tracked.run):
            self.counters.add("lost")
            tracked.advance(Event.HAND_BACK, None, "no thread was left for it")

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        tracked, is_new = self._tracked(job_id)
        if is_new:
            if not self._threads.do_if_possible(tracked.run):
                tracked.advance(Event.NOWHERE)
            else:
                tracked.wait(lambda state: state is not State.ASKED, _FIRST_ANSWER_S)
        state = tracked.wait(lambda state: state.ended, timeout_s)
        if state is State.UNKNOWN:
            self._jobs.pop(job_id, None)  # the next poll asks the gateways again
            return self._missing(tracked.status)
        if state is not State.ASKED:
            self._missing_since_s.pop(job_id, None)
        return tracked.status

    def abort(self, job_id: str) -> None:
        self._end(job_id, self._jobs.get(job_id))

    def release(self, job_id: str) -> None:
        self._end(job_id, self._jobs.pop(job_id, None))

    def discard(self, job_id: str) -> None:
        self.counters.add("stale")
        self.release(job_id)

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:
        tracked = self._jobs.get(job.id)
        if tracked is not None and tracked.job is not None and tracked.state is State.DONE:
            return  # its outputs were read on the way
        try:
            self._here.read(job, result.outputs)
        except CorruptStateError:
            self.counters.add("verify_failures")
            raise

    def detach(self) -> None:
        """Wait until each job of this process is at a gateway, or done here."""
        for tracked in list(self._jobs.values()):
            if tracked.job is not None:
                tracked.wait(lambda state: state.ended or state in _AT_GATEWAY, None)
            if tracked.status.fault is CompactionFault.UNAVAILABLE:
                raise StorageError(f"compaction {tracked.id} failed: {tracked.status.message}")

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics of `REPORTED` by key."""
        return {key_of(event): number for event, number in self.counters.all().items()}

    def outage(self) -> ServiceOutage | None:
        return self._here.outage.present

    def close(self) -> None:
        """Release connections and threads. Jobs at gateways continue."""
        for tracked in list(self._jobs.values()):
            tracked.advance(Event.LEAVE)
        self.gateways.close()
        self._threads.close(_END_S)

    def _missing(self, status: CompactionStatus) -> CompactionStatus:
        """Return the status of a job that no gateway has: lost, if no process can have it either.

        With the strategy `fail` a process offers a job for ``queue-timeout`` and then gives it up.
        With `fallback`, or without gateways, it may compact it for long.
        """
        options, now_s = self._here.options, self._here.clock()
        with self._lock:
            since_s = self._missing_since_s.setdefault(status.job_id, now_s)
            if len(self._missing_since_s) > _REMEMBERED:
                del self._missing_since_s[next(iter(self._missing_since_s))]
        is_awaited = now_s - since_s < options.queue_timeout_s
        if options.fall_back or is_awaited or not self.gateways.endpoints():
            return status
        why = "no gateway has it, and no process waits for one any more"
        return CompactionStatus(status.job_id, CompactionPhase.LOST, message=why)

    def _tracked(self, job_id: str, job: CompactionJob | None = None) -> tuple[TrackedJob, bool]:
        """Return the tracking of a job, and whether it is new."""
        with self._lock:
            if job_id in self._jobs:
                return self._jobs[job_id], False
            tracked = self._jobs[job_id] = TrackedJob(job_id, job, self._here, self.gateways)
            ended = [job_id for job_id, known in list(self._jobs.items()) if known.state.ended]
            for old in ended[: max(0, len(self._jobs) - _REMEMBERED)]:
                self._jobs.pop(old, None)
            return tracked, True

    def _end(self, job_id: str, tracked: TrackedJob | None) -> None:
        """End a job here and, on another thread, at its gateway, or at all gateways.

        All are asked if it is not known which one has the job.
        """
        if tracked is not None:
            tracked.advance(Event.UNWANTED)
        address = "" if tracked is None else tracked.address
        if tracked is None or address:
            self._threads.do_if_possible(partial(self.gateways.release, job_id, address))
