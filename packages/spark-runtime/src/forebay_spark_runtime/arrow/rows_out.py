"""Converts the rows that a function returns to Arrow batches of the declared schema.

A row is a tuple in schema order, or a NamedTuple, a pyspark ``Row`` or a dict by column names.
Columns are built directly. Only after a column fails is the value that does not fit looked up.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NoReturn

import pyarrow as pa

from forebay_engine.execution.rows import check_awaited
from forebay_spark_runtime.arrow.conversion_errors import plain_reason
from forebay_spark_runtime.arrow.values_out import escaped, infinities, value_kind, wide_type
from forebay_state_api.codecs.field_names import as_declared, with_declared_names
from forebay_state_api.errors import OutputSchemaError

_CODES: Final = {8: "b", 16: "h", 32: "i", 64: "q"}
"""For each width of whole numbers in bits, the letter that `struct` has for it."""

_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)


class RowOrder:
    """Puts the values of a row into column order."""

    def __init__(self, names: Sequence[str], function: str, where: str = "") -> None:
        """Take the column names; ``function`` is named in errors, which begin with ``where``."""
        self._names = list(names)
        self._known = set(names)
        self._who = f"{where}{function}"
        self._by_class: dict[tuple[type, tuple[str, ...]], Any] = {}

    def as_tuple(self, row: Any) -> tuple[Any, ...]:
        """Return the values of ``row``.

        Raises `OutputSchemaError` if its names are not the names of the columns.
        """
        if isinstance(row, tuple):
            fields = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
            return row if fields is None else self._picked(row, tuple(fields))
        if isinstance(row, Mapping):
            if row.keys() != self._known:
                row = with_declared_names(row, self._names)
                self._check_names(tuple(row), row)
            return tuple(row[name] for name in self._names)
        check_awaited(row, self._who)
        raise OutputSchemaError(
            f"{self._who} emitted {type(row).__name__} {reprlib.repr(row)}; a row is a tuple "
            f"in the order of the columns ({', '.join(self._names)}), a NamedTuple, a Row or a dict"
        )

    def _picked(self, row: tuple[Any, ...], fields: tuple[str, ...]) -> tuple[Any, ...]:
        key = (type(row), fields)
        if key not in self._by_class:
            fields = tuple(as_declared(field, self._names) for field in fields)
            self._check_names(fields, row)
            positions = [fields.index(name) for name in self._names]
            as_they_are = positions == list(range(len(fields)))
            self._by_class[key] = None if as_they_are else itemgetter(*positions)
        pick = self._by_class[key]
        return row if pick is None else pick(row)

    def _check_names(self, given: tuple[str, ...], row: Any) -> None:
        if len(given) == len(self._names) and set(given) == self._known:
            return
        missing = [name for name in self._names if name not in given]
        unknown = [str(name) for name in given if name not in self._names]
        raise OutputSchemaError(
            f"{self._who} emitted {reprlib.repr(row)}: the schema's columns are "
            f"{', '.join(self._names)}; missing {missing or 'none'}, unknown {unknown or 'none'}"
        )


class RowWriter:
    """Builds record batches of one schema."""

    def __init__(
        self,
        schema: Any,
        *,
        function: str,
        time_zone: str,
        types: Sequence[str] | None = None,
        where: str = "",
    ) -> None:
        """Prepare the writer.

        :param schema: the ``pa.Schema`` of the batches.
        :param function: the function's name, for errors.
        :param time_zone: the zone of naive datetimes in columns with a time zone.
        :param types: the names of the columns' types in errors; Arrow's names by default.
        :param where: the beginning of each error.
        """
        self._schema = schema
        self._types = list(map(str, schema.types)) if types is None else types
        self._where = f"{where}: " if where else ""
        self._who = f"{self._where}{function}"
        self._function = function
        self._names: list[str] = schema.names
        self._width = len(self._names)
        self._order = RowOrder(self._names, function, self._where)
        self._kinds = [value_kind(field.type, time_zone) for field in schema]
        self._takes_passed_rows = all(kind.has_class for kind in self._kinds)
        wide = [wide_type(field.type) for field in schema]
        self._wide = [
            None if one == field.type else one for one, field in zip(wide, schema, strict=True)
        ]
        """For each column with floats, its type with doubles instead; ``None`` for others."""

    def batch(self, rows: Sequence[Any]) -> Any:
        """Return a ``pa.RecordBatch`` of ``rows``.

        Raises `OutputSchemaError`, which names the value that does not fit.
        """
        columns = self.columns(rows, set(map(type, rows)))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def columns(self, rows: Sequence[Any], classes: set[type]) -> list[Any]:
        """Return the columns of ``rows``, whose classes are ``classes``; raises as `batch`."""
        if not classes <= {tuple}:
            as_tuple = self._order.as_tuple
            rows = [as_tuple(row) for row in rows]
        try:
            columns = list(zip(*rows, strict=True)) if rows else [()] * self._width
        except ValueError:  # rows of several widths
            columns = []
        if len(columns) != self._width:
            self._wrong_width(rows)
        return [self._column(at, values, rows) for at, values in enumerate(columns)]

    def as_tuple(self, row: Any) -> tuple[Any, ...]:
        """Return the values of ``row`` in column order; raises as `batch` if it is no row."""
        return self._order.as_tuple(row)

    def columns_of_passed(self, columns: Sequence[list[Any]]) -> list[Any]:
        """Return the columns of rows that have passed the test of `value_checks`, column by column.

        Their classes are not looked at again.
        """
        if self._takes_passed_rows:
            # A lone surrogate is no error: the ordinary way escapes it.
            with suppress(*_MISFITS):
                return list(map(_flat_column, columns, self._schema.types))
        return self.columns(list(zip(*columns, strict=True)), {tuple})

    def batches(self, rows: Sequence[Any], size: int) -> list[Any]:
        """Return record batches of ``rows``, at most ``size`` rows each; raises as `batch`."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]

    def _column(self, position: int, values: Sequence[Any], rows: Sequence[Any]) -> Any:
        field = self._schema.field(position)
        try:
            column = self._array(position, values)
        except _MISFITS as error:
            self._misfit(position, rows, error)
        if column.null_count and not field.nullable:
            raise OutputSchemaError(
                f"{self._where}column {field.name!r} is declared NOT NULL; {self._function} gave "
                f"None{self._in_row(rows[values.index(None)])}"
            )
        return column

    def _array(self, position: int, values: Sequence[Any]) -> Any:
        given = self._kinds[position].all_to_arrow(values)
        kind = self._schema.field(position).type
        try:
            column = _flat_column(given, kind)
        except UnicodeEncodeError:  # a lone surrogate, which UTF-8 has no bytes for
            given = escaped(given)
            column = pa.array(given, type=kind)
        wide = self._wide[position]
        # A double that is too large for a float becomes infinite.
        if (
            wide is not None
            and (found := infinities(column))
            and infinities(pa.array(given, type=wide)) < found
        ):
            raise ValueError("too large a number for a float")
        return column

    def _misfit(self, position: int, rows: Sequence[Any], error: Exception) -> NoReturn:
        """Find the value that does not fit the column, and raise."""
        field = self._schema.field(position)
        for row in rows:
            value = row[position]
            check_awaited(value, f"{self._where}column {field.name!r}: {self._function}")
            try:
                self._array(position, [value])
            except _MISFITS as why:
                raise OutputSchemaError(
                    f"{self._where}column {field.name!r} is declared {self._types[position]}; "
                    f"{self._function} gave {type(value).__name__} {reprlib.repr(value)}"
                    f"{self._in_row(row)}: {plain_reason(why)}"
                ) from why
        raise error

    def _in_row(self, row: Any) -> str:
        """Return the text that adds a value's whole row to a message."""
        return f" in the row {reprlib.repr(tuple(row))}" if self._width > 1 else ""

    def _wrong_width(self, rows: Sequence[Any]) -> NoReturn:
        row = next(row for row in rows if len(row) != self._width)
        raise OutputSchemaError(
            f"{self._who} emitted a row of {len(row)} values, {reprlib.repr(row)}; the "
            f"schema has {self._width} columns: {', '.join(self._names)}"
        )


def _flat_column(values: Sequence[Any], kind: Any) -> Any:
    """Return a column of values that have passed the test of `value_checks` or `value_kind`."""
    if pa.types.is_signed_integer(kind):
        try:  # in half the time that pyarrow takes
            packed = struct.pack(f"{len(values)}{_CODES[kind.bit_width]}", *values)
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(packed)])
        except struct.error:  # a null, or a number that does not fit, which pyarrow refuses
            pass
    return pa.array(values, type=kind)
