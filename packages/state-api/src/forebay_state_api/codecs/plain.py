"""Bytes of plain values: msgpack, and extension types for the kinds that msgpack does not know.

Two layouts, both written and read by C code wherever no extension type occurs:

* `TYPED`: the reader knows the type. Arrays come back as tuples; the codec converts them to what
  they represent. `RAW` reads and writes the same bytes without interpreting extension types.
* `SELF_DESCRIBING`: lists and tuples keep their class, recursively. Lists are arrays, tuples an
  extension type. Tuples of scalars are the most frequent case; so a tuple of scalars, and a column
  of such tuples, is written as one array after a byte that no msgpack value begins with.

Both keep ints of any size, lone surrogates in strings, NaN, and the difference between ``True``
and ``1``. A datetime without a zone keeps its fold, one with a zone comes back in UTC. A time keeps
its fold and its zone: by name where the zone has a key, else as the offset from UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import attrs
import msgpack

from forebay_state_api.errors import ConfigurationError, CorruptStateError, ForebayError

EXT_INT: Final = 1
EXT_TUPLE: Final = 2
EXT_ANY: Final = 3
EXT_DATETIME: Final = 4
EXT_DATE: Final = 5
EXT_TIME: Final = 6
EXT_TIMEDELTA: Final = 7
EXT_DECIMAL: Final = 8
EXT_UUID: Final = 9

SCALARS: Final = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        str,
        bytes,
        date,
        datetime,
        time,
        timedelta,
        Decimal,
        UUID,
    }
)
"""The plain kinds that contain no other values; all of them are immutable."""

_FLAT: Final = b"\xc1"  # no msgpack value begins with it: "never used" in the specification
_US: Final = timedelta(microseconds=1)
_DATETIME: Final = struct.Struct(">qB")
_DAY_US: Final = 86_400_000_000
_DATE: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_FOLD: Final = 1
_ext: Final = partial(tuple.__new__, msgpack.ExtType)  # its own constructor checks and is slow
_NAIVE, _UTC, _FIXED, _ZONE = 0, 2, 4, 6


def dump_typed(value: Any) -> bytes:
    """Encode a value whose type the reader will know; tuples and lists both become arrays."""
    try:
        return _packb(value, default=_default)
    except UnicodeEncodeError:
        return _packb(value, default=_default, unicode_errors="surrogatepass")


def load_typed(data: bytes | memoryview) -> Any:
    """Decode the bytes of `dump_typed`; arrays become tuples.

    Raises `CorruptStateError` for bytes that it did not write.
    """
    return _load(data, use_list=False, ext_hook=_ext_hook)


def load_raw(data: bytes | memoryview) -> Any:
    """Decode the bytes of `dump_typed` without interpreting extension types.

    `dump_typed` of the result gives equal bytes.
    """
    return _load(data, use_list=False, ext_hook=msgpack.ExtType)


def dump_any(value: Any) -> bytes:
    """Encode one self-describing value."""
    if type(value) is tuple and SCALARS.issuperset(map(type, value)):
        return _FLAT + dump_typed(value)
    return _dump_strict(value)


def load_any(data: bytes | memoryview) -> Any:
    """Decode the bytes of `dump_any`. Raises `CorruptStateError` as `load_typed` does."""
    if data[:1] == _FLAT:
        return load_typed(memoryview(data)[1:])
    return _load(data, use_list=True, ext_hook=_ext_hook)


def _dump_any_column(values: list[Any]) -> bytes:
    if _is_flat(values):
        return _FLAT + dump_typed(values)
    return _dump_strict(values)


def _is_flat(values: list[Any]) -> bool:
    if not {tuple}.issuperset(map(type, values)):
        return False
    return SCALARS.issuperset(map(type, chain.from_iterable(values)))


def _dump_strict(value: Any) -> bytes:
    try:
        return _packb(value, default=_default, strict_types=True)
    except UnicodeEncodeError:
        return _packb(value, default=_default, strict_types=True, unicode_errors="surrogatepass")


def _packb(value: Any, **options: Any) -> bytes:
    packed: bytes = msgpack.packb(value, **options)
    return packed


def _load(data: bytes | memoryview, **options: Any) -> Any:
    try:
        return msgpack.unpackb(
            data, strict_map_key=False, unicode_errors="surrogatepass", **options
        )
    except ForebayError:
        raise
    except Exception as error:
        raise CorruptStateError(f"{len(data)} bytes of state are damaged: {error}") from error


def _default(value: Any) -> Any:
    dump = _DUMP.get(type(value))
    if dump is None:
        raise TypeError(f"not a plain value: {type(value).__qualname__}")
    return dump(value)


def _ext_hook(code: int, data: bytes) -> Any:
    load = _LOAD.get(code)
    if load is None:
        raise ValueError(f"unknown extension type {code}")
    return load(data)


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int_value(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _clock(value: datetime | time) -> int:
    """Return the µs since midnight on the wall clock."""
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return seconds * 1_000_000 + value.microsecond


def _datetime_bytes(value: datetime) -> bytes:
    kind, suffix = _zone_bytes(value)
    wall = (value.toordinal() - 1) * _DAY_US + _clock(value)
    return _DATETIME.pack(wall, kind | value.fold) + suffix


def _datetime_value(data: bytes) -> datetime:
    value = _zoned_value(data)
    if value.tzinfo is None or value.tzinfo is UTC:
        return value
    try:
        return value.astimezone(UTC)
    except OverflowError:  # in older state: the instant is outside the years that UTC has
        return value


def _zoned_value(data: bytes) -> datetime:
    wall: int
    wall, flags = _DATETIME.unpack_from(data)
    value = _beginning(flags & ~_FOLD, data[_DATETIME.size :]) + wall * _US
    return value.replace(fold=1) if flags & _FOLD else value


@lru_cache(maxsize=64)
def _beginning(kind: int, suffix: bytes) -> datetime:
    """Return the first datetime of a zone; adding to it moves the wall clock."""
    return datetime.min.replace(tzinfo=_zone_value(kind, suffix))


def _time_bytes(value: time) -> bytes:
    kind, suffix = _zone_bytes(value)
    return _DATETIME.pack(_clock(value), kind | value.fold) + suffix


def _time_value(data: bytes) -> time:
    return _zoned_value(data).timetz()


def _zone_bytes(value: datetime | time) -> tuple[int, bytes]:
    zone = value.tzinfo
    if zone is None:
        return _NAIVE, b""
    if zone is UTC:
        return _UTC, b""
    key = getattr(zone, "key", None)
    if isinstance(zone, ZoneInfo) and key is not None:
        return _ZONE, key.encode()
    offset = value.utcoffset()
    if offset is None:
        raise TypeError(f"a time zone without an offset cannot be stored: {zone!r}")
    return _FIXED, _OFFSET.pack(offset // _US)


def _zone_value(kind: int, suffix: bytes) -> tzinfo | None:
    if kind == _NAIVE:
        return None
    if kind == _UTC:
        return UTC
    if kind == _FIXED:
        return timezone(timedelta(microseconds=_OFFSET.unpack(suffix)[0]))
    try:
        return ZoneInfo(suffix.decode())
    except ZoneInfoNotFoundError as error:
        raise ConfigurationError(
            f"state contains times in a zone that this machine lacks ({error}): install tzdata"
        ) from error


_DUMP: Final[dict[type, Callable[[Any], Any]]] = {
    int: lambda v: _ext((EXT_INT, _int_bytes(v))),
    tuple: lambda v: _ext((EXT_TUPLE, _dump_strict(list(v)))),
    datetime: lambda v: _ext((EXT_DATETIME, _datetime_bytes(v))),
    date: lambda v: _ext((EXT_DATE, _DATE.pack(v.toordinal()))),
    time: lambda v: _ext((EXT_TIME, _time_bytes(v))),
    timedelta: lambda v: _ext((EXT_TIMEDELTA, _int_bytes(v // _US))),
    Decimal: lambda v: _ext((EXT_DECIMAL, str(v).encode())),
    UUID: lambda v: _ext((EXT_UUID, v.bytes)),
}

_LOAD: Final[dict[int, Callable[[bytes], Any]]] = {
    EXT_INT: _int_value,
    EXT_TUPLE: lambda data: tuple(load_any(data)),
    EXT_ANY: load_any,
    EXT_DATETIME: _datetime_value,
    EXT_DATE: lambda data: date.fromordinal(_DATE.unpack(data)[0]),
    EXT_TIME: _time_value,
    EXT_TIMEDELTA: lambda data: _int_value(data) * _US,
    EXT_DECIMAL: lambda data: Decimal(data.decode()),
    EXT_UUID: lambda data: UUID(bytes=data),
}


def _dump_each_typed(values: list[Any]) -> list[bytes]:
    try:
        return [*map(msgpack.Packer(default=_default).pack, values)]
    except UnicodeEncodeError:  # a lone surrogate, which `dump_typed` can write
        return [*map(dump_typed, values)]


def _dump_each_any(values: list[Any]) -> list[bytes]:
    if tuple in set(map(type, values)):
        return [*map(dump_any, values)]
    try:
        return [*map(msgpack.Packer(default=_default, strict_types=True).pack, values)]
    except UnicodeEncodeError:  # a lone surrogate, which `dump_any` can write
        return [*map(dump_any, values)]


def _load_each_typed(data: bytes, lengths: Sequence[int]) -> Any:
    return load_typed(_array_header(len(lengths)) + data)


def _load_each_raw(data: bytes, lengths: Sequence[int]) -> Any:
    return load_raw(_array_header(len(lengths)) + data)


def _load_each_any(data: bytes, lengths: Sequence[int]) -> Any:
    if _FLAT not in data:
        return load_any(_array_header(len(lengths)) + data)
    ends = [*accumulate(lengths)]
    return [load_any(data[end - n : end]) for n, end in zip(lengths, ends, strict=True)]


def _array_header(count: int) -> bytes:
    """Return the header of a msgpack array of ``count`` values; their own bytes follow it."""
    return b"\xdd" + count.to_bytes(4, "big")


@attrs.frozen
class ByteLayout:
    """An encoding of one value, and of a list of values, as bytes."""

    dump: Callable[[Any], bytes]
    load: Callable[[bytes | memoryview], Any]
    """Raises `CorruptStateError` for bytes that ``dump`` cannot have written."""
    dump_column: Callable[[list[Any]], bytes]
    load_column: Callable[[bytes | memoryview], Any]
    """Bytes of ``dump_column`` → list or tuple of the values."""
    dump_each: Callable[[list[Any]], list[bytes]]
    """The bytes of ``dump`` for each value."""
    load_each: Callable[[bytes, Sequence[int]], Any]
    """The joined bytes of ``dump_each`` and the length of each → list or tuple of the values."""


TYPED: Final = ByteLayout(
    dump_typed, load_typed, dump_typed, load_typed, _dump_each_typed, _load_each_typed
)
RAW: Final = ByteLayout(
    dump_typed, load_raw, dump_typed, load_raw, _dump_each_typed, _load_each_raw
)
SELF_DESCRIBING: Final = ByteLayout(
    dump_any, load_any, _dump_any_column, load_any, _dump_each_any, _load_each_any
)
