"""The types to which the ``order_by`` columns of two connected inputs are widened.

The rows of both inputs are sorted together, so each pair of columns needs a type that holds all
values of both: otherwise two values that differ may become equal, or change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as spark

from forebay_state_api.errors import ConfigurationError

_DIGITS: Final = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
"""Integer type → digits of its largest value."""
_MOST_DIGITS: Final = 76
"""Digits of Arrow's longest decimals: enough for any two of Spark's without a negative scale."""
_INTEGERS: Final = tuple(_DIGITS)
_EXACT_IN_DOUBLE: Final = (
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.FloatType,
    spark.DoubleType,
)
_ONE_ARROW_TYPE: Final = tuple(
    getattr(spark, name) for name in ("DayTimeIntervalType", "TimeType") if hasattr(spark, name)
)
"""Classes whose types, of any precision, are one type in Arrow; older pyspark lacks some."""


def order_types(schemas: Sequence[Any], orders: Sequence[tuple[str, ...]], uid: str) -> list[Any]:
    """Return the Arrow type to which each pair of columns is widened; ``None`` for equal types.

    ``schemas`` and ``orders`` are the schemas and ``order_by`` columns of the two inputs. Raises
    `ConfigurationError` for a pair that no type holds without loss.
    """
    first, second = schemas
    return [
        _checked(one, first[one].dataType, other, second[other].dataType, uid)
        for one, other in zip(*orders, strict=True)
    ]


def _checked(one: str, first: Any, other: str, second: Any, uid: str) -> Any:
    if _alike(first, second):
        return None
    widened = _common(first, second)
    if widened is None:
        raise ConfigurationError(
            f"operator {uid!r}: connected inputs are sorted together, and order_by names "
            f"{one!r} of type {first.simpleString()} on the first and {other!r} of type "
            f"{second.simpleString()} on the second keyed(), which no type holds without loss; "
            "cast one of them to the type of the other"
        )
    return widened


def _alike(first: Any, second: Any) -> bool:
    if type(first) is type(second) and isinstance(first, _ONE_ARROW_TYPE):
        return True
    return bool(first.simpleString() == second.simpleString())


def _common(first: Any, second: Any) -> Any:
    """Return the smallest Arrow type that holds both; ``None`` if there is none."""
    both = (first, second)
    if _all(both, _INTEGERS):
        return pa.int64()
    if _all(both, _EXACT_IN_DOUBLE):
        return pa.float64()
    if _all(both, (spark.DecimalType, *_INTEGERS)):
        return _common_decimal(both)
    if _all(both, (spark.DateType, spark.TimestampNTZType)):
        return pa.timestamp("us")
    return None


def _all(kinds: Sequence[Any], of: tuple[type, ...]) -> bool:
    return all(isinstance(kind, of) for kind in kinds)


def _common_decimal(kinds: Sequence[Any]) -> Any:
    scales = [getattr(kind, "scale", 0) for kind in kinds]
    digits = [_DIGITS.get(type(kind)) or kind.precision - kind.scale for kind in kinds]
    precision = max(digits) + max(scales)
    return pa.decimal256(precision, max(scales)) if precision <= _MOST_DIGITS else None
