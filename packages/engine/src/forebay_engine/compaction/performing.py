"""Run one compaction job in the calling thread; every service uses `perform`.

A job may run several times, at once and on several machines: a gateway gives it to another worker,
its owner runs it while a worker that was given up goes on. So nothing below the job's prefix is
written twice::

    <prefix>claim                          first, if absent: the digest of the job
    <prefix>run-<random>/<output>          what the compactor of one run writes
    <prefix>run-<random>/heartbeat-000001  while that run goes on
    <prefix>result                         last, if absent: names the outputs, repeats the digest

Whichever run stores its result first wins. Nothing names the outputs of the others, and the janitor
deletes them. A prefix that another job has claimed is refused, and a client that installs results
ignores another job's, so nobody who may submit jobs can overwrite a file or forge a result. What is
damaged counts as another job's: the job's owner submits the work again, with another prefix.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.compaction.job_names import check_names
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.file_names import compaction_run_prefix
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError, StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.object_storage import ObjectStorage


class TakenPrefixError(StorageError):
    """The claim or the result below a job's prefix is damaged, or belongs to another job.

    Every run would fail in this way. Operator action: none; the job's owner submits the work
    again, with another prefix.
    """


class _Heartbeat:
    """Checks whether to stop, and periodically writes a heartbeat object.

    It needs no thread: a compactor calls it once a block, and a hung compactor must not seem alive.
    """

    def __init__(
        self,
        run: CompactionJob,
        storage: ObjectStorage,
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """``run`` is the job with the prefix of the run: two runs count separately."""
        self._run: Final = run
        self._storage: Final = storage
        self._cancelled: Final = cancelled
        self._clock: Final = clock
        self._beats = 0
        self._last = clock()

    def __call__(self) -> bool:
        if self._clock() - self._last >= self._run.heartbeat_s:
            self._beats += 1
            name = self._run.heartbeat_name(self._beats)
            self._storage.put_if_absent(name, seal({"beat": self._beats}))
            self._last = self._clock()
        return self._cancelled()


def perform(
    job: CompactionJob,
    compactor: Compactor,
    storage: ObjectStorage,
    cancelled: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> CompactionResult | None:
    """Run a job in the calling thread; every service uses this function.

    ``storage`` is the state directory. Returns the result of this run; then a result object of the
    job, by this run or another one, is durable, and was written after all outputs. Returns ``None``
    if the run was cancelled. The compactor gets the job with a fresh prefix below the job's own.
    While it runs, heartbeat objects appear there, every ``job.heartbeat_s`` seconds of ``clock``.
    Raises `ValueError` for names that leave their place, `TakenPrefixError`, and what the compactor
    raises.
    """
    check_names(job)
    here = OperatorStorage(storage, job.operator)
    _claim(job, here)
    run = attrs.evolve(job, output_prefix=compaction_run_prefix(job.output_prefix))
    result = compactor.compact(run, here, _Heartbeat(run, here, cancelled, clock))
    if result is not None:
        result = attrs.evolve(result, job_digest=job.digest)
        if not here.put_if_absent(job.result_name, seal(result.to_plain())):
            _check_winner(job, here)
    return result


def _claim(job: CompactionJob, storage: ObjectStorage) -> None:
    """Make sure that the prefix belongs to this job; a claim that cannot be read is another's."""
    claim = seal({"digest": job.digest})
    if storage.put_if_absent(job.claim_name, claim):
        return
    try:
        owner = unseal(storage.get(job.claim_name), job.claim_name).get("digest")
    except CorruptStateError as damaged:
        raise TakenPrefixError(f"compaction {job.id} cannot run: {damaged}") from damaged
    if owner != job.digest:
        raise TakenPrefixError(
            f"compaction {job.id} cannot run: {job.claim_name} in {storage.url} belongs to a job "
            "with another description"
        )


def _check_winner(job: CompactionJob, storage: ObjectStorage) -> None:
    """Make sure that the result that is there is of another run of this job."""
    try:
        job.stored_result(storage)
    except (CorruptStateError, ObjectNotFoundError) as taken:
        raise TakenPrefixError(
            f"compaction {job.id} cannot store its result: {job.result_name} in {storage.url} "
            f"is not this job's: {taken}"
        ) from taken
