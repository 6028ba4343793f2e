"""A clock that only a test advances."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from forebay_state_api.errors import ConfigurationError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class ManualClock:
    """A clock that a test sets."""

    def __init__(self, now: datetime | None = None) -> None:
        """Start at ``now`` (aware); default: the beginning of 2024 UTC."""
        self._now = datetime(2024, 1, 1, tzinfo=UTC)
        if now is not None:
            self.set(now)

    @property
    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._now

    @property
    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return (self._now - _EPOCH) // _MICROSECOND

    def advance(self, by: timedelta) -> None:
        """Move the time by ``by``, which may be negative."""
        if not isinstance(by, timedelta):
            raise TypeError(f"advance takes a timedelta, such as timedelta(minutes=1), not {by!r}")
        self._now += by

    def set(self, now: datetime) -> None:
        """Set the time, also backwards; a naive ``now`` raises `ValueError`."""
        if now.tzinfo is None:
            raise ValueError("a time without zone is ambiguous: pass an aware datetime")
        self._now = now.astimezone(UTC)


def set_for_tick(clock: Any, at: Any) -> None:
    """Set a clock to the time of a tick.

    Raises `ConfigurationError` if ``at`` is no aware datetime or is before the clock's time, and
    for a clock that is not a `ManualClock`.
    """
    if not isinstance(clock, ManualClock):
        raise ConfigurationError(
            f"tick sets the clock, and clock={clock!r} is not a ManualClock: pass one, or move "
            "yours and call process([])"
        )
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise ConfigurationError(f"a tick's time is a datetime with a time zone, not {at!r}")
    if at < clock.now:
        raise ConfigurationError(
            f"a tick at {at} would be before the clock's time, {clock.now}: time does not go back"
        )
    clock.set(at)
