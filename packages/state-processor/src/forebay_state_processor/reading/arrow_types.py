"""Arrow types of stored types, and how their plain values become Arrow's.

Values without an Arrow type become text or bytes: values of no declared type as JSON, Decimals and
UUIDs as text, since a Decimal's scale is not declared, and a job's own codecs as bytes. Datetimes
become instants; one without a zone counts as UTC. Ints have 64 bits.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.user_frames import encodable

if TYPE_CHECKING:
    import pyarrow as pa

Function = Callable[[Any], Any]
_NOTHING: Final = (None,)


def arrow() -> Any:
    """Import pyarrow; the `ConfigurationError` says how to install it."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(
            "state as Arrow needs pyarrow: pip install 'forebay-state-processor[arrow]'"
        ) from error
    return pyarrow


@attrs.frozen
class ArrowType:
    """The Arrow type of a stored type."""

    type: pa.DataType
    convert: Function | None
    """Plain value → the value that Arrow takes; ``None`` if it is the same."""
    parts: Sequence[ArrowType] = ()
    """The types of a struct's fields, if some are converted: its arrays are made by fields."""

    def array(self, values: list[Any], what: str) -> pa.Array:
        """Return an array of plain values, where ``None`` is null.

        ``what`` names the column in the `ConfigurationError` for a value that Arrow cannot hold.
        """
        pa = arrow()
        convert = self.convert
        if self.parts:
            return self._struct(values, what)
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        try:
            return pa.array(values, self.type)
        except (pa.ArrowInvalid, OverflowError, TypeError, UnicodeEncodeError) as error:
            raise ConfigurationError(
                f"{what} has a value that does not fit Arrow's {self.type}: {error}; read it with "
                "scan()"
            ) from error

    def _struct(self, values: list[Any], what: str) -> pa.Array:
        pa = arrow()
        absent = [value is None for value in values]
        mask = pa.array(absent, pa.bool_()) if any(absent) else None
        present = [_NOTHING * len(self.parts) if value is None else value for value in values]
        arrays = [
            part.array([value[at] for value in present], what) for at, part in enumerate(self.parts)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=mask)


def arrow_type_of(description: Mapping[str, Any]) -> ArrowType:
    """Return the Arrow type of a `ValueCodec.description`."""
    pa = arrow()
    kind = description["type"]
    if kind in _NESTED:
        return _NESTED[kind](pa, description)
    scalar, convert = _scalars(pa).get(kind, (pa.string(), to_json))
    return ArrowType(scalar, convert)


def _scalars(pa: Any) -> dict[str, tuple[Any, Function | None]]:
    return {
        "none": (pa.null(), None),
        "bool": (pa.bool_(), None),
        "int": (pa.int64(), None),
        "float": (pa.float64(), None),
        "str": (pa.string(), None),
        "bytes": (pa.binary(), None),
        "date": (pa.date32(), None),
        "datetime": (pa.timestamp("us", "UTC"), _instant),
        "time": (pa.time64("us"), None),
        "timedelta": (pa.duration("us"), None),
        "decimal": (pa.string(), str),
        "uuid": (pa.string(), str),
        "enum": (pa.string(), None),
        "codec": (pa.binary(), None),
    }


def _instant(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _optional(_: Any, description: Mapping[str, Any]) -> ArrowType:
    return arrow_type_of(description["of"])


def _list(pa: Any, description: Mapping[str, Any]) -> ArrowType:
    element = arrow_type_of(description["element"])
    convert = element.convert
    each = None if convert is None else (lambda value: [_or_none(convert, one) for one in value])
    return ArrowType(pa.list_(element.type), each)


def _tuple(pa: Any, description: Mapping[str, Any]) -> ArrowType:
    parts = [arrow_type_of(one) for one in description["elements"]]
    return _struct(pa, {f"_{at}": part for at, part in enumerate(parts, 1)})


def _record(pa: Any, description: Mapping[str, Any]) -> ArrowType:
    return _struct(pa, {one["name"]: arrow_type_of(one["type"]) for one in description["fields"]})


def _struct(pa: Any, parts: Mapping[str, ArrowType]) -> ArrowType:
    struct = pa.struct([pa.field(name, part.type) for name, part in parts.items()])
    named = [(name, part.convert) for name, part in parts.items()]
    if all(convert is None for _, convert in named):
        return ArrowType(struct, None)  # Arrow takes tuples by position
    return ArrowType(
        struct,
        lambda value: {
            name: part if convert is None else _or_none(convert, part)
            for (name, convert), part in zip(named, value, strict=True)
        },
        tuple(parts.values()),
    )


def _map(_: Any, description: Mapping[str, Any]) -> ArrowType:
    return map_type(arrow_type_of(description["key"]), arrow_type_of(description["value"]))


def map_type(key: ArrowType, value: ArrowType) -> ArrowType:
    """Return the Arrow type of dicts."""
    pa = arrow()
    of_key, of_value = key.convert or _same, value.convert or _same

    def entries(found: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        return [(of_key(one), _or_none(of_value, two)) for one, two in found.items()]

    return ArrowType(pa.map_(key.type, value.type), entries)


def _same(value: Any) -> Any:
    return value


def _or_none(convert: Function, value: Any) -> Any:
    return None if value is None else convert(value)


_NESTED: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], ArrowType]]] = {
    "optional": _optional,
    "list": _list,
    "tuple_of": _list,
    "tuple": _tuple,
    "record": _record,
    "dict": _map,
}


def to_json(value: Any) -> str:
    r"""Return a plain value of any kind as JSON: bytes in base64, other scalars as text.

    Halves of surrogate pairs are escaped as ``\ud83d``, so that it is text for Arrow and files.
    """
    return encodable(json.dumps(jsonable(value), ensure_ascii=False))


def jsonable(value: Any) -> Any:
    """Return a plain value as JSON data; a dict with keys other than text is a list of pairs."""
    if isinstance(value, dict):
        return _json_object(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _json_object(dict(zip(value._fields, value, strict=True)))
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    return _json_scalar(value)


def _json_object(value: dict[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in value):
        return {key: jsonable(one) for key, one in value.items()}
    return [[jsonable(key), jsonable(one)] for key, one in value.items()]


def _json_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
