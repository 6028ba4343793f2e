"""The types to which ``order_by`` columns of two inputs are widened."""

from __future__ import annotations

import itertools
from datetime import date, datetime, timedelta
from decimal import Decimal
from inspect import signature

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.keyed_operator.order_columns import order_types
from forebay_state_api.errors import ConfigurationError

MIDNIGHT = datetime.fromisoformat("2024-03-31")
VALUES = {
    T.ByteType(): [-128, 0, 127],
    T.ShortType(): [-(2**15), 127, 2**15 - 1],
    T.IntegerType(): [-(2**31), 2**24, 2**24 + 1, 2**31 - 1],
    T.LongType(): [-(2**63), 2**53, 2**53 + 1, 2**63 - 1],
    T.FloatType(): [-(2.0**100), 0.5, 2.0**24, float("inf")],
    T.DoubleType(): [-1e300, 0.1, 2.0**53, 2.0**31 - 1],
    T.DecimalType(4, 1): [Decimal("0.1"), Decimal("-999.9")],
    T.DecimalType(38, 0): [Decimal("9" * 38), Decimal(2**63), Decimal(2**53 + 1)],
    T.DecimalType(38, 18): [Decimal("1E-18"), Decimal("9" * 20)],
    T.DecimalType(38, 38): [Decimal("1E-38"), Decimal("0." + "9" * 38)],
    T.DecimalType(5, -3): [Decimal("1E3"), Decimal("99999E3")],
    T.DateType(): [MIDNIGHT.date(), date(1, 1, 1), date(9999, 12, 31)],
    T.TimestampNTZType(): [MIDNIGHT, MIDNIGHT + timedelta(microseconds=1)],
}
PAIRS = [*itertools.product(VALUES, repeat=2)]


def widened(first, second):
    schemas = [T.StructType().add("o", kind) for kind in (first, second)]
    (kind,) = order_types(schemas, [("o",), ("o",)], "u")
    return kind


def comparable(value):
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return datetime.fromisoformat(value.isoformat()) if is_day else value


def cast(values, spark, kind):
    (own,) = arrow_schema(T.StructType().add("o", spark)).types
    found = pa.array(values, own)
    return (found if kind is None else found.cast(kind)).to_pylist()


def test_a_pair_that_is_accepted_is_ordered_as_the_exact_values():
    accepted = 0
    for first, second in PAIRS:
        try:
            kind = widened(first, second)
        except ConfigurationError:
            continue
        accepted += 1
        exact = [*VALUES[first], *VALUES[second]]
        found = [*cast(VALUES[first], first, kind), *cast(VALUES[second], second, kind)]
        for one, other in itertools.combinations(range(len(exact)), 2):
            ours = comparable(exact[one]), comparable(exact[other])
            theirs = comparable(found[one]), comparable(found[other])
            assert (ours[0] < ours[1]) == (theirs[0] < theirs[1]), (first, second, ours)
            assert (ours[0] == ours[1]) == (theirs[0] == theirs[1]), (first, second, ours)
    assert accepted == 4 * 4 + (5 * 5 - 3 * 3) + 5 * 5 + 2 * 5 * 4 + 2 * 2


REFUSED = [
    (T.LongType(), T.DoubleType()),
    (T.FloatType(), T.LongType()),
    (T.DecimalType(4, 1), T.FloatType()),
    (T.DecimalType(38, 38), T.DecimalType(5, -38)),
    (T.TimestampType(), T.TimestampNTZType()),
    (T.DateType(), T.TimestampType()),
    (T.FloatType(), T.StringType()),
    (T.StringType(), T.BinaryType()),
    (T.DateType(), T.StringType()),
    (T.BooleanType(), T.IntegerType()),
    (T.DayTimeIntervalType(), T.LongType()),
]


@pytest.mark.parametrize(("first", "second"), REFUSED, ids=str)
def test_a_pair_that_no_type_holds(first, second):
    with pytest.raises(ConfigurationError) as caught:
        widened(first, second)
    shown = first.simpleString(), second.simpleString()
    says = "'o' of type {} on the first and 'o' of type {} on the second keyed(), which".format
    assert says(*shown) in str(caught.value)
    assert "cast one of them" in str(caught.value)


@pytest.mark.skipif(
    "collation" not in signature(T.StringType).parameters, reason="collations came with pyspark 4"
)
def test_strings_of_two_collations():
    with pytest.raises(ConfigurationError, match="type string collate UTF8_LCASE on the second"):
        widened(T.StringType(), T.StringType("UTF8_LCASE"))
    assert widened(T.StringType("UTF8_LCASE"), T.StringType("UTF8_LCASE")) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((kind, kind) for kind in (T.StringType(), T.BinaryType(), T.BooleanType())),
        (T.TimestampType(), T.TimestampType()),
        (T.DayTimeIntervalType(0, 1), T.DayTimeIntervalType(0, 3)),
        *([(T.TimeType(3), T.TimeType(6))] if hasattr(T, "TimeType") else []),
    ],
    ids=str,
)
def test_a_pair_of_one_arrow_type_is_not_widened(first, second):
    assert widened(first, second) is None
    own = [arrow_schema(T.StructType().add("o", kind)) for kind in (first, second)]
    assert own[0] == own[1]
