"""Which Spark types can be read into Python objects, checked on the driver before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import types as spark

from forebay_state_api.errors import ConfigurationError


def check_readable(fields: Iterable[Any], operator: str) -> None:
    """Raise `ConfigurationError` for the first of the input's fields that cannot be read.

    ``operator`` is named in the message.
    """
    for field in fields:
        flaw = _flaw(field.dataType)
        if flaw is not None:
            why, way_out = flaw
            message = (
                f"{operator}: column {field.name!r} of type {field.dataType.simpleString()} cannot "
                f"be read: {why}; {way_out}, or drop it"
            )
            raise ConfigurationError(message)


def _flaw(kind: Any) -> tuple[str, str] | None:
    """Why a type cannot be read, and the way out; ``None`` if it can."""
    if isinstance(kind, spark.UserDefinedType):
        return _flaw(kind.sqlType())
    if isinstance(kind, spark.YearMonthIntervalType):
        return f"Python has no type for {kind.simpleString()}", "cast it to string"
    if isinstance(kind, spark.MapType) and _holds_arrays(kind.keyType):
        return "keys of a dict cannot hold arrays", "take its map_entries()"
    if isinstance(kind, spark.StructType) and len(set(kind.names)) < len(kind):
        return f"a struct has two fields of one name: {', '.join(kind.names)}", "rename them"
    parts = map(_flaw, _parts(kind))
    return next((flaw for flaw in parts if flaw is not None), None)


def _holds_arrays(kind: Any) -> bool:
    if isinstance(kind, spark.UserDefinedType):
        return _holds_arrays(kind.sqlType())
    return isinstance(kind, spark.ArrayType) or any(map(_holds_arrays, _parts(kind)))


def _parts(kind: Any) -> list[Any]:
    """The types that a nested type is made of."""
    if isinstance(kind, spark.StructType):
        return [field.dataType for field in kind]
    if isinstance(kind, spark.MapType):
        return [kind.keyType, kind.valueType]
    return [kind.elementType] if isinstance(kind, spark.ArrayType) else []
