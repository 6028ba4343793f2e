"""NumPy scalars, which states accept as the equal Python values."""

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
"""NumPy kind → the Python class of its values."""


def without_numpy(value: Any) -> Any:
    """Return the equal Python value of a NumPy scalar; any other ``value`` as it is.

    A datetime64 stays: it has no zone, and may be finer than Python's.
    """
    cls = type(value)
    if cls.__module__ != "numpy" or not hasattr(value, "dtype") or value.shape != ():
        return value
    expected = _CLASSES.get(value.dtype.kind)
    plain = value.item()
    return plain if type(plain) is expected else value
