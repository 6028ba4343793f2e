"""Keys written as JSON, the inverse of `arrow_types.jsonable`: for options and command lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.errors import ConfigurationError

_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": time.fromisoformat,
    "decimal": lambda given: Decimal(str(given)),
    "uuid": UUID,
}


def keys_from_json(text: str, description: Mapping[str, Any]) -> list[Any]:
    """Return keys from a JSON array; ``description`` describes the operator's keys.

    A key of several columns is an array. Dates and times are ISO text, bytes base64, Decimals text
    or numbers. Raises `ConfigurationError`.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{text!r:.100} is no JSON array of keys: {error}") from error
    if not isinstance(given, list):
        raise ConfigurationError(f"{text!r:.100} is no JSON array of keys")
    return [_key(one, description) for one in given]


def namespace_from_json(text: str) -> Any:
    """Return a namespace from JSON; arrays are tuples. Raises `ConfigurationError`."""
    try:
        return canonical_namespace(value_from_json(text))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f'{text!r:.100} is no namespace in JSON, such as null, 7 or "a name": {error}'
        ) from error


def value_from_json(text: str) -> Any:
    """Return JSON as a plain value; arrays become tuples, which are hashable.

    Raises `ValueError`, for values that are nested too deeply too.
    """
    try:
        return _hashable(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _key(given: Any, description: Mapping[str, Any]) -> Any:
    try:
        return _value(given, description)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ConfigurationError(f"{given!r:.100} is not a key: {error}") from error


def _value(given: Any, description: Mapping[str, Any]) -> Any:
    kind = description["type"]
    if kind == "optional":
        return None if given is None else _value(given, description["of"])
    if kind == "tuple":
        parts = description["elements"]
        if not isinstance(given, list) or len(given) != len(parts):
            raise ValueError(f"it has {len(parts)} columns, so it is an array of {len(parts)}")
        return tuple(_value(one, part) for one, part in zip(given, parts, strict=True))
    convert = _SCALARS.get(kind)
    return given if convert is None else convert(given)
