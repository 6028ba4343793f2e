"""Instants as µs since the epoch, which timers are ordered and stored by."""

from __future__ import annotations

from datetime import datetime, timedelta

from forebay_engine.timers.watermark import EPOCH, FIRST_US, LAST_US


def us_of(at: datetime) -> int:
    """Return µs since the epoch; refuse a value that is not an instant."""
    try:
        since = at - EPOCH
        # Faster than a division by `MICROSECOND`.
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    except TypeError:
        if not isinstance(at, datetime):
            raise TypeError(
                "a timer's time is a datetime with a time zone, such as "
                f"ctx.timers.processing_time + timedelta(minutes=1), not {at!r}"
            ) from None
    raise ValueError(f"a timer's time needs a time zone: {at!r} may be many instants")


def timer_us(at: datetime) -> int:
    """Return µs since the epoch of a timer that may be registered: it fires with this time in UTC.

    Raises the errors of `us_of`, and `ValueError` outside the years that a ``datetime`` has.
    """
    at_us = us_of(at)
    if FIRST_US <= at_us <= LAST_US:
        return at_us
    raise ValueError(f"a timer's time is in the years 1 to 9999 in UTC, and {at} is not")


def instant(us: int) -> datetime:
    """Return the aware datetime of a time in µs since the epoch."""
    return EPOCH + timedelta(microseconds=us)
