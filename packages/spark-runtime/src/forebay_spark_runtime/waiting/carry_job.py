"""The task of an ordered wait with ``pending="carry"``, which carries late rows over.

A subtask first makes the calls of the rows that the previous micro-batch left, in their order, and
then the calls of its own rows. Rows without an answer some time after the last row was taken are
left for the next micro-batch, in operator state; rows that were left once are waited for. The
version is committed before the last output batch is yielded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
from pyspark import TaskContext

from forebay_spark_runtime.driver import query_listener
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.waiting.arrow_in import check_partition
from forebay_spark_runtime.waiting.pending_rows import Columns, PendingRows, carried_batch
from forebay_spark_runtime.waiting.task import CarryPolicy, RowNaming, TaskRun, WaitJob
from forebay_spark_runtime.worker_process.operator_task import OperatorTask
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_spark_runtime.worker_process.task_identity import TaskIdentity
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.errors import ConfigurationError

_NO_KEYS: Final = codec_for(None, what="a key")


@attrs.frozen(kw_only=True)
class CarriedRowNaming(RowNaming):
    """Names the rows of a task that begins with rows of the previous micro-batch."""

    carried: Sequence[str]
    """Idempotency keys of the first rows, which were carried over."""

    def key_of(self, index: int) -> str:
        """Return the idempotency key of a row: a row that was carried over keeps its first key."""
        own = index - len(self.carried)
        return self.carried[index] if own < 0 else super().key_of(own)

    def describe(self, index: int) -> str:
        """Return the description of a row, for messages."""
        own = index - len(self.carried)
        if own >= 0:
            return super().describe(own)
        return (
            f"{self.function_name} (operator {self.name!r}, batch {self.batch_id}, partition "
            f"{self.partition}, row carried over, {self.carried[index]})"
        )


@attrs.frozen(kw_only=True)
class CarryJob(WaitJob):
    """The function passed to ``mapInArrow``, pickled and sent to the workers."""

    options: KeyedOptions
    columns: Columns
    """The user's input columns."""
    carry_after_s: float
    """Seconds after the last row was taken until late rows are left."""

    @ready_for_spark
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run one subtask; ``mapInArrow`` calls this."""
        task = TaskContext.get()
        assert task is not None
        refuse_ending(task, self.options.uid)
        identity = TaskIdentity.of(self.options, task, streaming=True)
        spec, layout = self.unpickled()
        check_partition(task.partitionId(), spec.policy.rate, spec.name)
        source = (batch for batch in batches if batch.num_rows)
        first = next(source, None)
        operator = OperatorTask(self.options, identity)
        pending = PendingRows(self.columns, self.options.uid)
        held = None
        with operator.subtask(pending, _NO_KEYS, now_us=NO_TIME) as subtask:
            naming = CarriedRowNaming(
                name=spec.name,
                function_name=spec.function_name,
                query=identity.query or self.query,
                batch_id=identity.subtask.batch_id,
                partition=str(identity.subtask.subtask),
                carried=pending.keys,
            )
            writer = self.writer(spec, naming)
            policy = CarryPolicy(after_s=self.carry_after_s, rows_kept=len(pending.rows))
            run = TaskRun(spec, naming, layout, self._input(pending, first, source), policy)
            with run:
                for segment, positions in run.chunks():
                    if held is not None:
                        yield held
                    held = writer.batch(segment, positions)
            pending.leave(
                (naming.key_of(segment.first + position), segment.data.slice(position, 1))
                for segment, position in run.left
            )
            operator.commit(subtask)
        self.report_counts(run)
        if held is not None:
            yield held
        operator.finish()

    def _input(self, pending: PendingRows, first: Any, rest: Iterator[Any]) -> Iterator[Any]:
        """Yield the rows that were carried over, and then the micro-batch's own."""
        own = () if first is None else (first,)
        if not pending.rows:
            return itertools.chain(own, rest)
        width = len(self.columns)
        schema = None if first is None else first.select(list(range(width))).schema
        return itertools.chain((carried_batch(pending.rows, schema),), own, rest)


def refuse_ending(task: Any, uid: str) -> None:
    """Raise `ConfigurationError` if the query's trigger ends it.

    No later batch would make the calls of the rows that are left.
    """
    if task.getLocalProperty(query_listener.ENDS) == "true":
        raise ConfigurationError(
            f"operator {uid!r}: with pending='carry' rows are left to the next micro-batch, and "
            "with the triggers availableNow and once no next one comes. Use pending='wait', or a "
            "trigger that does not end the query"
        )
