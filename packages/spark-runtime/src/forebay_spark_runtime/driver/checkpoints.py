"""Reads a query's checkpoint from the running query's own logs, never from the files.

An operator's first task of a run compares the times of the checkpoint's batches with the times at
which versions were made. So it distinguishes this checkpoint's timeline from the timelines of its
copies. A stream's checkpoint is read when the query starts, before its first batch, and the
session passes it to the tasks; in ``foreachBatch``, `keyed` reads it. Under Spark Connect it cannot
be read.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from py4j.protocol import Py4JError

from forebay_engine.versions import Checkpoint
from forebay_engine.versions.cleaning.cadence import pass_every
from forebay_spark_runtime.driver.session import MicroBatch
from forebay_state_api.settings import PREFIX, resolve_settings

_log = logging.getLogger(__name__)

CHECKPOINT: Final = "spark.sql.forebay.checkpoint"
"""The setting in a query's session that holds `Checkpoint.text`."""

_REMEMBERED: Final = 1_000
_asked: Final[dict[tuple[str, str], Checkpoint]] = {}
"""(run, uid) → the checkpoint as it was when ``foreachBatch`` first made that operator."""


def checkpoint_of(execution: Any) -> Checkpoint | None:
    """Return the checkpoint of a query that runs in this application.

    Returns ``None`` and logs a warning if that fails. ``execution`` is Spark's ``StreamExecution``.
    """
    try:
        times_ms: dict[int, int] = {}
        latest = execution.offsetLog().getLatestBatchId()
        newest = -1 if latest.isEmpty() else int(latest.get())
        oldest = newest - _batches(execution.sparkSessionForStream().conf())
        for batch in range(newest, max(oldest, -1), -1):
            batch_ms = _time_of(execution, batch)
            if batch_ms is not None:
                times_ms[batch] = batch_ms
        return Checkpoint(location=execution.resolvedCheckpointRoot(), times_ms=times_ms)
    except Exception as error:  # noqa: BLE001 - py4j raises many kinds, and the query can go on
        _log.warning("the checkpoint of query %s was not read: %s", execution.id(), error)
        return None


def of_this_batch(execution: Any, batch: MicroBatch, uid: str) -> tuple[Checkpoint, int] | None:
    """In ``foreachBatch``: return the checkpoint, and the batch's time in ms.

    Returns ``None`` if the checkpoint does not have the batch's time. The times of earlier batches
    are read once for each run.
    """
    if batch.batch_id is None:
        return None
    # The job group, which is the run's id too, may be one that the user has set.
    asked = (str(execution.runId()), uid)
    checkpoint = _asked.get(asked) or checkpoint_of(execution)
    batch_ms = None if checkpoint is None else _time_of(execution, batch.batch_id)
    if checkpoint is None or batch_ms is None:
        return None
    _asked[asked] = checkpoint
    if len(_asked) > _REMEMBERED:
        del _asked[next(iter(_asked))]
    return checkpoint, batch_ms


def _time_of(execution: Any, batch: int) -> int | None:
    """Return the time of a batch from the offset log, in whichever format it is."""
    entry = execution.offsetLog().get(batch)
    metadata = None if entry.isEmpty() else _metadata(entry.get())
    if metadata is None or metadata.isEmpty():
        return None
    return int(metadata.get().batchTimestampMs())


def _metadata(entry: Any) -> Any:
    try:
        return entry.metadataOpt()
    except Py4JError:  # Spark 3.5 and 4.0 know one format, and call it so
        return entry.metadata()


def _batches(conf: Any) -> int:
    """Return how many versions are stored, which is how many batches' times matter."""
    key = PREFIX + "retention"
    given = conf.get(key, None)
    retention: int = resolve_settings({} if given is None else {key: given})["retention"]
    return retention + pass_every(retention)
