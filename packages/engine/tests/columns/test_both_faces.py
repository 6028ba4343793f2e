"""Random programs on both faces, with restarts that change the face: same rows, same state."""

from __future__ import annotations

import operator
import random
from datetime import date, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay_engine.columns import Count, Mean
from forebay_state_api import (
    AggregatingStateDescriptor,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long


class Last(NamedTuple):
    a: int
    b: str | None
    day: date


class Row(NamedTuple):
    k: float
    part: str
    v: int | None
    x: float
    t: str
    op: int


SCHEMA = pa.schema(
    [
        ("k", pa.float64()),
        ("part", pa.string()),
        ("v", pa.int32()),
        ("x", pa.float64()),
        ("t", pa.large_string()),
        ("op", pa.int8()),
    ]
)
SHOWING = StateTtlConfig(
    timedelta(seconds=10), visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
)
RENEWING = StateTtlConfig(timedelta(seconds=10), update_type=UpdateType.ON_READ_AND_WRITE)
N = ValueStateDescriptor("n", int, default=100)
X = ValueStateDescriptor("x", float)
TEXT = ValueStateDescriptor("text", str)
LAST = ValueStateDescriptor("last", Last)
PAIR = ValueStateDescriptor("pair", tuple[bytes, bool], ttl=StateTtlConfig(timedelta(seconds=10)))
SEEN = ValueStateDescriptor("seen", bool, ttl=RENEWING)
OLD = ValueStateDescriptor("old", int, ttl=SHOWING)
NESTED = ValueStateDescriptor("nested", list[int])
REDUCING = (
    ReducingStateDescriptor("sum", operator.add, float),
    ReducingStateDescriptor("low", min, str),
    ReducingStateDescriptor("high", max, float),
    ReducingStateDescriptor("joined", operator.add, str, ttl=RENEWING),
)
AGGREGATING = (
    AggregatingStateDescriptor("count", Count(), int),
    AggregatingStateDescriptor("mean", Mean(), tuple[int, float]),
)
VALUES = (N, X, TEXT, LAST, PAIR, SEEN, OLD, NESTED)
DAY = date(2024, 2, 29)


class Everything(KeyedBatchFunction, KeyedProcessFunction[tuple[float, str], Row, Any]):
    def open(self, context):
        for one in VALUES:
            setattr(self, one.name, context.get_state(one))
        self.folded = [context.get_reducing_state(one) for one in REDUCING]
        self.folded += [context.get_aggregating_state(one) for one in AGGREGATING]

    def process_element(self, row, ctx):
        n = self.n.value() + 1
        self.n.update(n)
        x = (self.x.value() or 0.0) + row.x
        self.x.update(x)
        if row.op == 1:
            self.text.update(row.t)
        self.last.update(Last(row.op, row.t if row.v is None else None, DAY))
        if row.op == 2:
            self.pair.clear()
        else:
            self.pair.update((row.t.encode(), row.v is None))
        seen = self.seen.value()
        if row.op == 3 and not seen:
            self.seen.update(True)
        self.old.value()
        self.old.update(row.op)
        self.nested.update([row.op, n])
        for state, value in zip(self.folded, (row.x, row.t, row.x, row.t, 0, row.x), strict=True):
            state.add(value)
        return [(row.k, row.part, n, x, self.text.value())]

    def process_batch(self, rows, ctx):
        g, op = ctx.groups, rows["op"]
        n = g.cumcount(self.n.get_many(g))
        self.n.put_many(g, g.last(n))
        x = g.cumsum(rows["x"], self.x.get_many(g))
        self.x.put_many(g, g.last(x))
        is_text = pc.equal(op, 1)
        new = pc.if_else(is_text, rows["t"], None)
        text = g.ffill(new, self.text.get_many(g))
        self.text.put_many(g, g.last(rows["t"], where=is_text), where=is_text)
        no_value = rows["v"].is_null()
        b = g.last(pc.if_else(no_value, rows["t"], None))
        self.last.put_many(g, a=g.last(op), b=b, day=DAY)
        cleared = g.last(pc.equal(op, 2))
        self.pair.clear_many(g, where=cleared)
        pair = g.last(rows["t"]).cast(pa.large_binary()), g.last(no_value)
        self.pair.put_many(g, pair, where=g.invert(cleared))
        self.seen.put_many(
            g, True, where=pc.and_(g.any(pc.equal(op, 3)), g.invert(self.seen.contains_many(g)))
        )
        self.old.get_many(g)
        self.old.put_many(g, g.last(op))
        pairs = zip(g.last(op).to_pylist(), g.last(n).to_pylist(), strict=True)
        self.nested.put_many(g, [[*pair] for pair in pairs])
        for state, column in zip(self.folded, ("x", "t", "x", "t", "op", "x"), strict=True):
            state.add_many(g, rows[column])
        return {"k": rows["k"], "part": rows["part"], "n": n, "x": x, "text": text}


FLOATS = [0.0, -0.0, 1.5, -2.25, 1e300, -1e300, float("inf"), float("nan"), 1e-9]


def some_row(chance: random.Random) -> Row:
    return Row(
        chance.choice([0.0, -0.0, 2.5]),
        chance.choice("aé"),
        chance.choice([None, 1, -3]),
        chance.choice(FLOATS),
        chance.choice(["", "b", "ä€", "zz"]),
        chance.randrange(4),
    )


def columns(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([row._asdict() for row in rows], schema=SCHEMA)


def content(harness: Any) -> list[Any]:
    """Return all cells as they are stored, with their times."""
    job = harness._job
    job.descriptors = (*VALUES, *REDUCING, *AGGREGATING)
    keys = [(k, part) for k in (0.0, 2.5) for part in ("a", "é")]
    return [repr(cells) for cells in job.peek_all(keys)]


def harness_of(backend: str, *, by_columns: bool) -> Any:
    return FunctionHarness(
        Everything(), ["k", "part"], columns=by_columns, backend=backend, parallelism=2, cuts=None
    )


def run(harness: Any, rows: list[Row]) -> list[str]:
    return sorted(repr(tuple(row)) for row in harness.process(rows))


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("seed", range(8))
def test_faces_agree(seed, backend):
    chance = random.Random(seed)
    with (
        harness_of(backend, by_columns=False) as by_rows,
        harness_of(backend, by_columns=True) as mixed,
    ):
        for _ in range(chance.randrange(2, 7)):
            rows = [some_row(chance) for _ in range(chance.randrange(1, 12))]
            by_columns = chance.random() < 0.6
            if mixed._columns != by_columns:
                mixed._columns = by_columns  # what changes when a job changes from one face
                mixed.restart(Everything())
            wanted = run(by_rows, rows)
            given = columns(rows) if by_columns else rows
            assert sorted(repr(tuple(row)) for row in mixed.process(given)) == wanted
            passed = timedelta(seconds=chance.randrange(12))
            by_rows.clock.advance(passed)
            mixed.clock.advance(passed)
        assert content(mixed) == content(by_rows)
