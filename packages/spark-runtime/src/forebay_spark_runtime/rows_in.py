"""From Arrow batches to rows: NamedTuples with attribute access, made column-wise, slice by slice.

Nested structs become NamedTuples too, maps become dicts, arrays become lists. Timestamps are
``datetime`` in the session's time zone, timestamps without time zone are naive ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa

from forebay_spark_runtime.time_zones import time_zone
from forebay_state_api.codecs.structs import tuple_class

ColumnReader: TypeAlias = Callable[[Any], list[Any]]
"""From an Arrow array to Python values."""

SLICE_ROWS: Final = 1_000
"""Rows that are turned into Python objects at a time: smaller than a processor's cache, and no more
than the engine reads in one batch by default."""

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
"""What pyarrow raises → what is wrong, and the way out."""


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> Any:
    """A NamedTuple class with a field for each column; ``_fields`` are the columns' names.

    A column whose name is no identifier is read by ``getattr(row, name)``.
    """
    return tuple_class("Row", names)


def column_reader(kind: Any) -> ColumnReader:
    """How arrays of an Arrow type become Python values."""
    if pa.types.is_struct(kind):
        return _struct_reader(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_reader(kind)
    if pa.types.is_map(kind):
        return _map_reader(kind)
    if pa.types.is_timestamp(kind) and not _reads_as_it_is(kind):
        return _zoned_reader(kind)
    return _integers if pa.types.is_integer(kind) else _python_values


def _python_values(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _integers(array: Any) -> list[Any]:
    values: list[Any] = array.to_pylist() if array.null_count else array.to_numpy().tolist()
    return values


def _reads_as_it_is(kind: Any) -> bool:
    """Whether pyarrow knows the time zone of a timestamp type."""
    try:
        pa.scalar(0, kind).as_py()
    except Exception:  # noqa: BLE001 - which one depends on the packages that pyarrow finds
        return False
    return True


def _zoned_reader(kind: Any) -> ColumnReader:
    """Timestamps in a zone that Spark writes as pyarrow does not, such as ``GMT+2``."""
    instants, zone = pa.timestamp(kind.unit, "UTC"), time_zone(kind.tz)

    def read(array: Any) -> list[Any]:
        values = array.cast(instants).to_pylist()
        return [None if value is None else value.astimezone(zone) for value in values]

    return read


def _struct_reader(kind: Any) -> ColumnReader:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    make = row_class(tuple(field.name for field in fields))._make
    readers = [column_reader(field.type) for field in fields]

    def read(array: Any) -> list[Any]:
        columns = [reader(part) for reader, part in zip(readers, array.flatten(), strict=True)]
        rows = list(map(make, zip(*columns, strict=True))) if columns else [make(())] * len(array)
        if not array.null_count:
            return rows
        valid = array.is_valid().to_pylist()
        return [row if there else None for row, there in zip(rows, valid, strict=True)]

    return read


def _list_reader(kind: Any) -> ColumnReader:
    read_elements = column_reader(kind.value_type)
    if read_elements in (_python_values, _integers):
        return _python_values

    def read(array: Any) -> list[Any]:
        return _cut(read_elements(array.flatten()), array.value_lengths().to_pylist())

    return read


def _map_reader(kind: Any) -> ColumnReader:
    read_keys, read_items = column_reader(kind.key_type), column_reader(kind.item_type)
    as_lists = pa.list_(pa.struct([("k", kind.key_type), ("v", kind.item_type)]))

    def read(array: Any) -> list[Any]:
        lists = array.cast(as_lists)
        keys, items = lists.flatten().flatten()
        entries = list(zip(read_keys(keys), read_items(items), strict=True))
        cut = _cut(entries, lists.value_lengths().to_pylist())
        return [None if entries is None else dict(entries) for entries in cut]

    return read


def _cut(elements: list[Any], lengths: list[int | None]) -> list[Any]:
    """The flattened elements of a list array, list by list; a length of ``None`` is a null."""
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
    """Python has nothing that a value could be; the text says why, and what to do."""

    def __init__(self, text: str, position: int) -> None:
        """``position`` is that of the row."""
        super().__init__(text)
        self.position = position


class RowReader:
    """Turns the columns of one input into rows."""

    def __init__(self, names: Sequence[str], kinds: Sequence[Any]) -> None:
        """``kinds`` are the columns' Arrow types."""
        self._names = names
        self._class = row_class(tuple(names))
        self._readers = [column_reader(kind) for kind in kinds]

    def rows(self, columns: list[Any]) -> Iterator[Any]:
        """The rows of equally long arrays, made as they are asked for.

        Raises `UnreadableValueError`.
        """
        return self.rows_of(self.values(columns))

    def values(self, columns: list[Any]) -> list[list[Any]]:
        """The Python values, column by column. Raises `UnreadableValueError`."""
        try:
            return [read(column) for read, column in zip(self._readers, columns, strict=True)]
        except tuple(_UNREADABLE):
            self._find_unreadable(columns)
            raise

    def rows_of(self, values: list[list[Any]]) -> Iterator[Any]:
        """Rows of columns that are Python values already."""
        # What the class's own `_make` does, without a Python call for each row.
        return map(tuple.__new__, repeat(self._class), zip(*values, strict=True))

    def _find_unreadable(self, columns: list[Any]) -> None:
        """Raise for the first value that cannot be read."""
        for name, read, column in zip(self._names, self._readers, columns, strict=True):
            for position in range(len(column)):
                one = column.slice(position, 1)
                try:
                    read(one)
                except tuple(_UNREADABLE) as error:
                    what, way_out = _UNREADABLE[type(error)]
                    text = f"column {name!r} ({column.type}) has {what}, {shown(one)}; {way_out}"
                    raise UnreadableValueError(text, position) from error


def shown(array: Any) -> str:
    """The values of an array as text, whatever they are, cut short."""
    text = " ".join(str(array).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
