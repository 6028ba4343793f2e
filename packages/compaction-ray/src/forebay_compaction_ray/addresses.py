"""Parses addresses of gateways, as users write them."""

from __future__ import annotations

import re
from typing import Final

from forebay_state_api.errors import ConfigurationError

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_LAST_PORT: Final = 65535


def address_of(text: str) -> str:
    """Check and return ``host:port``; raises `ConfigurationError`."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or not 0 < int(match[2]) <= _LAST_PORT:
        raise ConfigurationError(f"{text!r} is not the address of a gateway: expected ip:port")
    return match[0]


def addresses_of(text: str) -> tuple[str, ...]:
    """Check a comma-separated list; return each address once, in the given order."""
    found = dict.fromkeys(address_of(part) for part in text.split(",") if part.strip())
    if not found:
        raise ConfigurationError(f"{text!r} names no gateway: expected ip:port,ip:port")
    return tuple(found)
