"""The types of an output schema as its author wrote them, for messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

_COLUMN: Final = re.compile(
    r"\s*(?:`(?:[^`]|``)*`|[^\s:`]+)(?:\s*:\s*|\s+)(?P<type>.+?)"
    r"(?:\s+not\s+null)?(?:\s+comment\s.*)?\s*",
    re.IGNORECASE | re.DOTALL,
)
_OPENING: Final = "(<"
_CLOSING: Final = ")>"


def declared_types(schema: Any, parsed: Any) -> list[str]:
    """Return the type of each column: as the DDL spells it, or else Spark's name.

    ``parsed`` is the ``StructType`` of ``schema``.
    """
    if isinstance(schema, str):
        columns = [_COLUMN.fullmatch(part) for part in _parts(schema)]
        if len(columns) == len(parsed) and None not in columns:
            return [column["type"] for column in columns if column is not None]
    return [field.dataType.simpleString() for field in parsed]


def _parts(ddl: str) -> Iterator[str]:
    """Split DDL at the commas that separate columns."""
    depth, quote, start = 0, "", 0
    for position, sign in enumerate(ddl):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'\"":
            quote = sign
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif sign == "," and not depth:
            yield ddl[start:position]
            start = position + 1
    yield ddl[start:]
