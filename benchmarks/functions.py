"""Our keyed functions for the comparisons: running count and sum, and dedup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.data import TTL, Event
from forebay_state_api import (
    KeyedBatchFunction,
    KeyedProcessFunction,
    StateFuture,
    StateTtlConfig,
    ValueStateDescriptor,
)

CountRow = tuple[str, int, int, int]
"""An output row: user, amount, count, sum."""
FirstRow = tuple[str, int]
"""An output row: user, amount."""


class CountSync(KeyedProcessFunction[str, Event, CountRow]):
    """Counts in a plain function, with one read and one write per event."""

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


class CountColumns(KeyedBatchFunction):
    """Counts in columns: one read and one write for all keys of a slice."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int], default=(0, 0)))

    def process_batch(self, rows: Any, ctx: Any) -> Any:
        """Count and add."""
        groups = ctx.groups
        count, total = self.acc.get_many(groups)
        count = groups.cumcount(count)
        total = groups.cumsum(rows["amount"], total)
        self.acc.put_many(groups, (groups.last(count), groups.last(total)))
        return {"user": rows["user"], "amount": rows["amount"], "cnt": count, "total": total}


class CountTtl(CountSync):
    """Counts in the same way with a TTL and the default clean-up."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        ttl = StateTtlConfig(TTL)
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int], ttl=ttl))


class CountCoroutine(KeyedProcessFunction[str, Event, CountRow]):
    """Counts in a coroutine: the same read and write, asynchronous and chained."""

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


class AwaitTurn(CountCoroutine):
    """Counts in a coroutine that awaits asyncio's loop, ``together`` records at a time.

    The loop's next turn answers a record once that many wait for it.
    """

    def __init__(self, together: int) -> None:
        self.together = together
        self.waiting: list[asyncio.Future[None]] = []

    async def process_element(self, row: Event, ctx: Any) -> Iterable[CountRow]:
        """Count and add, with what was read before the wait."""
        count, total = await self.acc.async_value() or (0, 0)
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.waiting.append(future)
        if len(self.waiting) == self.together:
            loop.call_soon(self.answer, self.waiting)
            self.waiting = []
        await future
        count += 1
        total += row.amount
        await self.acc.async_update((count, total))
        return [(row.user, row.amount, count, total)]

    @staticmethod
    def answer(waiting: list[asyncio.Future[None]]) -> None:
        """Answer the records that wait."""
        for future in waiting:
            future.set_result(None)


class CountWithCall(CountCoroutine):
    """Counts in a coroutine that makes a call of ``seconds_of(row)`` between read and write."""

    def __init__(self, seconds_of: Callable[[Event], float]) -> None:
        self.seconds_of = seconds_of

    async def process_element(self, row: Event, ctx: Any) -> Iterable[CountRow]:
        """Read, call, count and add."""
        count, total = await self.acc.async_value() or (0, 0)
        await asyncio.sleep(self.seconds_of(row))
        count += 1
        total += row.amount
        await self.acc.async_update((count, total))
        return [(row.user, row.amount, count, total)]


class CountChained(KeyedProcessFunction[str, Event, CountRow]):
    """Counts in a plain function with a callback: the same read, and the write in the callback."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int]))

    def process_element(self, row: Event, ctx: Any) -> None:
        """Count and add."""

        def counted(value: tuple[int, int] | None) -> StateFuture[None]:
            count, total = value or (0, 0)
            count += 1
            total += row.amount
            ctx.collect((row.user, row.amount, count, total))
            return self.acc.async_update((count, total))

        self.acc.async_value().then_compose(counted)


class DedupColumns(KeyedBatchFunction):
    """Emits the first event of each user in columns, and no further event within a day."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.seen = context.get_state(ValueStateDescriptor("seen", int, ttl=StateTtlConfig(TTL)))

    def process_batch(self, rows: Any, ctx: Any) -> Any:
        """Read for each key, write for the new ones."""
        groups = ctx.groups
        new = groups.invert(self.seen.contains_many(groups))
        self.seen.put_many(groups, 1, where=new)
        return rows.take(groups.first_rows(where=new))


class DedupTtl(KeyedProcessFunction[str, Event, FirstRow]):
    """Emits the first event of each user, and no further event within a day."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.seen = context.get_state(ValueStateDescriptor("seen", int, ttl=StateTtlConfig(TTL)))

    def process_element(self, row: Event, ctx: Any) -> Iterable[FirstRow]:
        """Read for each event, write for the first one."""
        if self.seen.value():
            return []
        self.seen.update(1)
        return [(row.user, row.amount)]
