"""Values of Spark's own classes: variants, geometries and user-defined types.

Workers get and return them in Arrow structs with a mark, or as the SQL type of the user-defined
type. Rows have the objects that Spark's UDFs have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import attrs
from pyspark.sql import types as spark
from pyspark.sql.pandas import types as marks

DeclaredType: TypeAlias = "spark.DataType | None"
"""The Spark type of a column that holds values of a user-defined type; ``None`` for others."""


@attrs.frozen
class MarkedStruct:
    """An Arrow struct that stands for an object of Spark."""

    cls: type
    fields: tuple[str, ...]
    """The struct's fields in the order of the class's arguments; its attributes by these names."""

    def parts(self, value: Any) -> dict[str, Any]:
        """Return the struct's fields for an object."""
        return {name: getattr(value, name) for name in self.fields}


def _marked_class(
    mark: str, cls: str, *fields: str
) -> tuple[Callable[[Any], bool], MarkedStruct] | None:
    """Return the test of an Arrow struct and the class it represents, if this pyspark has it."""
    if not hasattr(marks, mark) or not hasattr(spark, cls):
        return None
    return getattr(marks, mark), MarkedStruct(getattr(spark, cls), fields)


_MARKED: Final = [
    found
    for found in (
        _marked_class("is_variant", "VariantVal", "value", "metadata"),
        _marked_class("is_geometry", "Geometry", "wkb", "srid"),
        _marked_class("is_geography", "Geography", "wkb", "srid"),
    )
    if found is not None
]


def marked_struct(kind: Any) -> MarkedStruct | None:
    """Return the object that an Arrow struct represents; ``None`` if it is a plain struct."""
    return next((found for is_such, found in _MARKED if is_such(kind)), None)


def declared_types_of(fields: Iterable[Any]) -> tuple[DeclaredType, ...]:
    """Return the declared types of fields, for `column_reader`."""
    return tuple(field.dataType if _holds_udt(field.dataType) else None for field in fields)


def parts_of(kind: Any) -> list[Any]:
    """Return the types that a nested Spark type consists of."""
    if isinstance(kind, spark.StructType):
        return [field.dataType for field in kind]
    if isinstance(kind, spark.MapType):
        return [kind.keyType, kind.valueType]
    return [kind.elementType] if isinstance(kind, spark.ArrayType) else []


def _holds_udt(kind: Any) -> bool:
    return isinstance(kind, spark.UserDefinedType) or any(map(_holds_udt, parts_of(kind)))


def serialized(values: Sequence[Any], kinds: Iterable[type]) -> Sequence[Any]:
    """Return ``values``, of the classes ``kinds``, with user-defined types serialized."""
    types = {kind: kind.__UDT__ for kind in kinds if hasattr(kind, "__UDT__")}
    if not types:
        return values
    return [
        types[type(value)].serialize(value) if type(value) in types else value for value in values
    ]
