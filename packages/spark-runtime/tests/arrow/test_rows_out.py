"""Rows to Arrow batches: every form and type, and errors that name column, value and function."""

from __future__ import annotations

import datetime
import re
from collections import OrderedDict
from decimal import Decimal
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row

from forebay_engine.execution.rows import row_class
from forebay_spark_runtime.arrow.rows_in import RowReader, column_reader
from forebay_spark_runtime.arrow.rows_out import RowOrder, RowWriter
from forebay_state_api.codecs import codec_for
from forebay_state_api.errors import OutputSchemaError

UTC = datetime.UTC
NOON = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - naive is what is tested


class Pair(NamedTuple):
    n: int
    user: str


def writer(*fields, time_zone="UTC"):
    return RowWriter(pa.schema(fields), function="Totals", time_zone=time_zone)


def written(value, kind, time_zone="UTC"):
    return writer(("c", kind), time_zone=time_zone).batch([(value,)]).column(0).to_pylist()[0]


def refused(value, kind):
    with pytest.raises(OutputSchemaError) as caught:
        written(value, kind)
    return str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        ("a", 1),
        Pair(1, "a"),
        Row(n=1, user="a"),
        Row("user", "n")("a", 1),
        {"n": 1, "user": "a"},
        OrderedDict(user="a", n=1),
        row_class(("user", "n"))._make(("a", 1)),
    ],
    ids=lambda row: type(row).__name__,
)
def test_every_form_of_a_row(row):
    batch = writer(("user", pa.string()), ("n", pa.int64())).batch([row, ("b", 2), row])
    assert batch.to_pylist()[0] == {"user": "a", "n": 1}
    assert batch.num_rows == 3


def test_a_row_without_names_goes_by_position():
    assert RowOrder(["a", "b"], "f").as_tuple(Row(1, 2)) == (1, 2)


def test_rows_of_odd_names_go_out_as_they_came_in():
    fields = [pa.field("a b", pa.int64()), pa.field("_1", pa.string())]
    (row,) = RowReader(["a b", "_1"], [pa.int64(), pa.string()]).rows(
        [pa.array([1]), pa.array(["x"])]
    )
    assert writer(*fields).batch([row]).to_pylist() == [{"a b": 1, "_1": "x"}]


ODD_STRUCT = pa.struct([("x", pa.int64()), ("_id", pa.int64()), ("y z", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "ddl", "value"),
    [
        (ODD_STRUCT, "struct<x:int,_id:int,`y z`:int>", (1, 2, 3)),
        (pa.list_(ODD_STRUCT), "array<struct<x:int,_id:int,`y z`:int>>", [(1, 2, 3), None]),
        (
            pa.map_(pa.string(), ODD_STRUCT),
            "map<string,struct<x:int,_id:int,`y z`:int>>",
            {"a": (1, 2, 3)},
        ),
    ],
    ids=["struct", "array", "map"],
)
def test_structs_of_odd_names_go_out_as_the_state_has_them(kind, ddl, value):
    codec = codec_for(ddl, what="state 'x'")
    (stored,) = codec.unpack(codec.pack([codec.admit(value)]))
    (read,) = column_reader(kind)(pa.array([written(stored, kind)], kind))
    assert read == stored == value
    assert written(read, kind) == written(value, kind)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 7),
        (pa.float64(), 1.5),
        (pa.bool_(), True),
        (pa.string(), "x"),
        (pa.binary(), b"x"),
        (pa.decimal128(10, 2), Decimal("1.50")),
        (pa.date32(), datetime.date(2024, 1, 1)),
        (pa.timestamp("us"), NOON),
        (pa.duration("us"), datetime.timedelta(seconds=1)),
        (pa.list_(pa.int64()), [1, None]),
        (pa.list_(pa.list_(pa.bool_())), [[True], None]),
        (pa.struct([("x", pa.int64()), ("y", pa.bool_())]), {"x": 1, "y": None}),
        (pa.int32(), None),
        (pa.struct([("x", pa.int64())]), None),
        (pa.map_(pa.string(), pa.int64()), None),
    ],
    ids=str,
)
def test_values_go_out_as_themselves(kind, value):
    assert written(value, kind) == value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), np.int32(3), 3),
        (pa.float64(), 3, 3.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.decimal128(10, 2), 3, Decimal("3.00")),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
        (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
        (pa.map_(pa.string(), pa.bool_()), {"a": True}, [("a", True)]),
        (pa.struct([("x", pa.int64()), ("y", pa.string())]), (1, "a"), {"x": 1, "y": "a"}),
        (
            pa.struct([("n", pa.int64()), ("user", pa.string())]),
            Pair(1, "a"),
            {"n": 1, "user": "a"},
        ),
        (
            pa.struct([("user", pa.string()), ("n", pa.int64())]),
            Pair(1, "a"),
            {"n": 1, "user": "a"},
        ),
        (pa.struct([("x", pa.int64())]), Row(x=1), {"x": 1}),
    ],
    ids=str,
)
def test_values_that_fit_are_taken(kind, value, expected):
    assert written(value, kind) == expected


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (pa.int64(), "7", "str '7': not a whole number"),
        (pa.int64(), 1.5, "float 1.5: not a whole number"),
        (pa.int64(), True, "bool True: not a whole number"),
        (pa.int8(), 300, "int 300: it is outside the range of the type"),
        (pa.int64(), 2**63, "int 9223372036854775808: it is outside the range of the type"),
        (pa.int32(), 2**100, "it is outside the range of the type"),
        (pa.float64(), "1", "not a number"),
        (pa.float64(), False, "not a number"),
        (pa.bool_(), 1, "int 1: not a bool"),
        (pa.string(), 1, "int 1"),
        (pa.string(), b"x", "bytes b'x'"),
        (pa.binary(), 5, "int 5"),
        (pa.decimal128(4, 2), Decimal("1.005"), "Decimal('1.005'): it has more digits than the"),
        (pa.decimal128(4, 2), Decimal("100.00"), "Decimal('100.00'): it has more digits before"),
        (pa.decimal128(4, 2), 100, "int 100: it has more digits before the point than the type"),
        (pa.decimal128(4, 2), 10**50, "it has more digits than the type"),
        (pa.list_(pa.decimal128(4, 2)), [Decimal(100)], "it has more digits before the point"),
        (pa.decimal128(4, 2), True, "not a number"),
        (pa.date32(), NOON, "give .date()"),
        (pa.timestamp("us"), NOON.replace(tzinfo=UTC), "without tzinfo"),
        (pa.timestamp("us", tz="UTC"), datetime.date(2024, 1, 1), "not a datetime"),
        (pa.list_(pa.string()), "abc", "an array takes a list"),
        (pa.list_(pa.int64()), {"a": 1}, "an array takes a list"),
        (pa.list_(pa.int64()), ["x"], "not a whole number"),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), [None], "without nulls"),
        (pa.map_(pa.string(), pa.int64()), 5, "int 5: a map takes a dict"),
        (pa.map_(pa.string(), pa.int64()), "ab", "str 'ab': a map takes a dict"),
        (pa.map_(pa.string(), pa.int64()), [1], "list [1]: a map takes a dict"),
        (pa.map_(pa.string(), pa.int64()), [("a", 1, 2)], "a map takes a dict"),
        (pa.map_(pa.string(), pa.int64()), {None: 1}, "takes no None"),
        (pa.struct([("x", pa.int64())]), {"y": 1}, "a struct of x is declared"),
        (pa.struct([("x", pa.int64())]), 5, "a struct takes"),
        (pa.struct([("x", pa.int64())]), (1, 2), "(1, 2)"),
        (pa.struct([("x", pa.bool_())]), (1,), "not a bool"),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), (None,), "NOT NULL"),
    ],
    ids=str,
)
def test_a_misfit_names_column_value_and_function(kind, value, says):
    check_misfit(value, kind, says)


def check_misfit(value, kind, says):
    message = refused(value, kind)
    assert message.startswith("column 'c' is declared ")
    assert "Totals gave" in message
    assert says in message


def test_the_misfit_is_found_among_many():
    rows = [(n, "x") for n in range(5000)]
    rows[4711] = ("oops", "x")
    with pytest.raises(OutputSchemaError, match=r"column 'a' .* Totals gave str 'oops'"):
        writer(("a", pa.int64()), ("b", pa.string())).batch(rows)


def test_a_misfit_names_place_row_and_the_type_as_it_was_written():
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    one = RowWriter(
        schema,
        function="Totals",
        time_zone="UTC",
        types=["string", "long"],
        where="operator 'u', batch 7, partition 1",
    )
    says = (
        "operator 'u', batch 7, partition 1: column 'n' is declared long; Totals gave str 'x' in "
        "the row ('ann', 'x'): not a whole number"
    )
    with pytest.raises(OutputSchemaError, match=f"^{re.escape(says)}$"):
        one.batch([("bob", 1), ("ann", "x")])
    for bad in (("ann",), {"user": "ann"}, 3):
        with pytest.raises(OutputSchemaError, match=r"^operator 'u', batch 7, partition 1: Totals"):
            one.batch([bad])


def test_half_a_character_is_escaped_at_any_depth():
    kind = pa.struct([("x", pa.list_(pa.map_(pa.string(), pa.string())))])
    given = {"x": [{"a\ud83d": "cut \ud83d"}]}
    column = writer(("c", kind)).batch([(given,), (None,)]).column(0)
    assert column.to_pylist() == [{"x": [[("a\\ud83d", "cut \\ud83d")]]}, None]


MICRO = "\u00b5g"


class Micrograms(NamedTuple):
    n: int
    µg: int  # noqa: PLC2401 - to Python it is the Greek letter


@pytest.mark.parametrize(
    "value", [Micrograms(1, 2), Row(µg=2, n=1), {"\u03bcg": 2, "n": 1}, {MICRO: 2, "n": 1}]
)
def test_names_that_python_spells_otherwise(value):
    schema = [(MICRO, pa.int64()), ("n", pa.int64())]
    assert writer(*schema).batch([value]).to_pylist() == [{MICRO: 2, "n": 1}]
    assert written(value, pa.struct(schema)) == {MICRO: 2, "n": 1}
    with pytest.raises(OutputSchemaError, match="missing"):
        writer(("\u03bcg", pa.int64()), ("x", pa.int64())).batch([{MICRO: 1, "\u03bcg": 2}])


def test_not_null_is_checked():
    one = writer(pa.field("c", pa.int64(), nullable=False))
    assert one.batch([(1,)]).num_rows == 1
    with pytest.raises(
        OutputSchemaError, match="column 'c' is declared NOT NULL; Totals gave None"
    ):
        one.batch([(1,), (None,)])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (("a",), "a row of 1 values, ('a',); the schema has 2 columns: user, n"),
        (("a", 1, 2), "a row of 3 values"),
        ({"user": "a"}, "missing ['n'], unknown none"),
        ({"user": "a", "n": 1, "m": 2}, "missing none, unknown ['m']"),
        (Row(user="a", m=1), "missing ['n'], unknown ['m']"),
        (Row(user="a"), "missing ['n'], unknown none"),
        ("ab", "str 'ab'; a row is a tuple in the order of the columns (user, n)"),
        ([1, 2], "list [1, 2]; a row is a tuple"),
        (7, "int 7"),
        (None, "NoneType None"),
    ],
    ids=repr,
)
def test_a_row_of_another_shape(row, says):
    with pytest.raises(OutputSchemaError) as caught:
        writer(("user", pa.string()), ("n", pa.int64())).batch([("a", 1), row])
    assert str(caught.value).startswith("Totals emitted ")
    assert says in str(caught.value)


async def asked(_):
    return 1


@pytest.mark.parametrize(
    ("kind", "emitted", "says"),
    [
        (pa.int64(), lambda made: ("a", made), "column 'n': Totals emitted a "),
        (
            pa.list_(pa.int64()),
            lambda made: ("a", [1, made]),
            "column 'n': Totals emitted a ",
        ),
        (pa.int64(), lambda made: {"user": "a", "n": made}, "column 'n': Totals emitted a "),
        (pa.int64(), lambda made: made, "Totals emitted a "),
    ],
    ids=["value", "in a list", "in a dict", "the row"],
)
def test_a_coroutine_is_said_to_be_one_that_was_not_awaited(kind, emitted, says):
    with pytest.raises(OutputSchemaError) as caught:
        writer(("user", pa.string()), ("n", kind)).batch([("a", None), emitted(asked(1))])
    assert str(caught.value).startswith(says)
    says = "a coroutine that was not awaited: write `await asked(...)`, and emit the result"
    assert says in str(caught.value)


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("text", pa.binary(), "str 'text': not bytes (of text, give .encode())"),
        ([b"a", "b"], pa.list_(pa.binary()), "not bytes"),
        (5, pa.duration("us"), "int 5: not a timedelta"),
        (1e300, pa.float32(), "float 1e+300: too large a number for a float"),
        ([INFINITE, -1e300], pa.list_(pa.float32()), "too large a number for a float"),
        ({"x": 1e300}, pa.struct([("x", pa.float32())]), "too large a number for a float"),
        ({"k": 1e300}, pa.map_(pa.string(), pa.float32()), "too large a number for a float"),
        ((1, 2), pa.struct([("x", pa.int64())]), "a struct of x is declared, and a tuple of 2"),
        ((), pa.struct([("x", pa.int64())]), "a struct of x is declared, and a tuple of 0"),
    ],
    ids=str,
)
def test_what_would_be_bent_is_refused(value, kind, says):
    check_misfit(value, kind, says)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"a", pa.binary()),
        (datetime.timedelta(days=2, microseconds=1), pa.duration("us")),
        (INFINITE, pa.float32()),
        (-1.5, pa.float32()),
        ([INFINITE, None, -INFINITE, 3.0], pa.list_(pa.float32())),
        ({"x": [INFINITE]}, pa.struct([("x", pa.list_(pa.float32()))])),
        ([("k", INFINITE)], pa.map_(pa.string(), pa.float32())),
    ],
    ids=str,
)
def test_what_looks_alike_goes_out(value, kind):
    assert written(value, kind) == value
    assert written(None, kind) is None


def test_other_forms_of_bytes_and_time_spans():
    assert written(bytearray(b"a"), pa.binary()) == b"a"
    assert written(memoryview(b"a"), pa.binary()) == b"a"
    second = datetime.timedelta(seconds=1)
    assert written(np.timedelta64(1, "s"), pa.duration("us")) == second
    assert written(np.timedelta64("NaT", "s"), pa.duration("us")) is None
    for vague_or_long in (np.timedelta64(1, "M"), np.timedelta64(2**40, "D")):
        with pytest.raises(OutputSchemaError, match="column 'c'"):
            written(vague_or_long, pa.duration("us"))


def test_naive_datetimes_are_wall_clock_time_of_the_session():
    kind = pa.timestamp("us", tz="UTC")
    assert written(NOON, kind) == NOON.replace(tzinfo=UTC)
    in_new_york = NOON.replace(tzinfo=ZoneInfo("America/New_York"))
    assert written(NOON, kind, time_zone="America/New_York") == in_new_york
    assert written(in_new_york, kind) == in_new_york
    assert written([NOON], pa.list_(kind), time_zone="America/New_York") == [in_new_york]


@pytest.mark.parametrize("zone", ["+02:00", "GMT+2"])
def test_naive_datetimes_where_the_session_has_an_offset(zone):
    kind = pa.timestamp("us", tz="UTC")
    ten = (NOON - datetime.timedelta(hours=2)).replace(tzinfo=UTC)
    assert written(NOON, kind, time_zone=zone) == ten
    assert written({"t": [NOON]}, pa.struct([("t", pa.list_(kind))]), time_zone=zone) == {
        "t": [ten]
    }
    aware = NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert written({"k": aware}, pa.map_(pa.string(), kind), time_zone="UTC") == [("k", ten)]


def test_batches_are_cut():
    batches = writer(("n", pa.int64())).batches([(n,) for n in range(25)], 10)
    assert [batch.num_rows for batch in batches] == [10, 10, 5]
    assert writer(("n", pa.int64())).batches([], 10) == []
