"""The compaction service ``ray``: sends jobs to gateways, and runs the others in this process."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.endpoints import Endpoints, KnownEndpoints
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.job_follower import (
    Ending,
    Failed,
    JobFollower,
    Lost,
    NoEndpoint,
    NotGiven,
)
from forebay_compaction_ray.client.tracked import TrackedJob
from forebay_compaction_ray.events import shown
from forebay_compaction_ray.options import PREFIX, SETTINGS, RemoteOptions
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.compaction.local_service import LocalCompactionService
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.checksummed import TornObjectError
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.contract.compactor import Compactor, VerifyingCompactor
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import CorruptStateError, ForebayError, StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import Setting

_log = logging.getLogger(__name__)

_THREADS: Final = "forebay-remote-compaction"
_INFLIGHT: Final = 4
"""Jobs that are followed concurrently; further ones wait for a thread."""
_REMEMBERED: Final = 256
_FIRST_ANSWER_S: Final = 0.25
"""Longest wait of a task for the state of a job that another process submitted."""
_FAILED_S: Final = 30.0
"""How long an abandoned job fails each task that asks about it. Spark's retries are over by then,
and a query that is restarted in the same worker processes can submit it again."""
_END_S: Final = 5.0


class RemoteCompactionService(CompactionService):
    """Sends jobs to gateways. A call waits for the network at most a quarter of a second.

    Jobs continue when this process ends. The next task that opens the state asks the gateways for
    them, and finds their results in storage in any case. A job that no gateway takes, or that has
    failed as often as the settings allow, is compacted by a thread of this process or fails the
    task, according to ``request.failure-strategy``. Neither hides a permanent fault or corruption.
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
    ) -> None:
        """Send jobs of ``storage``, the state directory. Opens nothing yet."""
        self._find: Final = find_compactor or plugins().compactor
        self._options: Final = options
        self._clock: Final = clock
        self._storage: Final = storage
        self._local: Final = LocalCompactionService(storage, self._find)
        self._endpoints: Final = KnownEndpoints(
            Endpoints(storage), options.addresses, clock=clock, warn=self._endpoints_unread
        )
        self._client: Final = f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._jobs: OrderedDict[str, TrackedJob] = OrderedDict()
        self._gateways: dict[str, Gateway] = {}
        self._turn = 0
        self._lock: Final = threading.Lock()
        self._job_threads: Final = DaemonPool(_THREADS, _INFLIGHT)
        self._call_threads: Final = DaemonPool(_THREADS)
        self.counters: Final = Counts()
        """Events so far, by name: see `EVENTS`. Each submission reports them to its gateway."""

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> RemoteCompactionService:
        """Return a client without threads and connections; reads the files that options name."""
        return cls(storage, RemoteOptions.of(options))

    # -- the contract -------------------------------------------------------------------------

    def submit(self, job: CompactionJob) -> None:
        with self._lock:
            if job.id in self._jobs:
                return
            tracked = self._jobs[job.id] = TrackedJob(job.id, job)
            self._forget_some()
        if sum(file.size for file in job.inputs) < self._options.min_bytes:
            self.counters.add("small")
            self._compact_here(tracked, job)
        elif self._options.fall_back and job.attempt > self._options.request_retries + 1:
            self._give_up(tracked, job, f"{job.attempt - 1} attempts have failed", "attempts")
        else:
            self.counters.add("submitted")
            if job.attempt > 1:
                self.counters.add("retries")
            self._job_threads.do(lambda: self._send(tracked, job))

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        with self._lock:
            tracked = self._remembered(job_id)
            if tracked is None:
                tracked = self._jobs[job_id] = TrackedJob(job_id, None)
                self._forget_some()
                self._job_threads.do(lambda: self._adopt(tracked))
        if tracked.job is None and not tracked.asked.is_set() and any(self._answering().values()):
            tracked.asked.wait(max(timeout_s, _FIRST_ANSWER_S))
        began_s = self._clock()
        status = tracked.wait(timeout_s)
        if tracked.local:
            left_s = timeout_s - (self._clock() - began_s)
            return self._local.poll(job_id, max(0.0, left_s))
        if tracked.nowhere.is_set():
            self._forget(job_id)  # the next poll asks the gateways again
        return status

    def abort(self, job_id: str) -> None:
        with self._lock:
            tracked = self._jobs.get(job_id)
        if tracked is not None and tracked.local:
            self._local.abort(job_id)
        elif tracked is not None and tracked.job is not None:
            tracked.drop()
            self._call_threads.do(lambda: self._tell(tracked.address, lambda g: g.abort(job_id)))
        else:
            self._call_threads.do(lambda: self._tell("", lambda g: g.abort(job_id)))

    def release(self, job_id: str) -> None:
        tracked = self._forget(job_id)
        if tracked is not None and tracked.local:
            self._local.release(job_id)
            return
        address = ""
        if tracked is not None:
            tracked.drop()
            if tracked.forgotten:
                return
            address = tracked.address
        self._call_threads.do(lambda: self._tell(address, lambda g: g.release(job_id)))

    def discard(self, job_id: str) -> None:
        self.counters.add("stale")
        self.release(job_id)

    def verify(self, job: CompactionJob, result: CompactionResult) -> None:
        with self._lock:
            tracked = self._jobs.get(job.id)
        if tracked is not None and (tracked.verified or tracked.local):
            return
        try:
            self._read_outputs(job, result)
        except CorruptStateError:
            self.counters.add("verify_failures")
            raise

    def metrics(self) -> Mapping[str, float]:
        """Return the events that gateways receive, and the gauges ``inflight``, ``endpoint_up``.

        ``inflight`` counts jobs that are at a gateway or on their way to one. An endpoint is up
        while its breaker is closed, which includes one that has not been used yet.
        """
        with self._lock:
            jobs = list(self._jobs.values())
        inflight = sum(not (job.local or job.status.phase.ended) for job in jobs)
        up = {
            shown("endpoint_up", (("endpoint", address),)): float(answers)
            for address, answers in self._answering().items()
        }
        return {**self.counters.all(), "inflight": inflight, **up}

    def close(self) -> None:
        """Release connections and threads. Jobs at gateways continue."""
        with self._lock:
            tracked, gateways = list(self._jobs.values()), list(self._gateways.values())
        self._call_threads.close(_END_S if self._gateways else 0.0)
        for job in tracked:
            job.stop.set()
        for gateway in gateways:
            gateway.close()
        self._job_threads.close(_END_S)
        self._local.close()

    def addresses(self) -> tuple[str, ...]:
        """The effective gateways, as this process last read them."""
        return self._endpoints.last_known()

    # -- job threads --------------------------------------------------------------------------

    def _send(self, tracked: TrackedJob, job: CompactionJob) -> None:
        follower = self._follower(tracked)
        try:
            ending = follower.run(job)
        except ForebayError as error:
            ending = Lost(str(error))
        self._settle(tracked, job, ending)

    def _adopt(self, tracked: TrackedJob) -> None:
        try:
            follower = self._follower(tracked)
            found = follower.find()
            if found is None:
                tracked.nowhere.set()
                return
            tracked.address = found.gateway.address
            if not found.view.phase.ended:
                tracked.asked.set()
            self._settle(tracked, None, follower.follow(found.gateway, found.view))
        finally:
            tracked.wake()

    def _settle(self, tracked: TrackedJob, job: CompactionJob | None, ending: Ending) -> None:
        if tracked.stop.is_set():
            tracked.set(CompactionPhase.ABORTED)
        elif isinstance(ending, NoEndpoint) and job is not None:
            self._stay(tracked, job)
        elif isinstance(ending, NotGiven) and job is not None:
            self._give_up(tracked, job, ending.why, ending.cause)
        elif isinstance(ending, NotGiven | Lost):
            self._lose(tracked, job, ending.why)
        elif isinstance(ending, Failed):
            self.counters.add("failed")
            _log.error("compaction %s failed: %s", tracked.id, ending.why)
            tracked.set(CompactionPhase.FAILED, ending.fault, ending.why)
        elif job is None:
            self._done(tracked)
        else:
            self._check(tracked, job)

    def _check(self, tracked: TrackedJob, job: CompactionJob) -> None:
        """Verify a job that its gateway reports done, on this thread: no task waits for it."""
        try:
            self._read_outputs(job, job.stored_result(self._storage.child(job.operator)))
        except TornObjectError as torn:
            self._lose(tracked, job, f"the gateway reports it done, but {torn}")
        except CorruptStateError as corrupt:
            self.counters.add("verify_failures")
            tracked.set(CompactionPhase.FAILED, CompactionFault.CORRUPTION, str(corrupt))
        except ObjectNotFoundError as missing:
            self._lose(tracked, job, f"the gateway reports it done, but {missing}")
        except StorageError as error:
            _log.warning("compaction %s is verified when it is installed: %s", job.id, error)
            self._done(tracked)
        else:
            tracked.verified = True
            self._done(tracked)

    def _read_outputs(self, job: CompactionJob, result: CompactionResult) -> None:
        """Raise `CorruptStateError` for an output that does not match the result."""
        compactor = self._find(job.format)
        if isinstance(compactor, VerifyingCompactor):
            here = self._storage.child(job.operator)
            for file in result.outputs:
                compactor.verify(file, here)

    def _done(self, tracked: TrackedJob) -> None:
        self.counters.add("done")
        tracked.set(CompactionPhase.DONE)

    def _lose(self, tracked: TrackedJob, job: CompactionJob | None, why: str) -> None:
        self.counters.add("lost")
        _log.warning("compaction %s is lost: %s", tracked.id, why)
        last = job is not None and job.attempt > self._options.request_retries
        if last and not self._options.fall_back and self._endpoints.current():
            self._fail(tracked, why)
        else:
            tracked.set(CompactionPhase.LOST, None, why)

    def _stay(self, tracked: TrackedJob, job: CompactionJob) -> None:
        """Run the job here: all gateways were removed on purpose, so the strategy is irrelevant."""
        self.counters.add("no_endpoint")
        _log.info("compaction %s runs in this process: all gateways were removed", job.id)
        self._compact_here(tracked, job)

    def _give_up(self, tracked: TrackedJob, job: CompactionJob, why: str, cause: str) -> None:
        """Apply the failure strategy to a job that no gateway has."""
        if not self._options.fall_back:
            self._fail(tracked, why)
            return
        self.counters.add("fallbacks", cause)
        _log.warning("compaction %s runs in this process: %s", job.id, why)
        self._compact_here(tracked, job)

    def _fail(self, tracked: TrackedJob, why: str) -> None:
        self.counters.add("failed")
        tracked.gave_up_s = self._clock()
        what = f"remote compaction gave up, and request.failure-strategy is 'fail': {why}"
        tracked.set(CompactionPhase.FAILED, CompactionFault.UNAVAILABLE, what)

    def _compact_here(self, tracked: TrackedJob, job: CompactionJob) -> None:
        try:
            self._local.submit(job)
        except (ForebayError, ValueError) as error:
            tracked.set(CompactionPhase.FAILED, CompactionFault.PERMANENT, str(error))
        else:
            tracked.turn_local()

    def _tell(self, address: str, what: Callable[[Gateway], object]) -> None:
        """Call the gateway that has the job, or all gateways if that is unknown."""
        gateways = [self._gateway(address)] if address else self._in_turn()
        for gateway in gateways:
            if not gateway.breaker.allows():
                continue
            try:
                what(gateway)
            except (UnreachableError, RefusedError) as error:
                _log.info("%s", error)

    # -- gateways -----------------------------------------------------------------------------

    def _follower(self, tracked: TrackedJob) -> JobFollower:
        return JobFollower(
            tracked, self._options, self._in_turn, self._client, self.counters, clock=self._clock
        )

    def _in_turn(self) -> Sequence[Gateway]:
        """Return the effective gateways, beginning with another one each time."""
        addresses = self._endpoints.current()
        if not addresses:
            return []
        with self._lock:
            self._turn += 1
            first = self._turn % len(addresses)
        return [self._gateway(address) for address in (*addresses[first:], *addresses[:first])]

    def _gateway(self, address: str) -> Gateway:
        options = self._options
        with self._lock:
            if address not in self._gateways:
                self._gateways[address] = Gateway(
                    address,
                    options.security,
                    timeout_s=options.connect_timeout_s,
                    clock=self._clock,
                )
            return self._gateways[address]

    def _answering(self) -> dict[str, bool]:
        """Return, for each effective gateway, whether it answers, as far as this process knows."""
        with self._lock:
            known = dict(self._gateways)
        return {a: a not in known or known[a].breaker.closed for a in self.addresses()}

    def _endpoints_unread(self, why: str) -> None:
        _log.warning("the list of compaction gateways cannot be read: %s", why)

    def _remembered(self, job_id: str) -> TrackedJob | None:
        """Return the job; forget one given up long ago, so that gateways are asked again."""
        tracked = self._jobs.get(job_id)
        if tracked is None or tracked.gave_up_s is None:
            return tracked
        if self._clock() - tracked.gave_up_s < _FAILED_S:
            return tracked
        del self._jobs[job_id]
        return None

    def _forget(self, job_id: str) -> TrackedJob | None:
        with self._lock:
            return self._jobs.pop(job_id, None)

    def _forget_some(self) -> None:
        ended = [job_id for job_id, t in self._jobs.items() if t.status.phase.ended and not t.local]
        for job_id in ended[: max(0, len(self._jobs) - _REMEMBERED)]:
            del self._jobs[job_id]
