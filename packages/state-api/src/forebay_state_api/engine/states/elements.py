"""What every list state refuses, keyed or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def checked_elements(
    method: str, values: Iterable[Any], refused: Callable[[str], ValueError]
) -> list[Any]:
    """The elements that ``method`` was called with; raises what ``refused`` makes of a ``None``."""
    if values is None:
        raise refused(f"{method}(None)")
    elements = list(values)
    if any(element is None for element in elements):
        raise refused(f"{method} with a None among the elements")
    return elements
