"""A keyed operator that does nothing to its rows: what all that is around a function costs.

Rows stay in Arrow. Everything else runs: the plan, the checks of keys and key groups, opening a
version, the commit, the figures. Workers are changed by the function, when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from benchmarks.data import Event
from benchmarks.functions import CountRow, CountSync
from benchmarks.jobs import COLUMNS
from forebay_engine.execution.subtask import Subtask
from forebay_spark_runtime.keyed_operator import batch_input
from forebay_spark_runtime.keyed_operator.batch_input import BatchInput
from forebay_spark_runtime.keyed_operator.task_output import OUTPUT_ROWS, TaskOutput

_ALL_ROWS: Final = 1 << 40
_passed: Final[list[Any]] = []
"""The batches that came in and have not gone out."""


def _keep(_input: BatchInput, batch: Any, _subtask: Subtask) -> None:
    _passed.append(batch)


def _ready(_subtask: Subtask) -> int:
    return OUTPUT_ROWS if _passed else 0


def _batches(output: TaskOutput, _rows: Sequence[Any]) -> list[Any]:
    taken = [*_passed]
    _passed.clear()
    column = output._column  # noqa: SLF001 - what `TaskOutput.batches` uses
    made = [
        pa.RecordBatch.from_arrays([batch.column(0), *[batch.column(1)] * 3], COLUMNS)
        for batch in taken
    ]
    return made if column is None else [*map(column.without_figures, made)]


class NothingDone(CountSync):
    """Passes Arrow on, as `benchmarks.jobs.arrow_without_rows` does."""

    def open(self, context: Any) -> None:
        """Change the process."""
        super().open(context)
        # Each line replaces a part of a class or module for this process alone: mypy allows none.
        batch_input.SLICE_ROWS = _ALL_ROWS  # type: ignore[misc]
        BatchInput._feed_one = _keep  # type: ignore[method-assign]  # noqa: SLF001 - see above
        Subtask.rows_ready = property(_ready)  # type: ignore[assignment,method-assign]
        TaskOutput.batches = _batches  # type: ignore[method-assign]

    def process_element(self, row: Event, ctx: Any) -> Iterable[CountRow]:
        """Never run."""
        raise AssertionError(row, ctx)
