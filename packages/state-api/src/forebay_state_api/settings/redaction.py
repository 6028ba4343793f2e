"""Keeps passwords and signatures out of what people read."""

from __future__ import annotations

import re
from typing import Final

_CREDENTIALS: Final = re.compile(r"(?<=/)[^/?#\s]*:[^/?#\s]*@")
"""User and password before a host, also where the URL has but one slash."""
_QUERY: Final = re.compile(r"(?<=\S)\?[^\s'\"]+")
"""A URL's query, and the fragment after it."""
MASK: Final = "***"


def redacted(text: str) -> str:
    """Return ``text`` without the passwords and the queries of the URLs in it.

    Queries go whole: every store has other names for what signs a request.
    """
    return _QUERY.sub(f"?{MASK}", _CREDENTIALS.sub(f"{MASK}@", text))
