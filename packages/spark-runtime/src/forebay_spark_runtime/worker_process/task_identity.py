"""The identity of a task: query, batch, run, subtask and attempt."""

from __future__ import annotations

from typing import Any, Self

import attrs

from forebay_engine.execution.identity import SubtaskIdentity
from forebay_engine.versions import Checkpoint, RunIdentity
from forebay_engine.versions.choosing.fencing import duplicate_uid_error
from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.checkpoints import CHECKPOINT
from forebay_spark_runtime.driver.operator_names import SAME_UID
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_state_api.errors import ConfigurationError


@attrs.frozen(kw_only=True)
class TaskIdentity:
    """A task's identity, from its context and the driver's options."""

    query: str | None
    """The query's id or name; ``None`` if the state is dropped at the end."""
    subtask: SubtaskIdentity

    @classmethod
    def of(cls, options: KeyedOptions, task: Any, *, streaming: bool) -> Self:
        """Return the identity of ``task``, a ``TaskContext``.

        For a stream, batch and run come from the task. Otherwise they come from the call of
        `keyed`, so that every action on its result is the same run. Raises `ConfigurationError`
        for asynchronous progress tracking, for real-time mode, for a query with two operators of
        this uid, for a stream's task without a batch id, and if the operator's partitions were
        moved.
        """
        read = task.getLocalProperty
        if read(query_listener.MARK) == "true":
            raise query_listener.async_progress_error(options.uid)
        if read(query_listener.REAL_TIME) == "true":
            raise query_listener.real_time_error(options.uid)
        if read(SAME_UID) == options.uid:
            raise duplicate_uid_error(options.uid)
        batch = options.batch
        query, batch_id, run_id = batch.query, batch.batch_id, batch.run_id
        checkpoint = options.checkpoint
        if streaming:
            text = read(CHECKPOINT)
            checkpoint = None if text is None else Checkpoint.parse(text)
            query = query or read("sql.streaming.queryId")
            batch_id = _required(read("streaming.sql.batchId"), options.uid)
            run_id = read("spark.jobGroup.id")
        if task.partitionId() >= options.parallelism:
            ran = f"partition {task.partitionId()} ran, of {options.parallelism} from 0,"
            raise moved_partitions_error(options.uid, ran)
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
                bounded=options.is_bounded,
                checkpoint=checkpoint,
                query=query or "",
            ),
        )


def _action(options: KeyedOptions, task: Any) -> str | None:
    """Return the action that runs the task.

    Each driver counts actions from 0, and a driver may be a retry of another one: its id is part of
    the result.
    """
    number = task.getLocalProperty("spark.sql.execution.id")
    return None if number is None else f"{options.driver}:{number}"


def _required(batch_id: str | None, uid: str) -> int:
    if batch_id is None:
        raise ConfigurationError(
            f"operator {uid!r}: Spark gave its task no batch id, though it is on a stream"
        )
    return int(batch_id)


def moved_partitions_error(uid: str, what: str) -> ConfigurationError:
    """Return the error for moved partitions; ``what`` is the beginning of its message."""
    return ConfigurationError(
        f"operator {uid!r}: {what} instead of the subtask that its rows belong to. A union or "
        "coalesce on the operator's output moves its partitions: write the output first, or put a "
        "repartition() between the operator and the union or coalesce"
    )
