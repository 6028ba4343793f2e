"""Input rows as JSON that Spark's ``from_json`` reads, for rows that describe them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any


def json_of_row(row: Any) -> str:
    """Return a row as a JSON object by its columns, if it has names."""
    return json_of(_named(row))


def json_of(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(_plain(value), ensure_ascii=True)


def _named(row: Any) -> Any:
    """Return a row as a dict by its columns, if it has names."""
    fields = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
    return dict(zip(fields, row, strict=True)) if fields else row


def _plain(value: Any) -> Any:
    """Return ``value`` in the forms of JSON that Spark's ``from_json`` reads."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else str(key): _plain(one) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        named = _named(value)
        return _plain(named) if isinstance(named, dict) else [_plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
