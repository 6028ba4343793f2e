"""Bars over a timeline, one for each position, plain or stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from markupsafe import Markup

from forebay_console.charts.scale import Scale
from forebay_console.charts.svg import element, plot

_WIDTH = 1_000.0
_HEIGHT = 100.0
_GAP = 0.18
"""Share of a bar's place that stays empty, at least."""
_WIDEST = 36.0
"""The widest bar: a few bars do not fill the plot."""


@attrs.frozen
class Bars:
    """A plot of bars, and the scale of its axis."""

    svg: Markup
    scale: Scale


def stacked(
    columns: Sequence[Mapping[str, float]],
    kinds: Sequence[str],
    tips: Sequence[str],
    links: Sequence[str | None],
) -> Bars:
    """Draw one bar for each column, its parts from the bottom in the order of ``kinds``.

    :param columns: for each bar, kind → value.
    :param kinds: the kinds, which are also classes of the style sheet.
    :param tips: for each bar, the text that appears over it.
    :param links: for each bar, the page that it leads to.
    """
    scale = Scale.over(max((sum(column.values()) for column in columns), default=0))
    step = _WIDTH / max(1, len(columns))
    width = min(step * (1 - _GAP), _WIDEST)
    parts = []
    for at, column in enumerate(columns):
        pieces = _pieces(column, kinds, scale, at * step + (step - width) / 2, width)
        pieces.append(_target(at * step, step))
        parts.append(_linked(links[at], element("title", tips[at]), *pieces))
    return Bars(plot(_WIDTH, _HEIGHT, parts, "bars"), scale)


def bars(values: Sequence[float], kind: str, tips: Sequence[str]) -> Bars:
    """Draw one plain bar for each value."""
    return stacked([{kind: value} for value in values], [kind], tips, [None] * len(values))


def _pieces(
    column: Mapping[str, float], kinds: Sequence[str], scale: Scale, x: float, width: float
) -> list[Markup]:
    pieces = []
    below = 0.0
    for kind in kinds:
        height = scale.share(column.get(kind, 0.0)) * _HEIGHT
        if height > 0:
            y = _HEIGHT - below - height
            pieces.append(element("rect", class_=f"c-{kind}", x=x, y=y, width=width, height=height))
            below += height
    return pieces


def _target(x: float, width: float) -> Markup:
    """Return an invisible part as high as the plot, so that a low bar is found too."""
    return element("rect", class_="target", x=x, y=0, width=width, height=_HEIGHT)


def _linked(link: str | None, *children: Markup) -> Markup:
    if link is None:
        return element("g", *children)
    # Out of the tab order: the page has a table with the same numbers and links.
    return element("a", *children, href=link, tabindex=-1)
