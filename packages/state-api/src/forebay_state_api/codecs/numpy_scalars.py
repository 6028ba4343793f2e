"""Scalars of NumPy, which states take for the Python values that they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

_CLASSES: Final[dict[str, type]] = {
    "b": bool,
    "i": int,
    "u": int,
    "f": float,
    "U": str,
    "S": bytes,
    "m": timedelta,
}
"""Kinds of NumPy's types, and the Python classes of their values."""


def without_numpy(value: Any) -> Any:
    """The Python value of a NumPy scalar that has an equal one; any other ``value`` as it is.

    A datetime64 stays: it has no zone, and may be finer than Python's.
    """
    cls = type(value)
    if cls.__module__ != "numpy" or not hasattr(value, "dtype") or value.shape != ():
        return value
    expected = _CLASSES.get(value.dtype.kind)
    plain = value.item()
    return plain if type(plain) is expected else value
