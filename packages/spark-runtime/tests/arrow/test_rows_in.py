"""Rows from Arrow batches: every type, nulls, slices, and columns with unusual names."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from forebay_spark_runtime.arrow.rows_in import RowReader, UnreadableValueError, column_reader

US = datetime.timedelta(microseconds=1)
INSTANT = datetime.datetime(2024, 3, 10, 7, 30, 0, 5, tzinfo=datetime.UTC)
WALL = datetime.datetime(2024, 3, 10, 2, 30, 0, 5)  # noqa: DTZ001 - skipped in New York
INNER = pa.struct([("x", pa.int64()), ("y", pa.string())])
MAP = pa.map_(pa.string(), pa.int64())


def read(values, kind):
    return column_reader(kind)(pa.array(values, type=kind))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [1, -128]),
        (pa.int64(), [1, None, 2**62]),
        (pa.float64(), [1.5, None, float("inf")]),
        (pa.float32(), [0.5, None]),
        (pa.bool_(), [True, None, False]),
        (pa.string(), ["", None, "día"]),
        (pa.large_string(), ["a", None]),
        (pa.binary(), [b"", None, b"\x00\xff"]),
        (pa.decimal128(10, 2), [Decimal("1.50"), None]),
        (pa.date32(), [datetime.date(1582, 1, 1), None]),
        (pa.timestamp("us"), [WALL, None]),
        (pa.duration("us"), [datetime.timedelta(microseconds=7), None]),
        (pa.null(), [None, None]),
        (pa.list_(pa.string()), [["a", None], None, []]),
        (pa.list_(pa.list_(pa.int64())), [[[1], None, []], None, []]),
        (pa.map_(pa.string(), MAP), [{"a": {"b": 1}}, None, {}]),
    ],
    ids=str,
)
def test_values_come_as_themselves(kind, values):
    plain = [list(map(tuple, v.items())) if isinstance(v, dict) else v for v in values]
    if pa.types.is_map(kind) and pa.types.is_map(kind.item_type):
        plain = [
            None if v is None else [(k, list(m.items())) for k, m in v.items()] for v in values
        ]
    array = pa.array(plain, type=kind)
    got = column_reader(kind)(array)
    assert got == values
    assert [type(v) for v in got] == [type(v) for v in values]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+2", "GMT+2", "Z", "+02:00"])
def test_a_timestamp_is_in_utc_in_every_zone_of_its_column(zone):
    kind = pa.timestamp("us", tz=zone)

    def is_right(value):
        return value == INSTANT and value.tzinfo is datetime.UTC

    value, none = read([INSTANT, None], kind)
    assert (is_right(value), none) == (True, None)
    assert is_right(read([INSTANT], kind)[0])
    ((value, none), empty) = read([[INSTANT, None], None], pa.list_(kind))
    assert (is_right(value), none, empty) == (True, None, None)
    (row,) = read([{"t": INSTANT}], pa.struct([("t", kind)]))
    assert is_right(row.t)
    (entries,) = read([[(INSTANT, INSTANT)]], pa.map_(kind, kind))
    assert all(map(is_right, [*entries, *entries.values()]))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T23:59:59.999999"])
def test_the_first_and_the_last_instant_are_read_in_every_zone(zone, text):
    extreme = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    us = (extreme - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // US
    array = pa.array([us], pa.int64()).cast(pa.timestamp("us", zone))
    assert column_reader(array.type)(array) == [extreme]


def test_structs_are_rows_with_attributes():
    first, none, partly = read([{"x": 1, "y": "a"}, None, {"x": None, "y": None}], INNER)
    assert (first.x, first.y) == (1, "a")
    assert none is None
    assert partly == (None, None)


def test_lists_and_maps_of_structs():
    rows = read([[{"x": 1, "y": "a"}, None], None, []], pa.list_(INNER))
    assert rows == [[(1, "a"), None], None, []]
    assert rows[0][0].y == "a"
    kind = pa.map_(pa.int64(), INNER)
    (entries,) = read([[(1, {"x": 2, "y": "b"}), (2, None)]], kind)
    assert entries == {1: (2, "b"), 2: None}
    assert entries[1].x == 2


@pytest.mark.parametrize("kind", [pa.list_(INNER), MAP, INNER, pa.list_(pa.list_(INNER))], ids=str)
def test_slices_see_only_their_own_values(kind):
    samples = {
        str(pa.list_(INNER)): [[{"x": n, "y": str(n)}] * (n % 3) for n in range(9)],
        str(MAP): [[(str(m), m) for m in range(n % 3)] for n in range(9)],
        str(INNER): [{"x": n, "y": str(n)} for n in range(9)],
        str(pa.list_(pa.list_(INNER))): [[[{"x": n, "y": "a"}], []] for n in range(9)],
    }
    values = [None if n == 4 else v for n, v in enumerate(samples[str(kind)])]
    whole = read(values, kind)
    array = pa.array(values, type=kind)
    assert column_reader(kind)(array.slice(3, 4)) == whole[3:7]


def test_a_null_list_with_elements_behind_it_is_null():
    offsets = pa.array([0, 2, 3], type=pa.int32())
    elements = pa.array([{"x": n, "y": "a"} for n in range(3)], type=INNER)
    mask = pa.array([True, False])
    array = pa.ListArray.from_arrays(offsets, elements, mask=mask)
    assert column_reader(array.type)(array) == [None, [(2, "a")]]


def test_a_row_is_read_by_attribute_and_position():
    reader = RowReader(["user", "count"], [pa.string(), pa.int64()])
    (row,) = reader.rows([pa.array(["u"]), pa.array([1])])
    assert (row.user, row.count, row[0], tuple(row)) == ("u", 1, "u", ("u", 1))
    assert row._fields == ("user", "count")


def test_no_columns_and_no_rows():
    assert list(RowReader(["x"], [INNER]).rows([pa.array([], INNER)])) == []
    assert read([{}, None], pa.struct([])) == [(), None]


DAYS = pa.array([1, None, 5_000_000], pa.date32())
NOT_UTF8 = pa.array([b"a", None, b"\xff"]).view(pa.string())


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (DAYS, "column 'c' (date32[day]) has a date or timestamp outside the years 1 to 9999, "),
        (DAYS, "[ 15659-07-15 ]; filter such rows, or cast the column to string"),
        (pa.array([0, 0, -(9 * 10**16)], pa.timestamp("us", "UTC")), "-0882-01-06 08:00:00"),
        (pa.array([0, 0, -(9 * 10**16)], pa.timestamp("us")), "-0882-01-06 08:00:00"),
        (pa.StructArray.from_arrays([DAYS], ["d"]), "15659-07-15"),
        (pa.ListArray.from_arrays([0, 1, 2, 3], DAYS), "15659-07-15"),
        (
            pa.ListArray.from_arrays([0, 1, 2, 3], pa.StructArray.from_arrays([DAYS], ["d"])),
            "15659",
        ),
        (pa.MapArray.from_arrays([0, 1, 2, 3], pa.array([1, 2, 3]), DAYS), "15659-07-15"),
        (NOT_UTF8, "has a string that is not UTF-8"),
        (NOT_UTF8, "filter such rows, or cast the column to binary"),
    ],
    ids=lambda value: str(getattr(value, "type", value))[:40],
)
def test_a_value_that_python_cannot_hold_is_found(array, says):
    reader = RowReader(["n", "c"], [pa.int64(), array.type])
    with pytest.raises(UnreadableValueError) as caught:
        reader.rows([pa.array([1, 2, 3]), array])
    assert caught.value.position == 2
    assert says in str(caught.value)
    assert len(list(reader.rows([pa.array([1, 2]), array.slice(0, 2)]))) == 2
