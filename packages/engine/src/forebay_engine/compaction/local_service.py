"""The ``local`` compaction service: one background thread in the worker process."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from forebay_engine.compaction.performing import TakenPrefixError, perform
from forebay_state_api.contract import CONTRACT_VERSION
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.contract.compactor import Compactor
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    NoThreadError,
    StorageError,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.threads import NO_THREAD

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob
    from forebay_state_api.contract.object_storage import ObjectStorage

_log = logging.getLogger(__name__)

FindCompactor = Callable[[str], Compactor]
"""Returns the compactor of a format, or raises `UnknownPluginError`."""

_KEPT: Final = 256
"""Ended jobs that a service remembers; the result object answers for older ones."""
_END_S: Final = 5.0
"""How long an exiting process waits for a compactor to notice that it was cancelled."""


@attrs.define
class _LocalJob:
    """A job of this process, and its status."""

    job: CompactionJob
    status: CompactionStatus
    cancelled: threading.Event = attrs.field(factory=threading.Event)


class LocalCompactionService(CompactionService):
    """Runs jobs one after another on a thread that the first submission starts.

    Only this object knows the jobs: if the process dies, unfinished jobs are left to the next
    process that opens the state. An exiting process does not wait for them: the thread is a daemon,
    and `close` waits only for the block that is being read, a few seconds at most. A job that fails
    because the process exits counts as aborted, not as failed.
    """

    name: ClassVar[str] = "local"
    contract_version: ClassVar[int] = CONTRACT_VERSION

    def __init__(self, storage: ObjectStorage, find_compactor: FindCompactor | None = None) -> None:
        """Run jobs in ``storage``, the state directory, with the installed compactors."""
        self._storage: Final = storage
        self._find_compactor: Final = find_compactor or plugins().compactor
        self._runs: dict[str, _LocalJob] = {}
        self._pool: Final = DaemonPool("forebay-compaction")
        self._changed: Final = threading.Condition()
        self._closed = False

    @classmethod
    def open(cls, storage: ObjectStorage, options: Mapping[str, Any]) -> LocalCompactionService:
        """Return a service without a thread; there are no options."""
        if options:
            raise ConfigurationError(
                f"the compaction service 'local' has no settings, got {sorted(options)}"
            )
        return cls(storage)

    def submit(self, job: CompactionJob) -> None:
        self._find_compactor(job.format)  # raises if there is none
        with self._changed:
            if self._closed:
                raise ValueError("the compaction service is closed")
            if job.id in self._runs:
                return
            run = _LocalJob(job, CompactionStatus(job.id, CompactionPhase.QUEUED))
            self._forget_oldest()
            self._runs[job.id] = run
            try:
                self._pool.do(functools.partial(self._run, run))
            except NoThreadError as fault:  # the next commit submits it again
                failed = (CompactionPhase.FAILED, fault_of(fault), str(fault))
                self._set(run, CompactionStatus(job.id, *failed))

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        with self._changed:
            self._changed.wait_for(lambda: self._status(job_id).phase.ended, timeout_s)
            return self._status(job_id)

    def abort(self, job_id: str) -> None:
        with self._changed:
            if (run := self._runs.get(job_id)) is not None:
                self._cancel(run)

    def release(self, job_id: str) -> None:
        with self._changed:
            if (run := self._runs.pop(job_id, None)) is not None:
                self._cancel(run)

    def detach(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: all(r.status.phase.ended for r in self._runs.values()))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for run in self._runs.values():
                self._cancel(run)
        self._pool.close(_END_S)

    def _status(self, job_id: str) -> CompactionStatus:
        run = self._runs.get(job_id)
        return run.status if run else CompactionStatus(job_id, CompactionPhase.UNKNOWN)

    def _forget_oldest(self) -> None:
        ended = [job_id for job_id, run in self._runs.items() if run.status.phase.ended]
        for job_id in ended[: max(0, len(ended) - _KEPT + 1)]:
            del self._runs[job_id]

    def _cancel(self, run: _LocalJob) -> None:
        run.cancelled.set()
        if run.status.phase is CompactionPhase.QUEUED:
            self._set(run, CompactionStatus(run.job.id, CompactionPhase.ABORTED))

    def _run(self, run: _LocalJob) -> None:
        with self._changed:
            if run.status.phase is not CompactionPhase.QUEUED:
                return
            self._set(run, CompactionStatus(run.job.id, CompactionPhase.RUNNING))
        self._set(run, run_here(run.job, self._find_compactor, self._storage, run.cancelled.is_set))

    def _set(self, run: _LocalJob, status: CompactionStatus) -> None:
        with self._changed:
            run.status = status
            self._changed.notify_all()


def run_here(
    job: CompactionJob,
    find_compactor: FindCompactor,
    storage: ObjectStorage,
    cancelled: Callable[[], bool],
) -> CompactionStatus:
    """Run a job in the calling thread; return how it ended. Every error is the job's outcome."""
    try:
        result = perform(job, find_compactor(job.format), storage, cancelled)
    except Exception as fault:  # noqa: BLE001 - see above
        if isinstance(fault, RuntimeError) and _process_ends():
            return CompactionStatus(job.id, CompactionPhase.ABORTED)
        message = str(fault) or repr(fault)
        if isinstance(fault, TakenPrefixError):  # nobody's defect: the next commit submits it again
            _log.warning("%s; it is submitted again below another prefix", message)
        else:
            _log.exception("compaction %s of %s failed", job.id, job.operator)
        return CompactionStatus(job.id, CompactionPhase.FAILED, fault_of(fault), message)
    return CompactionStatus(job.id, CompactionPhase.DONE if result else CompactionPhase.ABORTED)


def fault_of(fault: Exception) -> CompactionFault:
    """Classify the exception of a compactor.

    What a process lacks for the moment (memory, file descriptors, threads, time, an answer of the
    operating system) is `CompactionFault.TRANSIENT`. Of other exceptions the class says little: a
    defect of the compactor and bad luck look alike. So the owner of a job stops the query only
    when a second attempt ends like the first; see `CompactionFault`.
    """
    if isinstance(fault, StorageError | OSError | MemoryError) or NO_THREAD in str(fault):
        return CompactionFault.TRANSIENT
    if isinstance(fault, CorruptStateError):
        return CompactionFault.CORRUPTION
    return CompactionFault.PERMANENT


def _process_ends() -> bool:
    """Return whether Python has begun to exit: executors refuse work, daemons still run.

    `sys.is_finalizing` is true only after the daemons have stopped.
    """
    try:
        with ThreadPoolExecutor(1) as probe:
            probe.submit(int)
    except RuntimeError as refused:
        return "shutdown" in str(refused)  # otherwise it is a limit on threads
    return False
