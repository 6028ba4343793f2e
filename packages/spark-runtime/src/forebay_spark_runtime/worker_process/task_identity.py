"""Where a task stands: query, batch, run, subtask and attempt."""

from __future__ import annotations

from typing import Any, Self

import attrs

from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.checkpoints import CHECKPOINT
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_state_api.engine.identity import SubtaskIdentity
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.versions import Checkpoint, RunIdentity


@attrs.frozen(kw_only=True)
class TaskIdentity:
    """What a task's context and the driver's arguments say together."""

    query: str | None
    """``None``: state that is dropped at the end."""
    subtask: SubtaskIdentity

    @classmethod
    def of(cls, options: KeyedOptions, task: Any, *, streaming: bool) -> Self:
        """Where ``task``, a ``TaskContext``, stands.

        A stream's batch and run are those of the task. Elsewhere they are those of the call of
        `keyed`, so that every action on its result is the same run.
        """
        read = task.getLocalProperty
        if read(query_listener.MARK) == "true":
            raise query_listener.refused(options.uid)
        batch = options.batch
        query, batch_id, run_id = batch.query, batch.batch_id, batch.run_id
        checkpoint = options.checkpoint
        if streaming:
            said = read(CHECKPOINT)
            checkpoint = None if said is None else Checkpoint.parse(said)
            query = query or read("sql.streaming.queryId")
            batch_id = _required(read("streaming.sql.batchId"), options.uid)
            run_id = read("spark.jobGroup.id")
        if task.partitionId() >= options.parallelism:
            ran = f"partition {task.partitionId()} ran, of {options.parallelism} from 0,"
            raise moved(options.uid, ran)
        return cls(
            query=query,
            subtask=SubtaskIdentity(
                uid=options.uid,
                run=RunIdentity(
                    keyed_uuid=options.keyed_uuid,
                    app_id=read("spark.app.id"),
                    run_id=run_id,
                    action=None if streaming else _action(options, task),
                ),
                batch_id=batch_id or 0,
                subtask=task.partitionId(),
                parallelism=options.parallelism,
                max_parallelism=options.max_parallelism,
                attempt_id=task.taskAttemptId(),
                attempt_number=task.attemptNumber(),
                consecutive=streaming,
                checkpoint=checkpoint,
            ),
        )


def _action(options: KeyedOptions, task: Any) -> str | None:
    """The action that runs the task; each driver counts them from 0, and may be one of a retry."""
    number = task.getLocalProperty("spark.sql.execution.id")
    return None if number is None else f"{options.driver}:{number}"


def _required(batch_id: str | None, uid: str) -> int:
    if batch_id is None:
        message = f"operator {uid!r}: Spark told its task no batch id, though it is on a stream"
        raise ConfigurationError(message)
    return int(batch_id)


def moved(uid: str, what: str) -> ConfigurationError:
    """The error for partitions that are not where they belong."""
    return ConfigurationError(
        f"operator {uid!r}: {what} instead of the subtask that its rows belong to. A union or "
        "coalesce on the operator's output moves its partitions: write the output first, or put a "
        "repartition() between the operator and the union or coalesce"
    )
