"""Values of Spark's state as values of a declared type: which types fit, and the conversion.

A state variable of Spark holds structs. A struct of one column becomes the bare value of that
column, unless the declared type is a record of one field with the column's name. A struct of
several columns becomes a record, by name, or a tuple, by position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812 - the customary name

from forebay_spark_runtime.arrow.rows_in import ColumnReader, column_reader
from forebay_spark_runtime.arrow.spark_objects import parts_of
from forebay_state_api.codecs import describe_type

Description: TypeAlias = Mapping[str, Any]
Convert: TypeAlias = "Callable[[Any], Any] | None"
"""Python value of a column → a value that the declared type admits; ``None`` if no conversion is
needed."""

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

    ``None`` if they fit.

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


def value_reader(kind: pa.StructType, description: Description) -> ColumnReader:
    """Return the reader of a column of structs, whose values the declared type admits.

    ``kind`` is the Arrow type of a `misfit`-free struct.
    """
    if is_bare([field.name for field in kind], description):
        return _bare_reader(kind.field(0).type, description)
    declared = _bare(description)
    if declared["type"] == "record":
        fields = {field["name"]: field["type"] for field in declared["fields"]}
        return _rows_reader(kind, [kind.get_field_index(name) for name in fields], fields.values())
    if declared["type"] == "tuple":
        return _rows_reader(kind, range(kind.num_fields), declared["elements"])
    return _converting(column_reader(kind), conversion(kind, description))


def _rows_reader(
    kind: pa.StructType, positions: Iterable[int], types: Iterable[Description]
) -> ColumnReader:
    """Return the reader of structs as tuples of the fields at ``positions``, column by column."""
    readers = []
    for position, description in zip(positions, types, strict=True):
        field = kind.field(position).type
        read = _converting(column_reader(field), conversion(field, description))
        readers.append((position, read))

    def rows(structs: pa.StructArray) -> list[Any]:
        columns = structs.flatten()
        return list(zip(*[read(columns[position]) for position, read in readers], strict=True))

    return rows


def _bare_reader(kind: pa.DataType, description: Description) -> ColumnReader:
    read = _converting(column_reader(kind), conversion(kind, description))
    return lambda structs: read(structs.flatten()[0])


def _converting(read: ColumnReader, convert: Convert) -> ColumnReader:
    if convert is None:
        return read
    return lambda column: [None if one is None else convert(one) for one in read(column)]


def conversion(kind: pa.DataType, description: Description) -> Convert:
    """Return the conversion of what `column_reader` returns for an Arrow type."""
    declared = _bare(description)
    if pa.types.is_struct(kind):
        return _of_struct(kind, declared)
    if pa.types.is_map(kind):
        return _of_map(kind, declared)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_list(kind, declared)
    return UUID if declared["type"] == "uuid" else None


def _part(convert: Convert) -> Callable[[Any], Any]:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


_ANY: Final = {"type": "any"}
_WHOLE: Final[Mapping[str, Convert]] = {"record": None, "tuple": tuple}
"""Conversion of a struct whose fields stay as they are; records are taken by name."""


def _of_struct(kind: pa.StructType, declared: Description) -> Convert:
    if declared["type"] == "tuple":
        types = declared["elements"]
    else:
        fields = {field["name"]: field["type"] for field in declared.get("fields", ())}
        types = [fields.get(field.name, _ANY) for field in kind]
    parts = [conversion(field.type, one) for field, one in zip(kind, types, strict=True)]
    if not any(parts) and declared["type"] in _WHOLE:
        return _WHOLE[declared["type"]]
    converts, names = [*map(_part, parts)], [field.name for field in kind]

    def values(row: Any) -> Any:
        return (convert(one) for convert, one in zip(converts, row, strict=True))

    if declared["type"] == "tuple":
        return lambda row: tuple(values(row))
    return lambda row: dict(zip(names, values(row), strict=True))


def _of_map(kind: pa.MapType, declared: Description) -> Convert:
    keys = conversion(kind.key_type, declared.get("key", _ANY))
    values = conversion(kind.item_type, declared.get("value", _ANY))
    if keys is None and values is None:
        return None
    key, value = _part(keys), _part(values)
    return lambda entries: {key(one): value(two) for one, two in entries.items()}


def _of_list(kind: Any, declared: Description) -> Convert:
    convert = conversion(kind.value_type, declared.get("element", _ANY))
    if declared["type"] == "tuple_of":
        part = _part(convert)
        return lambda elements: tuple([part(one) for one in elements])
    if convert is None:
        return None
    part = _part(convert)
    return lambda elements: [part(one) for one in elements]
