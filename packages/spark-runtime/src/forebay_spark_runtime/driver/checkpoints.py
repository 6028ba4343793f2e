"""What a query's checkpoint says: asked of the running query's own logs, never of the files.

An operator's first task of a run compares the times of batches with those that versions were made
at, and so finds the timeline of this checkpoint beside those of its copies. A stream is asked when
it starts, before its first batch, and its session carries the answer to the tasks; in
``foreachBatch`` `keyed` asks. Under Spark Connect nobody can.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from py4j.protocol import Py4JError

from forebay_spark_runtime.driver.session import MicroBatch
from forebay_state_api.settings import PREFIX, resolve_settings
from forebay_state_api.versions import Checkpoint
from forebay_state_api.versions.janitor import pass_every

_log = logging.getLogger(__name__)

CHECKPOINT: Final = "spark.sql.forebay.checkpoint"
"""Set in the session of a query to `Checkpoint.text`."""

_REMEMBERED: Final = 1_000
_asked: Final[dict[tuple[str, str], Checkpoint]] = {}
"""(run, uid) → what the checkpoint said when ``foreachBatch`` first made that operator."""


def checkpoint_of(execution: Any) -> Checkpoint | None:
    """Ask a query that runs in this application; ``None``, and a warning, if that fails.

    ``execution`` is Spark's ``StreamExecution``.
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
    except Exception as error:  # noqa: BLE001 - py4j raises many kinds, and a query goes on without
        _log.warning("the checkpoint of query %s was not asked: %s", execution.id(), error)
        return None


def of_this_batch(execution: Any, batch: MicroBatch, uid: str) -> tuple[Checkpoint, int] | None:
    """In ``foreachBatch``: what the checkpoint says, and the time of the batch.

    ``None`` where it does not say. What it says of earlier batches is asked once for each run.
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
    """Time of a batch, as the log of offsets has it, in whichever format."""
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
    """How many versions are stored: of so many batches the times matter."""
    key = PREFIX + "retention"
    given = conf.get(key, None)
    retention: int = resolve_settings({} if given is None else {key: given})["retention"]
    return retention + pass_every(retention)
