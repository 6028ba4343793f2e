"""Our side of the comparisons: running count and sum as a keyed function, in two forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.data import Event
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

CountRow = tuple[str, int, int, int]
"""User, amount, count, sum."""


class CountSync(KeyedProcessFunction[str, Event, CountRow]):
    """A plain function: one read and one write per event."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int]))

    def process_element(self, row: Event, ctx: Any) -> Iterable[CountRow]:
        """Count and add."""
        count, total = self.acc.value() or (0, 0)
        count += 1
        total += row.amount
        self.acc.update((count, total))
        return [(row.user, row.amount, count, total)]


class CountCoroutine(KeyedProcessFunction[str, Event, CountRow]):
    """A coroutine: the same read and write, asynchronous and chained."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int]))

    async def process_element(self, row: Event, ctx: Any) -> Iterable[CountRow]:
        """Count and add."""
        count, total = await self.acc.async_value() or (0, 0)
        count += 1
        total += row.amount
        await self.acc.async_update((count, total))
        return [(row.user, row.amount, count, total)]
