"""A clock that only a test advances."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

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
