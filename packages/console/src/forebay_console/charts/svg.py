"""Elements of SVG as safe markup."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return one element; text and attributes are escaped.

    Of the names of attributes a ``_`` at the end is dropped, and others become ``-``.
    """
    named = [f' {_name(name)}="{_value(value)}"' for name, value in attributes.items()]
    inner = "".join(map(escape, children))
    return Markup(f"<{tag}{''.join(named)}>{inner}</{tag}>")  # noqa: S704 - all parts are escaped


def plot(width: float, height: float, parts: Iterable[Markup], kind: str) -> Markup:
    """Return a plot of any width, hidden from screen readers: the page has its numbers."""
    box = f'viewBox="0 0 {_value(width)} {_value(height)}" preserveAspectRatio="none"'
    opened = f'<svg class="plot {escape(kind)}" {box} aria-hidden="true">'
    return Markup(f"{opened}{''.join(map(escape, parts))}</svg>")  # noqa: S704 - the same


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    """Return an attribute's value; a number has at most two decimals."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value) if isinstance(value, int) else escape(value)
