"""The task of a keyed operator in a Python worker: one subtask of one micro-batch.

It reads one Arrow stream and writes another. The version is committed before the last output batch
is yielded: Spark may consider a micro-batch done as soon as it has read the output that it needs,
without running the task to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import TaskContext

from forebay_spark_runtime.arrow.failed_rows import FailedRowWriter, RowCheck
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.keyed_operator.batch_input import BatchInput, KeyedInputLayout
from forebay_spark_runtime.worker_process.garbage_collection import begin_task, loading
from forebay_spark_runtime.worker_process.operator_task import OperatorTask
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_spark_runtime.worker_process.task_identity import TaskIdentity
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.engine.failed_record import ErrorRows
from forebay_state_api.engine.loop_thread import loop_thread
from forebay_state_api.engine.pickling import unpickled
from forebay_state_api.engine.record_methods import awaits_anything

if TYPE_CHECKING:
    from forebay_state_api.engine.subtask import Subtask

OUTPUT_ROWS: Final = 8_192
"""Approximate number of rows in an output batch."""


@attrs.frozen(kw_only=True)
class SubtaskJob:
    """The function passed to ``mapInArrow``, pickled and sent to the workers."""

    options: KeyedOptions
    function: bytes
    """The user function, pickled: each task gets a fresh copy."""
    function_name: str
    key_type: bytes
    """The Python type of keys, pickled."""
    layout: KeyedInputLayout
    schema: Any
    """The declared output schema, a ``pa.Schema``."""
    output_schema: Any
    """The same, with the column for errors if there is one."""
    types: list[str]
    """The types of the output columns, as the user declared them."""
    time_zone: str
    streaming: bool

    @ready_for_spark
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run one subtask; ``mapInArrow`` calls this."""
        freeze = begin_task()
        task = TaskIdentity.of(self.options, TaskContext.get(), streaming=self.streaming)
        operator = OperatorTask(self.options, task)
        source = _non_empty(batches)
        first = next(source, None)
        batch_input = BatchInput(self.layout, task.subtask)
        rows_writer = self._writer(task)
        writer: RowWriter | FailedRowWriter = rows_writer
        error_rows: ErrorRows | None = None
        if self.options.error_limit is not None:
            check = RowCheck(rows_writer, self.schema)
            error_rows = ErrorRows(self.options.error_limit, check)
            writer = FailedRowWriter(rows_writer, self.output_schema)
        now_us = NO_TIME if first is None else batch_input.now_us(first)
        function = unpickled(self.function, f"operator {self.options.uid!r}: {self.function_name}")
        call = loop_thread().call if awaits_anything(function) else _call
        subtask = self._subtask(operator, function, now_us, error_rows)
        with loading(freeze) as loaded, _open(subtask, call):
            loaded()
            held: list[Any] = []
            while call(subtask.fire_timers):
                yield from held
                held = writer.batches(call(subtask.take_rows), OUTPUT_ROWS)
            for batch in batch_input.ordered(first, source):
                call(batch_input.feed, batch, subtask)
                if subtask.rows_ready >= OUTPUT_ROWS:
                    yield from held
                    held = writer.batches(call(subtask.take_rows), OUTPUT_ROWS)
            if self.options.fire_at_end:
                call(subtask.end_event_time)
                while call(subtask.fire_timers):
                    yield from held
                    held = writer.batches(call(subtask.take_rows), OUTPUT_ROWS)
            call(subtask.drain)
            last = writer.batches(call(subtask.take_rows), OUTPUT_ROWS)
            call(operator.commit, subtask)
        yield from held
        yield from last

    def _writer(self, task: TaskIdentity) -> RowWriter:
        at = task.subtask
        return RowWriter(
            self.schema,
            function=self.function_name,
            time_zone=self.time_zone,
            types=self.types,
            where=f"operator {at.uid!r}, batch {at.batch_id}, partition {at.subtask}",
        )

    def _subtask(
        self,
        operator: OperatorTask,
        function: Any,
        now_us: int,
        error_rows: ErrorRows | None,
    ) -> Subtask:
        uid = self.options.uid
        return operator.subtask(
            function,
            codec_for(
                unpickled(self.key_type, f"operator {uid!r}: the type of its keys"),
                what=f"key of operator {uid!r}",
            ),
            now_us,
            self.layout.lateness_us,
            error_rows,
        )


def _call(fn: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call on this thread what awaits state only."""
    return fn(*arguments, **named)


@contextlib.contextmanager
def _open(subtask: Subtask, call: Callable[..., Any]) -> Iterator[None]:
    """Begin a subtask and close it, by ``call``."""
    call(subtask.begin)
    try:
        yield
    except BaseException:
        call(subtask.close, failed=True)
        raise
    call(subtask.close)


def _non_empty(batches: Iterator[Any]) -> Iterator[Any]:
    return (batch for batch in batches if batch.num_rows)
