"""Match types of Spark's state with declared types, and convert the values.

A state variable of Spark holds structs. A struct of one column becomes the bare value of that
column, unless the declared type is a record of one field with the column's name. A struct of
several columns becomes a record, by name, or a tuple, by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from pyspark.sql import types as T  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.spark_objects import parts_of
from forebay_state_api.codecs import describe_type

Description: TypeAlias = Mapping[str, Any]

_INTEGERS: Final = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_SCALARS: Final[Mapping[str, tuple[type[T.DataType], ...]]] = {
    "none": (T.NullType,),
    "bool": (T.BooleanType,),
    "int": _INTEGERS,
    "float": (T.FloatType, T.DoubleType, *_INTEGERS),
    "str": (T.StringType, T.CharType, T.VarcharType),
    "enum": (T.StringType, T.CharType, T.VarcharType),
    "uuid": (T.StringType,),
    "bytes": (T.BinaryType,),
    "date": (T.DateType,),
    "datetime": (T.TimestampType, T.TimestampNTZType),
    "time": (T.TimeType,) if hasattr(T, "TimeType") else (),
    "timedelta": (T.DayTimeIntervalType,),
    "decimal": (T.DecimalType,),
}
"""Scalar type of a state → the Spark types whose values it admits."""


def misfit(struct: T.StructType, description: Description) -> str | None:
    """Return why values of a variable's ``struct`` do not fit a declared type.

    Returns ``None`` if they fit.

    Only types are compared: nulls are found when the values are read.
    """
    if is_bare(struct.names, description):
        return _misfit(struct[0].dataType, description)
    return _misfit(struct, description)


def is_bare(names: Sequence[str], description: Description) -> bool:
    """Return whether structs with these fields stand for the value of their only field."""
    inner = _bare(description)
    fields = [field["name"] for field in inner.get("fields", ())]
    return len(names) == 1 and fields != list(names)


def _bare(description: Description) -> Description:
    """Return the type without ``None``."""
    return description["of"] if description["type"] == "optional" else description


def _misfit(kind: T.DataType, description: Description) -> str | None:
    declared = _bare(description)
    check = _NESTED_CHECKS.get(declared["type"])
    if declared["type"] == "any":
        return None if _is_plain(kind) else _differs(kind, declared)
    if check is not None:
        return check(kind, declared)
    if isinstance(kind, _SCALARS.get(declared["type"], ())):
        return None
    return _differs(kind, declared)


def _is_plain(kind: T.DataType) -> bool:
    """Return whether the values of a Spark type describe themselves in state."""
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        return all(map(_is_plain, parts_of(kind)))
    return any(isinstance(kind, kinds) for kinds in _SCALARS.values())


def _differs(kind: T.DataType, declared: Description) -> str:
    return f"{kind.simpleString()} does not fit {describe_type(declared)}"


def _check_elements(kind: T.DataType, declared: Description) -> str | None:
    if not isinstance(kind, T.ArrayType):
        return _differs(kind, declared)
    return _misfit(kind.elementType, declared["element"])


def _check_dict(kind: T.DataType, declared: Description) -> str | None:
    if not isinstance(kind, T.MapType):
        return _differs(kind, declared)
    return _misfit(kind.keyType, declared["key"]) or _misfit(kind.valueType, declared["value"])


def _check_tuple(kind: T.DataType, declared: Description) -> str | None:
    elements = declared["elements"]
    if not isinstance(kind, T.StructType) or len(kind) != len(elements):
        return _differs(kind, declared)
    return _first(
        (field.name, _misfit(field.dataType, element))
        for field, element in zip(kind, elements, strict=True)
    )


def _check_record(kind: T.DataType, declared: Description) -> str | None:
    fields = {field["name"]: field["type"] for field in declared["fields"]}
    if not isinstance(kind, T.StructType) or set(kind.names) != fields.keys():
        return _differs(kind, declared)
    return _first((field.name, _misfit(field.dataType, fields[field.name])) for field in kind)


def _first(faults: Any) -> str | None:
    return next((f"{name}: {fault}" for name, fault in faults if fault is not None), None)


_NESTED_CHECKS: Final[Mapping[str, Callable[[T.DataType, Description], str | None]]] = {
    "list": _check_elements,
    "tuple_of": _check_elements,
    "dict": _check_dict,
    "tuple": _check_tuple,
    "record": _check_record,
}


def described(kind: T.DataType, description: Description) -> Description:
    """Return a declared type, with the Spark types of parts that have no declared type.

    ``kind`` fits the type. `plain_value_of` makes conversions from the result.
    """
    declared = _bare(description)
    if isinstance(kind, T.StructType):
        return _described_struct(kind, declared)
    if isinstance(kind, T.MapType):
        key = described(kind.keyType, declared.get("key", _ANY))
        value = described(kind.valueType, declared.get("value", _ANY))
        return {"type": "dict", "key": key, "value": value}
    any_type = declared["type"] == "any"
    if isinstance(kind, T.ArrayType):
        element = described(kind.elementType, declared.get("element", _ANY))
        return {"type": "list" if any_type else declared["type"], "element": element}
    return _AS_IS if any_type else declared


def _described_struct(kind: T.StructType, declared: Description) -> Description:
    if declared["type"] == "tuple":
        pairs = zip(kind, declared["elements"], strict=True)
        return {"type": "tuple", "elements": [described(one.dataType, two) for one, two in pairs]}
    any_fields = [{"name": name, "type": _ANY} for name in kind.names]
    fields = [
        {"name": one["name"], "type": described(kind[one["name"]].dataType, one["type"])}
        for one in declared.get("fields", any_fields)
    ]
    return {"type": "fields" if declared["type"] == "any" else "record", "fields": fields}


_ANY: Final = {"type": "any"}
_AS_IS: Final = {"type": "none"}
"""A type whose values need no conversion."""
