"""The event times of the rows in Arrow batches: which are late, and how far they have come."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay_spark_runtime.arrow.rows_in import INSTANTS

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask


class EventTimes:
    """Reads the columns of event times of one or two keyed inputs."""

    def __init__(self, positions: Sequence[int], *, single: bool) -> None:
        """``positions`` are those among the user's columns, of each input; without any, no times.

        If there is not a ``single`` input, the columns of each are packed into a struct.
        """
        self._positions = positions
        self._single = single

    def note(self, batch: Any, subtask: Subtask) -> Any:
        """Report the event times of a batch to its subtask; return which of the rows are late.

        Rows that are too far ahead are treated as late. The result is a mask, null for rows without
        a time; ``None`` if no row is late.
        """
        noted = [self._note(batch, side, subtask) for side in range(len(self._positions))]
        late = [mask for mask in noted if mask is not None]
        return functools.reduce(pc.or_kleene, late) if late else None

    def is_late(self, batch: Any, subtask: Subtask) -> Any:
        """Return which rows are late or too far ahead, null without a time.

        ``None`` if there are no event times.
        """
        if not self._positions:
            return None
        times = [self._of_side(batch, side) for side in range(len(self._positions))]
        found, bounds = pc.coalesce(*times), subtask.event_time_bounds
        late = pc.less_equal(found, bounds.watermark_us)
        if bounds.is_open:
            return late
        return pc.or_(late, pc.greater(found, bounds.furthest_us))

    def _note(self, batch: Any, side: int, subtask: Subtask) -> Any:
        times = self._of_side(batch, side)
        found = pc.min_max(times)
        first, latest = found["min"].as_py(), found["max"].as_py()
        if latest is None:
            return None
        bounds, late, ahead = subtask.event_time_bounds, None, None
        if first <= bounds.watermark_us:
            late = pc.less_equal(times, bounds.watermark_us)
        if latest > bounds.furthest_us:
            ahead = pc.greater(times, bounds.furthest_us)
            latest = pc.max(times.filter(pc.invert(ahead))).as_py()
        subtask.saw_event_time(latest, side, late=_count(late), ahead=_count(ahead))
        return late if ahead is None else ahead if late is None else pc.or_(late, ahead)

    def _of_side(self, batch: Any, side: int) -> Any:
        """Return the event times of one input in µs, null in the rows of the other one."""
        position = self._positions[side]
        if self._single:
            column = batch.column(position)
        else:
            column = pc.struct_field(batch.column(side), [position])
        return column.cast(INSTANTS).cast(pa.int64())


def _count(mask: Any) -> int:
    return 0 if mask is None else int(pc.sum(mask).as_py())
