"""From Arrow batches to rows: NamedTuples with attribute access, made column-wise, slice by slice.

Nested structs become NamedTuples too, maps become dicts, arrays become lists. Timestamps are
``datetime`` in the session's time zone, timestamps without time zone are naive ones.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

Column: TypeAlias = "pa.Array[Any]"
ColumnReader: TypeAlias = Callable[[Any], list[Any]]
"""From an Arrow array to Python values."""

SLICE_ROWS: Final = 1_024
"""Rows that are turned into Python objects at a time; smaller than a processor's cache."""


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> Any:
    """A NamedTuple class with a field for each column.

    A name that is no identifier can be read by ``getattr(row, name)``; its field in ``_fields`` is
    called by its position, ``_3``.
    """
    made: Any = namedtuple("Row", names, rename=True)  # noqa: PYI024 - the fields are data
    for position, (name, field) in enumerate(zip(names, made._fields, strict=True)):
        if name != field and not hasattr(made, name):
            setattr(made, name, property(lambda row, position=position: row[position]))
    return made


def column_reader(kind: Any) -> ColumnReader:
    """How arrays of an Arrow type become Python values."""
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_reader(column_reader(kind.value_type), plain=_is_plain(kind.value_type))
    if pa.types.is_map(kind):
        return _map_reader(column_reader(kind.key_type), column_reader(kind.item_type))
    if pa.types.is_integer(kind):
        return _integers
    return _python_values


def _python_values(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _integers(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist() if array.null_count else array.to_numpy().tolist()
    return values


def _is_plain(kind: Any) -> bool:
    return not pa.types.is_nested(kind)


def _struct_reader(kind: Any) -> ColumnReader:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    make = row_class(tuple(field.name for field in fields))._make
    readers = [column_reader(field.type) for field in fields]

    def read(array: Any) -> list[Any]:
        columns = [reader(part) for reader, part in zip(readers, array.flatten(), strict=True)]
        rows = list(map(make, zip(*columns, strict=True))) if columns else [make(())] * len(array)
        if array.null_count:
            valid = array.is_valid().to_pylist()
            return [row if there else None for row, there in zip(rows, valid, strict=True)]
        return rows

    return read


def _list_reader(reader: ColumnReader, *, plain: bool) -> ColumnReader:
    if plain:
        return _python_values

    def read(array: Any) -> list[Any]:
        elements = reader(array.flatten())
        return _cut(elements, array, array.value_lengths().to_pylist())

    return read


def _map_reader(read_keys: ColumnReader, read_items: ColumnReader) -> ColumnReader:
    def read(array: Any) -> list[Any]:
        lists = array.cast(pa.list_(pa.struct([("k", array.type.key_type), ("v", array.type.item_type)])))
        pairs = lists.flatten()
        keys, items = pairs.flatten()
        entries = list(zip(read_keys(keys), read_items(items), strict=True))
        cut = _cut(entries, array, lists.value_lengths().to_pylist())
        return [None if entries is None else dict(entries) for entries in cut]

    return read


def _cut(elements: list[Any], array: Any, lengths: list[int | None]) -> list[Any]:
    """The flattened elements of a list array, list by list."""
    del array
    lists: list[Any] = []
    start = 0
    for length in lengths:
        if length is None:
            lists.append(None)
        else:
            lists.append(elements[start : start + length])
            start += length
    return lists


class RowReader:
    """Turns the columns of one input into rows."""

    def __init__(self, fields: list[Any]) -> None:
        """``fields`` are the Arrow fields of the user's columns, in order."""
        self._make = row_class(tuple(field.name for field in fields))._make
        self._readers = [column_reader(field.type) for field in fields]

    def rows(self, columns: list[Any]) -> Iterator[Any]:
        """The rows of equally long arrays, made as they are asked for."""
        return self.rows_of([read(column) for read, column in zip(self._readers, columns, strict=True)])

    def values(self, columns: list[Any]) -> list[list[Any]]:
        """The Python values, column by column."""
        return [read(column) for read, column in zip(self._readers, columns, strict=True)]

    def rows_of(self, values: list[list[Any]]) -> Iterator[Any]:
        """Rows of columns that are Python values already."""
        return map(self._make, zip(*values, strict=True))


