"""Finds, installs, picks and submits the compactions of one opened backend.

A job is submitted after the manifest that names it is durable. It writes its outputs and then a
result object under its own prefix. The task that opens the key groups next, in whatever process,
finds the result, reads the outputs in place of the inputs, and names them in the manifest that it
commits. Nothing else makes outputs live: the outputs of a job that no manifest names any more are
never read, and the janitor deletes them. A job that shows no sign of life for `job_timeout_s` is
submitted again, under a new id and prefix; a failed one is too, unless `_check_failure` raises.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_backend_lsm.compaction_jobs import PendingJob, fault_of, found_result, outputs_of
from forebay_backend_lsm.layers import FileSlice, Layer, file_slice, layers_of, replaced
from forebay_backend_lsm.picking import Window, choose, relief
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)
from forebay_state_api.contract.file_names import compaction_prefix, random_id
from forebay_state_api.errors import CorruptStateError, PluginError, StorageError

if TYPE_CHECKING:
    from forebay_backend_lsm.options import LsmOptions
    from forebay_state_api.contract.backend import Opening
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.files import StateFile

__all__ = ["CompactedFiles", "Compactions"]

_log = logging.getLogger(__name__)

_META: Final = "compaction"
_LEASE_GAPS: Final = 3
_LEAST_LEASE_S: Final = 600.0
_BEATS: Final = 10
"""Heartbeats within the timeout: several, because some may be late."""


@attrs.frozen(kw_only=True)
class CompactedFiles:
    """The outcome of compaction at a commit, for `CommittedState`."""

    files: Sequence[StateFile]
    """All files of the version, oldest first within a key group."""
    meta: Mapping[str, Any]
    """Entries for `CommittedState.meta`."""
    protected: Sequence[str]
    """Prefixes that the janitor must keep while the manifest lives."""
    bytes_written: int
    """Bytes written by a compaction that the commit had to wait for."""


class Compactions:
    """Handles the compactions of one operator's key groups, from one opening to its commit."""

    def __init__(self, opening: Opening, options: LsmOptions, compactor: Compactor) -> None:
        """Check the pending jobs, and install the results that exist.

        Only reads: polls the service once for each pending job and, unless the job is running,
        sends one request to storage. Raises the failure of a job that failed twice in this run of
        the query, and `CorruptStateError` for the second damaged result of the same work.
        """
        self._opening = opening
        self._options = options
        self._compactor = compactor
        self._service = opening.compaction
        self._pending: list[PendingJob] = []
        self._lost: list[PendingJob] = []
        self._submit: list[CompactionJob] = []
        self._release: list[str] = []
        self._stale: list[str] = []
        self._now_us, self._gap_us = opening.now_us, 0
        self._stalled_s = 0.0
        self.files: Sequence[StateFile] = [f for parent in opening.parents for f in parent.files]
        """The files to read, in order of age; outputs of installed jobs replace their inputs."""
        self._find()

    # -- opening ------------------------------------------------------------------------------

    def _find(self) -> None:
        opening = self._opening
        metas = [parent.meta.get(_META, {}) for parent in opening.parents]
        if self._service is None or len(metas) != 1 or not opening.parents[0].whole:
            return
        before = metas[0].get("now_us") or NO_TIME  # older state has 0 for no time
        self._now_us = before if opening.now_us == NO_TIME else opening.now_us
        gap_us = self._now_us - before if before != NO_TIME else 0
        self._gap_us = max(metas[0].get("gap_us", 0), gap_us)
        for plain in metas[0].get("pending", ()):
            pending = PendingJob.from_plain(plain)
            if pending.job.operator == opening.operator and pending.job.range == opening.range:
                self._look_at(pending, self._service)
        self._drop_dead()

    def _look_at(self, pending: PendingJob, service: CompactionService) -> None:
        now_us, job = self._opening.now_us, pending.job
        status = service.poll(job.id)
        if status.phase is CompactionPhase.RUNNING:
            pending = attrs.evolve(pending, relieved_bytes=0)
        if not status.phase.ended:
            self._pending.append(pending.seen_alive(now_us))
        elif self._found(pending, status, service):
            pass
        elif pending.run != self._opening.run:
            # What an earlier run met says nothing about this one.
            self._lost.append(attrs.evolve(pending, failures=0))
        elif status.phase in _GIVEN_UP:
            if _inputs(job) <= {file_slice(file) for file in self.files}:
                _check_failure(pending, status)
            failures = pending.failures + (status.fault in _MAY_BE_FINAL)
            self._lost.append(attrs.evolve(pending, failures=failures))
        else:
            timeout_s = self._options.job_timeout_s
            still = pending.looked_for(self._opening.storage, now_us, timeout_s)
            if still is None:
                _log.warning(
                    "compaction %s of %s shows no sign of life for %g s: the compaction service "
                    "does not know it, and nobody has written its result. Attempt %d follows if "
                    "its inputs are live",
                    job.id,
                    job.operator,
                    timeout_s,
                    job.attempt + 1,
                )
                self._lost.append(pending)
            else:
                self._pending.append(still)

    def _found(
        self, pending: PendingJob, status: CompactionStatus, service: CompactionService
    ) -> bool:
        """Install the result if there is one; submit the job again if it is damaged.

        Its inputs are untouched. A service that has noticed the damage reports the job as lost;
        otherwise the second one in a run of the query stops it.
        """
        job, is_of_run = pending.job, pending.run == self._opening.run
        try:
            result = found_result(job, self._opening.storage)
            if result is not None:
                self._install(job, result, service)
        except CorruptStateError as damaged:
            failures = pending.failures if is_of_run else 0
            if is_of_run and status.fault is CompactionFault.UNAVAILABLE:
                _check_failure(pending, status)
            if status.phase is not CompactionPhase.LOST:
                if failures:
                    raise
                failures = 1
            what = f"compaction {job.id} of {job.operator}"
            _log.warning("%s is submitted again: %s", what, damaged)
            self._lost.append(attrs.evolve(pending, failures=failures))
            return True
        return result is not None

    def _install(
        self, job: CompactionJob, result: CompactionResult, service: CompactionService
    ) -> None:
        outputs = outputs_of(job, result)
        files = replaced(self.files, [file_slice(file) for file in job.inputs], outputs)
        if files is None:
            _log.info("compaction %s of %s: its inputs are gone", job.id, job.operator)
            self._stale.append(job.id)
            return
        service.verify(job, result)
        self._release.append(job.id)
        self.files = files

    def _drop_dead(self) -> None:
        """Forget jobs with an input that is no longer live: they can never be installed."""
        live = {file_slice(file) for file in self.files}
        self._release += [p.job.id for p in self._pending if not _inputs(p.job) <= live]
        self._pending = [p for p in self._pending if _inputs(p.job) <= live]
        self._release += [lost.job.id for lost in self._lost]
        self._lost = [lost for lost in self._lost if _inputs(lost.job) <= live]

    # -- commit -------------------------------------------------------------------------------

    def commit(
        self, version: int, new: Sequence[StateFile], *, options: Mapping[str, Any]
    ) -> CompactedFiles:
        """Return the files of ``version``: the opened ones, then ``new``, in order of age.

        Picks files to compact, which `installed` submits; ``options`` go into the jobs. If there
        are too many runs, it compacts before it returns, and raises any error of the compactor.
        Compacts nothing if ``new`` is empty.
        """
        self.files = [*self.files, *new]
        self._submit_lost(version)
        written = self._relieve(version, options) if new else 0
        if new and self._service is not None:
            self._pick(version, options)
        return CompactedFiles(
            files=self.files,
            meta={_META: self._meta()} if self._service is not None else {},
            protected=[pending.job.output_prefix for pending in self._pending],
            bytes_written=written,
        )

    def measured(self) -> Mapping[str, float]:
        """Return the metrics of compaction, after `commit`."""
        return {
            "runs_max": len(layers_of(self.files)),
            "compactions_pending": len(self._pending),
            "compaction_stalled_seconds": round(self._stalled_s, 6),
        }

    def installed(self) -> None:
        """Submit the jobs that the now durable manifest names, and release those it does not.

        An unreachable service does not fail the batch: the job is submitted again when it shows no
        sign of life.
        """
        service = self._service
        if service is None:
            return
        for job in self._submit:
            try:
                service.submit(job)
            except StorageError as error:
                _log.warning("compaction %s could not be submitted: %s", job.id, error)
        for job_id in self._release:
            service.release(job_id)
        for job_id in self._stale:
            service.discard(job_id)

    def _submit_lost(self, version: int) -> None:
        for lost in self._lost:
            again = attrs.evolve(
                lost.job,
                id=random_id(),
                output_prefix=compaction_prefix(version),
                attempt=lost.job.attempt + 1,
            )
            self._add(again, lost.failures, lost.relieved_bytes)

    def _relieve(self, version: int, options: Mapping[str, Any]) -> int:
        layers = layers_of(self.files)
        if len(layers) <= self._options.max_runs:
            return 0
        # Pending jobs leave only a few layers free, and these are merged over and over. A job that
        # does not run for so long that this has cost more than its own work is forgotten.
        overdue = [pending for pending in self._pending if pending.is_overdue]
        for pending in overdue:
            _log.info("compaction %s is given up: it waits for too long", pending.job.id)
        self._forget(overdue)
        window = relief(layers, self._busy(), self._options)
        if window is None and self._pending:
            self._forget(self._pending)
            window = relief(layers, (), self._options)
        if window is None:
            _log.warning("%s has %d runs that cannot be merged", self._opening.path, len(layers))
            return 0
        job = self._job(version, layers, window, options)
        _log.info("%s has %d runs: the commit compacts", self._opening.path, len(layers))
        started = time.perf_counter()
        written = self._compact_here(job)
        self._stalled_s = time.perf_counter() - started
        self._pending = [
            attrs.evolve(pending, relieved_bytes=pending.relieved_bytes + written)
            for pending in self._pending
        ]
        return written

    def _forget(self, forgotten: Sequence[PendingJob]) -> None:
        ids = [pending.job.id for pending in forgotten]
        self._release += ids
        self._pending = [pending for pending in self._pending if pending.job.id not in ids]
        self._submit = [job for job in self._submit if job.id not in ids]

    def _compact_here(self, job: CompactionJob) -> int:
        storage = self._opening.storage
        result = self._compactor.compact(job, storage, lambda: False)
        if result is None:
            raise PluginError(
                f"the compactor of {job.format!r} stopped although nothing cancelled it"
            )
        outputs = outputs_of(job, result)
        sizes = {file.name: file.size for file in outputs}
        if fault := fault_of(job, result, sizes):
            raise CorruptStateError(f"a compaction in {storage.url} failed: {fault}")
        files = replaced(self.files, _inputs(job), outputs)
        assert files is not None, "adjacent layers can always be merged"
        self.files = files
        return sum(sizes.values())

    def _pick(self, version: int, options: Mapping[str, Any]) -> None:
        layers = layers_of(self.files)
        window = choose(layers, self._busy(), self._options, len(self._pending))
        if window is not None:
            self._add(self._job(version, layers, window, options))

    def _add(self, job: CompactionJob, failures: int = 0, relieved_bytes: int = 0) -> None:
        opening = self._opening
        self._pending.append(
            PendingJob(
                job=job,
                alive_us=opening.now_us,
                run=opening.run,
                failures=failures,
                relieved_bytes=relieved_bytes,
            )
        )
        self._submit.append(job)

    def _job(
        self,
        version: int,
        layers: Sequence[Layer],
        window: Window,
        options: Mapping[str, Any],
    ) -> CompactionJob:
        start, stop = window
        options = _options(options, everything=window == (0, len(layers)))
        timeout_s = self._options.job_timeout_s
        return CompactionJob(
            id=random_id(),
            operator=self._opening.operator,
            format=self._compactor.format,
            inputs=[file for layer in layers[start:stop] for file in layer.files],
            output_prefix=compaction_prefix(version),
            range=self._opening.range,
            now_us=self._opening.now_us,
            target_bytes=self._options.target_file_bytes,
            lease_s=max(_LEAST_LEASE_S, timeout_s, _LEASE_GAPS * self._gap_us / 1e6),
            heartbeat_s=timeout_s / _BEATS,
            options={**options, "bottom": start == 0},
        )

    def _meta(self) -> dict[str, Any]:
        return {
            "now_us": self._now_us,
            "gap_us": self._gap_us,
            "pending": [pending.to_plain() for pending in self._pending],
        }

    def _busy(self) -> set[FileSlice]:
        return {file for pending in self._pending for file in _inputs(pending.job)}


def _options(options: Mapping[str, Any], *, everything: bool) -> dict[str, Any]:
    """Return a job's options; a merge of everything is a full snapshot, and cleans up as one."""
    full_ttl = options.get("full_ttl", {})
    job = {name: value for name, value in options.items() if name != "full_ttl"}
    if everything and full_ttl:
        job["ttl"] = {**full_ttl, **job.get("ttl", {})}
    return job


_GIVEN_UP: Final = (CompactionPhase.FAILED, CompactionPhase.ABORTED, CompactionPhase.LOST)
_MAY_BE_FINAL: Final = (CompactionFault.PERMANENT, CompactionFault.CORRUPTION)


def _inputs(job: CompactionJob) -> set[FileSlice]:
    return {file_slice(file) for file in job.inputs}


def _check_failure(pending: PendingJob, status: CompactionStatus) -> None:
    """Raise the failure of a job if it stops the query; see `CompactionFault`."""
    job, fault = pending.job, status.fault
    what = f"compaction {job.id} of {job.operator} failed"
    if fault is CompactionFault.UNAVAILABLE:
        raise StorageError(f"{what}: {status.message}")
    if fault in _MAY_BE_FINAL and not pending.failures:
        _log.warning("%s, and is tried once more: %s", what, status.message)
    elif fault in _MAY_BE_FINAL:
        corrupt = fault is CompactionFault.CORRUPTION
        raise (CorruptStateError if corrupt else PluginError)(f"{what} again: {status.message}")
