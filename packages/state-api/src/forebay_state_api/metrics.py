"""Numbers that tell people what happened, each declared once: name, meaning, how it adds up.

A class of numbers is an attrs class whose fields are made by `metric`. Sums, texts and the tables
of the documentation follow from the fields.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import attrs

__all__ = ["described", "metric", "nonzero", "shown", "total"]

T = TypeVar("T", bound=attrs.AttrsInstance)

_SAYS: Final = "says"
_ADD: Final = "add"


def metric(
    says: str, *, add: Callable[[Any, Any], Any] = operator.add, zero: Callable[[], Any] = int
) -> Any:
    """Return a field that begins with ``zero()``; ``add`` joins two readings of it into one."""
    return attrs.field(factory=zero, metadata={_SAYS: says, _ADD: add})


def total(kind: type[T], readings: Iterable[T]) -> T:
    """Add readings up, each number in its way."""
    found = [kind(), *readings]
    return kind(
        **{
            field.name: functools.reduce(
                field.metadata[_ADD], [getattr(one, field.name) for one in found]
            )
            for field in attrs.fields(kind)
        }
    )


def nonzero(reading: attrs.AttrsInstance) -> dict[str, Any]:
    """Return name → number, without those that are 0."""
    numbers = {name: getattr(reading, name) for name in attrs.fields_dict(type(reading))}
    return {name: number for name, number in numbers.items() if number}


def shown(reading: attrs.AttrsInstance) -> str:
    """Return the numbers that are not 0 as a text for logs."""
    return ", ".join(f"{name} {_text(value)}" for name, value in nonzero(reading).items())


def described(kind: type[attrs.AttrsInstance]) -> dict[str, str]:
    """Return name → what it says, for the documentation."""
    return {field.name: field.metadata[_SAYS] for field in attrs.fields(kind)}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
