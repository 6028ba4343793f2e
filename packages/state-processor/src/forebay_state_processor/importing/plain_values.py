"""Values of Arrow columns as plain values, the inverse of `reading.arrow_types`.

Values without an Arrow type are text: JSON for values of no declared type, text for Decimals and
UUIDs. The codec of the stored type then checks the converted values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from forebay_state_api.codecs.structs import struct_class

Convert = Callable[[Any], Any]
"""Python value of an Arrow column → a value that the stored type's codec admits; ``None`` stays."""


def plain_value_of(description: Mapping[str, Any]) -> Convert | None:
    """Return the conversion for a `ValueCodec.description`; ``None`` if values stay as they are.

    Where no type is declared, ``fields`` in place of ``any`` describe the fields of a struct.
    """
    kind = description["type"]
    if kind in _NESTED:
        return _NESTED[kind](description)
    return _SCALARS.get(kind)


_SCALARS: Final[Mapping[str, Convert]] = {"any": json.loads, "decimal": Decimal, "uuid": UUID}


def _optional(description: Mapping[str, Any]) -> Convert | None:
    return plain_value_of(description["of"])


def _list(description: Mapping[str, Any]) -> Convert | None:
    return _each(plain_value_of(description["element"]))


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [_or_none(convert, one) for one in values]


def _tuple_of(description: Mapping[str, Any]) -> Convert:
    each = plain_value_of(description["element"])
    return lambda values: tuple([_or_none(each, one) for one in values])


def _tuple(description: Mapping[str, Any]) -> Convert:
    parts = [plain_value_of(one) for one in description["elements"]]
    return lambda value: tuple(
        [_or_none(part, one) for part, one in zip(parts, value.values(), strict=True)]
    )


def _record(description: Mapping[str, Any]) -> Convert:
    """Make the class whose instances the stored type takes as they are, which is much faster."""
    parts = {one["name"]: plain_value_of(one["type"]) for one in description["fields"]}
    names, cls = parts.keys(), struct_class(tuple(parts))
    converts = any(parts.values())

    def record(value: Any) -> Any:
        if type(value) is not dict or value.keys() != names:
            return value  # the stored type says what is wrong
        fields = [value[name] for name in names]
        if converts:
            fields = [*map(_or_none, parts.values(), fields)]
        return tuple.__new__(cls, fields)

    return record


def _fields(description: Mapping[str, Any]) -> Convert | None:
    """Convert the fields of a struct where no type is declared: it stays a dict."""
    parts = {one["name"]: plain_value_of(one["type"]) for one in description["fields"]}
    if not any(parts.values()):
        return None
    return lambda value: {name: _or_none(parts[name], one) for name, one in value.items()}


def _dict(description: Mapping[str, Any]) -> Convert:
    key, value = plain_value_of(description["key"]), plain_value_of(description["value"])
    return lambda pairs: {_or_none(key, one): _or_none(value, two) for one, two in pairs}


def _or_none(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


_NESTED: Final[Mapping[str, Callable[[Mapping[str, Any]], Convert | None]]] = {
    "optional": _optional,
    "list": _list,
    "tuple_of": _tuple_of,
    "tuple": _tuple,
    "record": _record,
    "fields": _fields,
    "dict": _dict,
}


def null_stays(convert: Convert | None) -> Convert:
    """Return ``convert`` for values that may be ``None``."""
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
