"""The task of a keyed operator in a Python worker: one subtask of one micro-batch.

It reads one Arrow stream and writes another. The version is committed before the last output batch
is yielded: Spark may consider a micro-batch done as soon as it has read the output that it needs,
without running the task to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow.compute as pc
from pyspark import TaskContext

from forebay_engine.execution.loop_thread import loop_thread
from forebay_engine.execution.pickling import unpickled
from forebay_engine.execution.record_methods import awaits_anything
from forebay_engine.execution.subtask_metrics import SubtaskMetrics, phase_figures
from forebay_engine.isolation.failed_record import ErrorRows
from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.figures_column import FiguresColumn
from forebay_spark_runtime.arrow.row_checks import RowTests
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.event_time.emitted_times import EmittedTimes
from forebay_spark_runtime.keyed_operator.batch_input import BatchInput, KeyedInputLayout
from forebay_spark_runtime.keyed_operator.slice_input import SliceInput
from forebay_spark_runtime.keyed_operator.task_output import (
    OUTPUT_ROWS,
    TaskOutput,
    timed_input,
)
from forebay_spark_runtime.worker_process.garbage_collection import begin_task, loading
from forebay_spark_runtime.worker_process.operator_task import OperatorTask
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_spark_runtime.worker_process.task_identity import TaskIdentity
from forebay_state_api.codecs import codec_for
from forebay_state_api.metrics.phases import Phase, PhaseClock

if TYPE_CHECKING:
    from forebay_engine.columns.outputs import Output
    from forebay_engine.execution.subtask import Subtask


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
    """The output schema, with the columns for errors and late rows, as far as there are any."""
    described: tuple[type, ...] = ()
    """The classes that these columns describe."""
    sent_schema: Any
    """The output schema with the column for figures; ``None`` if no figures are sent."""
    types: list[str]
    """The types of the output columns, as the user declared them."""
    time_zone: str
    now_us: int | None
    """The micro-batch's time in µs; ``None`` on a stream, whose rows carry it."""
    by_columns: bool = False
    """Whether the function is a batch function."""

    @ready_for_spark
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run one subtask; ``mapInArrow`` calls this."""
        subtask_metrics = SubtaskMetrics()
        # The task keeps its clock: the engine replaces the clock of `subtask_metrics` now and then.
        clock = subtask_metrics.clock
        clock.switch(Phase.OPEN)
        freeze = begin_task()
        task = TaskIdentity.of(self.options, TaskContext.get(), streaming=self.now_us is None)
        operator = OperatorTask(self.options, task, subtask_metrics)
        source = timed_input(iter(batches), clock)
        first = next(source, None)
        batch_input = BatchInput(self.layout, task.subtask)
        subtask_metrics.group_rows = batch_input.group_rows
        error_rows, output = self._output(task, clock)
        now_us = batch_input.now_us(first) if self.now_us is None else self.now_us
        function = unpickled(self.function, f"operator {self.options.uid!r}: {self.function_name}")
        subtask = self._subtask(operator, function, now_us, error_rows)
        if self.options.emits_event_time is not None:
            output.watch(EmittedTimes(self.options.emits_event_time, subtask))
        call = TaskCalls(subtask, on_loop=awaits_anything(function))
        with loading(freeze) as loaded, _open(subtask, call):
            loaded()
            operator.follow_marks(subtask)
            clock.switch(Phase.REST)
            batches = batch_input.ordered(first, source)
            held = yield from self._run(call, subtask, batch_input, batches, output)
            call(subtask.drain)
            last = output.batches(call(subtask.take_rows))
            report = call(operator.commit, subtask)
        yield from output.handed_on([*held, *last])
        figures = {**report.figures, **phase_figures(clock)}
        yield from output.figures(task.subtask.subtask, figures)
        operator.finish()

    def _run(
        self,
        call: TaskCalls,
        subtask: Subtask,
        batch_input: BatchInput,
        batches: Iterator[Any],
        output: TaskOutput,
    ) -> Generator[Any, None, list[Any]]:
        """Run the rows of ``batches``; return the output that was not handed on yet."""
        held: list[Any] = []
        while call(subtask.fire_timers):
            yield from output.handed_on(held)
            held = output.batches(call(subtask.take_rows))
        feed, batches = self._feed(subtask, batch_input, batches)
        for batch in batches:
            with output.clock.during(Phase.DECODE):
                call(feed, batch, subtask)
            if subtask.rows_ready >= OUTPUT_ROWS:
                yield from output.handed_on(held)
                held = output.batches(call(subtask.take_rows))
        if self.by_columns:
            call(subtask.end_batch)
        if self.options.fire_at_end:
            call(subtask.end_event_time)
            while call(subtask.fire_timers):
                yield from output.handed_on(held)
                held = output.batches(call(subtask.take_rows))
        return held

    def _feed(
        self, subtask: Subtask, batch_input: BatchInput, batches: Iterator[Any]
    ) -> tuple[Callable[[Any, Subtask], None], Iterator[Any]]:
        """Return what feeds a batch to the subtask, and the batches or slices."""
        if not self.by_columns:
            return batch_input.feed, batches
        slices = SliceInput(batch_input, self.layout)
        limit = None if subtask.takes_all_at_once else self.options.settings["slice-bytes"]
        return slices.feed, slices.of(batches, limit, ahead=subtask.reads_ahead)

    def _output(self, task: TaskIdentity, clock: PhaseClock) -> tuple[ErrorRows | None, TaskOutput]:
        rows_writer = self._writer(task)
        column = None if self.sent_schema is None else FiguresColumn(self.sent_schema)
        writer: RowWriter | DescribedRowWriter = rows_writer
        if self.described:
            writer = DescribedRowWriter(rows_writer, self.output_schema, self.described)
        output = TaskOutput(writer, column, clock, by_columns=self.by_columns)
        if self.options.error_limit is None:
            return None, output
        checked_rows = partial(RowTests, rows_writer, self.schema)
        return ErrorRows(self.options.error_limit, checked_rows), output

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
            self.layout.rules,
            error_rows,
            batch_output=self._batch_output(),
            key_names=[self.layout.names[0][at] for at in self.layout.keys[0]],
        )

    def _batch_output(self) -> Output | None:
        if not self.by_columns:
            return None
        from forebay_engine.columns.outputs import Output

        zone = self.time_zone
        return Output(
            self.schema,
            self.function_name,
            types=self.types,
            assume_zone=lambda column: pc.assume_timezone(
                column, zone, ambiguous="earliest", nonexistent="latest"
            ),
        )


class TaskCalls:
    """Calls parts of a subtask: on the loop's thread what may await anything, else on this one."""

    def __init__(self, subtask: Subtask, *, on_loop: bool) -> None:
        self._subtask = subtask
        self._on_loop = on_loop

    def __call__(self, fn: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call ``fn``, and return or raise what it does."""
        # A plain method's first coroutine makes a subtask one that awaits anything.
        self._on_loop = self._on_loop or self._subtask.awaits_anything
        if self._on_loop:
            return loop_thread().call(fn, *arguments, **named)
        try:
            return fn(*arguments, **named)
        finally:
            self._subtask.give_loop_back()


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
