"""Columns that cannot be read into Python objects, and their errors."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkValueError
from pyspark.sql import types as T

from forebay_spark_runtime.arrow.input_types import check_carried, check_readable, schema_of
from forebay_state_api.errors import ConfigurationError

MONTHS = T.YearMonthIntervalType()
PAIR = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
TWINS = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.StringType())])
LISTS = T.ArrayType(T.LongType())
VOIDS = T.ArrayType(T.NullType(), containsNull=False)
NEWER = [T.CalendarIntervalType] if hasattr(T, "CalendarIntervalType") else []


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
        (VOIDS, "an empty literal has no type; cast it to the type that is meant, or drop it"),
        (T.ArrayType(VOIDS), "an empty literal has no type"),
        (T.MapType(T.NullType(), T.NullType(), False), "an empty literal has no type"),
        *((kind(), "Python has no type for") for kind in NEWER),
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


@pytest.mark.parametrize("kind", [MONTHS, VOIDS, T.StructType([T.StructField("x", VOIDS)])])
def test_some_cannot_even_go_through_untouched(kind):
    with pytest.raises(ConfigurationError, match=r"column 'v' of type .* cannot go through Python"):
        check_carried([T.StructField("v", kind)], "wait")


@pytest.mark.parametrize("kind", [TWINS, T.MapType(LISTS, LISTS), T.ArrayType(T.NullType())])
def test_what_cannot_be_read_may_go_through_untouched(kind):
    check_carried([T.StructField("v", kind)], "wait")


class Refusing:
    """A DataFrame whose schema pyspark refuses to return."""

    def __init__(self, error):
        self.error = error

    @property
    def schema(self):
        raise self.error


def test_a_type_that_pyspark_does_not_know():
    error = PySparkValueError("[CANNOT_PARSE_DATATYPE] Unable to parse datatype. interval.")
    with pytest.raises(ConfigurationError, match=r"a column .* interval\.; cast it to string"):
        schema_of(Refusing(error), "wait")


def test_the_function_of_a_pipelines_table_must_not_ask():
    error = AnalysisException("[ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION] Operations that")
    with pytest.raises(ConfigurationError, match=r"under @dp\.table .* make the DataFrame outside"):
        schema_of(Refusing(error), "wait")


def test_a_type_of_java_alone_is_refused():
    with pytest.raises(ConfigurationError, match=r"'e': .* without a class in Python; cast it"):
        schema_of(Refusing(KeyError("pyClass")), "operator 'e'")


def test_other_errors_are_sparks_own():
    with pytest.raises(AnalysisException, match="no such file"):
        schema_of(Refusing(AnalysisException("no such file")), "wait")


@pytest.mark.parametrize(
    "kind",
    [T.DayTimeIntervalType(), PAIR, LISTS, T.MapType(PAIR, LISTS), T.NullType(), T.VarcharType(3)],
    ids=str,
)
def test_all_else_can_be_read(kind):
    checked(kind)
