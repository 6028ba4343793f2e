"""The task of an ordered wait in a Python worker: it reads one Arrow stream and writes another.

It uses three threads: one reads ahead, one runs the event loop, and the task's own thread makes the
output. The task ends when every answer is written: nothing is carried over or stored, except by
`forebay_spark_runtime.waiting.carry_job`, which gives `TaskRun` a `CarryPolicy`. A failure fails
the task, and with it the micro-batch, which Spark runs again from the beginning.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final, Self

import attrs
from pyspark import TaskContext

from forebay_engine.calls.idempotency import idempotency_key
from forebay_engine.calls.operator_clients import CLOSING_S, OperatorClient, clients_of
from forebay_engine.execution.arguments import COLUMN, FAIL
from forebay_engine.execution.pickling import unpickled
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.arrow_in import (
    InputLayout,
    Segmenter,
    check_partition,
    origin_of,
    partition_of,
)
from forebay_spark_runtime.waiting.arrow_out import AnswerWriter, FailedRow
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_spark_runtime.waiting.input_reader import InputReader
from forebay_spark_runtime.waiting.keeping import Keeping, RowAnswers, WaitBatch, held_back
from forebay_spark_runtime.waiting.process_loop import process_loop
from forebay_spark_runtime.waiting.reports import TaskReport
from forebay_spark_runtime.waiting.spec import WaitSpec
from forebay_spark_runtime.waiting.threads import ThreadedFunction
from forebay_spark_runtime.worker_process.process_reuse import process_stays
from forebay_spark_runtime.worker_process.task_errors import ready_for_spark
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.metrics.calls import CallMetrics

_log = logging.getLogger(__name__)

OUT_CHUNKS: Final = 8
"""Finished chunks that may wait for Spark to read them; at this number no more calls begin."""

PROGRESS_LOG_S: Final = 60.0
"""Seconds between two log entries of a task that is still waiting."""


@attrs.frozen(kw_only=True)
class RowNaming:
    """Names the rows of one task, in idempotency keys, errors and reports."""

    name: str
    function_name: str
    query: str
    batch_id: int
    partition: str

    def key_of(self, index: int) -> str:
        """Return the idempotency key of a row."""
        return idempotency_key(self.query, self.batch_id, self.name, self.partition, index)

    def describe(self, index: int) -> str:
        """Return the description of a row, for messages."""
        return (
            f"{self.function_name} (operator {self.name!r}, batch {self.batch_id}, partition "
            f"{self.partition}, row {index} of it)"
        )


@attrs.frozen(kw_only=True)
class WaitJob:
    """The function passed to ``mapInArrow``, pickled and sent to the workers."""

    spec: bytes
    """A `WaitSpec`, pickled: each task gets a fresh copy of the functions."""
    name: str
    layout: bytes
    """An `InputLayout`, pickled."""
    schema: Any
    """The schema of the answers, a ``pa.Schema``."""
    types: list[str]
    """The types of the answers' columns, as the user declared them."""
    names: list[str]
    """The names of the output columns."""
    time_zone: str
    query: str
    """The query's name, used where Spark has no id for it."""
    batch_id: int | None
    """The batch id, if the driver knows it; ``None`` if the task does."""
    metrics: Any
    keeping: Keeping | None = None
    """The name and the place of kept answers; ``None`` if no answers are kept."""

    @ready_for_spark
    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Run one task; ``mapInArrow`` calls this."""
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return
        task = TaskContext.get()
        assert task is not None
        spec, layout = self.unpickled()
        check_partition(task.partitionId(), spec.policy.rate, spec.name)
        naming = self._naming(spec, task, partition_of(first, task.partitionId()))
        writer = self.writer(spec, naming)
        answers = None if self.keeping is None else self._answers(self.keeping, naming, first)
        batches = itertools.chain([first], batches)
        run = TaskRun(spec, naming, layout, batches, answers=answers)
        with run:
            written: Iterator[Any] = (writer.batch(*chunk) for chunk in run.chunks())
            yield from written if answers is None else held_back(written, answers.finish)
        self.report_counts(run)

    def _answers(self, keeping: Keeping, naming: RowNaming, first: Any) -> RowAnswers:
        batch_ms = 0
        if keeping.batch_ms is None:
            batch_ms = int(first.column(first.num_columns - 2)[0].as_py())
        batch = WaitBatch(naming.query, naming.batch_id, batch_ms, origin_of(first))
        return keeping.answers(naming.name, batch)

    def unpickled(self) -> tuple[WaitSpec, InputLayout]:
        """Return copies of the functions and of the layout for one task."""
        what = f"{self.name}: the function with its options"
        return unpickled(self.spec, what), unpickled(self.layout, what)

    def writer(self, spec: WaitSpec, naming: RowNaming) -> AnswerWriter:
        """Return the writer of one task's output."""
        return AnswerWriter(
            self.schema,
            types=self.types,
            function=spec.function_name,
            time_zone=self.time_zone,
            describe=naming.describe,
            with_error=spec.on_error == COLUMN,
            names=self.names,
        )

    def report_counts(self, run: TaskRun) -> None:
        """Log the task's counts and report them to the driver."""
        report = run.report()
        _log.info("operator %s, partition %s: %s", report.name, report.partition, run.counts)
        if self.metrics is not None:
            self.metrics.report(report)

    def _naming(self, spec: WaitSpec, task: Any, partition: str) -> RowNaming:
        query, batch_id = self.query, self.batch_id
        if batch_id is None:
            query = task.getLocalProperty("sql.streaming.queryId") or query
            spark_batch = task.getLocalProperty("streaming.sql.batchId")
            if spark_batch is None and self.keeping is not None:
                raise ConfigurationError(
                    f"{spec.name}: keep_answers= needs the number of the micro-batch, and Spark "
                    "gave its task none, though it is on a stream. Leave keep_answers= out"
                )
            batch_id = int(spark_batch or 0)
        return RowNaming(
            name=spec.name,
            function_name=spec.function_name,
            query=query,
            batch_id=batch_id,
            partition=partition,
        )


@attrs.frozen(kw_only=True)
class CarryPolicy:
    """When a task stops waiting and leaves the rows that have no answer."""

    after_s: float
    """Seconds after the last row was taken."""
    rows_kept: int
    """Number of first rows that are waited for however long they take."""


LOOK_S: Final = 0.02
"""Seconds between two checks whether a task is to leave its late rows."""


class TaskRun:
    """The calls of one task, from the first to the last; a context manager."""

    def __init__(
        self,
        spec: WaitSpec,
        naming: RowNaming,
        layout: InputLayout,
        batches: Iterator[Any],
        policy: CarryPolicy | None = None,
        *,
        answers: RowAnswers | None = None,
    ) -> None:
        """Prepare the run.

        :param spec: the functions and the policy.
        :param naming: names rows in keys, errors and reports.
        :param layout: the positions of columns in the batches.
        :param batches: the input.
        :param policy: when to leave late rows, which are in ``left`` then; ``None`` to wait for
            every row.
        :param answers: finds answers that are kept, and keeps the others; ``None`` for neither.
        """
        self._answers = answers
        self._spec = spec
        self._naming = naming
        self._layout = layout
        self._batches = batches
        self._process = process_loop()
        self._out: SimpleQueue[Any] = SimpleQueue()
        self._waiting_out = 0
        self._engine: CallEngine | None = None
        self._reader: InputReader | None = None
        self._input_error: BaseException | None = None
        self._running: Future[None] | None = None
        self._ended = threading.Event()
        """Set when the last call is done, and the client is closed if it is not kept."""
        self._carry_policy = policy
        self.left: list[tuple[RowSegment, int]] = []
        """Rows that were not written, in order; complete when `chunks` is exhausted."""
        self.counts = CallMetrics()

    def __enter__(self) -> Self:
        self._running = self._process.submit(self._run())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Cancel pending calls; after a failure the client is closed, too."""
        assert self._running is not None
        if not self._ended.is_set():
            self._running.cancel()
            self._ended.wait(2 * CLOSING_S)
        if self._answers is not None:
            self._answers.close(self.counts)

    def chunks(self) -> Iterator[tuple[Any, list[int] | None]]:
        """Yield segments to be written, with positions as in `Emit`.

        Ends when everything has been yielded, or raises the error that failed the task.
        """
        assert self._running is not None
        while (chunk := self._out.get()) is not None:
            yield chunk
            self._process.loop.call_soon_threadsafe(self._was_taken)
        if self._input_error is not None:
            raise self._input_error
        self._running.result()

    def report(self) -> TaskReport:
        """Return the task's counts, for the driver."""
        naming = self._naming
        return TaskReport(
            name=naming.name,
            query=naming.query,
            batch_id=naming.batch_id,
            partition=naming.partition,
            counts=self.counts.as_data(),
        )

    # --- on the loop ---------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._call_with_client()
        finally:
            self._ended.set()
            self._out.put(None)

    async def _call_with_client(self) -> None:
        clients = clients_of(self._process.loop)
        spec = self._spec
        kept: OperatorClient | None = None
        operator = f"{spec.name} of {self._naming.query}"
        if spec.resources is not None:
            kept = await clients.acquire(operator, spec.digest, spec.resources)
        done = False
        try:
            await self._call(kept)
            done = True
        finally:
            if kept is not None:
                await clients.release(operator, kept, keep=done and process_stays())

    async def _call(self, kept: OperatorClient | None) -> None:
        spec, loop = self._spec, asyncio.get_running_loop()
        policy = attrs.evolve(spec.policy, on_error=self._on_error())
        threads = None
        if not spec.asynchronous:
            threads = ThreadedFunction(
                spec.fn, policy.capacity, policy.timeout or policy.try_timeout
            )
        engine = self._engine = CallEngine(
            spec.fn if threads is None else threads,
            policy,
            emit=self._emit,
            client=kept,
            key_of=self._naming.key_of,
            describe=self._naming.describe,
            ready=None if threads is None else threads.ready,
            rows_kept=0 if self._carry_policy is None else self._carry_policy.rows_kept,
            answers=self._answers,
        )
        self.counts = engine.counts
        running = loop.create_task(engine.run())
        segmenter = Segmenter(self._layout, spec.name)
        self._reader = InputReader(
            self._batches, segmenter, engine.input_queue, loop, self._input_failed(running)
        )
        engine.on_taken = self._reader.make_room
        watchers = [loop.create_task(self._log_progress(engine))]
        if self._carry_policy is not None:
            watchers.append(loop.create_task(self._leave(engine, self._carry_policy)))
        try:
            self._reader.start()
            await running
        finally:
            for task in watchers:
                task.cancel()
            running.cancel()
            self._reader.stop()
            if threads is not None:
                threads.close()

    def _on_error(self) -> Any:
        chosen = self._spec.on_error
        if chosen == FAIL:
            return None
        return FailedRow.of if chosen == COLUMN else lambda row, error, _: chosen(row, error)

    def _input_failed(self, running: asyncio.Task[None]) -> Any:
        def failed(error: BaseException) -> None:
            self._input_error = error
            running.cancel()

        return failed

    def _emit(self, segment: Any, positions: list[int] | None) -> None:
        self._out.put((segment, positions))
        self._waiting_out += 1
        if self._waiting_out == OUT_CHUNKS:
            assert self._engine is not None
            self._engine.input_queue.hold(held=True)

    def _was_taken(self) -> None:
        self._waiting_out -= 1
        if self._waiting_out == OUT_CHUNKS - 1:
            assert self._engine is not None
            self._engine.input_queue.hold(held=False)

    async def _leave(self, engine: CallEngine, policy: CarryPolicy) -> None:
        """Leave late rows when the time is over and the first ``rows_kept`` rows have answers."""
        clock = asyncio.get_running_loop().time
        # Only workers see the end of the queue, and all of them may be busy.
        while not engine.input_queue.is_spent:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(LOOK_S)
        end = clock() + policy.after_s
        while clock() < end or _has_open(engine, policy.rows_kept):  # noqa: ASYNC110 - the same
            await asyncio.sleep(LOOK_S)
        self.left = engine.leave()

    async def _log_progress(self, engine: CallEngine) -> None:
        """Log regularly what a long task is waiting for."""
        while True:
            await asyncio.sleep(PROGRESS_LOG_S)
            _log.info(
                "operator %s, partition %s: %d calls in flight, %d answers blocked; so far %s",
                self._spec.name,
                self._naming.partition,
                engine.in_flight,
                engine.blocked,
                engine.counts,
            )


def _has_open(engine: CallEngine, rows: int) -> bool:
    first = engine.first_open
    return first is not None and first < rows
