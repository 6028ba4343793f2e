"""The output of a keyed operator's task: Arrow batches, and the time that they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.figures_column import FiguresColumn
from forebay_state_api.metrics.phases import Phase, PhaseClock

if TYPE_CHECKING:
    from forebay_spark_runtime.arrow.rows_out import RowWriter
    from forebay_spark_runtime.event_time.emitted_times import EmittedTimes

OUTPUT_ROWS: Final = 8_192
"""Approximate number of rows in an output batch."""


class TaskOutput:
    """Makes the batches of one task and hands them to Spark."""

    def __init__(
        self,
        writer: RowWriter | DescribedRowWriter,
        column: FiguresColumn | None,
        clock: PhaseClock,
        *,
        by_columns: bool = False,
    ) -> None:
        """Without ``column`` no figures are sent; ``by_columns`` is for batch functions."""
        self._writer = writer
        self._column = column
        self._emitted_times: EmittedTimes | None = None
        self.clock: Final = clock
        self._made = self._of_columns if by_columns else self._of_rows

    def watch(self, emitted_times: EmittedTimes) -> None:
        """Let the rows of figures carry the watermark, and look at the times that are emitted."""
        self._emitted_times = emitted_times

    def batches(self, taken: Sequence[Any]) -> list[Any]:
        """Return the batches of what `Subtask.take_rows` has returned."""
        with self.clock.during(Phase.OUTPUT):
            made = self._made(taken)
            if self._emitted_times is not None:
                self._emitted_times.look_at(made)
            return made if self._column is None else [*map(self._column.without_figures, made)]

    def _of_rows(self, rows: Sequence[Any]) -> list[Any]:
        return self._writer.batches(rows, OUTPUT_ROWS)

    def _of_columns(self, taken: Sequence[Any]) -> list[Any]:
        """Return batches in the declared schema as they are, and those of lists of rows."""
        made: list[Any] = []
        for one in taken:
            if isinstance(one, list):
                made += self._of_rows(one)
            elif isinstance(self._writer, DescribedRowWriter):
                made.append(self._writer.of_columns(one))
            else:
                made.append(one)
        return made

    def handed_on(self, batches: list[Any]) -> Iterator[Any]:
        """Yield batches to Spark."""
        with self.clock.during(Phase.OUTPUT_WAIT):
            yield from batches

    def figures(self, subtask: int, figures: Mapping[str, float]) -> list[Any]:
        """Return a batch with the row of figures, if figures are sent."""
        mark_us = None if self._emitted_times is None else self._emitted_times.mark_us
        return [] if self._column is None else [self._column.row(subtask, figures, mark_us)]


def timed_input(batches: Iterator[Any], clock: PhaseClock) -> Iterator[Any]:
    """Yield the input's batches that have rows; the time until each arrives is a phase."""
    while True:
        with clock.during(Phase.INPUT):
            batch = next((batch for batch in batches if batch.num_rows), None)
        if batch is None:
            return
        yield batch
