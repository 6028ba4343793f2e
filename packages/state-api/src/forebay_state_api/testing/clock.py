"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class ManualClock:
    """Time as a test sets it."""

    def __init__(self, now: datetime | None = None) -> None:
        """Begin at ``now`` (aware), or at the beginning of 2024 UTC."""
        self._now = datetime(2024, 1, 1, tzinfo=UTC)
        if now is not None:
            self.set(now)

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return self._now

    @property
    def now_us(self) -> int:
        """The time in microseconds since 1970."""
        return (self._now - _EPOCH) // _MICROSECOND

    def advance(self, by: timedelta) -> None:
        """Move the time by ``by``, which may be negative."""
        if not isinstance(by, timedelta):
            raise TypeError(f"advance takes a timedelta, such as timedelta(minutes=1), not {by!r}")
        self._now += by

    def set(self, now: datetime) -> None:
        """Set the time, also backwards; a naive one is a `ValueError`."""
        if now.tzinfo is None:
            raise ValueError("a time without zone is ambiguous: pass an aware datetime")
        self._now = now.astimezone(UTC)
