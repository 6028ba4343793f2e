"""Run one compaction job in the calling thread; every service uses `perform`."""

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
    """Checks whether to stop, and periodically writes a heartbeat object.

    It needs no thread: a compactor calls it once a block, and a hung compactor must not seem alive.
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
    """Run a job in the calling thread; every service uses this function.

    ``storage`` is the state directory. Returns whether the job completed; if so, its result object
    is durable, and was written after all outputs. While the job runs, heartbeat objects appear next
    to the outputs, every ``job.heartbeat_s`` seconds of ``clock``.
    """
    here = OperatorStorage(storage, job.operator)
    result = compactor.compact(job, here, _Heartbeat(job, here, cancelled, clock))
    if result is None:
        return False
    here.put_if_absent(job.result_name, seal(result.to_plain()))
    return True
