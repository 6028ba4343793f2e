"""Runs one compaction job where the caller is; every service does it through `perform`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay_state_api.contract.checksummed import seal
from forebay_state_api.versions.folder import OperatorStorage

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.object_storage import ObjectStorage


class _Heartbeat:
    """Asks whether to stop, and writes an object now and then that says: still at work.

    It needs no thread: a compactor asks once a block, and one that hangs must not seem alive.
    """

    def __init__(
        self,
        job: CompactionJob,
        storage: ObjectStorage,
        cancelled: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._job: Final = job
        self._storage: Final = storage
        self._cancelled: Final = cancelled
        self._clock: Final = clock
        self._beats = 0
        self._last = clock()

    def __call__(self) -> bool:
        if self._clock() - self._last >= self._job.heartbeat_s:
            self._beats += 1
            name = f"{self._job.heartbeat_prefix}{self._beats:06d}"
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
) -> bool:
    """Run a job where the caller stands; every service does it through this function.

    ``storage`` is the state directory. Returns whether the job was done; then its result object
    is durable, written after all outputs. While it runs, heartbeat objects appear beside the
    outputs, every ``job.heartbeat_s`` seconds of ``clock``.
    """
    here = OperatorStorage(storage, job.operator)
    result = compactor.compact(job, here, _Heartbeat(job, here, cancelled, clock))
    if result is None:
        return False
    here.put_if_absent(job.result_name, seal(result.to_plain()))
    return True
