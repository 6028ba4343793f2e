"""A heat map: rows of cells, each in one of nine shades."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
from markupsafe import Markup

from forebay_console.charts.svg import element, plot

SHADES: Final = 9
"""Number of shades; 0 is blank, and the others are equal steps up to the largest value."""
_GAP: Final = 0.06


@attrs.frozen
class Cell:
    """One cell."""

    value: float
    tip: str


def grid(rows: Sequence[Sequence[Cell]], width: int) -> Markup:
    """Draw rows of at most ``width`` cells; a shorter row stretches to the same width."""
    largest = max((cell.value for row in rows for cell in row), default=0.0)
    parts = []
    for y, row in enumerate(rows):
        step = width / len(row)
        for x, cell in enumerate(row):
            parts.append(_cell(cell, x * step, float(y), step, largest))
    return plot(width, len(rows), parts, "grid")


def shade(value: float, largest: float) -> int:
    """Return the shade of a value."""
    if value <= 0 or largest <= 0:
        return 0
    return min(SHADES - 1, 1 + int(value / largest * (SHADES - 1)))


def _cell(cell: Cell, x: float, y: float, step: float, largest: float) -> Markup:
    return element(
        "rect",
        element("title", cell.tip),
        class_=f"h{shade(cell.value, largest)}",
        x=x + step * _GAP,
        y=y + _GAP,
        width=step * (1 - 2 * _GAP),
        height=1 - 2 * _GAP,
    )
