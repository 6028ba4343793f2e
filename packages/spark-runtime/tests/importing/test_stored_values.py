"""Values of Spark's state as values of declared types."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple

import attrs
import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T

from forebay_engine.codecs.stored_codec import stored_codec
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.importing.stored_values import described, is_bare, misfit
from forebay_state_api.codecs import codec_for
from forebay_state_processor.importing.plain_values import null_stays, plain_value_of


class Sale(NamedTuple):
    shop: str
    amount: int


@attrs.frozen
class Order:
    id: uuid.UUID
    sales: tuple[Sale, ...]


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


SALE = "shop string, amount int"
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
AN_ID = uuid.UUID(int=7)

VALUES = [
    ("n long", int, (3,), 3),
    ("n tinyint", int, (3,), 3),
    ("n long", float, (3,), 3.0),
    ("x float", float, (1.5,), 1.5),
    ("n long", int | None, (None,), None),
    ("s string", str, ("a",), "a"),
    ("b binary", bytes, (b"a",), b"a"),
    ("d date", date, (date(2024, 5, 1),), date(2024, 5, 1)),
    ("at timestamp", datetime, (NOON,), NOON),
    ("at timestamp_ntz", datetime, (NOON.replace(tzinfo=None),), NOON.replace(tzinfo=None)),
    *([("t time", time, (time(12, 30),), time(12, 30))] if hasattr(T, "TimeType") else []),
    ("t interval day to second", timedelta, (timedelta(hours=1),), timedelta(hours=1)),
    ("d decimal(10,2)", Decimal, (Decimal("1.50"),), Decimal("1.50")),
    ("id string", uuid.UUID, (str(AN_ID),), AN_ID),
    ("c string", Colour, ("RED",), "RED"),
    ("ns array<int>", list[int], ([1, 2],), [1, 2]),
    ("ns array<int>", tuple[int, ...], ([1, 2],), (1, 2)),
    ("ns map<string,int>", dict[str, int], ([("a", 1)],), {"a": 1}),
    (SALE, Sale, ("tea", 3), ("tea", 3)),
    (SALE, Sale | None, ("tea", 3), ("tea", 3)),
    ("amount int, shop string", Sale, (3, "tea"), ("tea", 3)),
    (SALE, tuple[str, int], ("tea", 3), ("tea", 3)),
    (SALE, "struct<shop: string, amount: int>", ("tea", 3), ("tea", 3)),
    (f"sale struct<{SALE}>", Sale, (("tea", 3),), ("tea", 3)),
    ("n long", "struct<n: long>", (3,), (3,)),
    (
        f"id string, sales array<struct<{SALE}>>",
        Order,
        (str(AN_ID), [("tea", 3), ("rum", 4)]),
        (AN_ID, (("tea", 3), ("rum", 4))),
    ),
    ("n long", None, (3,), 3),
    (SALE, None, ("tea", 3), {"shop": "tea", "amount": 3}),
    (
        "m map<string,array<struct<a:int>>>",
        None,
        ([("k", [(1,)])],),
        {"k": [{"a": 1}]},
    ),
    ("m map<string,int>", None, ([],), {}),
    ("s string", None, ("{}",), "{}"),
    ("b binary", None, (b"a",), b"a"),
    ("ds array<date>", None, ([NOON.date()],), [NOON.date()]),
]


@pytest.mark.parametrize(("ddl", "declared", "row", "expected"), VALUES)
def test_values_become_those_of_the_declared_type(ddl, declared, row, expected):
    description = codec_for(declared, what="it").description
    kind = _struct(ddl)
    assert misfit(kind, description) is None
    arrow = pa.struct(list(arrow_schema(kind)))
    names = kind.names
    column = pa.array([_plain(dict(zip(names, row, strict=True)), kind)], arrow)
    bare = is_bare(names, description)
    values = column.flatten()[0] if bare else column  # as Spark's SQL does it
    plain = plain_value_of(described(kind[0].dataType if bare else kind, description))
    value = null_stays(plain)(values.to_pylist()[0])
    admitted = stored_codec(description, what="it").admit(value)
    assert admitted == expected
    assert type(admitted) is type(expected) or isinstance(admitted, tuple)


@pytest.mark.parametrize(
    ("ddl", "declared", "fault"),
    [
        ("n long", str, "bigint does not fit str"),
        ("s string", int, "string does not fit int"),
        ("x double", int, "double does not fit int"),
        ("s string", bytes, "string does not fit bytes"),
        (SALE, int, "struct<shop:string,amount:int> does not fit int"),
        (SALE, tuple[str], "struct<shop:string,amount:int> does not fit tuple[str]"),
        (SALE, tuple[str, str], "amount: int does not fit str"),
        ("shop string, n int", Sale, "struct<shop:string,n:int> does not fit Sale("),
        ("shop string, amount string", Sale, "amount: string does not fit int"),
        ("ns array<string>", list[int], "string does not fit int"),
        ("n int", list[int], "int does not fit list[int]"),
        ("m map<string,int>", dict[str, str], "int does not fit str"),
        ("m map<int,int>", dict[str, int], "int does not fit str"),
        ("n int", dict[str, int], "int does not fit dict[str, int]"),
        ("v vector", None, "vector does not fit Any"),
        ("vs array<vector>", None, "array<vector> does not fit Any"),
        ("m months", list[int], "does not fit list[int]"),
    ],
)
def test_a_type_that_does_not_fit_is_named(ddl, declared, fault):
    found = misfit(_struct(ddl), codec_for(declared, what="it").description)
    assert found is not None
    assert fault in found


def _struct(ddl):
    """Parse the few types that are used here, without a JVM."""
    return T.StructType([T.StructField(name, _kind(text)) for name, text in _fields(ddl)])


def _fields(ddl):
    depth, start, fields = 0, 0, []
    for at, letter in enumerate(f"{ddl},"):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            name, _, kind = ddl[start:at].strip().replace(":", " ", 1).partition(" ")
            fields.append((name, kind.strip()))
            start = at + 1
    return fields


def _kind(text):
    outer, _, inner = text.partition("<")
    inner = inner[:-1]
    if outer == "array":
        return T.ArrayType(_kind(inner))
    if outer == "struct":
        return _struct(inner)
    if outer == "map":
        key, _, value = inner.partition(",")
        return T.MapType(_kind(key), _kind(value))
    return SCALARS[text]


SCALARS = {
    "long": T.LongType(),
    "int": T.IntegerType(),
    "tinyint": T.ByteType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date": T.DateType(),
    "timestamp": T.TimestampType(),
    "timestamp_ntz": T.TimestampNTZType(),
    "interval day to second": T.DayTimeIntervalType(),
    "decimal(10,2)": T.DecimalType(10, 2),
    "vector": VectorUDT(),
    "months": T.YearMonthIntervalType(),
    **({"time": T.TimeType(6)} if hasattr(T, "TimeType") else {}),
}


def _plain(value, kind):
    """Return dicts for structs, as pyarrow wants them."""
    if isinstance(value, dict):
        return {one.name: _plain(value[one.name], one.dataType) for one in kind}
    if isinstance(kind, T.StructType):
        return _plain(dict(zip(kind.names, value, strict=True)), kind)
    if isinstance(kind, T.ArrayType):
        return [_plain(one, kind.elementType) for one in value]
    if isinstance(kind, T.MapType):
        return [(one, _plain(two, kind.valueType)) for one, two in value]
    return value
