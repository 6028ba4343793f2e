"""The arguments of a harness: keys, schemas, orders, rows, and mistakes in all of them."""

from __future__ import annotations

import importlib.util
import json
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.types import StructType

from forebay_spark_runtime.testing import FunctionHarness, ManualClock
from forebay_state_api import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    StateFuture,
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    ConfigurationError,
    FunctionError,
    OutputSchemaError,
)

COUNT = ValueStateDescriptor("n", int, default=0)
SEEN = ListStateDescriptor("seen", int)
START = datetime(2024, 5, 1, tzinfo=UTC)


def on_lsm(case):
    """A case for environments that have the lsm backend: not every cell of tox installs it."""
    is_there = importlib.util.find_spec("forebay_backend_lsm") is not None
    return pytest.param(case, marks=pytest.mark.skipif(not is_there, reason="needs lsm"))


class Click(NamedTuple):
    user: str
    n: int = 0
    at: datetime | None = START


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.current_key, self.n.value()


class Timed(Count):
    def on_timer(self, at, ctx):
        yield "timer", 0


def echo(row, ctx):
    return [tuple(row)]


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Click, SparkRow("user", "n")])
def test_rows_are_named_tuples_or_rows(make):
    with FunctionHarness(Count(), "user") as harness:
        assert harness.process([make("a", 1), make("a", 2)]) == [("a", 1), ("a", 2)]


def test_dicts_are_rows_whose_missing_fields_are_none():
    def fn(row, ctx):
        return [(row.user, row.n, row.more)]

    with FunctionHarness(fn, "user") as harness:
        rows = [{"user": "a", "n": 1}, {"more": "x", "user": "b"}]
        assert harness.process(rows) == [("a", 1, None), ("b", None, "x")]


@pytest.mark.parametrize("backend", ["heap", on_lsm("lsm")])
def test_rows_run_in_the_order_asked_for(backend):
    class Keep(KeyedProcessFunction):
        def open(self, context):
            self.seen = context.get_list_state(SEEN)

        def process_element(self, row, ctx):
            self.seen.add(row.n)

    rows = [Click("a", 3), Click("b", 1), Click("a", None), Click("a", 2)]
    with FunctionHarness(Keep(), "user", order_by="n", backend=backend, parallelism=2) as harness:
        harness.process([row._replace(n=-1 if row.n is None else row.n) for row in rows])
        assert harness.state(SEEN, "a") == [-1, 2, 3]
    with FunctionHarness(echo, "user", order_by=["user", "n"]) as harness:
        got = [row[:2] for row in harness.process(rows)]
        assert got == [("a", 2), ("a", 3), ("a", None), ("b", 1)]


def test_rows_of_two_inputs_are_sorted_together():
    class Both(KeyedCoProcessFunction):
        def process_element1(self, row, ctx):
            yield "first", row.n

        def process_element2(self, row, ctx):
            yield "second", row.n

    with FunctionHarness(Both(), "user", order_by="n") as harness:
        out = harness.process([Click("a", 1), Click("a", 4)], [Click("a", 2), Click("a", 3)])
        assert out == [("first", 1), ("second", 2), ("second", 3), ("first", 4)]
        assert harness.process([Click("a", 1)]) == [("first", 1)]


# -- output rows ----------------------------------------------------------------------------------


def test_rows_given_out_have_the_schemas_names_and_types():
    def fn(row, ctx):
        return [{"total": 1, "user": row.user, "at": row.at, "tags": ("x", "y")}]

    schema = "user string, total double, at timestamp, tags array<string>"
    with FunctionHarness(fn, "user", schema=schema) as harness:
        (row,) = harness.process([Click("a")])
        assert row == ("a", 1.0, START, ["x", "y"])
        assert (row.user, type(row.total), row.at.utcoffset()) == ("a", float, timedelta(0))
        assert harness.process([]) == []


def test_a_row_that_does_not_fit_the_schema_fails_the_micro_batch():
    class Wrong(Count):
        def process_element(self, row, ctx):
            self.n.update(self.n.value() + 1)
            yield row.user, row.n

    struct = StructType().add("user", "string").add("n", "integer", nullable=False)
    for schema in ("user string, n int not null", struct):
        with FunctionHarness(Wrong(), "user", schema=schema) as harness:
            assert harness.process([Click("a", 7)]) == [("a", 7)]
            with pytest.raises(OutputSchemaError, match="'n'"):
                harness.process([Click("a", 1), Click("a", "seven")])
            with pytest.raises(OutputSchemaError, match="NOT NULL"):
                harness.process([Click("a", None)])
            assert harness.version == 1
            assert harness.state(COUNT, "a") == 1


class Shares(Count):
    """Counts; fails for ``n = 0``, and emits a text where a number belongs for ``n < 0``."""

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, "many" if row.n < 0 else 10 // row.n


@pytest.mark.parametrize("column", ["error", "wrong"])
def test_failed_records_are_rows_with_the_column_for_errors(column):
    named = {} if column == "error" else {"error_column": column}
    schema = "user string, share long"
    with FunctionHarness(Shares(), "user", schema=schema, on_error="column", **named) as harness:
        good, zero, misfit = harness.process([Click("a", 5), Click("a", 0), Click("a", -1)])
        assert harness.state(COUNT, "a") == 1
    assert {row._fields for row in (good, zero, misfit)} == {("user", "share", column)}
    assert good == ("a", 2, None)
    assert zero[:2] == misfit[:2] == (None, None)
    failed = getattr(zero, column)
    assert (failed.type, failed.method, failed.key) == ("ZeroDivisionError", "process_element", "a")
    assert (failed.timer, json.loads(failed.row)["n"]) == (None, 0)
    assert getattr(misfit, column).type == "OutputSchemaError"


def test_late_rows_are_rows_with_a_column_of_their_own():
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    rows = [{"user": "a", "at": noon}, {"user": "a", "at": noon + timedelta(minutes=1)}]
    with FunctionHarness.map_with_state(
        lambda row, n: ((row.user, (n or 0) + 1), (n or 0) + 1),
        "user",
        schema="user string, n long",
        event_time="at",
        late="column",
        on_error="column",
    ) as harness:
        assert harness.process(rows[:1]) == [("a", 1, None, None)]
        late, on_time = harness.process(rows)
        assert on_time == ("a", 2, None, None)
        assert late[:3] == (None, None, None)
        assert (late.late.input, late.late.watermark) == (1, noon)
        assert json.loads(late.late.row)["user"] == "a"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("user string, error long", "'error' is there already"),
        ("user string not null", "declare user without NOT NULL"),
    ],
)
def test_a_schema_without_room_for_errors(schema, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(echo, "user", schema=schema, on_error="column")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("user strin", "'strin' is not a supported type"),
        ("string", "names no column"),
        (3, "an output schema is a text of columns"),
        ("a int, a int", "two columns of one name"),
        ("a varchar(3)", "string in place of char and varchar"),
        ("struct<>", "has no columns"),
    ],
)
def test_an_invalid_schema(schema, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(echo, "user", schema=schema)


def test_operators_in_a_chain():
    clock = ManualClock()
    with (
        FunctionHarness(Count(), "user", schema="name string, n long", clock=clock) as counts,
        FunctionHarness(Count(), ["n"], schema="n long, users long", clock=clock) as of,
    ):
        clicks = [Click("a"), Click("b"), Click("a")]
        assert of.process(counts.process(clicks)) == [(1, 1), (1, 2), (2, 1)]


# -- keys -----------------------------------------------------------------------------------------


def test_keys_of_a_declared_type():
    with FunctionHarness(Count(), "user", key_type=str) as harness:
        assert harness.process([Click("a")]) == [("a", 1)]
        with pytest.raises(ConfigurationError, match=r"record 1 .*Click\(user=3"):
            harness.process([Click("a"), Click(3)])
        assert harness.process([Click("a")]) == [("a", 2)]
    with FunctionHarness(Count(), ["user", "n"], key_type=tuple[str, int]) as harness:
        assert harness.process([Click("a", 1)]) == [(("a", 1), 1)]
        assert harness.state(COUNT, ("a", 1)) == 1


def test_state_with_keys_of_another_type_is_refused_at_once(tmp_path):
    with FunctionHarness(Count(), "user", key_type=str, state_dir=tmp_path) as harness:
        harness.process([Click("a")])
    with pytest.raises(ConfigurationError, match=r"keys of type str, .* type Any; pass key_type="):
        FunctionHarness(Count(), "user", state_dir=tmp_path)
    with FunctionHarness(
        Count(), "user", state_dir=tmp_path, query="fork", restore_from="harness"
    ) as harness:
        for act in (lambda: harness.state(COUNT, "a"), lambda: harness.process([Click("a")])):
            with pytest.raises(ConfigurationError, match="pass key_type="):
                act()
    with FunctionHarness(Count(), "user", key_type="string", state_dir=tmp_path) as harness:
        assert harness.state(COUNT, "a") == 1


# -- forks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backends", [("heap", "heap"), on_lsm(("lsm", "lsm")), on_lsm(("lsm", "heap"))]
)
def test_state_before_the_first_micro_batch_is_the_restored_one(backends, tmp_path):
    stored, own = backends
    with FunctionHarness(
        Count(), "user", state_dir=tmp_path, query="one", backend=stored, parallelism=3
    ) as one:
        one.process([Click("a"), Click("a")])
    with FunctionHarness(
        Count(), "user", state_dir=tmp_path, query="two", backend=own, restore_from="one"
    ) as two:
        assert (two.version, two.state(COUNT, "a"), two.state(COUNT, "b")) == (0, 2, 0)
        assert two.process([Click("a")]) == [("a", 3)]
        assert two.state(COUNT, "a") == 3
        two.restart(version=0)
        assert two.state(COUNT, "a") == 2


def test_a_fork_of_an_unknown_query_says_so(tmp_path):
    with FunctionHarness(
        Count(), "user", state_dir=tmp_path, query="two", restore_from="one"
    ) as two:
        for act in (lambda: two.state(COUNT, "a"), lambda: two.process([Click("a")])):
            with pytest.raises(ConfigurationError, match="no state of this query is stored"):
                act()


# -- limits ---------------------------------------------------------------------------------------


def test_pages_of_a_size():
    class ReadsList(KeyedProcessFunction):
        def open(self, context):
            self.seen = context.get_list_state(SEEN)

        async def process_element(self, row, ctx):
            if row.n:
                await self.seen.async_add_all(range(row.n))
                return
            async for _ in await self.seen.async_get():
                pass

    for size, requests in ((2, 4), (128, 1)):
        with FunctionHarness(ReadsList(), "user", page_size=size, late_answers=1) as harness:
            harness.process([Click("a", 7)])
            harness.process([Click("a", 0)])
            assert harness.metrics.requests == requests


def test_how_long_other_threads_are_waited_for():
    class Never(KeyedProcessFunction):
        async def process_element(self, row, ctx):
            await StateFuture()

    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with (
            FunctionHarness(Never(), "user", drain_timeout="10ms") as harness,
            pytest.raises(FunctionError, match=r"within the drain timeout of 0.01 s"),
        ):
            harness.process([Click("a")])
    finally:
        ended.set()
        thread.join()


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_by": 3}, "key_by is the name of a column, or a list of names, not 3"),
        ({"key_by": []}, "key_by needs at least one column"),
        ({"key_by": ["user", "user"]}, "key_by names user twice"),
        ({"order_by": 3}, "order_by= is the name of a column, or a list of names, not 3"),
        ({"order_by": ["n", "n"]}, "order_by= names n twice"),
        ({"allowed_lateness": 3}, "allowed_lateness= goes with event_time="),
        ({"event_time": "at", "allowed_lateness": "5 minutes"}, "a timedelta or a number of sec"),
        ({"event_time": "at", "allowed_lateness": timedelta(-1)}, "not negative"),
        ({"event_time": 3}, "event_time= is the name of a column"),
        ({"parallelism": "2"}, "parallelism is a positive number, not '2'"),
        ({"max_parallelism": 0}, "max_parallelism is 1"),
        ({"page_size": 0}, "page-size"),
        ({"drain_timeout": "soon"}, "drain-timeout"),
        ({"uid": ""}, "needs uid="),
        ({"restore_from": 3}, "restore_from= is a query's id or name"),
        (
            {"allow_non_restored": True},
            "allow_non_restored= only applies together with restore_from=",
        ),
        ({"key_type": set}, "key of operator 'test'"),
        ({"state_dir": object()}, "a directory is a path or a URL, not <object"),
        ({"state_dir": 0}, "a directory is a path or a URL, not 0"),
        ({"backend_options": []}, "backend_options= takes a dict of settings, not"),
        ({"clients": 0}, "clients= takes a dict of clients, not 0"),
        ({"on_call": True}, "on_call= takes an async function of a CallTry, not True"),
        ({"late_answers": "1"}, "late_answers= takes a seed, a whole number, not '1'"),
        ({"late_answers": True}, "late_answers= takes a seed, a whole number, not True"),
        ({"clock": 0}, "clock= takes a ManualClock"),
    ],
)
def test_arguments_that_cannot_work(options, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(Timed(), **{"key_by": "user", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_by": "usr"}, "no column 'usr' to key by; the columns are user, n, at"),
        ({"order_by": "nn"}, "no column 'nn' to order by; the columns are user, n, at"),
        ({"event_time": "att"}, "no column 'att' of event times; the columns are user, n, at"),
        ({"event_time": "n"}, "event times are datetimes with a time zone"),
    ],
)
def test_columns_that_rows_do_not_have(options, message):
    with (
        FunctionHarness(Timed(), **{"key_by": "user", **options}) as harness,
        pytest.raises(ConfigurationError, match=message),
    ):
        harness.process([Click("a")])


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (Count, "pass an instance, not the class"),
        (3, "neither callable nor of a subclass of KeyedProcessFunction"),
        (KeyedProcessFunction(), "process_element"),
    ],
)
def test_functions_that_are_none(fn, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(fn, "user")


def test_rows_that_cannot_be_sorted():
    with (
        FunctionHarness(echo, "user", order_by="n") as harness,
        pytest.raises(ConfigurationError, match="rows cannot be ordered by n"),
    ):
        harness.process([Click("a", 1), Click("a", "one")])


def test_lateness_is_a_timedelta_or_seconds():
    for lateness in (timedelta(seconds=10), 10, 10.0):
        with FunctionHarness(Timed(), "user", event_time="at", allowed_lateness=lateness) as one:
            assert one.process([Click("a"), Click("a", at=None)]) == [("a", 1), ("a", 2)]


# -- objects that are not rows, keys or descriptors -----------------------------------------------


@pytest.mark.parametrize("row", ["abc", 1, None, [("a", 1)]])
@pytest.mark.parametrize("form", ["returned", "yielded", "collected", "coroutine"])
def test_output_that_is_not_a_row(row, form):
    def returned(_, ctx):
        return [row]

    def yielded(_, ctx):
        yield row

    def collected(_, ctx):
        ctx.collect(row)

    async def coroutine(_, ctx):
        return [row]

    fn = {"returned": returned, "yielded": yielded, "collected": collected}.get(form, coroutine)
    with (
        FunctionHarness(fn, "user") as harness,
        pytest.raises(OutputSchemaError, match="; a row is a tuple, a NamedTuple, a Row or a dict"),
    ):
        harness.process([Click("a")])


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda state: [state.async_value()], "was not awaited"),
        (lambda state: {"n": state.async_value()}, "was not awaited"),
        (lambda state: state, "emit its content instead"),
        (lambda state: ((state,),), "emit its content instead"),
    ],
    ids=["in a list", "in a dict", "state", "state in tuples"],
)
def test_what_no_column_could_hold(give, said):
    class Gives(Count):
        def process_element(self, row, ctx):
            yield "a", give(self.n)

    with (
        FunctionHarness(Gives(), "user") as harness,
        pytest.raises(OutputSchemaError, match=said),
    ):
        harness.process([Click("a")])


@pytest.mark.parametrize("rows", [Click("a"), {"user": "a"}, "a", None])
def test_one_row_in_place_of_a_list(rows):
    with (
        FunctionHarness(Count(), "user") as harness,
        pytest.raises(ConfigurationError, match="process takes a list of rows, not"),
    ):
        harness.process(rows)


def test_plain_tuples_are_no_rows():
    with (
        FunctionHarness(Count(), "user") as harness,
        pytest.raises(ConfigurationError, match="rows are named tuples, Rows or dicts, and one is"),
    ):
        harness.process([("a", 1)])


@pytest.mark.parametrize("descriptor", ["n", Count()])
def test_a_state_is_asked_for_by_its_descriptor(descriptor):
    with (
        FunctionHarness(Count(), "user") as harness,
        pytest.raises(ConfigurationError, match="the descriptor that the function declares"),
    ):
        harness.state(descriptor, "a")


@pytest.mark.parametrize("key", [5, 1.0, ("a",), b"a"])
def test_a_key_such_as_no_row_had(key):
    with FunctionHarness(Count(), "user") as harness:
        assert harness.state(COUNT, key) == 0
        harness.process([Click("a")])
        assert harness.state(COUNT, "b") == 0
        with pytest.raises(
            ConfigurationError, match=r"the keys before it are such as 'a', .* of another kind"
        ):
            harness.state(COUNT, key)


def test_an_object_that_is_not_a_clock():
    with pytest.raises(ConfigurationError, match="clock= takes a ManualClock"):
        FunctionHarness(Count(), "user", clock=START)


def test_a_clock_is_moved_by_a_timedelta():
    with pytest.raises(TypeError, match="advance takes a timedelta, such as"):
        ManualClock().advance(60)


def test_a_decimal_that_has_to_be_rounded():
    with (
        FunctionHarness(lambda row, ctx: [(1 / Decimal(3),)], "user", schema="d decimal(9,2)") as h,
        pytest.raises(OutputSchemaError, match=r"quantize\(\) rounds"),
    ):
        h.process([Click("a")])
