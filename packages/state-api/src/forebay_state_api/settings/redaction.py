"""Remove passwords and signatures from texts that people read."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=/)[^/?#\s]*:[^/?#\s]*@")
"""User and password before a host, even if the URL has only one slash."""
_QUERY: Final = re.compile(r"(?<=\S)\?[^\s'\"]+")
"""A URL's query, and the fragment after it."""
MASK: Final = "***"


def redacted(text: str) -> str:
    """Return ``text`` without the passwords and the queries of the URLs in it.

    The whole query is removed: each store has its own parameter names for signatures.
    """
    return _QUERY.sub(f"?{MASK}", _CREDENTIALS.sub(f"{MASK}@", text))
