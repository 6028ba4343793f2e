"""The canonical form of namespaces, so that every backend treats equal ones as one.

Backends may look up cells by a namespace's encoding, and ``1``, ``True`` and ``1.0``, or one
instant in two zones, have different encodings.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, Final

from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.scalars import ADDRESSES

_PLAIN: Final = codec_for(None, what="a namespace")


def canonical_namespace(namespace: Any) -> Any:
    """Return the canonical form of ``namespace`` and of all that are equal to it.

    Raises `TypeError` for a value that is not hashable or not plain, `ValueError` for NaN.
    """
    if type(namespace) is str or type(namespace) is int or namespace is None:
        return namespace
    hash(namespace)
    return _canonical(_PLAIN.admit(namespace))


def _canonical(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_canonical(part) for part in value])
    if isinstance(value, bool | float | Decimal):
        return _number(value)
    address = ADDRESSES.get(type(value))
    return value if address is None else address(value)


def _number(value: float | Decimal) -> int | float | Decimal:
    """Return the equal int if there is one, else the equal float if there is one."""
    if math.isnan(value):
        raise ValueError(f"{value!r} cannot be a namespace: it equals nothing, not even itself")
    if value in (math.inf, -math.inf):
        return float(value)
    if value == int(value):
        return int(value)
    nearest = float(value)
    return nearest if nearest == value else ADDRESSES[Decimal](value)
