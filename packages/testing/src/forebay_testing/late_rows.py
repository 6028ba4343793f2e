"""Leave late rows out of what a function gets, as its job does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask
    from forebay_testing.keyed_row import KeyedRow


def without_late(running: Subtask, rows: Sequence[KeyedRow], side: int) -> Sequence[KeyedRow]:
    """Report the event times of rows of one input; return the rows that the function gets."""
    times = [one.at_us for one in rows if one.at_us is not None]
    late = [one for one in rows if one.at_us is not None and running.is_late(one.at_us)]
    if times:
        running.saw_event_times(times, side)
    if running.processes_late or not late:
        return rows
    running.leave_out([one.row for one in late], side)
    return [one for one in rows if one.at_us is None or not running.is_late(one.at_us)]
