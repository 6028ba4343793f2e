"""Short texts for counts, sizes, durations and shares, in units of 1,000."""

from __future__ import annotations

from typing import Final

ABSENT: Final = "-"
"""Stands for a number that is not known."""
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_UNITS: Final = (
    (_DAY_S, "d", _HOUR_S, "h"),
    (_HOUR_S, "h", _MINUTE_S, "min"),
    (_MINUTE_S, "min", 1, "s"),
)
"""A unit in seconds and its name, with the unit in which the rest is shown."""


def count_text(number: float | None) -> str:
    """Return a whole number with commas."""
    return ABSENT if number is None else f"{round(number):,}"


def short_text(number: float | None, unit: str = "") -> str:
    """Return a number of three digits: ``12.3k``, or ``12.3 kB`` with a unit."""
    if number is None:
        return ABSENT
    size = abs(number)
    power = 0
    while size >= 999.5 and power < len(_PREFIXES) - 1:  # noqa: PLR2004 - rounds to 1,000
        size, power = size / 1_000, power + 1
    digits = f"{size:.0f}" if power == 0 and size == int(size) else f"{size:.3g}"
    sign, space = "-" if number < 0 else "", " " if unit else ""
    return f"{sign}{digits}{space}{_PREFIXES[power]}{unit}"


def size_text(number: float | None) -> str:
    """Return a size in bytes: ``1.24 MB``."""
    return short_text(number, "B")


def growth_text(per_second: float | None) -> str:
    """Return how fast a size grows: ``+30 MB/h``."""
    if per_second is None:
        return ABSENT
    per_hour = round(per_second * _HOUR_S)
    return f"{'' if per_hour < 0 else '+'}{size_text(per_hour)}/h"


def seconds_text(seconds: float | None) -> str:
    """Return a duration: ``812 ms``, ``3.2 s``, ``4 min 10 s``."""
    if seconds is None:
        return ABSENT
    if 0 < seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < _MINUTE_S:
        return f"{max(seconds, 0):.3g} s"
    whole = round(seconds)
    size, name, smaller, lesser = next(one for one in _UNITS if whole >= one[0])
    rest = whole % size // smaller
    return f"{whole // size} {name}" + (f" {rest} {lesser}" if rest else "")


def milliseconds_text(number: float | None) -> str:
    """Return a duration in milliseconds, as `seconds_text`."""
    return seconds_text(None if number is None else number / 1_000)


def share_text(part: float | None, whole: float = 1) -> str:
    """Return a share of ``whole`` in percent: ``34 %``."""
    return ABSENT if part is None or not whole else f"{100 * part / whole:.0f} %"
