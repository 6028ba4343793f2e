"""Batch functions in the harness: the jobs of the documentation, and what is refused."""

from __future__ import annotations

import operator
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from forebay_engine.columns.aggregates import Count, Mean
from forebay_state_api import (
    AggregatingStateDescriptor,
    ConfigurationError,
    ForebayError,
    FunctionError,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    UpdateType,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long


class Totals(NamedTuple):
    cnt: int
    amount: int


class Row(NamedTuple):
    user: str
    amount: int


TOTALS = ValueStateDescriptor("totals", Totals, default=Totals(0, 0))


class RunningTotals(KeyedBatchFunction, KeyedProcessFunction[str, Row, Any]):
    def open(self, context):
        self.totals = context.get_state(TOTALS)

    def process_batch(self, rows, ctx):
        g, old = ctx.groups, self.totals.get_many(ctx.groups)
        cnt, total = g.cumcount(old["cnt"]), g.cumsum(rows["amount"], old["amount"])
        self.totals.put_many(g, cnt=g.last(cnt), amount=g.last(total))
        return {"user": rows["user"], "cnt": cnt, "total": total}

    def process_element(self, row, ctx):
        old = self.totals.value()
        new = Totals(old.cnt + 1, old.amount + row.amount)
        self.totals.update(new)
        return [(row.user, *new)]


class Dedup(KeyedBatchFunction):
    SEEN = ValueStateDescriptor("seen", bool, ttl=StateTtlConfig(timedelta(seconds=10)))

    def open(self, context):
        self.seen = context.get_state(self.SEEN)

    def process_batch(self, rows, ctx):
        g = ctx.groups
        new = g.invert(self.seen.contains_many(g))
        self.seen.put_many(g, True, where=new)
        return rows.take(g.first_rows(where=new))


class LastPrice(KeyedBatchFunction):
    PRICE = ValueStateDescriptor("price", float)

    def open(self, context):
        self.price = context.get_state(self.PRICE)

    def process_batch(self, rows, ctx):
        g = ctx.groups
        price = g.ffill(rows.second["price"], self.price.get_many(g))
        self.price.put_many(g, g.last(price), where=g.any(rows.is_second))
        return rows.first.append("price", price)


def rows(*pairs: tuple[str, int]) -> list[Row]:
    return [Row(*pair) for pair in pairs]


BACKENDS = pytest.mark.parametrize("backend", ["heap", "lsm"])


@BACKENDS
def test_running_totals(backend):
    with FunctionHarness(
        RunningTotals(), "user", columns=True, backend=backend, parallelism=2
    ) as harness:
        found = harness.process(rows(("a", 1), ("b", 2), ("a", 3)))
        assert sorted(found) == [("a", 1, 1), ("a", 2, 4), ("b", 1, 2)]
        assert harness.process({"user": ["a"], "amount": [5]}) == [("a", 3, 9)]
        assert harness.state(TOTALS, "a") == Totals(3, 9)


@BACKENDS
def test_a_job_changes_its_face_by_a_restart(backend):
    function = RunningTotals()
    with FunctionHarness(function, "user", columns=True, backend=backend) as harness:
        for by_columns in (True, False, True, False):
            harness._columns = by_columns
            harness.restart(function)
            harness.process(rows(("a", 1), ("b", 1), ("a", 1)))
        assert harness.state(TOTALS, "a") == Totals(8, 8)
        assert harness.state(TOTALS, "b") == Totals(4, 4)


@BACKENDS
def test_dedup_with_ttl(backend):
    with FunctionHarness(Dedup(), "user", backend=backend) as harness:
        assert harness.process(rows(("a", 1), ("a", 2), ("b", 3))) == [("a", 1), ("b", 3)]
        harness.clock.advance(timedelta(seconds=9))
        assert harness.process(rows(("a", 4), ("c", 5))) == [("c", 5)]
        harness.clock.advance(timedelta(seconds=9))
        assert harness.process(rows(("a", 6), ("c", 7))) == [("a", 6)]
        assert harness.metrics.values_expired >= 1


def test_reads_renew_the_time_to_live():
    ttl = StateTtlConfig(timedelta(seconds=10), update_type=UpdateType.ON_READ_AND_WRITE)

    class Renewing(Dedup):
        SEEN = ValueStateDescriptor("seen", bool, ttl=ttl)

    with FunctionHarness(Renewing(), "user") as harness:
        assert harness.process(rows(("a", 1))) == [("a", 1)]
        for _ in range(3):
            harness.clock.advance(timedelta(seconds=9))
            assert harness.process(rows(("a", 1))) == []
        harness.clock.advance(timedelta(seconds=11))
        assert harness.process(rows(("a", 1))) == [("a", 1)]


def test_last_value_of_the_other_input():
    class Trade(NamedTuple):
        item: str
        count: int

    class Price(NamedTuple):
        item: str
        price: float

    with FunctionHarness(LastPrice(), "item") as harness:
        found = harness.process([Trade("a", 1)], [Price("a", 2.5), Price("b", 3.5)])
        assert found == [("a", 1, None)]
        found = harness.process([Trade("a", 2), Trade("b", 3), Trade("c", 4)], [Price("a", 9.0)])
        assert sorted(found) == [("a", 2, 2.5), ("b", 3, 3.5), ("c", 4, None)]
        assert harness.state(LastPrice.PRICE, "a") == 9.0


class Folded(KeyedBatchFunction, KeyedProcessFunction[str, Row, Any]):
    STATES = (
        ReducingStateDescriptor("sum", operator.add, int),
        ReducingStateDescriptor("least", min, int),
        ReducingStateDescriptor("most", max, int),
        ReducingStateDescriptor("product", operator.mul, int),
        AggregatingStateDescriptor("count", Count(), int),
        AggregatingStateDescriptor("mean", Mean(), tuple[int, float]),
    )

    def open(self, context):
        reducing = [context.get_reducing_state(one) for one in self.STATES[:4]]
        self.states = [*reducing, *[context.get_aggregating_state(one) for one in self.STATES[4:]]]

    def process_batch(self, rows, ctx):
        g = ctx.groups
        for state in self.states:
            state.add_many(g, rows["amount"])
        made = {f"s{at}": state.get_many(g) for at, state in enumerate(self.states)}
        return {"user": g.keys["user"], **made}

    def process_element(self, row, ctx):
        for state in self.states:
            state.add(row.amount)
        return [(row.user, *[state.get() for state in self.states])]


def test_values_are_folded_as_by_functions_of_one_row():
    given = [rows(("a", 3), ("b", -2), ("a", 5)), rows(("b", 4), ("c", 1), ("a", -7))]
    last = []
    for by_columns in (True, False):
        with FunctionHarness(Folded(), "user", columns=by_columns, cuts=None) as harness:
            found = [{row[0]: tuple(row) for row in harness.process(some)} for some in given]
            last.append(found)
            assert harness.state(Folded.STATES[0], "a") == 1
    assert last[0] == last[1]


def test_the_harness_shows_an_output_that_depends_on_cuts():
    class Counts(KeyedBatchFunction):
        def process_batch(self, rows, ctx):
            return {"user": ctx.groups.keys["user"], "count": ctx.groups.count()}

    with (
        FunctionHarness(Counts(), "user", cuts=1) as harness,
        pytest.raises(AssertionError, match="depends on how the micro-batch is cut"),
    ):
        _ = [harness.process(rows(*[("a", 1)] * 9)) for _ in range(9)]


def test_all_rows_at_once_and_the_end_of_the_batch():
    class Whole(KeyedBatchFunction):
        slices = "micro-batch"
        sizes = ()

        def process_batch(self, rows, ctx):
            self.sizes = (*self.sizes, len(rows))

        def end_batch(self, ctx):
            return {"calls": [len(self.sizes)], "rows": [sum(self.sizes)]}

    with FunctionHarness(Whole(), "user", cuts=1) as harness:
        assert harness.process(rows(*[("a", 1)] * 20)) == [(1, 20)]


class Bad(KeyedBatchFunction):
    """Runs what a test puts into `act`, with states of several types."""

    def __init__(self, act):
        self.act = act

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int))
        self.text = context.get_state(ValueStateDescriptor("text", str))
        self.totals = context.get_state(ValueStateDescriptor("totals", Totals))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", operator.add, int))

    def process_batch(self, rows, ctx):
        return self.act(self, rows, ctx)


def other_thread(state, groups):
    found: list[Exception] = []

    def read():
        try:
            state.get_many(groups)
        except Exception as error:  # noqa: BLE001 - raised below
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    raise found[0]


def other_groups(rows, ctx):
    from forebay_engine.columns.groups import group
    from forebay_engine.columns.keys import distinct

    keys = [rows["user"]]
    return group(keys, ["user"], distinct(keys))


def generator(function, rows, ctx):
    return (row for row in [])


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda f, r, c: f.n.put_many(c.groups, [1]), "put_many of state 'n': 1 values .* 2 keys"),
        (
            lambda f, r, c: f.n.put_many(c.groups, [1, None]),
            "put_many of state 'n': null for the key of row 1",
        ),
        (
            lambda f, r, c: f.totals.put_many(c.groups, cnt=[1, 2], amount=[3, None]),
            "state 'totals', field 'amount': null for the key of row 1",
        ),
        (
            lambda f, r, c: f.totals.put_many(c.groups, cnt=[1, 2]),
            r"state 'totals': the fields are cnt, amount; missing \['amount'\]",
        ),
        (lambda f, r, c: f.n.put_many(c.groups, ["a", "b"]), "state 'n' takes int64, not .*string"),
        (
            lambda f, r, c: f.n.put_many(c.groups, 1.5),
            "state 'n' takes int64, not values of double",
        ),
        (lambda f, r, c: f.n.put_many(c.groups, True), "state 'n' takes int64, not values of bool"),
        (
            lambda f, r, c: f.n.put_many(c.groups, 1, where=[True]),
            "the mask of put_many of state 'n' has 1 elements; there are 3 rows and 2 keys",
        ),
        (
            lambda f, r, c: f.text.put_many(c.groups, pa.array([b"a", b"\xff"]).view(pa.string())),
            "state 'text': text that is not UTF-8 for the key of row 1",
        ),
        (lambda f, r, c: f.n.get_many(other_groups(r, c)), "state 'n' takes ctx.groups"),
        (lambda f, r, c: f.n.get_many(["a"]), "get_many of state 'n' takes ctx.groups"),
        (
            lambda f, r, c: f.n.value(),
            "state 'n' of a batch function has no 'value'; it has clear_",
        ),
        (lambda f, r, c: other_thread(f.n, c.groups), "state 'n' on thread"),
        (lambda f, r, c: f.sum.add_many(c.groups, [1 << 62] * 3), "state 'sum': sum of .* key 'a'"),
        (lambda f, r, c: c.groups.cumsum(r["big"]), "cumsum of column 'big' .* key 'a', at row 2"),
        (lambda f, r, c: c.current_key, "ctx.current_key is for functions of one row"),
        (lambda f, r, c: r["nothing"], "no column 'nothing'; the columns are user, amount, big"),
        (lambda f, r, c: list(r), "rows have columns, such as"),
        (generator, "neither awaits nor yields"),
        (lambda f, r, c: 5, "process_batch returned int 5; it takes a dict of arrays"),
        (lambda f, r, c: {"a": [1], "b": [1, 2]}, "several lengths: a has 1, b has 2"),
        (lambda f, r, c: r.take([7]), "out of bounds"),
        (lambda f, r, c: r.first, "rows.first is for two inputs"),
        (lambda f, r, c: r.is_late, "rows.is_late needs event times"),
    ],
)
def test_bad_use_is_an_error_and_nothing_is_lost(act, reason):
    given = {"user": ["a", "b", "a"], "amount": [1, 2, 3], "big": [1 << 62, 1, 1 << 62]}
    with FunctionHarness(Bad(act), "user", cuts=None) as harness:
        with pytest.raises(ForebayError, match=reason) as caught:
            harness.process(given)
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert "process_batch, rows 0 to 2 of the subtask's micro-batch" in text
        assert harness.version == 0


def test_state_is_not_used_after_the_call():
    class Ends(Bad):
        def process_batch(self, rows, ctx):
            self.groups = ctx.groups

        def close(self):
            self.n.put_many(self.groups, 1)

    with (
        FunctionHarness(Ends(None), "user") as harness,
        pytest.raises(ForebayError, match="put_many of state 'n' outside process_batch"),
    ):
        harness.process(rows(("a", 1)))


def test_writes_of_a_slice_that_fails_are_dropped():
    class Fails(RunningTotals):
        def process_batch(self, rows, ctx):
            made = super().process_batch(rows, ctx)
            if pa.compute.any(pa.compute.equal(rows["amount"], 13)).as_py():
                raise ValueError("thirteen")
            return made

    with FunctionHarness(Fails(), "user", columns=True, on_error="column", cuts=None) as harness:
        found = harness.process(rows(("a", 1), ("b", 13), ("c", 2), ("b", 4), ("a", 5)))
        failed = [row for row in found if hasattr(row, "message")]
        assert sorted(row for row in found if not hasattr(row, "message")) == [
            ("a", 1, 1),
            ("a", 2, 6),
            ("c", 1, 2),
        ]
        assert [(one.type, one.message, one.key, one.row) for one in failed] == [
            ("ValueError", "thirteen", "b", '{"user": "b", "amount": 13}'),
            ("ValueError", "thirteen", "b", '{"user": "b", "amount": 4}'),
        ]
        assert harness.state(TOTALS, "b") == Totals(0, 0)
        assert harness.metrics.failed == 2


def test_too_many_failures_fail_the_micro_batch():
    class Fails(KeyedBatchFunction):
        def process_batch(self, rows, ctx):
            raise ValueError("never")

    with (
        FunctionHarness(Fails(), "user", on_error="column", error_limit=2, cuts=None) as harness,
        pytest.raises(FunctionError, match="more than error_limit=2 records failed"),
    ):
        harness.process(rows(("a", 1), ("b", 2), ("c", 3)))


def test_state_of_other_types():
    at = ValueStateDescriptor("at", datetime)

    class Latest(KeyedBatchFunction):
        def open(self, context):
            self.at = context.get_state(at)

        def process_batch(self, rows, ctx):
            old = self.at.get_many(ctx.groups)
            assert isinstance(old, np.ndarray)
            assert not old.flags.writeable
            self.at.put_many(ctx.groups, ctx.groups.last(rows["at"]))
            return {"old": ctx.groups.spread(list(old))}

    first, second = (datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2))
    with FunctionHarness(Latest(), "user", cuts=None) as harness:
        assert harness.process([{"user": "a", "at": first}]) == [(None,)]
        assert harness.process([{"user": "a", "at": second}]) == [(first,)]
        assert harness.state(at, "a") == second


def test_what_cannot_run_is_refused_before_it_runs():
    class Plain(KeyedBatchFunction):
        def process_batch(self, rows, ctx):
            """Never run."""

    class Awaits(KeyedBatchFunction):
        async def process_batch(self, rows, ctx):
            """Never run."""

    class Timed(RunningTotals):
        def on_timer(self, at, ctx):
            """Never run."""

    class Yields(Plain):
        def on_timers(self, at, ctx):
            yield {"at": at}

    class Cut(Plain):
        slices = "row"

    for function, reason in (
        (Awaits(), "defines process_batch as async"),
        (Yields(), "defines on_timers as async"),
        (Timed(), r"defines on_timer, which is for \.process: define on_timers"),
        (Cut(), "slices is 'bounded' or 'micro-batch', not 'row'"),
        (lambda row, ctx: None, "is not a KeyedBatchFunction"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            FunctionHarness(function, "user", columns=True)


def test_late_rows_and_times_are_columns():
    class Late(KeyedBatchFunction):
        def process_batch(self, rows, ctx):
            mark = None if ctx.watermark is None else ctx.watermark.minute
            return {"late": rows.is_late, "mark": [mark] * len(rows)}

    def at(minute):
        return {"user": "a", "at": datetime(2024, 1, 1, 0, minute, tzinfo=UTC)}

    with FunctionHarness(Late(), "user", event_time="at", cuts=None) as harness:
        assert harness.process([at(5)]) == [(False, None)]
        assert harness.process([at(5), at(6), {"user": "a", "at": None}]) == [
            (True, 5),
            (False, 5),
            (None, 5),
        ]


def test_records_are_given_in_several_forms():
    class Pair(NamedTuple):
        count: int  # also a method of tuples
        text: str | None

    forms = (
        lambda pair: (pair["count"], pair["text"]),
        dict,
        lambda pair: pa.StructArray.from_arrays([*map(pa.array, pair.values())], [*pair]),
        lambda pair: Pair(7, None),
    )
    state = ValueStateDescriptor("pair", Pair)

    class Puts(KeyedBatchFunction):
        def __init__(self, form):
            self.form = form

        def open(self, context):
            self.pair = context.get_state(state)

        def process_batch(self, rows, ctx):
            self.pair.put_many(ctx.groups, self.form({"count": [7, 7], "text": [None, None]}))
            self.pair.put_many(ctx.groups, self.pair.get_many(ctx.groups))

    for form in forms:
        with FunctionHarness(Puts(form), "user", cuts=None) as harness:
            harness.process(rows(("a", 1), ("b", 2)))
            assert harness.state(state, "b") == Pair(7, None)


def test_rows_of_two_inputs_are_returned_by_a_view():
    class Returns(KeyedBatchFunction):
        def process_batch(self, rows, ctx):
            return rows

    with (
        FunctionHarness(Returns(), "user") as harness,
        pytest.raises(FunctionError, match="there are two inputs: take"),
    ):
        harness.process(rows(("a", 1)), rows(("a", 2)))


def test_namespaces():
    class PerDay(RunningTotals):
        def process_batch(self, rows, ctx):
            ctx.set_current_namespace(ctx.batch_id)
            return super().process_batch(rows, ctx)

    with FunctionHarness(PerDay(), "user", columns=True) as harness:
        harness.process(rows(("a", 1)))
        assert harness.process(rows(("a", 2))) == [("a", 1, 2)]
        assert [harness.state(TOTALS, "a", namespace=day).amount for day in (0, 1)] == [1, 2]
