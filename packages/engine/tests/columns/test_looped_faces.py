"""Lists, maps, namespaces and timers in random programs on both faces, with restarts between them.

What a row does depends on its own state alone, so that a loop over rows and one access for all rows
do the same; what depends on other state is done by timers.
"""

from __future__ import annotations

import operator
import random
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay_engine.columns import Count
from forebay_state_api import (
    AggregatingStateDescriptor,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long

START = datetime(2024, 1, 1, tzinfo=UTC)
TTL = StateTtlConfig(timedelta(seconds=10))
RENEWING = StateTtlConfig(timedelta(seconds=10), update_type=UpdateType.ON_READ_AND_WRITE)
ITEMS = ListStateDescriptor("items", int)
PAIRS = ListStateDescriptor("pairs", tuple[int, str], ttl=TTL)
PRICES = MapStateDescriptor("prices", str, float)
SEEN = MapStateDescriptor("seen", int, bool, ttl=RENEWING)
TIMES = SortedMapStateDescriptor("times", int, str)
TOTAL = ValueStateDescriptor("total", int, default=0)
SUM = ReducingStateDescriptor("sum", operator.add, int, ttl=RENEWING)
JOINED = ReducingStateDescriptor("joined", operator.add, list[int])
COUNT = AggregatingStateDescriptor("count", Count(), int, ttl=TTL)
FOLDED = (SUM, JOINED, COUNT)
STATES = (ITEMS, PAIRS, PRICES, SEEN, TIMES, TOTAL, *FOLDED)


class Row(NamedTuple):
    k: int
    part: str
    v: int
    x: float | None
    at: datetime
    op: int


SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("part", pa.string()),
        ("v", pa.int16()),
        ("x", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("op", pa.int8()),
    ]
)


class Program(KeyedBatchFunction, KeyedProcessFunction[tuple[int, str], Row, Any]):
    def open(self, context):
        self.items = context.get_list_state(ITEMS)
        self.pairs = context.get_list_state(PAIRS)
        self.prices = context.get_map_state(PRICES)
        self.seen = context.get_map_state(SEEN)
        self.times = context.get_sorted_map_state(TIMES)
        self.total = context.get_state(TOTAL)
        self.folded = [context.get_reducing_state(one) for one in (SUM, JOINED)]
        self.folded.append(context.get_aggregating_state(COUNT))

    def process_element(self, row, ctx):
        ctx.set_current_namespace(ctx.batch_id % 2)
        self.items.add(row.v)
        if row.op == 1:
            self.pairs.add((row.v, row.part))
            self.prices.put("p" * row.v, row.x)
        known = self.seen.get(row.v)
        self.seen.put(row.v, True)
        if row.op == 2:
            self.times.put(row.v, row.part)
        if row.op == 3:
            ctx.timers.register_event_time(row.at + timedelta(seconds=row.v))
            ctx.timers.register_processing_time(row.at)
        self.total.update(self.total.value() + row.v)
        for state, value in zip(self.folded, (row.v, [row.v], row.v), strict=True):
            state.add(value)
        yield row.k, row.part, row.v, known, self.total.value()

    def process_batch(self, rows, ctx):
        ctx.set_current_namespace(ctx.batch_id % 2)
        g, v, op = ctx.groups, rows["v"], rows["op"]
        self.items.add_many(g, v)
        pairs = [*zip(v.to_pylist(), rows["part"].to_pylist(), strict=True)]
        self.pairs.add_many(g, pairs, where=pc.equal(op, 1))
        names = ["p" * n for n in v.to_pylist()]
        self.prices.put_many(g, names, rows["x"], where=pc.equal(op, 1))
        known = self._known(g, v)
        self.seen.put_many(g, v, True)
        self.times.put_many(g, v, rows["part"], where=pc.equal(op, 2))
        later = pc.add(rows["at"], pc.multiply(v.cast("int64"), 1_000_000).cast(pa.duration("us")))
        ctx.timers.register_event_time_many(g, later, where=pc.equal(op, 3))
        ctx.timers.register_processing_time_many(g, rows["at"], where=pc.equal(op, 3))
        total = g.cumsum(v, self.total.get_many(g))
        self.total.put_many(g, g.last(total))
        for state, values in zip(self.folded, (v, [[n] for n in v.to_pylist()], v), strict=True):
            state.add_many(g, values)
        return {"k": rows["k"], "part": rows["part"], "v": v, "known": known, "total": total}

    def _known(self, g, v):
        """Return whether a row's number was seen before the slice, or in an earlier row."""
        before = self.seen.get_many(g, v).to_pylist()
        rows = [*zip(g.index.to_pylist(), v.to_pylist(), strict=True)]
        earlier = [row in rows[:at] for at, row in enumerate(rows)]
        return pa.array(
            [True if e else b for b, e in zip(before, earlier, strict=True)], pa.bool_()
        )

    def on_timer(self, at, ctx):
        if ctx.current_namespace == 1:
            self.items.merge_namespaces(0, [1])
            for state in self.folded:
                state.merge_namespaces(0, [None, 1])
        items, last = self.items.get(), self.times.last()
        first = self.times.first(2)
        self.times.remove_range(None, 3)
        self.prices.remove("p")
        if at.second % 2:
            self.pairs.update([(1, "x")])
            ctx.timers.delete_event_time(at + timedelta(seconds=1))
            ctx.timers.register_event_time(at + timedelta(seconds=2))
        k, part = ctx.current_key
        prices = sorted(self.prices.items())
        count = len(self.pairs.get()) * 100 + len(self.times.range(1, 5))
        yield k, f"{part} {at:%S} {ctx.timers.domain.value}", sum(items), repr(prices), count
        yield k, repr((first, last)), 0, repr(sorted(self.seen.keys())), self.total.value()

    def on_timers(self, at, ctx):
        g = ctx.groups
        if ctx.current_namespace == 1:
            self.items.merge_namespaces_many(g, 0, [1])
            for state in self.folded:
                state.merge_namespaces_many(g, 0, [None, 1])
        items = [sum(one) for one in self.items.get_many(g).to_pylist()]
        last, first = self.times.last_many(g), self.times.first_many(g, 2)
        self.times.remove_range_many(g, None, 3)
        self.prices.remove_many(g, "p")
        odd = pc.equal(pc.bit_wise_and(pc.second(at), 1), 1)
        self.pairs.put_many(g, [[(1, "x")]] * len(g), where=odd)
        second = pa.scalar(timedelta(seconds=1), pa.duration("us"))
        ctx.timers.delete_event_time_many(g, pc.add(at, second), where=odd)
        twice = pc.add(pc.add(at, second), second)
        ctx.timers.register_event_time_many(g, twice, where=odd)
        k, part = g.keys["k"].to_pylist(), g.keys["part"].to_pylist()
        domain = ctx.timers.domain.value
        texts = [f"{p} {one:%S} {domain}" for p, one in zip(part, at.to_pylist(), strict=True)]
        prices = [repr(sorted(one)) for one in self.prices.items_many(g).to_pylist()]
        ranges = self.times.range_many(g, 1, 5)
        pairs = [len(one) * 100 for one in self.pairs.get_many(g)]
        counts = [a + len(b) for a, b in zip(pairs, ranges.to_pylist(), strict=True)]
        ends = zip(_entries(first), _entries(last), strict=True)
        return {
            "k": k + k,
            "part": texts + [repr(pair) for pair in ends],
            "v": items + [0] * len(g),
            "known": prices + [repr(sorted(one)) for one in self.seen.keys_many(g).to_pylist()],
            "total": counts + self.total.get_many(g).to_pylist(),
        }


def _entries(pair):
    keys, values = (one.to_pylist() for one in pair)
    return [None if k is None else (k, v) for k, v in zip(keys, values, strict=True)]


def some_row(chance: random.Random, at: datetime) -> Row:
    return Row(
        chance.randrange(2),
        chance.choice("aé"),
        chance.randrange(6),
        chance.choice([None, 0.5, -1.0]),
        at + timedelta(seconds=chance.randrange(-5, 5)),
        chance.randrange(4),
    )


def content(harness: Any) -> list[Any]:
    """Return all cells as they are stored, with their times, in every namespace."""
    job = harness._job
    job.descriptors = STATES
    keys = [(k, part) for k in range(2) for part in ("a", "é")]
    return [repr(job.peek_all(keys, namespace)) for namespace in (None, 0, 1)]


def harness_of(backend: str, *, by_columns: bool) -> Any:
    return FunctionHarness(
        Program(),
        ["k", "part"],
        columns=by_columns,
        backend=backend,
        parallelism=2,
        cuts=None,
        event_time="at",
    )


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("seed", range(6))
def test_faces_agree_about_loops(seed, backend):
    chance = random.Random(seed)
    fired = 0
    with (
        harness_of(backend, by_columns=False) as by_rows,
        harness_of(backend, by_columns=True) as mixed,
    ):
        at = START
        for _ in range(chance.randrange(3, 8)):
            rows = [some_row(chance, at) for _ in range(chance.randrange(1, 10))]
            by_columns = chance.random() < 0.6
            if mixed._columns != by_columns:
                mixed._columns = by_columns  # what changes when a job changes from one face
                mixed.restart(Program())
            wanted = sorted(repr(tuple(row)) for row in by_rows.process(rows))
            table = pa.Table.from_pylist([row._asdict() for row in rows], schema=SCHEMA)
            found = mixed.process(table if by_columns else rows)
            assert sorted(repr(tuple(row)) for row in found) == wanted
            fired += len(wanted) - len(rows)
            passed = timedelta(seconds=chance.randrange(12))
            at += passed
            by_rows.clock.advance(passed)
            mixed.clock.advance(passed)
        assert content(mixed) == content(by_rows)
    assert fired
