"""The event times that a function emits, and the watermark that goes on with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay_spark_runtime.arrow.rows_in import INSTANTS

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask


class EmittedTimes:
    """Counts rows that Spark's operators may take for late."""

    def __init__(self, column: str, subtask: Subtask) -> None:
        """``column`` is the output's column of event times."""
        self._column = column
        self._subtask = subtask

    @property
    def mark_us(self) -> int | None:
        """The watermark that goes on, in µs; ``None`` before the first one."""
        return self._subtask.mark_us

    def look_at(self, batches: Sequence[Any]) -> None:
        """Count the rows of output batches that are not after Spark's watermark.

        Spark has the operator's watermark a micro-batch later.
        """
        before_us = self._subtask.watermark_before_us
        for batch in batches:
            times = batch.column(self._column).cast(INSTANTS).cast(pa.int64())
            self._subtask.emitted_late(pc.sum(pc.less_equal(times, before_us)).as_py() or 0)
