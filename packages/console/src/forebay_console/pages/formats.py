"""Times as pages show them, and the filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from forebay_state_processor.observing.quantities import (
    ABSENT,
    count_text,
    growth_text,
    milliseconds_text,
    seconds_text,
    share_text,
    short_text,
    size_text,
)


def duration(time: timedelta | None) -> str:
    """Return a duration, as `seconds_text`."""
    return seconds_text(None if time is None else time.total_seconds())


def moment(time: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return ABSENT if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(time: datetime | None) -> str:
    """Return the time of day in UTC."""
    return ABSENT if time is None else f"{time.astimezone(UTC):%H:%M:%S}"


FILTERS: Final = {
    "count": count_text,
    "short": short_text,
    "size": size_text,
    "seconds": seconds_text,
    "milliseconds": milliseconds_text,
    "duration": duration,
    "share": share_text,
    "growth": growth_text,
    "moment": moment,
    "clock": clock,
}
"""The filters of the templates."""
