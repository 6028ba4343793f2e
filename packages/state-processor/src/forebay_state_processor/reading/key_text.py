"""Keys as they look in the data: text of the command line to the key that it means."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any, Final
from uuid import UUID

from forebay_state_api.codecs import ValueCodec, describe_type
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading.json_keys import value_from_json


def keys_of(text: str, codec: ValueCodec | None) -> list[Any]:
    """Return the keys that ``text`` may mean, the likeliest first.

    Columns are separated by commas, with quotes as in CSV. Times are ISO 8601; one without a zone
    may be a ``timestamp_ntz`` or an instant in UTC. Bytes are hexadecimal. Raises
    `ConfigurationError` that names the type.
    """
    if codec is None:
        raise ConfigurationError("no keyed state is stored")
    description = codec.description
    parts = description["elements"] if description["type"] == "tuple" else None
    try:
        if parts is None:
            return _values(text, description)
        return list(product(*map(_values, _columns(text, len(parts)), parts)))
    except (ValueError, InvalidOperation, csv.Error) as error:
        example = "" if parts is None else "; separate columns by commas, as in ann,5"
        raise ConfigurationError(
            f"{text!r} is not a key of type {describe_type(description)}: {error}{example}"
        ) from error


def _columns(text: str, count: int) -> list[str]:
    columns = next(csv.reader([text], strict=True), [])
    if len(columns) != count:
        raise ValueError(f"it has {len(columns)} columns")
    return columns


def _values(text: str, description: Mapping[str, Any]) -> list[Any]:
    kind = description["type"]
    if kind == "optional":
        return _values(text, description["of"])
    if kind not in _PARSERS:
        raise ValueError(f"keys of type {describe_type(description)} cannot be written as text")
    return _PARSERS[kind](text)


def _bool(text: str) -> list[Any]:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("write true or false")
    return [words[text.lower()]]


def _datetime(text: str) -> list[Any]:
    value = datetime.fromisoformat(text)
    return [value] if value.tzinfo is not None else [value.replace(tzinfo=UTC), value]


def _any(text: str) -> list[Any]:
    """Return a value of JSON, and the text itself: the type of the key is not known."""
    try:
        found = value_from_json(text)
        hash(found)
    except (TypeError, ValueError):
        return [text]
    return [found, text]


_PARSERS: Final[Mapping[str, Callable[[str], list[Any]]]] = {
    "str": lambda text: [text],
    "enum": lambda text: [text],
    "int": lambda text: [int(text)],
    "float": lambda text: [float(text)],
    "bool": _bool,
    "bytes": lambda text: [bytes.fromhex(text.removeprefix("0x"))],
    "decimal": lambda text: [Decimal(text)],
    "date": lambda text: [date.fromisoformat(text)],
    "datetime": _datetime,
    "time": lambda text: [time.fromisoformat(text)],
    "uuid": lambda text: [UUID(text)],
    "any": _any,
}
