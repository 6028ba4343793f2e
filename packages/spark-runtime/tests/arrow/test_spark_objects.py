"""Variants, geometries and values of user-defined types: the objects that Spark's UDFs have."""

from __future__ import annotations

from datetime import UTC, time

import pyarrow as pa
import pytest
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql import types as T

from forebay_spark_runtime.arrow.input_types import check_readable, check_writable
from forebay_spark_runtime.arrow.rows_in import RowReader
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.spark_objects import declared_types_of
from forebay_spark_runtime.arrow.spark_types import arrow_schema, without_lengths
from forebay_spark_runtime.keyed_operator.plan import parsed_schema
from forebay_spark_runtime.waiting.pending_rows import packed_row
from forebay_state_api.errors import ConfigurationError, OutputSchemaError

POINT = bytes.fromhex("0101000000000000000000f03f0000000000000040")


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return type(other) is Point and (self.x, self.y) == (other.x, other.y)

    __hash__ = None


class PointUDT(T.UserDefinedType):
    """Like many in the wild: its values know it, and its SQL type is an array."""

    @classmethod
    def sqlType(cls):
        return T.ArrayType(T.DoubleType(), containsNull=False)

    def serialize(self, obj):
        return [obj.x, obj.y]

    def deserialize(self, datum):
        return Point(*datum)


class Wrapped:
    def __init__(self, inside):
        self.inside = inside

    def __eq__(self, other):
        return type(other) is Wrapped and self.inside == other.inside

    __hash__ = None


class WrappedUDT(T.UserDefinedType):
    """A user-defined type within another one."""

    @classmethod
    def sqlType(cls):
        return T.StructType([T.StructField("inside", PointUDT())])

    def serialize(self, obj):
        return (obj.inside,)

    def deserialize(self, datum):
        return Wrapped(datum.inside)


Point.__UDT__ = PointUDT()
Wrapped.__UDT__ = WrappedUDT()


def _newer(name, *arguments):
    cls, kind = getattr(T, name, None), getattr(T, f"{name.removesuffix('Val')}Type", None)
    return [] if cls is None or kind is None else [(kind, cls(*arguments))]


OBJECTS = [
    (PointUDT(), Point(1.0, 2.0)),
    (WrappedUDT(), Wrapped(Point(1.0, 2.0))),
    (VectorUDT(), DenseVector([1.0, 2.0])),
    *((kind(), value) for kind, value in _newer("VariantVal", b"\x0c\x01", b"\x01\x00\x00")),
    *((kind(0), value) for kind, value in _newer("Geometry", POINT, 0)),
    *((kind(4326), value) for kind, value in _newer("Geography", POINT, 4326)),
]
if hasattr(T, "TimeType"):
    OBJECTS.append((T.TimeType(6), time(12, 34, 56, 123456)))


def shown(value):
    """The value in a form that can be compared: a ``VariantVal`` has no equality."""
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    return (value.value, value.metadata) if type(value).__name__ == "VariantVal" else value


@pytest.mark.parametrize(("kind", "value"), OBJECTS, ids=lambda one: type(one).__name__)
def test_objects_come_in_as_they_go_out(kind, value):
    fields = [
        T.StructField("n", T.LongType()),
        T.StructField("bare", kind),
        T.StructField("list", T.ArrayType(kind)),
        T.StructField("map", T.MapType(T.StringType(), kind)),
        T.StructField("struct", T.StructType([T.StructField("part", kind)])),
    ]
    schema = T.StructType(fields)
    check_readable(schema, "operator 'o'")
    check_writable(schema, "operator 'o'")
    arrow = arrow_schema(schema)
    rows = [
        (1, value, [value, None], {"a": value, "b": None}, (value,)),
        (2, None, None, None, None),
        (3, value, [], {}, (None,)),
    ]
    batch = RowWriter(arrow, function="f", time_zone="UTC").batch(rows)
    assert batch.schema.equals(arrow)
    reader = RowReader(arrow.names, arrow.types, declared_types_of(schema))
    read = list(reader.rows(batch.columns))
    assert shown(read) == shown(rows)
    assert type(read[0].bare) is type(value)
    assert shown(list(reader.rows(batch.slice(2).columns))) == shown(rows[2:])
    carried = pa.ipc.open_stream(packed_row(batch.slice(0, 1))).read_all().to_batches()[0]
    again = RowReader(arrow.names, carried.schema.types, declared_types_of(schema))
    assert shown(list(again.rows(carried.columns))) == shown(rows[:1])


def test_the_parts_of_a_variant_are_taken_too():
    if not hasattr(T, "VariantVal"):
        pytest.skip("needs a pyspark with variants")
    arrow = arrow_schema(T.StructType([T.StructField("v", T.VariantType())]))
    writer = RowWriter(arrow, function="f", time_zone="UTC")
    parts = {"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}
    for given in (parts, tuple(parts.values()), T.VariantVal(**parts)):
        assert writer.batch([(given,)]).column(0).to_pylist() == [parts]
    with pytest.raises(OutputSchemaError, match="a struct takes a tuple"):
        writer.batch([(5,)])


@pytest.mark.parametrize("value", [5, "12:00", time(12, tzinfo=UTC)])
def test_what_is_no_time_of_day_is_refused(value):
    writer = RowWriter(pa.schema([("t", pa.time64("ns"))]), function="f", time_zone="UTC")
    with pytest.raises(OutputSchemaError, match="time"):
        writer.batch([(value,)])


TWINS = T.StructType([T.StructField("a", T.LongType()), T.StructField("a", T.StringType())])


@pytest.mark.parametrize("kind", [TWINS, T.ArrayType(TWINS), T.MapType(T.StringType(), TWINS)])
def test_output_that_cannot_be_written_is_refused_by_name(kind):
    says = r"operator 'o': column 'v' of type .* of the output cannot be written: .*two fields of"
    with pytest.raises(ConfigurationError, match=says):
        check_writable([T.StructField("v", kind)], "operator 'o'")


def test_output_of_a_type_without_values_in_python_is_refused_by_name():
    schema = T.StructType([T.StructField("v", T.ArrayType(T.YearMonthIntervalType()))])
    with pytest.raises(ConfigurationError, match=r"column 'v' of type .* Python has no type for"):
        parsed_schema(None, schema, "o")


def test_lengths_of_strings_are_left_out_at_any_depth():
    text = T.StructType([T.StructField("v", T.VarcharType(3), nullable=False)])
    given = T.StructType(
        [T.StructField("c", T.CharType(3)), T.StructField("m", T.MapType(T.CharType(1), text))]
    )
    plain = T.StructType([T.StructField("v", T.StringType(), nullable=False)])
    assert without_lengths(T.ArrayType(given)) == T.ArrayType(
        T.StructType(
            [
                T.StructField("c", T.StringType()),
                T.StructField("m", T.MapType(T.StringType(), plain)),
            ]
        )
    )
