"""Shapes of Spark's types, from DDL strings and from the JSON of ``DataType`` objects.

Widths, precisions and lengths are not checked: Spark's integer types are all ``int``, its floats
``float``, its decimals ``Decimal``, so that a column may be widened without touching the state.
Elements, map values and fields may be ``None`` unless the type says otherwise, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from forebay_state_api.codecs.containers import DictShape, ListShape
from forebay_state_api.codecs.evolution import SPARK_ALIAS
from forebay_state_api.codecs.records import Field
from forebay_state_api.codecs.scalars import OptionalShape, scalar_shape
from forebay_state_api.codecs.structs import StructShape
from forebay_state_api.codecs.type_shapes import TypeShape, UnsupportedTypeError

_CLASSES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("string", "char", "varchar"), str),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime),
    "void": type(None),
    "boolean": bool,
    "binary": bytes,
    "decimal": Decimal,
    "date": date,
    "time": time,
    "interval": timedelta,
}
"""Spark type, by its name in JSON → Python class."""

_DDL_NAMES: Final[Mapping[str, str]] = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "timestamp_ltz": "timestamp",
    "null": "void",
}
"""Other names of types in DDL."""

_DEFAULTS: Final[Mapping[str, str]] = {"decimal": "(10,0)", "time": "(6)"}
"""A type's parameters where DDL leaves them out."""

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'[^']*'|\"[^\"]*\")|(?P<sign>[<>(),:]))"
)
_DAY_TIME: Final = ("day", "hour", "minute", "second")


def shape_of_ddl(ddl: str) -> TypeShape:
    """Return the shape of a type in DDL; columns (``n long, total double``) are a struct.

    Raises `UnsupportedTypeError` that shows the string and where parsing failed.
    """
    return shape_of_json(json_of_ddl(ddl))


def json_of_ddl(ddl: str) -> Any:
    """Return ``DataType.jsonValue()`` of a type in DDL; columns are a struct.

    Raises `UnsupportedTypeError` that shows the string and where parsing failed.
    """
    try:
        return _Parser(ddl).whole()
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(
            f"{ddl!r} is not a Spark type or a list of columns: {error}"
        ) from error


def shape_of_json(json: Any) -> TypeShape:
    """Return the shape for ``DataType.jsonValue()``. Raises `UnsupportedTypeError`."""
    if isinstance(json, str):
        return _json_scalar(json)
    build = _NESTED.get(json["type"])
    if build is None:
        raise UnsupportedTypeError(f"Spark's type {json['type']!r} is not supported")
    return build(json)


def _json_scalar(json: str) -> TypeShape:
    name = re.split(r"[( ]", json, maxsplit=1)[0]
    if name not in _CLASSES:
        raise UnsupportedTypeError(f"Spark's type {json!r} is not supported")
    cls = _CLASSES[name]
    return scalar_shape(cls)


def _json_struct(json: Mapping[str, Any]) -> TypeShape:
    return StructShape(
        [
            _field(
                part["name"],
                shape_of_json(part["type"]),
                nullable=part["nullable"],
                aliases=_aliases(part),
            )
            for part in json["fields"]
        ]
    )


def _aliases(part: Mapping[str, Any]) -> tuple[str, ...]:
    given = (part.get("metadata") or {}).get(SPARK_ALIAS, ())
    return (given,) if isinstance(given, str) else tuple(given)


def _json_array(json: Mapping[str, Any]) -> TypeShape:
    return ListShape(_maybe(shape_of_json(json["elementType"]), nullable=json["containsNull"]))


def _json_map(json: Mapping[str, Any]) -> TypeShape:
    value = _maybe(shape_of_json(json["valueType"]), nullable=json["valueContainsNull"])
    return DictShape(shape_of_json(json["keyType"]), value)


_NESTED: Final[dict[str, Callable[[Mapping[str, Any]], TypeShape]]] = {
    "struct": _json_struct,
    "array": _json_array,
    "map": _json_map,
}


def _maybe(shape: TypeShape, *, nullable: bool) -> TypeShape:
    return OptionalShape(shape) if nullable else shape


def _field(name: str, shape: TypeShape, *, nullable: bool, aliases: tuple[str, ...] = ()) -> Field:
    default = (lambda _: None) if nullable else None
    return Field(name, _maybe(shape, nullable=nullable), default, aliases=aliases)


class _Parser:
    """Recursive descent over the tokens of one DDL string."""

    def __init__(self, ddl: str) -> None:
        self._tokens = list(_tokens(ddl))
        self._position = 0

    def whole(self) -> Any:
        """Parse a type, or else columns, up to the end."""
        if len(self._tokens) > 1 and not self._is_type_alone():
            json = self._columns(end="")
        else:
            json = self._type()
        if self._peek():
            raise self._unexpected_error("the end")
        return json

    def _is_type_alone(self) -> bool:
        """Return whether this is one type; a column's name is followed by a name or a colon."""
        first, second = self._tokens[:2]
        if first.startswith("`") or second == ":":
            return False
        return second in {"<", "("} or first.lower() == "interval"

    def _type(self) -> Any:
        name = self._take_name("a type").lower()
        if name == "array":
            return self._array()
        if name == "map":
            return self._map()
        if name == "struct":
            self._expect("<")
            struct = self._columns(end=">")
            self._expect(">")
            return struct
        if name == "interval":
            return self._interval()
        known = _DDL_NAMES.get(name, name)
        if known not in _CLASSES:
            raise UnsupportedTypeError(f"{name!r} is not a supported type")
        return known + (self._parameters() or _DEFAULTS.get(known, ""))

    def _array(self) -> Any:
        self._expect("<")
        element = self._type()
        self._expect(">")
        return {"type": "array", "elementType": element, "containsNull": True}

    def _map(self) -> Any:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}

    def _interval(self) -> str:
        fields = [self._take_name("day to second").lower()]
        if self._peek().lower() == "to":
            self._position += 1
            fields.append(self._take_name("second").lower())
        if not set(fields) <= set(_DAY_TIME):
            raise UnsupportedTypeError(f"intervals of {' to '.join(fields)} have no Python type")
        return f"interval {' to '.join(fields)}"

    def _columns(self, end: str) -> Any:
        fields: list[Any] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            fields.append(self._column())
        return {"type": "struct", "fields": fields}

    def _column(self) -> Any:
        name = self._take_name("a column's name")
        if self._peek() == ":":
            self._position += 1
        kind = self._type()
        nullable = self._peek().lower() != "not"
        if not nullable:
            self._position += 1
            self._expect("null")
        if self._peek().lower() == "comment":
            self._position += 1
            self._take_text()
        return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}

    def _parameters(self) -> str:
        """Return the parameters in parentheses after a type's name, if any."""
        if self._peek() != "(":
            return ""
        self._position += 1
        numbers = [self._take_number()]
        while self._peek() == ",":
            self._position += 1
            numbers.append(self._take_number())
        self._expect(")")
        return f"({','.join(numbers)})"

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _expect(self, token: str) -> None:
        if self._peek().lower() != token:
            raise self._unexpected_error(repr(token))
        self._position += 1

    def _take_name(self, wanted: str) -> str:
        token = self._peek()
        if not token or token[0] in "<>(),:'\"":
            raise self._unexpected_error(wanted)
        self._position += 1
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def _take_number(self) -> str:
        token = self._peek()
        if not token.isdecimal():
            raise self._unexpected_error("a number")
        self._position += 1
        return token

    def _take_text(self) -> None:
        if self._peek()[:1] not in ("'", '"'):
            raise self._unexpected_error("a quoted text")
        self._position += 1

    def _unexpected_error(self, wanted: str) -> UnsupportedTypeError:
        return UnsupportedTypeError(f"expected {wanted}, found {self._peek() or 'the end'!r}")


def _tokens(ddl: str) -> list[str]:
    tokens, position, text = [], 0, ddl.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnsupportedTypeError(f"unexpected character {text[position:].lstrip()[0]!r}")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens
