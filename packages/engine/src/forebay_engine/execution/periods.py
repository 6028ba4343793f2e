"""Periods as arguments: a text such as ``"10 seconds"``, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

MILLISECOND: Final = timedelta(milliseconds=1)
_UNITS: Final = {
    "millisecond": MILLISECOND,
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
_PERIOD: Final = re.compile(rf"(\d+) *({'|'.join(_UNITS)})s?", re.IGNORECASE)


def period_of(given: object) -> timedelta | None:
    """Return the period that an argument gives; ``None`` if it gives none."""
    if isinstance(given, timedelta):
        return given
    if not isinstance(given, str) or (found := _PERIOD.fullmatch(given.strip())) is None:
        return None
    try:
        return int(found[1]) * _UNITS[found[2].lower()]
    except OverflowError:
        return None
