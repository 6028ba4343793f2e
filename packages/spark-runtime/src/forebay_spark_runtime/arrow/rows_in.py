"""Converts Arrow batches to rows, column by column and slice by slice.

Rows are NamedTuples. Nested structs become NamedTuples too, maps become dicts, arrays become lists.
Timestamps are ``datetime`` in UTC whatever the session's time zone: Python subtracts and adds
datetimes of one zone by wall-clock time, which is wrong across a DST switch in any zone but UTC.
Timestamps without time zone become naive datetimes. Variants, geometries and values of user-defined
types become the objects that Spark's UDFs get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from itertools import pairwise, repeat, starmap
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructField, UserDefinedType

from forebay_engine.execution.rows import row_class
from forebay_spark_runtime.arrow.spark_objects import (
    DeclaredType,
    MarkedStruct,
    declared_types_of,
    marked_struct,
)

ColumnReader: TypeAlias = Callable[[Any], list[Any]]
"""Converts an Arrow array to Python values."""

INSTANTS: Final = pa.timestamp("us", "UTC")
"""Spark's type ``timestamp``, whatever time zone the Arrow type of a batch names."""

SLICE_ROWS: Final = 1_000
"""Rows that are converted to Python objects at a time: small enough for a processor's cache, and
not more than the engine reads in one batch by default."""

_SHOWN: Final = 200

_UNREADABLE: Final[dict[type[Exception], tuple[str, str]]] = {
    OverflowError: (
        "a date or timestamp outside the years 1 to 9999",
        "filter such rows, or cast the column to string",
    ),
    UnicodeDecodeError: (
        "a string that is not UTF-8",
        "filter such rows, or cast the column to binary",
    ),
}
"""pyarrow's exception → the fault and the remedy."""


def column_reader(kind: Any, declared: DeclaredType = None) -> ColumnReader:
    """Return the reader for arrays of an Arrow type.

    ``declared`` is the Spark type of a column that holds values of a user-defined type; without it
    they are read as their SQL type.
    """
    if isinstance(declared, UserDefinedType):
        return _udt_reader(kind, declared)
    if pa.types.is_struct(kind):
        marked = marked_struct(kind)
        return _struct_reader(kind, declared) if marked is None else _marked_reader(kind, marked)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_reader(kind, declared)
    if pa.types.is_map(kind):
        return _map_reader(kind, declared)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _instants
    return _integers if pa.types.is_integer(kind) else _python_values


def _python_values(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _integers(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist() if array.null_count else array.to_numpy().tolist()
    return values


def _instants(array: Any) -> list[Any]:
    # NumPy's list is several times as fast as pyarrow's; out-of-range values stay integers.
    found = array.cast(INSTANTS).to_numpy(zero_copy_only=False).tolist()
    try:
        if array.null_count:
            return [None if one is None else one.replace(tzinfo=UTC) for one in found]
        return [one.replace(tzinfo=UTC) for one in found]
    except AttributeError:
        raise OverflowError("a timestamp outside the years 1 to 9999") from None


def _udt_reader(kind: Any, declared: UserDefinedType) -> ColumnReader:
    sql_type: Any = declared.sqlType()
    (inner,) = declared_types_of([StructField("value", sql_type)])
    read_parts = column_reader(kind, inner)

    def read(array: Any) -> list[Any]:
        return [None if one is None else declared.deserialize(one) for one in read_parts(array)]

    return read


def _marked_reader(kind: Any, marked: MarkedStruct) -> ColumnReader:
    positions = [kind.get_field_index(name) for name in marked.fields]

    def read(array: Any) -> list[Any]:
        parts = array.flatten()
        columns = [parts[position].to_pylist() for position in positions]
        return _valid(array, list(starmap(marked.cls, zip(*columns, strict=True))))

    return read


def _struct_reader(kind: Any, declared: Any) -> ColumnReader:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    make = row_class(tuple(field.name for field in fields))._make
    inner = [None] * len(fields) if declared is None else declared_types_of(declared)
    readers = [column_reader(field.type, one) for field, one in zip(fields, inner, strict=True)]

    def read(array: Any) -> list[Any]:
        columns = [reader(part) for reader, part in zip(readers, array.flatten(), strict=True)]
        rows = list(map(make, zip(*columns, strict=True))) if columns else [make(())] * len(array)
        return _valid(array, rows)

    return read


def _valid(array: Any, rows: list[Any]) -> list[Any]:
    """Return ``rows`` with ``None`` where ``array``, from which they were made, is null."""
    if not array.null_count:
        return rows
    valid = array.is_valid().to_pylist()
    return [row if there else None for row, there in zip(rows, valid, strict=True)]


def _list_reader(kind: Any, declared: Any) -> ColumnReader:
    read_elements = column_reader(kind.value_type, declared and declared.elementType)
    if read_elements in (_python_values, _integers):
        return _python_values

    def read(array: Any) -> list[Any]:
        return _cut(read_elements(array.flatten()), array.value_lengths().to_pylist())

    return read


def _map_reader(kind: Any, declared: Any) -> ColumnReader:
    read_keys = column_reader(kind.key_type, declared and declared.keyType)
    read_items = column_reader(kind.item_type, declared and declared.valueType)

    def read(array: Any) -> list[Any]:
        ends = array.offsets.to_pylist() if len(array) else [0]
        first, count = ends[0], ends[-1] - ends[0]
        keys, items = array.keys.slice(first, count), array.items.slice(first, count)
        entries = list(zip(read_keys(keys), read_items(items), strict=True))
        found = [dict(entries[start - first : end - first]) for start, end in pairwise(ends)]
        return _valid(array, found)

    return read


def _cut(elements: list[Any], lengths: list[int | None]) -> list[Any]:
    """Split the flattened elements of a list array into lists; a length of ``None`` is a null."""
    lists: list[Any] = []
    start = 0
    for length in lengths:
        if length is None:
            lists.append(None)
        else:
            lists.append(elements[start : start + length])
            start += length
    return lists


class UnreadableValueError(Exception):
    """Python cannot represent a value; the text names the reason and the remedy."""

    def __init__(self, text: str, position: int) -> None:
        """Take the message and the ``position`` of the row."""
        super().__init__(text)
        self.position = position


class RowReader:
    """Converts the columns of one input to rows."""

    def __init__(
        self, names: Sequence[str], kinds: Sequence[Any], declared: Sequence[DeclaredType] = ()
    ) -> None:
        """Take the columns' names, in ``kinds`` their Arrow types, and their `DeclaredType`."""
        self._names = names
        self._class = row_class(tuple(names))
        types = declared or [None] * len(names)
        self._readers = [column_reader(*pair) for pair in zip(kinds, types, strict=True)]

    def rows(self, columns: list[Any]) -> Iterator[Any]:
        """Return the rows of equally long arrays; each row is made when it is read.

        Raises `UnreadableValueError`.
        """
        return self.rows_of(self.values(columns))

    def values(self, columns: list[Any]) -> list[list[Any]]:
        """Return the Python values, column by column. Raises `UnreadableValueError`."""
        try:
            return [read(column) for read, column in zip(self._readers, columns, strict=True)]
        except tuple(_UNREADABLE):
            self._find_unreadable(columns)
            raise

    def rows_of(self, values: list[list[Any]]) -> Iterator[Any]:
        """Return the rows of columns that are Python values already."""
        # The same as the class's own `_make`, without a Python call for each row.
        return map(tuple.__new__, repeat(self._class), zip(*values, strict=True))

    def _find_unreadable(self, columns: list[Any]) -> None:
        """Raise `UnreadableValueError` for the first value that cannot be read."""
        for name, read, column in zip(self._names, self._readers, columns, strict=True):
            for position in range(len(column)):
                one = column.slice(position, 1)
                try:
                    read(one)
                except tuple(_UNREADABLE) as error:
                    what, way_out = _UNREADABLE[type(error)]
                    raise UnreadableValueError(
                        f"column {name!r} ({column.type}) has {what}, {shown(one)}; {way_out}",
                        position,
                    ) from error


def shown(array: Any) -> str:
    """Return the values of an array as text of limited length, whatever the values are."""
    text = " ".join(str(array).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
