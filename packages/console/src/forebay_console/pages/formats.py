"""Numbers and times as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

ABSENT: Final = "\u2013"
"""Stands for a number that is not known."""
_PREFIXES: Final = ("", "k", "M", "G", "T", "P")
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


def count(number: float | None) -> str:
    """Return a whole number with commas."""
    return ABSENT if number is None else f"{round(number):,}"


def short(number: float | None, unit: str = "") -> str:
    """Return a number of three digits: ``1.24 M``."""
    if number is None:
        return ABSENT
    size = abs(number)
    power = 0
    while size >= 999.5 and power < len(_PREFIXES) - 1:  # noqa: PLR2004 - rounds to 1,000
        size, power = size / 1_000, power + 1
    digits = f"{size:.0f}" if power == 0 and size == int(size) else f"{size:.3g}"
    ending = f"{_PREFIXES[power]}{unit}"
    return f"{'-' if number < 0 else ''}{digits}{' ' if ending else ''}{ending}"


def size(number: float | None) -> str:
    """Return a size in bytes: ``1.24 MB``."""
    return short(number, "B")


def seconds(number: float | None) -> str:
    """Return a duration in seconds: ``812 ms``, ``3.2 s``, ``4 min 10 s``."""
    if number is None:
        return ABSENT
    if number < 1:
        return f"{number * 1_000:.0f} ms" if number else "0"
    if number < _MINUTE_S:
        return f"{number:.3g} s"
    whole = round(number)
    for unit, name, smaller, lesser in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"


def milliseconds(number: float | None) -> str:
    """Return a duration in milliseconds, as `seconds`."""
    return seconds(None if number is None else number / 1_000)


def duration(time: timedelta | None) -> str:
    """Return a duration, as `seconds`."""
    return seconds(None if time is None else time.total_seconds())


def share(number: float | None) -> str:
    """Return a share of 1 in percent."""
    return ABSENT if number is None else f"{number:.0%}"


def moment(time: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return ABSENT if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(time: datetime | None) -> str:
    """Return the time of day in UTC."""
    return ABSENT if time is None else f"{time.astimezone(UTC):%H:%M:%S}"


FILTERS: Final = {
    "count": count,
    "short": short,
    "size": size,
    "seconds": seconds,
    "milliseconds": milliseconds,
    "duration": duration,
    "share": share,
    "moment": moment,
    "clock": clock,
}
"""The filters of the templates."""
