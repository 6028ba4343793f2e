"""Numbers for people: short texts for durations, counts, sizes and rates."""

from __future__ import annotations

from typing import Final

from rich import filesize

UNKNOWN: Final = "-"
"""Shown for a number that is not known."""

_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_THOUSANDS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def seconds_text(seconds: float | None) -> str:
    """Return a duration in two or three digits: ``12 ms``, ``3.4 s``, ``2 h``."""
    if seconds is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    return f"{max(0.0, seconds) * 1_000:.0f} ms"


def milliseconds_text(ms: int | None) -> str:
    """Return a duration that was measured in milliseconds."""
    return seconds_text(None if ms is None else ms / 1_000)


def count_text(number: float | None) -> str:
    """Return a count: ``950``, ``12.3k``."""
    if number is None:
        return UNKNOWN
    for size, letter in _THOUSANDS:
        if abs(number) >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"  # noqa: PLR2004


def bytes_text(size: float | None) -> str:
    """Return a size: ``1.2 GB``."""
    return UNKNOWN if size is None else filesize.decimal(round(size))


def growth_text(per_second: float | None) -> str:
    """Return how fast a size grows: ``+30.0 MB/h``."""
    if per_second is None:
        return UNKNOWN
    per_hour = round(per_second * 3_600)
    return f"{'-' if per_hour < 0 else '+'}{filesize.decimal(abs(per_hour))}/h"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent."""
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN
