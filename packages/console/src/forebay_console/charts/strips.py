"""Strips over key groups, one above the other: the files that a key group is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
from markupsafe import Markup

from forebay_console.charts.grid import shade
from forebay_console.charts.svg import element, plot

_GAP: Final = 0.08


@attrs.frozen
class Strip:
    """One file: the key groups for which it is read, and its depth."""

    start: int
    end: int
    level: int
    """0 at the bottom: the oldest."""
    value: float
    """Decides the shade."""
    tip: str


def _width(wide: int, groups: int) -> float:
    """Return the width that is drawn for ``wide`` key groups.

    The remainder is the gap to the next strip.
    """
    return max(0.6 * wide, wide - groups * 0.002)


def strips(found: Sequence[Strip], groups: int) -> Markup:
    """Draw strips over all key groups, the oldest at the bottom."""
    levels = max((strip.level for strip in found), default=0) + 1
    largest = max((strip.value for strip in found), default=0.0)
    parts = [
        element(
            "rect",
            element("title", strip.tip),
            class_=f"h{max(1, shade(strip.value, largest))}",
            x=float(strip.start),
            y=levels - 1 - strip.level + _GAP,
            width=_width(strip.end - strip.start + 1, groups),
            height=1 - 2 * _GAP,
        )
        for strip in found
    ]
    return plot(groups, levels, parts, "strips")
