"""Which columns cannot be read into Python objects, and what is said about them."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from forebay_spark_runtime.input_types import check_readable
from forebay_state_api.errors import ConfigurationError

MONTHS = T.YearMonthIntervalType()
PAIR = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
TWINS = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.StringType())])
LISTS = T.ArrayType(T.LongType())


class Odd(T.UserDefinedType):
    @classmethod
    def sqlType(cls):
        return MONTHS


def checked(kind):
    fields = [T.StructField("k", T.LongType()), T.StructField("v", kind)]
    check_readable(T.StructType(fields), "operator 'e'")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (MONTHS, "Python has no type for interval year to month; cast it to string, or drop it"),
        (T.ArrayType(MONTHS), "Python has no type for interval"),
        (T.MapType(T.StringType(), MONTHS), "Python has no type for interval"),
        (T.StructType([T.StructField("x", T.ArrayType(MONTHS))]), "Python has no type for"),
        (Odd(), "Python has no type for interval"),
        (
            T.MapType(LISTS, T.LongType()),
            "keys of a dict cannot hold arrays; take its map_entries(), or drop it",
        ),
        (T.MapType(T.StructType([T.StructField("x", LISTS)]), T.LongType()), "cannot hold arrays"),
        (T.ArrayType(TWINS), "a struct has two fields of one name: a, a; rename them, or drop it"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_read_is_named_with_the_way_out(kind, says):
    with pytest.raises(ConfigurationError) as caught:
        checked(kind)
    named = f"operator 'e': column 'v' of type {kind.simpleString()} cannot be read: "
    assert str(caught.value).startswith(named)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [T.DayTimeIntervalType(), PAIR, LISTS, T.MapType(PAIR, LISTS), T.NullType(), T.VarcharType(3)],
    ids=str,
)
def test_all_else_can_be_read(kind):
    checked(kind)
