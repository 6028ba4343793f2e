"""Columns that can be keys: their Python types, and Spark's expression of the key group."""

from __future__ import annotations

import datetime
from decimal import Decimal
from inspect import signature

import pytest
from pyspark.sql import types as T

from forebay_spark_runtime.keyed_operator.key_columns import key_columns, quoted
from forebay_state_api.errors import ConfigurationError

SCHEMA = T.StructType(
    [
        T.StructField("i", T.IntegerType()),
        T.StructField("l", T.LongType()),
        T.StructField("f", T.FloatType()),
        T.StructField("s", T.StringType()),
        T.StructField("b", T.BinaryType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("d", T.DateType()),
        T.StructField("t", T.TimestampType()),
        T.StructField("n", T.TimestampNTZType()),
        T.StructField("dec", T.DecimalType(10, 2)),
        T.StructField("m", T.MapType(T.StringType(), T.LongType())),
        T.StructField("a", T.ArrayType(T.LongType())),
        T.StructField("st", T.StructType([T.StructField("x", T.LongType())])),
        T.StructField("odd `name`", T.StringType()),
    ]
)


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("i", int),
        ("l", int),
        ("f", float),
        ("s", str),
        ("b", bytes),
        ("flag", bool),
        ("d", datetime.date),
        ("t", datetime.datetime),
        ("n", datetime.datetime),
        ("dec", Decimal),
    ],
)
def test_the_python_type_of_a_key(name, python):
    assert key_columns(SCHEMA, [name], "u").key_type() is python


def test_several_columns_are_a_tuple():
    assert key_columns(SCHEMA, ["s", "i"], "u").key_type() == tuple[str, int]


def test_the_number_of_columns_comes_first():
    keys = key_columns(SCHEMA, ["s", "odd `name`"], "u")
    assert keys.group_expression(7) == (
        "cast(pmod(xxhash64(cast(2 as bigint), `s`, `odd ``name```), 7) as int)"
    )


def test_names_are_quoted():
    assert quoted("a.b`c") == "`a.b``c`"


@pytest.mark.parametrize("name", ["m", "a", "st"])
def test_types_that_cannot_be_keys(name):
    with pytest.raises(ConfigurationError, match="cannot be a key; types that can: tinyint"):
        key_columns(SCHEMA, ["s", name], "u")


@pytest.mark.skipif(
    "collation" not in signature(T.StringType).parameters, reason="collations came with pyspark 4"
)
def test_a_string_with_a_collation():
    schema = T.StructType().add("c", T.StringType("UTF8_LCASE"))
    with pytest.raises(ConfigurationError, match="'c' of type string collate UTF8_LCASE cannot"):
        key_columns(schema, ["c"], "u")


def test_no_column():
    with pytest.raises(ConfigurationError, match="needs at least one key column"):
        key_columns(SCHEMA, [], "u")


def test_a_column_that_does_not_exist():
    with pytest.raises(ConfigurationError, match="no column 'S' to key by; the columns are i, l"):
        key_columns(SCHEMA, ["S"], "u")


def test_a_column_that_is_not_a_name():
    with pytest.raises(ConfigurationError, match="by name, not as 3"):
        key_columns(SCHEMA, [3], "u")


def test_kinds_tell_what_can_be_connected():
    assert key_columns(SCHEMA, ["i", "t"], "u").kinds() == ["integer", "timestamp"]
    assert key_columns(SCHEMA, ["l", "n"], "u").kinds() == ["integer", "timestamp_ntz"]


def test_a_column_named_twice():
    with pytest.raises(ConfigurationError, match="'u': i, s is named twice among the key columns"):
        key_columns(SCHEMA, ("s", "i", "s", "i"), "u")


def test_a_field_of_a_struct_is_made_a_column_first():
    schema = T.StructType().add("s", T.StructType().add("k", "string"))
    asked = r"'s.k' to key by; the columns are s\. .*\.withColumn\(\"s_k\", F\.col\(\"s\.k\"\)\)$"
    with pytest.raises(ConfigurationError, match=asked):
        key_columns(schema, ["s.k"], "u")
