"""The types of descriptors, and of the states that they declare. Type-checked, never run.

mypy fails on an ignore that is not needed, so every ignored line has an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple, assert_type

import forebay_state_api as fb


class Click(NamedTuple):
    """A row."""

    user: str
    price: float


class Total(NamedTuple):
    """A result."""

    user: Annotated[str, fb.Alias("name")]
    total: float


class Mean(fb.AggregateFunction[float, tuple[int, float], float]):
    """An aggregate function."""

    def create_accumulator(self) -> tuple[int, float]:
        return 0, 0.0

    def add(self, value: float, accumulator: tuple[int, float]) -> tuple[int, float]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, float]) -> float:
        return accumulator[1] / accumulator[0]

    def merge(self, first: tuple[int, float], second: tuple[int, float]) -> tuple[int, float]:
        return first[0] + second[0], first[1] + second[1]


def larger(first: float, second: float) -> float:
    """A reduce function."""
    return max(first, second)


class Totals(fb.KeyedProcessFunction[str, Click, Total]):
    """Declares one state of each kind."""

    def open(self, context: fb.RuntimeContext) -> None:
        ttl = fb.StateTtlConfig(
            timedelta(hours=1), cleanup=[fb.CleanupOnRead(), fb.CleanupIncrementally(5)]
        )
        self.total = context.get_state(fb.ValueStateDescriptor("total", float, default=0.0))
        self.names = context.get_list_state(fb.ListStateDescriptor("names", str, ttl=ttl))
        self.counts = context.get_map_state(fb.MapStateDescriptor("counts", str, int))
        self.most = context.get_reducing_state(fb.ReducingStateDescriptor("most", larger, float))
        self.mean = context.get_aggregating_state(fb.AggregatingStateDescriptor("mean", Mean()))
        assert_type(self.total, fb.ValueState[float])
        assert_type(self.names, fb.ListState[str])
        assert_type(self.counts, fb.MapState[str, int])
        assert_type(self.most, fb.ReducingState[float])
        assert_type(self.mean, fb.AggregatingState[float, float])

    async def process_element(self, row: Click, ctx: fb.RuntimeContext) -> AsyncIterator[Total]:
        total = await self.total.async_value() + row.price
        assert_type(total, float)
        assert_type(ctx.batch_id, int)
        yield Total(row.user, total)

    def chains(self) -> None:
        """Chains of futures."""
        value = self.total.async_value()
        assert_type(value.then_apply(str), fb.StateFuture[str])
        assert_type(value.then_accept(print), fb.StateFuture[None])
        assert_type(value.then_compose(self.total.async_update), fb.StateFuture[None])
        both = value.then_combine(self.counts.async_get("a"), lambda v, n: (v, n))
        assert_type(both, fb.StateFuture[tuple[float, int | None]])
        mixed = fb.combine_all((value, self.counts.async_get("a")))
        assert_type(mixed, fb.StateFuture[tuple[float, int | None]])
        chosen = value.then_conditionally_apply(bool, lambda v: [v])
        assert_type(chosen, fb.StateFuture[tuple[bool, list[float] | None]])
        assert_type(value.then_conditionally_accept(bool, print), fb.StateFuture[bool])


def other_types(context: fb.RuntimeContext) -> None:
    """Types other than plain classes: no type, a DDL string, unions, generic aliases."""
    plain = context.get_state(fb.ValueStateDescriptor("plain"))
    assert_type(plain, fb.ValueState[Any])
    ddl = context.get_list_state(fb.ListStateDescriptor("ddl", "a int, b string"))
    assert_type(ddl, fb.ListState[Any])
    nested = context.get_map_state(fb.MapStateDescriptor("nested", str, list[int]))
    assert_type(nested, fb.MapState[str, list[int]])
    context.get_map_state(fb.MapStateDescriptor("optional", str, int | None))
    ordered = context.get_sorted_map_state(fb.SortedMapStateDescriptor("ordered", int, str))
    assert_type(ordered, fb.SortedMapState[int, str])
    older = Annotated[Total, fb.MigratedFrom(float, lambda total: Total("", total))]
    migrated = context.get_state(fb.ValueStateDescriptor("migrated", older))
    # To pyright a type in ``Annotated`` is not a class, so the state is of ``Any``.
    assert_type(migrated, fb.ValueState[Total | None])  # pyright: ignore[reportAssertTypeFailure]
    unset = context.get_state(fb.ValueStateDescriptor("unset", int))
    assert_type(unset, fb.ValueState[int | None])
    ttl = fb.StateTtlConfig(timedelta(hours=1))
    expiring = context.get_state(fb.ValueStateDescriptor("expiring", int, default=0, ttl=ttl))
    assert_type(expiring, fb.ValueState[int])
    defaulted = context.get_state(fb.ValueStateDescriptor("defaulted", list[int], default=[]))
    assert_type(defaulted, fb.ValueState[list[int]])
    context.get_state(fb.ListStateDescriptor("l", int))  # type: ignore[arg-type]


class Timed(fb.KeyedProcessFunction[str, Click, Total]):
    """Has timers."""

    def process_element(self, row: Click, ctx: fb.RuntimeContext) -> list[Total]:
        assert_type(ctx.timers, fb.Timers)
        assert_type(ctx.timers.watermark, datetime | None)
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(hours=1))
        ctx.timers.register_event_time(row.price)  # type: ignore[arg-type]
        return []

    async def on_timer(self, at: datetime, ctx: fb.RuntimeContext) -> list[Total]:
        assert_type(ctx.timers.domain, fb.TimeDomain | None)
        return [Total(ctx.current_key, at.timestamp())]
