"""Spark types of stored state, and batches that have exactly the Arrow types of a Spark schema."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql import types as T  # noqa: N812 - the customary name
from pyspark.sql.pandas.types import to_arrow_schema

from forebay_state_api.errors import ConfigurationError

# Newer versions of pyspark require the time zone of timestamps; older ones use UTC.
_ZONE: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)

_SCALARS: Final[tuple[tuple[Callable[[Any], bool], type[T.DataType]], ...]] = (
    (kinds.is_null, T.NullType),
    (kinds.is_boolean, T.BooleanType),
    (kinds.is_int32, T.IntegerType),
    (kinds.is_int64, T.LongType),
    (kinds.is_float64, T.DoubleType),
    (kinds.is_string, T.StringType),
    (kinds.is_time, T.StringType),
    (kinds.is_binary, T.BinaryType),
    (kinds.is_date, T.DateType),
    (kinds.is_timestamp, T.TimestampType),
    (kinds.is_duration, T.DayTimeIntervalType),
)


def arrow_schema(spark: T.StructType) -> Any:
    """Convert a ``StructType`` to a ``pa.Schema``; timestamps are in UTC."""
    return to_arrow_schema(spark, **_ZONE)


def without_lengths(kind: Any) -> Any:
    """Return a Spark type with strings in place of char and varchar, which Arrow does not have."""
    if isinstance(kind, T.CharType | T.VarcharType):
        return T.StringType()
    if isinstance(kind, T.StructType):
        return T.StructType(
            [
                T.StructField(one.name, without_lengths(one.dataType), one.nullable, one.metadata)
                for one in kind
            ]
        )
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(without_lengths(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        key, value = without_lengths(kind.keyType), without_lengths(kind.valueType)
        return T.MapType(key, value, kind.valueContainsNull)
    return kind


def spark_schema(arrow: pa.Schema) -> T.StructType:
    """Return the Spark schema of tables of state; times of day become text."""
    return T.StructType([T.StructField(field.name, _spark_type(field.type)) for field in arrow])


def _spark_type(kind: pa.DataType) -> T.DataType:
    if kinds.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if kinds.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if kinds.is_struct(kind):
        return T.StructType([T.StructField(one.name, _spark_type(one.type)) for one in kind])
    return next(spark() for fits, spark in _SCALARS if fits(kind))


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of ``schema``, by name, in its types.

    Raises `ConfigurationError` if a column is missing or is of another type.
    """
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            raise ConfigurationError(
                f"the state has no column {field.name!r}; leave .schema() out, and start a stream "
                "whose state has changed its type again"
            )
        arrays.append(_cast(batch.column(at), field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"column {field.name!r} is of type {array.type} in the state and of type {field.type} "
            f"in the schema: {error}. Leave .schema() out, and start a stream whose state has "
            "changed its type again"
        ) from error
