"""Codecs of ordered keys: the order of the packed bytes is the order of the values in Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import attrs

from forebay_state_api.codecs import ValueCodec, describe_type
from forebay_state_api.codecs.containers import TupleShape
from forebay_state_api.codecs.plain import ByteLayout, dump_typed, load_typed
from forebay_state_api.codecs.type_shapes import Code, Description, Function, MisfitError, TypeShape
from forebay_state_api.errors import ConfigurationError

_FLIPPED: Final = bytes(255 - byte for byte in range(256))
_NO_BYTES: Final = 0x80
"""First byte of an int of no bytes, which is 0; of an int of n bytes the first byte is n higher."""
_LONG: Final = 0xF8
"""First byte of an int whose number of bytes follows in four bytes."""
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_DOUBLE: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_US: Final = timedelta(microseconds=1)
_BEGINNING: Final = datetime(1, 1, 1)  # noqa: DTZ001 - the wall clock of any zone
_END: Final = b"\x00\x01"
"""The end of text or bytes, in which a zero byte is followed by 255."""
_MORE, _NO_MORE = b"\x01", b"\x00"
_MINUS_INFINITY, _NEGATIVE, _ZERO, _POSITIVE, _INFINITY = range(5)

Parsed = tuple[Any, int]
"""A value, and the offset after its bytes."""


@attrs.frozen
class _Order:
    """The ordered encoding of one type; no encoding is a prefix of another."""

    dump: Callable[[Any], bytes]
    load: Callable[[bytes, int], Parsed]
    """Data and the offset at which a value begins → the value and the offset after it."""
    rank: Function | None = None
    """Value → what Python compares in its place; ``None`` means the value itself."""
    is_nan: Callable[[Any], bool] | None = None
    """Whether a value, or a part of it, is NaN; ``None`` if it cannot be."""


def ordered_codec(codec: ValueCodec) -> ValueCodec:
    """Return ``codec`` for keys of an ordered map.

    `ValueCodec.pack_one` then gives bytes in the order of the values, and NaN is refused. Equal
    values have equal bytes. Raises `ConfigurationError` for a type without an order: the types are
    numbers, text, bytes, dates, times, durations, UUIDs, and tuples of them.
    """
    return ValueCodec.of(_OrderedShape(codec), codec.what)


def beginnings(codec: ValueCodec) -> Sequence[ValueCodec]:
    """Return, for a codec of tuples of n parts, the codecs of tuples of its first 0 to n - 1 parts.

    ``codec`` is the result of `ordered_codec`; for other types there is none. A beginning is in
    the order before all tuples that begin with it, in Python and in its packed bytes.
    """
    shape = codec.shape
    assert isinstance(shape, _OrderedShape)
    if not isinstance(shape.of, TupleShape):
        return ()
    parts = shape.of.elements
    codecs = (ValueCodec.of(TupleShape(parts[:n]), codec.what) for n in range(len(parts)))
    return [ordered_codec(one) for one in codecs]


class _OrderedShape(TypeShape):
    """A type whose bytes are in the order of its values."""

    def __init__(self, codec: ValueCodec) -> None:
        shape = codec.shape
        order = _order_of(shape.description)
        if order is None:
            raise ConfigurationError(
                f"{codec.what}: keys of type {describe_type(shape.description)} have no order that "
                "can be stored. Declare int, float, Decimal, str, bytes, date, datetime, time, "
                "timedelta or UUID, or a tuple of them"
            )
        self.of = shape
        self.description = shape.description
        self.address = shape.address
        self.original = shape.original
        self.rank = order.rank
        self._is_nan = order.is_nan
        self.layout = _layout(order)

    def test(self, subject: str, code: Code) -> str:
        """Let pass what the type lets pass, unless it is NaN."""
        of = self.of.test(subject, code)
        return (
            of if self._is_nan is None else f"({of} and not {code.bind(self._is_nan)}({subject}))"
        )

    def convert(self, value: Any) -> Any:
        """Convert as the type does; refuse NaN."""
        value = self.of.convert(value)
        if self._is_nan is not None and self._is_nan(value):
            raise MisfitError("", "NaN, which has no place in an order")
        return value

    def reader(self, stored: Description) -> Function | None:
        """Accept the same type only: data of another type are in another order."""
        if stored != self.description:
            raise self.unreadable_error(stored)
        return None


def _layout(order: _Order) -> ByteLayout:
    dump, load = order.dump, order.load

    def load_one(data: bytes | memoryview) -> Any:
        value, end = load(bytes(data), 0)
        if end != len(data):
            raise ValueError(f"{len(data) - end} bytes follow a key")
        return value

    def load_each(data: bytes, lengths: Sequence[int]) -> list[Any]:
        values, at = [], 0
        for length in lengths:
            value, end = load(data, at)
            at += length
            if end != at:
                raise ValueError(f"a key of {length} bytes has its end at another byte")
            values.append(value)
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes follow the keys")
        return values

    return ByteLayout(
        dump=dump,
        load=load_one,
        # A column is read as a whole, so its bytes need no order.
        dump_column=dump_typed,
        load_column=load_typed,
        dump_each=lambda values: [*map(dump, values)],
        load_each=load_each,
    )


def _order_of(description: Description) -> _Order | None:
    """Return the order of a type; ``None`` if it has none."""
    kind = description["type"]
    if kind == "tuple":
        parts = [_order_of(element) for element in description["elements"]]
        found = [part for part in parts if part is not None]
        return _of_tuples(found) if len(found) == len(parts) else None
    if kind == "tuple_of":
        element = _order_of(description["element"])
        return None if element is None else _of_any_length(element)
    return _SCALARS.get(kind)


# -- tuples -------------------------------------------------------------------------------------


def _of_tuples(parts: Sequence[_Order]) -> _Order:
    """Return the order of tuples with these parts; a shorter one is the beginning of some."""

    def dump(values: Any) -> bytes:
        return b"".join([part.dump(value) for part, value in zip(parts, values, strict=False)])

    def load(data: bytes, at: int) -> Parsed:
        values = []
        for part in parts:
            value, at = part.load(data, at)
            values.append(value)
        return tuple(values), at

    def rank(values: Any) -> Any:
        pairs = zip(parts, values, strict=False)
        return tuple([v if part.rank is None else part.rank(v) for part, v in pairs])

    def is_nan(values: Any) -> bool:
        pairs = zip(parts, values, strict=False)
        return any(part.is_nan is not None and part.is_nan(value) for part, value in pairs)

    return _Order(
        dump,
        load,
        rank if any(part.rank for part in parts) else None,
        is_nan if any(part.is_nan for part in parts) else None,
    )


def _of_any_length(of: _Order) -> _Order:
    """Return the order of ``tuple[T, ...]``."""
    inner, is_nan = of.rank, of.is_nan

    def dump(values: Any) -> bytes:
        return b"".join([*(_MORE + of.dump(value) for value in values), _NO_MORE])

    def load(data: bytes, at: int) -> Parsed:
        values = []
        while data[at] == _MORE[0]:
            value, at = of.load(data, at + 1)
            values.append(value)
        return tuple(values), at + 1

    return _Order(
        dump,
        load,
        None if inner is None else lambda values: tuple(map(inner, values)),
        None if is_nan is None else lambda values: any(map(is_nan, values)),
    )


# -- numbers ------------------------------------------------------------------------------------


def _dump_int(value: int) -> bytes:
    if value < 0:
        return _dump_int(~value).translate(_FLIPPED)
    length = (value.bit_length() + 7) // 8
    if length < _LONG - _NO_BYTES:
        return (_NO_BYTES + length).to_bytes() + value.to_bytes(length)
    return _LONG.to_bytes() + _U32.pack(length) + value.to_bytes(length)


def _load_int(data: bytes, at: int) -> Parsed:
    head = data[at]
    if head < _NO_BYTES:
        value, length = _load_int(data[at : at + _int_length(data, at)].translate(_FLIPPED), 0)
        return ~value, at + length
    end = at + _int_length(data, at)
    begin = at + 1 if head < _LONG else at + 1 + _U32.size
    return int.from_bytes(_exactly(data, begin, end)), end


def _int_length(data: bytes, at: int) -> int:
    """Return the number of bytes that an int takes."""
    head = data[at]
    flipped = head < _NO_BYTES
    head = 255 - head if flipped else head
    if head < _LONG:
        return 1 + head - _NO_BYTES
    length = data[at + 1 : at + 1 + _U32.size]
    return int(1 + _U32.size + _U32.unpack(length.translate(_FLIPPED) if flipped else length)[0])


def _dump_float(value: float) -> bytes:
    # Adding zero makes the zeros equal.
    (bits,) = _U64.unpack(_DOUBLE.pack(value + 0.0))
    return _U64.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _load_float(data: bytes, at: int) -> Parsed:
    (bits,) = _U64.unpack_from(data, at)
    return _DOUBLE.unpack(_U64.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0], at + _U64.size


def _dump_decimal(value: Decimal) -> bytes:
    if not value:
        return _ZERO.to_bytes()
    if value.is_infinite():
        return (_INFINITY if value > 0 else _MINUS_INFINITY).to_bytes()
    digits = bytes(digit + 1 for digit in value.as_tuple().digits).rstrip(b"\x01")
    packed = _dump_int(value.adjusted()) + digits + b"\x00"
    if value > 0:
        return _POSITIVE.to_bytes() + packed
    return _NEGATIVE.to_bytes() + packed.translate(_FLIPPED)


def _load_decimal(data: bytes, at: int) -> Parsed:
    tag, at = data[at], at + 1
    if tag in _SINGLE_DECIMALS:
        return _SINGLE_DECIMALS[tag], at
    packed = data[at:] if tag == _POSITIVE else data[at:].translate(_FLIPPED)
    adjusted, begin = _load_int(packed, 0)
    end = packed.index(0, begin)
    digits = tuple([digit - 1 for digit in packed[begin:end]])
    exponent = adjusted - len(digits) + 1
    return Decimal((int(tag == _NEGATIVE), digits, exponent)), at + end + 1


_SINGLE_DECIMALS: Final = {
    _MINUS_INFINITY: Decimal("-Infinity"),
    _ZERO: Decimal(0),
    _INFINITY: Decimal("Infinity"),
}


# -- text and bytes -----------------------------------------------------------------------------


def _dump_bytes(value: bytes) -> bytes:
    return value.replace(b"\x00", b"\x00\xff") + _END


def _load_bytes(data: bytes, at: int) -> Parsed:
    end = data.index(_END, at)
    return data[at:end].replace(b"\x00\xff", b"\x00"), end + len(_END)


def _load_str(data: bytes, at: int) -> Parsed:
    value, end = _load_bytes(data, at)
    return value.decode("utf-8", "surrogatepass"), end


# -- times --------------------------------------------------------------------------------------


def _dump_date(value: date) -> bytes:
    return _U32.pack(value.toordinal())


def _load_date(data: bytes, at: int) -> Parsed:
    return date.fromordinal(_U32.unpack_from(data, at)[0]), at + _U32.size


def _dump_datetime(value: datetime) -> bytes:
    zone = value.tzinfo is not None
    since = value.replace(tzinfo=None) - _BEGINNING
    return zone.to_bytes() + _U64.pack(since // _US)


def _load_datetime(data: bytes, at: int) -> Parsed:
    value = _BEGINNING + _U64.unpack_from(data, at + 1)[0] * _US
    return value.replace(tzinfo=UTC) if data[at] else value, at + 1 + _U64.size


def _rank_of_datetime(value: datetime) -> tuple[bool, datetime]:
    """Return an order in which datetimes without a zone come before all others."""
    return value.tzinfo is not None, value


def _dump_time(value: time) -> bytes:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _U64.pack(seconds * 1_000_000 + value.microsecond)


def _load_time(data: bytes, at: int) -> Parsed:
    since = _U64.unpack_from(data, at)[0] * _US
    return (_BEGINNING + since).time(), at + _U64.size


def _load_timedelta(data: bytes, at: int) -> Parsed:
    value, at = _load_int(data, at)
    return value * _US, at


# -- the rest -----------------------------------------------------------------------------------

_UUID_BYTES: Final = 16


def _load_uuid(data: bytes, at: int) -> Parsed:
    end = at + _UUID_BYTES
    return UUID(bytes=_exactly(data, at, end)), end


def _exactly(data: bytes, start: int, end: int) -> bytes:
    found = data[start:end]
    if len(found) != end - start:
        raise ValueError("a key is truncated")
    return found


_SCALARS: Final[Mapping[str, _Order]] = {
    "int": _Order(_dump_int, _load_int),
    "float": _Order(_dump_float, _load_float, is_nan=lambda value: value != value),  # noqa: PLR0124 - true for NaN only
    "decimal": _Order(_dump_decimal, _load_decimal, is_nan=Decimal.is_nan),
    "str": _Order(lambda value: _dump_bytes(value.encode("utf-8", "surrogatepass")), _load_str),
    "bytes": _Order(_dump_bytes, _load_bytes),
    "date": _Order(_dump_date, _load_date),
    "datetime": _Order(_dump_datetime, _load_datetime, _rank_of_datetime),
    "time": _Order(_dump_time, _load_time),
    "timedelta": _Order(lambda value: _dump_int(value // _US), _load_timedelta),
    "uuid": _Order(lambda value: value.bytes, _load_uuid),
}
"""Type in a description → its order."""
