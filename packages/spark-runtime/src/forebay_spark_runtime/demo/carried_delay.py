"""The keyed function of the demo: which aircraft carried delay from one departure to the next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from forebay_state_api import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor

LATE: Final = 15
"""A flight this many minutes behind schedule counts as late; airlines report by the same limit."""
TURNAROUND: Final = timedelta(hours=12)
"""Delay is carried to the next departure within this time, but not over a night on the ground."""


Row: TypeAlias = tuple[str, int, int, int, int, int]
"""An output row; `OUTPUT` names the columns."""


class Aircraft(NamedTuple):
    """The state of one aircraft."""

    departure: datetime
    """The scheduled departure of its last flight."""
    behind: int
    """Minutes by which that flight arrived behind schedule."""
    legs: int
    """Consecutive departures, up to now, to which delay was carried."""
    minutes: int
    """Minutes of delay that were carried to them."""
    total: int
    """Minutes of delay carried since the aircraft's first flight."""


class CarriedDelay(KeyedProcessFunction[str, Any, Row]):
    """Emits each departure that was late because the aircraft had arrived late."""

    def open(self, context: RuntimeContext) -> None:
        self.aircraft = context.get_state(ValueStateDescriptor[Aircraft]("aircraft", Aircraft))

    async def process_element(self, row: Any, ctx: RuntimeContext) -> AsyncIterator[Row]:
        if row.dep_delay is None:
            return  # cancelled
        before = await self.aircraft.async_value()
        legs = minutes = carried = 0
        total = before.total if before else 0
        if before and row.departure - before.departure <= TURNAROUND:
            carried = min(before.behind, row.dep_delay)
        if before and carried >= LATE:
            legs, minutes, total = before.legs + 1, before.minutes + carried, total + carried
            yield ctx.current_key, row.sequence, carried, legs, minutes, total
        now = Aircraft(row.departure, row.arr_delay or 0, legs, minutes, total)
        await self.aircraft.async_update(now)


OUTPUT: Final = "tailnum string, sequence long, carried long, legs long, minutes long, total long"
"""``sequence`` is the flight's number; the last three columns are as in `Aircraft`."""
