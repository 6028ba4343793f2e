"""Spark's types, as DDL strings and as ``DataType.jsonValue()``."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import pytest

from forebay_state_api.codecs import codec_for, describe_type
from forebay_state_api.errors import ConfigurationError


@attrs.frozen
class DataType:
    """Stands for a ``pyspark.sql.types.DataType``."""

    json: Any

    def jsonValue(self):
        return self.json


def rendered(type_info: Any) -> str:
    return describe_type(codec_for(type_info, what="x").description)


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("long", int),
        ("BIGINT", int),
        ("byte", int),
        ("smallint", int),
        ("integer", int),
        ("float", float),
        ("double", float),
        ("boolean", bool),
        ("string", str),
        ("varchar(10)", str),
        ("char(3)", str),
        ("binary", bytes),
        ("decimal", Decimal),
        ("decimal(10, 2)", Decimal),
        ("numeric(5)", Decimal),
        ("date", date),
        ("timestamp", datetime),
        ("timestamp_ntz", datetime),
        ("time(6)", time),
        ("interval day to second", timedelta),
        ("interval hour", timedelta),
        ("array<string>", list[str | None]),
        ("map<string, array<decimal(10,2)>>", dict[str, list[Decimal | None] | None]),
    ],
)
def test_ddl_types_are_python_types(ddl, expected):
    assert codec_for(ddl, what="x").description == codec_for(expected, what="x").description


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("n long, total double", "struct<n: int | None, total: float | None>"),
        ("n: long, total: double", "struct<n: int | None, total: float | None>"),
        ("n long", "struct<n: int | None>"),
        ("date date, int int", "struct<date: date | None, int: int | None>"),
        ("a int not null comment 'it, is', b int", "struct<a: int, b: int | None>"),
        ("`my col` string, `a``b` int", "struct<my col: str | None, a`b: int | None>"),
        (
            "struct<a:int,b:array<struct<c:string>>>",
            "struct<a: int | None, b: list[struct<c: str | None> | None] | None>",
        ),
        ("i interval day to second, j int", "struct<i: timedelta | None, j: int | None>"),
        ("struct<>", "struct<>"),
        (
            "map struct<a int>, array int",
            "struct<map: struct<a: int | None> | None, array: int | None>",
        ),
    ],
)
def test_several_columns_are_a_struct(ddl, expected):
    assert rendered(ddl) == expected


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "expected a type, found 'the end'"),
        ("foo", "'foo' is not a supported type"),
        ("variant", "'variant' is not a supported type"),
        ("array<int", "expected '>', found 'the end'"),
        ("map<int>", "expected ',', found '>'"),
        ("a int b", "expected ',', found 'b'"),
        ("a int,", "expected a column's name"),
        ("a int, a long", "two fields of the same name"),
        ("interval year to month", "intervals of year to month have no Python type"),
        ("decimal(x)", "expected a number, found 'x'"),
        ("a ! b", "unexpected character '!'"),
        ("array<int>>", "expected the end, found '>'"),
        ("a int comment 3", "expected a quoted text"),
    ],
)
def test_what_is_no_ddl_says_where(ddl, message):
    with pytest.raises(ConfigurationError, match=f"state 'x': .*{message}"):
        codec_for(ddl, what="state 'x'")


STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": False, "metadata": {}},
        {
            "name": "b",
            "type": {"type": "array", "elementType": "decimal(10,2)", "containsNull": False},
            "nullable": True,
            "metadata": {},
        },
        {
            "name": "c",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": "timestamp_ntz",
                "valueContainsNull": True,
            },
            "nullable": False,
            "metadata": {},
        },
    ],
}


def test_data_types_keep_their_nullability():
    expected = "struct<a: int, b: list[Decimal] | None, c: dict[str, datetime | None]>"
    assert rendered(DataType(STRUCT)) == expected
    assert rendered(DataType("long")) == "int"


def test_data_types_that_state_cannot_hold():
    with pytest.raises(ConfigurationError, match="'udt' is not supported"):
        codec_for(DataType({"type": "udt"}), what="x")
    with pytest.raises(ConfigurationError, match=r"DataType is a class: pass an instance"):
        codec_for(DataType, what="x")


class Reversed(NamedTuple):
    total: float
    n: int


class Row(tuple):
    """Stands for a ``pyspark.sql.Row``."""

    __fields__ = ("total", "n")
    __slots__ = ()


CODEC = codec_for("n long, total double", what="x")


@pytest.mark.parametrize(
    "value",
    [(1, 2.0), {"total": 2, "n": 1}, Reversed(2.0, 1), Row((2.0, 1)), CODEC.admit((1, 2))],
    ids=repr,
)
def test_structs_go_in_in_several_forms_and_come_out_as_named_tuples(value):
    (found,) = CODEC.unpack(CODEC.pack([CODEC.admit(value)]))
    assert found == CODEC.admit(value)
    assert (found.n, found.total) == (1, 2.0)
    assert type(found.total) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1,), "a tuple of length 1, not 2"),
        ({"n": 1}, "without total"),
        ({"n": 1, "total": 2.0, "x": 3}, "with x, which the struct does not have"),
        (("a", 1.0), r"\.n is a str, not int"),
        ([1, 2.0], "a list, not a tuple or a dict"),
    ],
    ids=str,
)
def test_what_does_not_fit_a_struct_is_refused(value, message):
    with pytest.raises(TypeError, match=f"expected struct<n: int .*{message}"):
        CODEC.admit(value)


def test_fields_may_be_none():
    codec = codec_for("a struct<b: array<int>>", what="x")
    for value in [(None,), ((None,),), (([None, 1],),)]:
        assert codec.unpack(codec.pack([codec.admit(value)])) == [value]


def test_equal_structs_are_of_one_class():
    again = codec_for("n long, total double", what="y")
    assert type(again.admit((1, 2))) is type(CODEC.admit((1, 2)))


ODD = codec_for("`my col` int, _id int, class int, n int", what="x")


def test_fields_of_any_names_are_fields():
    (found,) = ODD.unpack(ODD.pack([ODD.admit((1, 2, 3, 4))]))
    assert found._fields == ("my col", "_id", "class", "n")
    assert [getattr(found, name) for name in found._fields] == [1, 2, 3, 4]
    assert found._asdict() == {"my col": 1, "_id": 2, "class": 3, "n": 4}


def test_a_struct_of_odd_names_goes_into_another_one_by_name():
    (found,) = ODD.unpack(ODD.pack([ODD.admit((1, 2, 3, 4))]))
    other = codec_for("n int, class int, _id int, `my col` int", what="y")
    assert other.admit(found) == (4, 3, 2, 1)


def test_fields_of_odd_names_are_replaced():
    value = ODD.admit((1, 2, 3, 4))
    assert value._replace(_id=7, n=None, **{"my col": 8}) == (8, 7, 3, None)
    assert type(value._replace(_id=7)) is type(value)
    with pytest.raises(ValueError, match="no field column1; the fields are my col, _id, class, n"):
        value._replace(column1=7)


def test_structs_are_keys():
    codec = codec_for("a double, b string", what="user key")
    place = codec.address(codec.admit((-0.0, "x")))
    assert place == codec.address(codec.admit({"b": "x", "a": 0.0}))
    assert codec.original(place) == (0.0, "x")


def test_real_data_types():
    types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not required here")
    kind = types.StructType(
        [
            types.StructField("a", types.ArrayType(types.DayTimeIntervalType())),
            types.StructField("b", types.MapType(types.StringType(), types.BinaryType(), False)),
        ]
    )
    expected = "struct<a: list[timedelta | None] | None, b: dict[str, bytes] | None>"
    assert rendered(kind) == expected
    columns = types.StructType().add("n", types.LongType()).add("total", types.DoubleType())
    codec = codec_for(columns, what="x")
    assert codec.description == CODEC.description
    assert codec.admit(types.Row(total=1.0, n=2)) == (2, 1.0)
