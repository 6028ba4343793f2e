"""The worker itself, without its Ray actor: runs jobs, reports progress, stops jobs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.messages import (
    NO_STORAGE,
    OLDER_RELEASE,
    TAKEN_PREFIX,
    JobProgress,
    Outcome,
    Submission,
    WorkerInfo,
)
from forebay_compaction_ray.worker.guard import JobStorage
from forebay_engine.compaction.local_service import fault_of
from forebay_engine.compaction.performing import TakenPrefixError, perform
from forebay_engine.versions.cleaning.storage_probe import examine
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.compactor import Compactor
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings.redaction import redacted
from forebay_state_api.storage import open_storage

EXAMINED: Final = ".compaction/doctor"
"""The folder in which a job of ``forebay compaction doctor`` writes; cannot be a query's name."""


@attrs.frozen
class WorkerStorage:
    """A storage that jobs may use by name."""

    url: str
    options: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Options for `open_storage`; not in the repr, because they may be secret."""


class _ActiveJob:
    """A running job."""

    def __init__(self, submission: Submission) -> None:
        self.submission: Final = submission
        self.stop: Final = threading.Event()
        self.bytes_in = 0
        self.steps = 0

    def cancelled(self) -> bool:
        """Return whether to stop; the compactor asks once per block."""
        self.steps += 1
        return self.stop.is_set()

    def read(self, size: int) -> None:
        """Count the bytes that the job reads."""
        self.bytes_in += size

    def progress(self) -> JobProgress:
        """Return the job's progress."""
        return JobProgress(bytes_in=self.bytes_in, steps=self.steps)


class WorkerBody:
    """Runs jobs on the threads that call `run`; all other calls return at once, on any thread."""

    def __init__(
        self,
        storages: Mapping[str, WorkerStorage],
        *,
        compactors: Callable[[], Mapping[str, Compactor]] | None = None,
        open_: Callable[[str, Mapping[str, Any]], ObjectStorage] = open_storage,
    ) -> None:
        """Run jobs on ``storages``, keyed by the names that jobs use."""
        self.boot: Final = secrets.token_hex(8)
        self._places: Final = storages
        self._compactors: Final = compactors or (lambda: plugins().compactors())
        self._open: Final = open_
        self._opened: dict[str, ObjectStorage] = {}
        self._opening: Final = threading.Lock()
        self._marks: Mapping[str, str] = {}
        """Storage → the mark that the gateway last named."""
        self._runs: dict[str, _ActiveJob] = {}

    def describe(self, marks: Mapping[str, str]) -> WorkerInfo:
        """Describe the worker, and compare its storages' marks with the gateway's.

        Raises `PluginError` for incompatible installed plugins.
        """
        self._marks = dict(marks)
        problems = {name: self._problem(name) for name in marks}
        return WorkerInfo(
            boot=self.boot,
            pid=os.getpid(),
            node=platform.node(),
            version=importlib.metadata.version("forebay-compaction-ray"),
            formats=tuple(sorted(self._compactors())),
            problems={name: problem for name, problem in problems.items() if problem},
        )

    def run(self, submission: Submission) -> Outcome:
        """Run a job to its end or until it is aborted; the outcome holds any error.

        A mount may be gone at any time: before a job, and after one that failed, the worker makes
        sure that it still has the gateway's directory. Without it a failure says nothing about the
        job.
        """
        run = self._runs[submission.job.id] = _ActiveJob(submission)
        started_s, cpu_s = time.monotonic(), time.process_time()
        try:
            outcome = self._without_storage(submission) or self._tried(run)
            if outcome.phase is CompactionPhase.FAILED:
                outcome = self._without_storage(submission) or outcome
        finally:
            del self._runs[submission.job.id]
        return attrs.evolve(
            outcome,
            bytes_in=run.bytes_in,
            seconds=time.monotonic() - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )

    def ping(self) -> dict[str, JobProgress]:
        """Return the progress of each job, by its id."""
        return {job_id: run.progress() for job_id, run in self._runs.copy().items()}

    def abort(self, job_id: str) -> None:
        """Ask a job to stop; nothing happens unless it runs now."""
        if (run := self._runs.get(job_id)) is not None:
            run.stop.set()

    def check(self, storage: str) -> dict[str, str]:
        """Probe a storage; return promise → the problem with it.

        Deletes leftovers of earlier checks.
        """
        try:
            opened = self._storage(storage)
        except Exception as error:  # noqa: BLE001 - it is the finding
            return {"it can be opened": str(error) or repr(error)}
        left = opened.child(EXAMINED)
        with suppress(StorageError):  # a finding reports the reason
            left.delete([info.name for info in left.list()])
        return {found.promise: found.problem for found in examine(opened)}

    def _without_storage(self, submission: Submission) -> Outcome | None:
        """Return the failure of a job whose storage is another directory on this worker.

        Returns ``None`` if it is the same.
        """
        problem = self._problem(submission.storage)
        return _blameless_outcome(NO_STORAGE, problem) if problem else None

    def _tried(self, run: _ActiveJob) -> Outcome:
        if run.submission.is_of_newer_release:
            what = (
                f"the worker on {platform.node()} does not know all fields of the job: upgrade it"
            )
            return _blameless_outcome(OLDER_RELEASE, what)
        try:
            return self._perform(run)
        except TakenPrefixError as taken:
            return _blameless_outcome(TAKEN_PREFIX, str(taken))
        except Exception as fault:  # noqa: BLE001 - whatever a compactor raises is its outcome
            # Missing credentials are this worker's: its settings may differ from another's.
            is_own = isinstance(fault, ConfigurationError)
            return _failed(fault, CompactionFault.TRANSIENT if is_own else fault_of(fault))

    def _perform(self, run: _ActiveJob) -> Outcome:
        job = run.submission.job
        prefix = f"{job.operator}/{job.output_prefix}"
        try:
            compactor = self._compactors()[job.format]
            storage = JobStorage(self._storage(run.submission.storage), prefix, run.read)
        except Exception as fault:  # noqa: BLE001 - before the job begins, it is the worker's fault
            return _failed(fault, CompactionFault.TRANSIENT)
        result = perform(job, compactor, storage, run.cancelled)
        if result is None:
            return Outcome(phase=CompactionPhase.ABORTED)
        return Outcome(
            phase=CompactionPhase.DONE,
            bytes_out=sum(file.size for file in result.outputs),
            entries_in=result.entries_in,
            entries_dropped=result.entries_dropped,
            dropped={str(why): int(count) for why, count in result.dropped.items()},
        )

    def _problem(self, name: str) -> str:
        """Return why the storage is not the gateway's; empty if it is, or the mark is not known."""
        if (mark := self._marks.get(name)) is None:
            return ""
        url = redacted(self._places[name].url)
        try:
            found = storage_mark.read(self._storage(name))
        except Exception as error:  # noqa: BLE001 - it is shown to the operator
            return str(error) or repr(error)
        if found == mark:
            return ""
        return (
            f"{url} has {storage_mark.shown(found)} on {platform.node()}, and "
            f"{storage_mark.shown(mark)} where the gateway has it: it is another directory. "
            "Mount the same one there"
        )

    def _storage(self, name: str) -> ObjectStorage:
        with self._opening:
            if name not in self._opened:
                place = self._places[name]
                self._opened[name] = self._open(place.url, place.options)
            return self._opened[name]


def _blameless_outcome(code: str, why: str) -> Outcome:
    """Return the end of a job that is not to blame for it."""
    transient = CompactionFault.TRANSIENT
    return Outcome(phase=CompactionPhase.FAILED, fault=transient, message=why, code=code)


def _failed(fault: Exception, kind: CompactionFault) -> Outcome:
    what = str(fault) or repr(fault)
    return Outcome(phase=CompactionPhase.FAILED, fault=kind, message=what)
