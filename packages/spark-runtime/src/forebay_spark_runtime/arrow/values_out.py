"""Conversion of Python values for columns of an Arrow type.

pyarrow itself refuses most values that do not fit. This module refuses those that pyarrow would
convert silently: a bool as a number and the reverse, a datetime as a date, an aware datetime for a
type without zone, text as bytes, a number as a time span or a time of day, and a number that is
infinite as a float.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from forebay_spark_runtime.arrow.spark_objects import marked_struct, serialized
from forebay_spark_runtime.arrow.time_zones import time_zone as zone_of
from forebay_state_api.codecs.field_names import with_declared_names
from forebay_state_api.user_frames import encodable

_DAYS: Final = (1 << 63) // 86_400_000_000
"""The days that fit into an interval of 64 bits of µs."""

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value that is not ``None`` for pyarrow; raises `TypeError` or `ValueError`."""

_NONE: Final = type(None)


@attrs.frozen
class ValueKind:
    """The values that a column of one Arrow type accepts."""

    plain: frozenset[type]
    """Types of values that pyarrow accepts unchanged, ``None``'s type included."""
    convert: Convert

    @property
    def has_class(self) -> bool:
        """Whether pyarrow accepts values of a class unchanged."""
        return len(self.plain) > 1

    def all_to_arrow(self, values: Sequence[Any]) -> Sequence[Any]:
        """Convert ``values``, which may include ``None``, for ``pa.array``."""
        kinds = set(map(type, values))
        if kinds <= self.plain:
            return values
        values, convert = serialized(values, kinds), self.convert
        return [None if value is None else convert(value) for value in values]


def value_kind(kind: Any, time_zone: str) -> ValueKind:
    """Return the values that columns of an Arrow type accept.

    If the type has a zone, naive datetimes are wall-clock time of ``time_zone``.
    """
    for is_such, make in _NESTED:
        if is_such(kind):
            return ValueKind(frozenset({_NONE}), make(kind, time_zone))
    if pa.types.is_time(kind):
        return ValueKind(frozenset({_NONE}), _time_of_day)
    if pa.types.is_timestamp(kind):
        to_arrow = _no_zone if kind.tz is None else _in_zone(zone_of(time_zone))
        return ValueKind(frozenset({_NONE}), to_arrow)
    for is_such, plain, convert in _SCALARS:
        if is_such(kind):
            return ValueKind(frozenset({_NONE, plain}), convert)
    return ValueKind(frozenset({_NONE}), lambda value: value)


def wide_type(kind: Any) -> Any:
    """Return an Arrow type with doubles in place of its floats, at any depth."""
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return pa.struct([field.with_type(wide_type(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return pa.map_(wide_type(kind.key_type), wide_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(wide_type(kind.value_type))
    return kind


def infinities(array: Any) -> int:
    """Count the infinite numbers in an Arrow array, at any depth."""
    kind = array.type
    if pa.types.is_floating(kind):
        return pc.sum(pc.is_inf(array)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(map(infinities, array.flatten()))
    if pa.types.is_map(kind):
        return infinities(array.keys) + infinities(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return infinities(array.flatten())
    return 0


def escaped(given: Any) -> Any:
    r"""Return ``given`` with lone surrogates in its strings escaped, as in ``\ud83d``."""
    if isinstance(given, str):
        return encodable(given)
    if isinstance(given, dict):
        return {name: escaped(value) for name, value in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(map(escaped, given))
    return given


def _boolean(value: Any) -> bool:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise TypeError("not a bool")


def _whole(value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError("not a whole number")


def _real(value: Any) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    raise TypeError("not a number")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError("not a str")


def _binary(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError("not bytes (of text, give .encode())")


def _span(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    if type(value).__name__ == "timedelta64":
        return _numpy_span(value)
    raise TypeError("not a timedelta")


def _numpy_span(value: Any) -> Any:
    if value != value:  # noqa: PLR0124 - NaT
        return None
    span = value.astype("timedelta64[us]", casting="same_kind")  # no months, no years
    if abs(int(value.astype("timedelta64[D]").astype("int64"))) > _DAYS:
        raise ValueError("too long for an interval")
    return span


def _day(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise TypeError("not a date (of a datetime, give .date())")


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("not a number")
    return value


def _no_zone(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError("not a datetime")
    if value.tzinfo is not None:
        raise ValueError("a timestamp without time zone takes a datetime without tzinfo")
    return value


def _time_of_day(value: Any) -> time:
    if not isinstance(value, time):
        raise TypeError("not a time of day")
    if value.tzinfo is not None:
        raise ValueError("a time of day has no time zone")
    return value


def _in_zone(zone: tzinfo) -> Convert:
    def convert(value: Any) -> datetime:
        if not isinstance(value, datetime):
            raise TypeError("not a datetime")
        return value.replace(tzinfo=zone) if value.tzinfo is None else value

    return convert


_SCALARS: Final[tuple[tuple[Callable[[Any], bool], type, Convert], ...]] = (
    (pa.types.is_boolean, bool, _boolean),
    (pa.types.is_integer, int, _whole),
    (pa.types.is_floating, float, _real),
    (pa.types.is_string, str, _text),
    (pa.types.is_large_string, str, _text),
    (pa.types.is_binary, bytes, _binary),
    (pa.types.is_large_binary, bytes, _binary),
    (pa.types.is_date, date, _day),
    (pa.types.is_duration, timedelta, _span),
    (pa.types.is_decimal, _NONE, _number),
)


def _list(kind: Any, time_zone: str) -> Convert:
    element = value_kind(kind.value_type, time_zone)
    nullable = kind.value_field.nullable

    def convert(values: Any) -> Sequence[Any]:
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise TypeError("an array takes a list")
        values = list(values)
        if not nullable and None in values:
            raise ValueError("the array is declared without nulls")
        return element.all_to_arrow(values)

    return convert


def _map(kind: Any, time_zone: str) -> Convert:
    key, item = value_kind(kind.key_type, time_zone), value_kind(kind.item_type, time_zone)
    nullable = kind.item_field.nullable

    def convert(value: Any) -> list[tuple[Any, Any]]:
        entries = _entries(value)
        keys, items = list(entries), list(entries.values())
        if None in keys or (not nullable and None in items):
            raise ValueError("a map takes no None as a key, or as a value declared without nulls")
        return list(zip(key.all_to_arrow(keys), item.all_to_arrow(items), strict=True))

    return convert


def _entries(value: Any) -> dict[Any, Any]:
    try:
        return dict(value)
    except (TypeError, ValueError):
        raise TypeError("a map takes a dict") from None


def _struct(kind: Any, time_zone: str) -> Convert:
    marked = marked_struct(kind)
    if marked is None:
        return _fields(kind, time_zone)
    cls, parts, from_fields = marked.cls, marked.parts, _fields(kind, time_zone)
    return lambda value: parts(value) if isinstance(value, cls) else from_fields(value)


def _fields(kind: Any, time_zone: str) -> Convert:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    names = [field.name for field in fields]
    known = set(names)
    kinds = [value_kind(field.type, time_zone) for field in fields]
    required = {field.name for field in fields if not field.nullable}

    def convert(value: Any) -> dict[str, Any]:
        parts = dict(value) if isinstance(value, Mapping) else _named(value, names)
        if parts.keys() != known:
            parts = with_declared_names(parts, names)
        if parts.keys() != known:
            raise ValueError(f"a struct of {', '.join(names)} is declared")
        missing = [name for name in required if parts[name] is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} of the struct is declared NOT NULL")
        return {
            name: one.all_to_arrow([parts[name]])[0] for name, one in zip(names, kinds, strict=True)
        }

    return convert


def _named(value: Any, names: list[str]) -> dict[str, Any]:
    if not isinstance(value, tuple):
        raise TypeError("a struct takes a tuple, a NamedTuple, a Row or a dict")
    fields = getattr(value, "_fields", None) or getattr(value, "__fields__", None) or names
    if len(fields) != len(value):
        raise ValueError(
            f"a struct of {', '.join(fields)} is declared, and a tuple of {len(value)} given"
        )
    return dict(zip(fields, value, strict=True))


_NESTED: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any, str], Convert]], ...]] = (
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_map, _map),
)
