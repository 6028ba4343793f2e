"""Rows of Spark's state as cells of a table, an Arrow batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from forebay_spark_runtime.arrow.keys_in import canonical_column, keys_of_columns
from forebay_spark_runtime.arrow.rows_in import column_reader
from forebay_spark_runtime.importing.stored_values import value_reader
from forebay_state_api.contract.changes import Shape

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_processor.reading.stored_states import StateInfo

MISFITS: Final = (TypeError, ValueError, ArithmeticError)
"""Raised for a value that is not of the declared type, and for one that Python cannot represent."""

Contents = Callable[[Any], Sequence[Any]]
"""Column of a variable → contents of cells."""


class UnfitRowError(Exception):
    """A row that no cell can hold."""

    def __init__(self, position: int, reason: str) -> None:
        """``position`` is the row's position in its batch."""
        super().__init__(reason)
        self.position: Final = position


def keys_of(struct: pa.StructArray) -> list[Any]:
    """Return the keys of a column of grouping columns; raises `UnfitRowError`."""
    columns = struct.flatten()
    for field, column in zip(struct.type, columns, strict=True):
        unusable = column.is_null(nan_is_null=True)
        if pc.any(unusable).as_py():
            position = pc.index(unusable, value=True).as_py()
            what = "null" if column[position].as_py() is None else "NaN"
            raise UnfitRowError(position, f"the key column {field.name!r} is {what}")
    read = [column_reader(column.type)(column) for column in columns]
    return keys_of_columns(
        [canonical_column(column, one) for column, one in zip(columns, read, strict=True)]
    )


def contents_of(contents: Contents, column: pa.Array) -> Sequence[Any]:
    """Return the contents of all rows; `UnfitRowError` names the first that does not fit."""
    try:
        return contents(column)
    except MISFITS:
        for position in range(len(column)):
            try:
                contents(column.slice(position, 1))
            except MISFITS as error:
                raise UnfitRowError(position, str(error)) from error
        raise


def contents_reader(info: StateInfo, kind: pa.DataType, ttl_us: int | None) -> Contents:
    """Return the reader of a variable's column of the Arrow type ``kind``."""
    if info.shape is Shape.POINT:
        return _values(info, kind, ttl_us)
    if info.shape is Shape.LIST:
        return _lists(_values(info, kind.value_type, ttl_us))
    return _maps(info, kind, ttl_us)


def _values(info: StateInfo, kind: pa.StructType, ttl_us: int | None) -> Contents:
    if ttl_us is None:
        return _admitted(kind, info.spec.value)
    admitted = _admitted(kind.field(0).type, info.spec.value)

    def stamped(structs: pa.StructArray) -> list[Any]:
        values, expiry_ms = structs.flatten()
        written_us = pc.subtract(pc.multiply(expiry_ms, 1_000), ttl_us).to_pylist()
        return list(zip(written_us, admitted(values), strict=True))

    return stamped


def _admitted(kind: pa.StructType, codec: ValueCodec) -> Contents:
    read, admit = value_reader(kind, codec.description), codec.admit
    return lambda structs: [*map(admit, read(structs))]


def _lists(values: Contents) -> Contents:
    def lists(column: pa.ListArray) -> list[Any]:
        elements = iter(values(column.flatten()))
        return [list(islice(elements, length)) for length in _lengths(column)]

    return lists


def _maps(info: StateInfo, kind: pa.MapType, ttl_us: int | None) -> Contents:
    codec = info.spec.user_key
    assert codec is not None
    as_lists = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    read_keys, address = _admitted(kind.key_type, codec), codec.address
    read_values = _values(info, kind.item_type, ttl_us)

    def maps(column: pa.MapArray) -> list[Any]:
        lists = column.cast(as_lists)
        keys, values = lists.flatten().flatten()
        user_keys = read_keys(keys)
        if address is not None:
            user_keys = [*map(address, user_keys)]
        entries = zip(user_keys, read_values(values), strict=True)
        return [dict(islice(entries, length)) for length in _lengths(lists)]

    return maps


def _lengths(column: Any) -> Iterator[int]:
    return (length or 0 for length in column.value_lengths().to_pylist())
