"""Check the elements of list states, keyed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def checked_elements(
    method: str, values: Iterable[Any], refused: Callable[[str], ValueError]
) -> list[Any]:
    """Return the elements passed to ``method``; raise ``refused(…)`` for a ``None``."""
    if values is None:
        raise refused(f"{method}(None)")
    elements = list(values)
    if any(element is None for element in elements):
        raise refused(f"{method} with a None among the elements")
    return elements
