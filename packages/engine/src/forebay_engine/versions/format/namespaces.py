"""The canonical form of namespaces, by which backends identify equal ones, and its encoding.

Backends may look up cells by a namespace's encoding, and ``1``, ``True`` and ``1.0``, or one
instant in two zones, have different encodings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
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
    try:
        hash(namespace)
    except TypeError as error:
        raise TypeError(
            f"a namespace is a value that cannot change, not {namespace!r:.200}: write a tuple "
            "where there is a list"
        ) from error
    return _canonical(_PLAIN.admit(namespace))


def packed_namespace(namespace: Any) -> bytes:
    """Return a canonical namespace as bytes, which are equal for equal ones; empty for ``None``."""
    return b"" if namespace is None else _PLAIN.pack_one(namespace)


def unpacked_namespace(packed: bytes) -> Any:
    """Return the namespace that `packed_namespace` encoded."""
    return _PLAIN.unpack_one(packed) if packed else None


def merged_namespaces(target: Any, sources: Iterable[Any]) -> tuple[Any, list[Any]]:
    """Return the canonical arguments of ``merge_namespaces``: sources without ``target``."""
    if isinstance(sources, (str, bytes)):
        raise TypeError(
            f"merge_namespaces takes a list of namespaces as its sources, not {sources!r}"
        )
    target = canonical_namespace(target)
    others = dict.fromkeys(map(canonical_namespace, sources))
    return target, [one for one in others if one != target]


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
