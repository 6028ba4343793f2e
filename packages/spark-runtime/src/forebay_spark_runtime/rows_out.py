"""From rows that a function gave out to Arrow batches of the declared schema.

A row is a tuple in schema order, or a NamedTuple, a pyspark ``Row`` or a dict by column names.
Columns are built directly; a value that does not fit is looked for only after a column failed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import pyarrow as pa

from forebay_state_api.errors import OutputSchemaError

ToArrow = Callable[[Any], Any]
"""From a value that is not ``None`` to what pyarrow takes for its type."""


class RowWriter:
    """Builds record batches of one schema."""

    def __init__(self, schema: Any, *, function: str, time_zone: str) -> None:
        """``schema`` is a ``pa.Schema``; ``function`` is named in errors.

        Naive datetimes in a column with time zone are taken as wall-clock time of ``time_zone``.
        """
        self._schema = schema
        self._function = function
        self._names: list[str] = schema.names
        self._width = len(self._names)
        self._converters = [_converter(field.type, time_zone) for field in schema]

    def batch(self, rows: list[Any]) -> Any:
        """A ``pa.RecordBatch`` of ``rows``; `OutputSchemaError` names what does not fit."""
        if not set(map(type, rows)) <= {tuple}:
            rows = [self._as_tuple(row) for row in rows]
        if rows and set(map(len, rows)) != {self._width}:
            self._wrong_width(rows)
        columns = [
            self._column(position, [row[position] for row in rows])
            for position in range(self._width)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def batches(self, rows: list[Any], size: int) -> list[Any]:
        """Record batches of ``rows``, each of at most ``size`` of them."""
        return [self.batch(rows[start : start + size]) for start in range(0, len(rows), size)]

    def _column(self, position: int, values: list[Any]) -> Any:
        field = self._schema.field(position)
        convert = self._converters[position]
        try:
            if convert is not None:
                values = [None if value is None else convert(value) for value in values]
            column = pa.array(values, type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            self._misfit(field, convert, values, error)
        if column.null_count and not field.nullable:
            message = f"column {field.name!r} is declared NOT NULL; {self._function} gave None"
            raise OutputSchemaError(message)
        return column

    def _misfit(
        self, field: Any, convert: ToArrow | None, values: list[Any], error: Exception
    ) -> NoReturn:
        """Find the value that a column cannot hold."""
        for value in values:
            try:
                pa.array(
                    [value if value is None or convert is None else convert(value)], type=field.type
                )
            except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as why:
                message = (
                    f"column {field.name!r} is declared {field.type}; {self._function} gave "
                    f"{type(value).__name__} {reprlib.repr(value)}: {why}"
                )
                raise OutputSchemaError(message) from why
        raise error

    def _as_tuple(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, tuple):
            fields = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
            if fields is None or len(fields) != len(row):
                return tuple(row)
            return self._by_name(dict(zip(fields, row, strict=True)), row)
        if isinstance(row, Mapping):
            return self._by_name(row, row)
        message = (
            f"{self._function} gave out {type(row).__name__} {reprlib.repr(row)}; a row is a tuple "
            f"in the order of the columns ({', '.join(self._names)}), a NamedTuple, a Row or a dict"
        )
        raise OutputSchemaError(message)

    def _by_name(self, values: Mapping[str, Any], row: Any) -> tuple[Any, ...]:
        if values.keys() != set(self._names):
            missing = [name for name in self._names if name not in values]
            unknown = [str(name) for name in values if name not in self._names]
            message = (
                f"{self._function} gave out {reprlib.repr(row)}: the schema's columns are "
                f"{', '.join(self._names)}; missing {missing or 'none'}, unknown {unknown or 'none'}"
            )
            raise OutputSchemaError(message)
        return tuple(values[name] for name in self._names)

    def _wrong_width(self, rows: list[Any]) -> NoReturn:
        row = next(row for row in rows if len(row) != self._width)
        message = (
            f"{self._function} gave out a row of {len(row)} values, {reprlib.repr(row)}; the schema "
            f"has {self._width} columns: {', '.join(self._names)}"
        )
        raise OutputSchemaError(message)


def _converter(kind: Any, time_zone: str) -> ToArrow | None:
    """What has to be done to values of an Arrow type before pyarrow takes them."""
    if pa.types.is_struct(kind):
        return _struct_converter(kind, time_zone)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_converter(_converter(kind.value_type, time_zone))
    if pa.types.is_map(kind):
        return _map_converter(
            _converter(kind.key_type, time_zone), _converter(kind.item_type, time_zone)
        )
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return _timestamp_converter(ZoneInfo(time_zone))
    if pa.types.is_boolean(kind):
        return _boolean
    return None


def _boolean(value: Any) -> Any:
    if not isinstance(value, bool):
        message = "not a bool"
        raise TypeError(message)
    return value


def _timestamp_converter(zone: ZoneInfo) -> ToArrow:
    def convert(value: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo is None:
            return value.replace(tzinfo=zone)
        return value

    return convert


def _each(convert: ToArrow | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _list_converter(element: ToArrow | None) -> ToArrow | None:
    if element is None:
        return None
    return lambda values: [_each(element, value) for value in values]


def _map_converter(key: ToArrow | None, item: ToArrow | None) -> ToArrow:
    return lambda value: [(_each(key, k), _each(item, v)) for k, v in dict(value).items()]


def _struct_converter(kind: Any, time_zone: str) -> ToArrow:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    names = [field.name for field in fields]
    converters = [_converter(field.type, time_zone) for field in fields]

    def convert(value: Any) -> dict[str, Any]:
        parts = dict(value) if isinstance(value, Mapping) else _named(value, names)
        if parts.keys() != set(names):
            message = f"a struct of {', '.join(names)} is declared"
            raise ValueError(message)
        return {
            name: _each(converter, parts[name])
            for name, converter in zip(names, converters, strict=True)
        }

    return convert


def _named(value: Any, names: list[str]) -> dict[str, Any]:
    fields = getattr(value, "_fields", None) or getattr(value, "__fields__", None) or names
    return dict(zip(fields, tuple(value), strict=True))
