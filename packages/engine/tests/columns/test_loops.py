"""Lists, maps, timers, broadcast input and the end of the batch of batch functions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from forebay_state_api import (
    CheckpointedFunction,
    ForebayError,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ColumnValueError
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long

ITEMS = ListStateDescriptor("items", int)
PAIRS = ListStateDescriptor("pairs", tuple[int, str])
PRICES = MapStateDescriptor("prices", str, float)
ROWS = SortedMapStateDescriptor("rows", int, str)
N = ValueStateDescriptor("n", int, default=0)
START = datetime(2024, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    user: str
    n: int


class Acts(KeyedBatchFunction):
    """Runs what a test puts into `act`."""

    def __init__(self, act):
        self.act = act

    def open(self, context):
        self.items = context.get_list_state(ITEMS)
        self.pairs = context.get_list_state(PAIRS)
        self.prices = context.get_map_state(PRICES)
        self.rows = context.get_sorted_map_state(ROWS)
        self.n = context.get_state(N)

    def process_batch(self, rows, ctx):
        return self.act(self, rows, ctx)


def made(act: Any, rows: list[Row] | None = None, **named: Any) -> list[Any]:
    with FunctionHarness(Acts(act), "user", cuts=None, **named) as harness:
        given = [Row("a", 1), Row("b", 2), Row("a", 3)] if rows is None else rows
        return [tuple(row) for row in harness.process(given)]


def test_lists():
    def act(f, rows, ctx):
        g = ctx.groups
        f.items.add_many(g, rows["n"])
        first = f.items.get_many(g)
        assert first.type == pa.list_(pa.int64())
        f.items.put_many(g, [[7], [8, 9]], where=[False, True])
        f.items.clear_many(g, where=pc.equal(rows["n"], 3))
        f.pairs.add_many(g, [(5, "x"), None], where=[True, True])
        pairs = f.pairs.get_many(g)
        assert not pairs.flags.writeable
        there = f.items.contains_many(g)
        return {"a": first, "b": f.items.get_many(g), "c": there, "d": [*map(len, pairs)]}

    assert made(act) == [([1, 3], [], False, 1), ([2], [8, 9], True, 0)]


def test_maps_take_keys_of_rows_of_keys_or_one_for_all():
    def act(f, rows, ctx):
        g = ctx.groups
        f.prices.put_many(g, rows["user"], rows["n"])
        f.prices.put_many(g, "all", [1.5, None])
        f.prices.remove_many(g, ["a", "none"])
        of_rows = f.prices.get_many(g, rows["user"])
        there = f.prices.contains_many(g, "all")
        entries, empty = f.prices.items_many(g), f.prices.is_empty_many(g)
        assert entries.type == pa.map_(pa.string(), pa.float64())
        keys, values = f.prices.keys_many(g), f.prices.values_many(g)
        return {
            "a": g.first(of_rows),
            "b": there,
            "c": entries,
            "d": empty,
            "e": keys,
            "f": values,
        }

    assert made(act) == [
        (None, True, [("all", 1.5)], False, ["all"], [1.5]),
        (2.0, True, [("b", 2.0), ("all", None)], False, ["b", "all"], [2.0, None]),
    ]


def test_sorted_maps():
    def act(f, rows, ctx):
        g = ctx.groups
        for n in (3, 1, 2):
            f.rows.put_many(g, n, g.keys["user"])
        f.rows.remove_range_many(g, [2, 3], 4)
        first, name = f.rows.first_many(g, [0, 2])
        last, _ = f.rows.last_many(g, None, 3)
        return {"a": f.rows.range_many(g, 1), "b": first, "c": name, "d": last}

    assert made(act) == [
        ([(1, "a")], 1, "a", 1),
        ([(1, "b"), (2, "b")], 2, "b", 2),
    ]


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (
            lambda f, r, c: f.items.add_many(c.groups, [1]),
            "'items': 1 values were given; .* 3 rows",
        ),
        (lambda f, r, c: f.items.add_many(c.groups, ["x"] * 3), "(?s)'items'.*'items', row 0"),
        (lambda f, r, c: f.items.put_many(c.groups, [[1], None]), r"(?s)update\(None\).*key 1"),
        (lambda f, r, c: f.prices.put_many(c.groups, ["a", None], 1.0), "(?s)user key.*key 1"),
        (lambda f, r, c: f.prices.put_many(c.groups, ["a"] * 3, [1.0] * 2), "2 and 3 values"),
        (lambda f, r, c: f.items.get(), "state 'items' .* has no 'get'; it has add_many"),
        (lambda f, r, c: f.rows.range_many(["a"]), "range_many of state 'rows' takes ctx.groups"),
        (
            lambda f, r, c: c.timers.register_processing_time_many(c.groups, START),
            "register_processing_time_many: the function has no on_timers",
        ),
    ],
)
def test_bad_use_names_state_and_row(act, reason):
    with pytest.raises(ForebayError) as caught:
        made(act)
    cause = caught.value.__cause__ or caught.value
    text = "\n".join([str(caught.value), str(cause), *getattr(cause, "__notes__", ())])
    assert re.search(reason, text), text


def test_a_value_that_columns_cannot_hold_is_named():
    class Writes(Acts, KeyedProcessFunction):
        def process_element(self, row, ctx):
            self.items.add(1 << 70)

    function = Writes(lambda f, rows, ctx: {"n": f.items.get_many(ctx.groups)})
    with FunctionHarness(function, "user", columns=False, cuts=None) as harness:
        harness.process([Row("a", 1)])
        harness._columns = True
        harness.restart(function)
        with pytest.raises(ColumnValueError, match="state 'items' has a value"):
            harness.process([Row("a", 1)])


class Alarms(KeyedBatchFunction):
    """Registers a timer for each row, and lists what fires."""

    def open(self, context):
        self.items = context.get_list_state(ITEMS)
        self.n = context.get_state(N)

    def process_batch(self, rows, ctx):
        g = ctx.groups
        second = pa.scalar(timedelta(seconds=1), pa.duration("us"))
        at = pc.add(pa.scalar(START, pa.timestamp("us", "UTC")), pc.multiply(second, rows["n"]))
        ctx.timers.register_processing_time_many(g, at)
        self.items.add_many(g, rows["n"])
        self.n.put_many(g, g.last(rows["n"]))

    def on_timers(self, at, ctx):
        g = ctx.groups
        assert len(at) == len(g) == g.rows
        if 13 in pc.second(at).to_pylist():
            ctx.timers.register_processing_time_many(g, START + timedelta(hours=1))
            self.items.clear_many(g)
            self.n.clear_many(g)
            raise ValueError("thirteen")
        listed = ctx.timers.list_processing_time_many(g)
        delayed = pc.equal(pc.second(at), 5)
        later = pc.add(at, pa.scalar(timedelta(seconds=1), pa.duration("us")))
        ctx.timers.delete_processing_time_many(g, later, where=delayed)
        return {
            "user": g.keys["user"],
            "at": pc.second(at),
            "keys": [len(g)] * len(g),
            "left": pc.list_value_length(listed),
        }


def alarms(**named: Any) -> Any:
    return FunctionHarness(Alarms(), "user", cuts=None, **named)


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_timers_of_many_keys_fire_in_one_call_and_those_of_a_key_in_turn(backend):
    with alarms(backend=backend) as harness:
        rows = [Row("a", 3), Row("a", 5), Row("a", 6), Row("b", 4), Row("c", 5), Row("b", 99)]
        assert harness.process(rows) == []
        found = [tuple(row) for row in harness.tick(START + timedelta(seconds=10))]
    # The timer of "a" at 6 seconds was deleted by the one at 5 seconds.
    assert found == [
        ("a", 3, 2, 2),
        ("b", 4, 2, 1),
        ("a", 5, 2, 1),
        ("c", 5, 2, 0),
    ]


def test_a_timer_that_fails_leaves_nothing():
    with alarms(on_error="column") as harness:
        harness.process([Row("a", 13), Row("b", 12)])
        found = harness.tick(START + timedelta(minutes=1))
        failed = [row for row in found if hasattr(row, "message")]
        assert [tuple(row)[:2] for row in found if not hasattr(row, "message")] == [("b", 12)]
        assert [(one.method, one.key, one.timer.second, one.row) for one in failed] == [
            ("on_timers", "a", 13, None)
        ]
        assert harness.state(ITEMS, "a") == [13]
        assert harness.state(N, "a") == 13
        assert harness.tick(START + timedelta(hours=2)) == []


def test_what_a_failed_key_has_changed_in_lists_maps_and_timers_is_put_back():
    class Fails(Alarms):
        def open(self, context):
            super().open(context)
            self.prices = context.get_map_state(PRICES)
            self.rows = context.get_sorted_map_state(ROWS)

        def process_batch(self, rows, ctx):
            super().process_batch(rows, ctx)
            g = ctx.groups
            self.prices.put_many(g, rows["user"], 1.0)
            self.rows.put_many(g, rows["n"], rows["user"])
            self.rows.remove_range_many(g, None, 2)
            if 7 in rows["n"].to_pylist():
                self.items.clear_many(g)
                raise ValueError("seven")

    with FunctionHarness(Fails(), "user", cuts=None, on_error="column") as harness:
        harness.process([Row("a", 1), Row("b", 2), Row("c", 3)])
        before = [harness.state(one, "b") for one in (ITEMS, PRICES, ROWS, N)]
        assert len(harness.process([Row("a", 4), Row("b", 5), Row("b", 7), Row("c", 6)])) == 2
        assert [harness.state(one, "b") for one in (ITEMS, PRICES, ROWS, N)] == before
        assert harness.state(ITEMS, "a") == [1, 4]
        assert harness.state(ROWS, "c") == {3: "c", 6: "c"}
        fired = [tuple(row)[:2] for row in harness.tick(START + timedelta(seconds=9))]
        assert sorted(fired) == [("a", 1), ("a", 4), ("b", 2), ("c", 3), ("c", 6)]


def test_the_end_of_the_batch_has_the_keys_of_all_slices():
    class Ends(Acts):
        def process_batch(self, rows, ctx):
            self.items.add_many(ctx.groups, rows["n"])

        def end_batch(self, ctx):
            g = ctx.groups
            found = self.items.get_many(g)
            self.items.clear_many(g)
            total = pc.add(self.n.get_many(g), pc.list_value_length(found))
            self.n.put_many(g, total)
            return {"user": g.keys["user"], "items": found, "total": total} if len(g) else None

    with FunctionHarness(Ends(None), "user", cuts=0) as harness:
        found = harness.process([Row("ab"[n // 4], n) for n in range(8)])
        assert sorted(map(tuple, found)) == [("a", [0, 1, 2, 3], 4), ("b", [4, 5, 6, 7], 4)]
        assert harness.process([]) == []
        assert harness.process([Row("b", 9)]) == [("b", [9], 5)]
        assert harness.state(ITEMS, "a") == []
        assert harness.state(N, "b") == 5


class Limits(KeyedBatchFunction):
    """Sums up to a limit that a broadcast input changes; what is above it then is cut."""

    LIMIT = MapStateDescriptor("limit", str, int)

    def open(self, context):
        self.n = context.get_state(N)
        self.items = context.get_list_state(ITEMS)
        self.limit = context.get_broadcast_state(self.LIMIT)

    def process_broadcast_element(self, row, ctx):
        self.limit.put("n", row.n)

        def cut(key, state):
            if state.value() > row.n:
                state.update(row.n)
                yield f"cut {key}", row.n

        ctx.apply_to_keyed_state(N, cut)
        ctx.apply_to_keyed_state(ITEMS, lambda _, items: items.update(items.get()[-1:]))
        yield row.user, row.n

    def process_batch(self, rows, ctx):
        g = ctx.groups
        limit = self.limit.get("n")
        total = g.cumsum(rows["n"], self.n.get_many(g))
        total = total if limit is None else pc.min_element_wise(total, limit)
        self.n.put_many(g, g.last(total))
        self.items.add_many(g, rows["n"])
        return {"user": rows["user"], "n": total}


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_broadcast_input(backend):
    with FunctionHarness(Limits(), "user", backend=backend, parallelism=2) as harness:
        found = harness.process([Row("a", 5), Row("b", 2)], [])
        assert sorted(found) == [("a", 5), ("b", 2)]
        found = harness.process([Row("a", 1), Row("b", 1)], [Row("rule", 4)])
        assert sorted(map(tuple, found)) == [
            ("a", 4),
            ("b", 3),
            ("cut a", 4),
            ("rule", 4),
            ("rule", 4),
        ]
        assert harness.state(N, "a") == 4
        assert harness.state(ITEMS, "a") == [5, 1]
        assert [*map(dict, harness.operator_state(Limits.LIMIT))] == [{"n": 4}] * 2


def test_operator_state():
    descriptor = ListStateDescriptor("sizes", int)

    class Sizes(KeyedBatchFunction, CheckpointedFunction):
        def initialize_state(self, context):
            self.sizes = context.operator_state_store.get_list_state(descriptor)
            self.n = context.keyed_state_store.get_state(N)

        def process_batch(self, rows, ctx):
            self.sizes.add(len(rows))
            self.n.put_many(ctx.groups, ctx.groups.count())

        def snapshot_state(self, context):
            """Everything is in the list."""

    with FunctionHarness(Sizes(), "user", cuts=None) as harness:
        harness.process([Row("a", 1), Row("b", 2)])
        harness.process([Row("a", 1)])
        assert harness.operator_state(descriptor) == [[2, 1]]


class Counts(KeyedBatchFunction):
    """Counts in point states of several types, some of which are cleared now and then."""

    TEXT = ValueStateDescriptor("text", str, ttl=StateTtlConfig(timedelta(hours=1)))
    NESTED = ValueStateDescriptor("nested", list[int])

    def open(self, context):
        self.n = context.get_state(N)
        self.text = context.get_state(self.TEXT)
        self.nested = context.get_state(self.NESTED)

    def process_batch(self, rows, ctx):
        g = ctx.groups
        n = g.cumcount(self.n.get_many(g))
        text = self.text.get_many(g).to_pylist()
        nested = [[] if one is None else one for one in self.nested.get_many(g)]
        self.n.put_many(g, g.last(n))
        self.text.put_many(g, [f"{one or ''}x" for one in text])
        self.nested.put_many(g, [[*one, 1] for one in nested])
        gone = pc.equal(pc.bit_wise_and(g.last(n), 3), 3)
        for state in (self.text, self.nested):
            state.clear_many(g, where=gone)
        return {"user": rows["user"], "n": n}


@pytest.mark.parametrize("read_ahead", [True, False])
def test_the_next_slice_is_read_ahead(read_ahead):
    chance = np.random.default_rng(5)
    batches = [[Row("abcdefgh"[n], 1) for n in chance.integers(0, 8, size=40)] for _ in range(6)]
    found = []
    for backend in ("heap", "lsm"):
        with FunctionHarness(
            Counts(), "user", backend=backend, cuts=1, read_ahead=read_ahead
        ) as harness:
            read = 0
            for rows in batches:
                found.append(sorted(map(tuple, harness.process(rows))))
                read += harness.metrics.read_ahead_cells
            states = N, Counts.TEXT, Counts.NESTED
            found.append([[harness.state(one, key) for one in states] for key in "abcdefgh"])
            assert (read > 0) == (read_ahead and backend == "lsm")
    assert found[:7] == found[7:]
