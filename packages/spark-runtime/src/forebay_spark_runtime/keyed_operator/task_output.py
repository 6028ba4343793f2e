"""The output of a keyed operator's task: Arrow batches, and the time that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.figures_column import FiguresColumn
from forebay_state_api.metrics.phases import Phase, PhaseClock

if TYPE_CHECKING:
    from forebay_spark_runtime.arrow.rows_out import RowWriter

OUTPUT_ROWS: Final = 8_192
"""Approximate number of rows in an output batch."""


class TaskOutput:
    """Makes the batches of one task and hands them to Spark."""

    def __init__(
        self,
        writer: RowWriter | DescribedRowWriter,
        column: FiguresColumn | None,
        clock: PhaseClock,
    ) -> None:
        """Without ``column`` no figures are sent."""
        self._writer = writer
        self._column = column
        self.clock: Final = clock

    def batches(self, rows: Sequence[Any]) -> list[Any]:
        """Return the batches of some rows."""
        with self.clock.during(Phase.OUTPUT):
            made = self._writer.batches(rows, OUTPUT_ROWS)
            return made if self._column is None else [*map(self._column.without_figures, made)]

    def of_columns(self, made: Sequence[Any]) -> list[Any]:
        """Return the batches of what a batch function's subtask emitted.

        It is batches of Arrow in the declared schema, and lists of `FailedRecord` and of `LateRow`.
        """
        with self.clock.during(Phase.OUTPUT):
            writer = self._writer
            if isinstance(writer, DescribedRowWriter):
                made = [*map(writer.of_columns, made)]
            return [*made] if self._column is None else [*map(self._column.without_figures, made)]

    def handed_on(self, batches: list[Any]) -> Iterator[Any]:
        """Yield batches to Spark."""
        with self.clock.during(Phase.OUTPUT_WAIT):
            yield from batches

    def figures(self, subtask: int, figures: Mapping[str, float]) -> list[Any]:
        """Return a batch with the row of figures, if figures are sent."""
        return [] if self._column is None else [self._column.row(subtask, figures)]


def timed_input(batches: Iterator[Any], clock: PhaseClock) -> Iterator[Any]:
    """Yield the input's batches that have rows; the time until each arrives is a phase."""
    while True:
        with clock.during(Phase.INPUT):
            batch = next((batch for batch in batches if batch.num_rows), None)
        if batch is None:
            return
        yield batch
