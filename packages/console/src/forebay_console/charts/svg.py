"""Elements of SVG as safe markup."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return one element; text and attributes are escaped.

    Of the names of attributes a ``_`` at the end is dropped, and others become ``-``.
    """
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    shown = Markup("").join(
        Markup(' {}="{}"').format(name, _number(value)) for name, value in named
    )
    return Markup("<{0}{1}>{2}</{0}>").format(
        tag, shown, Markup("").join(escape(child) for child in children)
    )


def plot(width: float, height: float, parts: Iterable[Markup], kind: str) -> Markup:
    """Return a plot of any width, hidden from screen readers: a table has the same numbers."""
    opened = Markup(
        '<svg class="plot {}" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true">'
    ).format(kind, _number(width), _number(height))
    return opened + Markup("").join(parts) + Markup("</svg>")


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
