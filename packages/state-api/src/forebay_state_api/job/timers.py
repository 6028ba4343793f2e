"""`Timers`: what ``ctx.timers`` is to a function that has an ``on_timer`` method.

A timer belongs to a key and a time; registering it again changes nothing. Timers are state: they
are stored with the version, found again after a restart with any parallelism, and fire once. A
micro-batch fires, in this order:

1. before its rows, what is due when it begins: event-time timers up to the watermark, then
   processing-time timers up to the micro-batch's time, each in the order of their times. An
   event-time timer that ``on_timer`` registers and that is due joins in;
2. after its rows, what they registered that is due already, and the processing-time timers that
   ``on_timer`` registered before the rows and that are due.

A timer that ``on_timer`` registers for its own time or an earlier one, of its own kind, waits for
the next micro-batch. Without new data Spark runs no micro-batch, and nothing fires.
"""

from __future__ import annotations

import abc
import enum
from datetime import datetime


class TimeDomain(enum.Enum):
    """Which clock a timer goes by."""

    PROCESSING_TIME = "processing_time"
    """The micro-batch's own time."""
    EVENT_TIME = "event_time"
    """The watermark."""


class Timers(abc.ABC):
    """The timers of the current key. Times are ``datetime`` with a time zone."""

    @property
    @abc.abstractmethod
    def processing_time(self) -> datetime:
        """The micro-batch's time, in UTC: up to it processing-time timers are due.

        1970 in a subtask that has had neither a row nor a timer yet.
        """

    @property
    @abc.abstractmethod
    def watermark(self) -> datetime | None:
        """The time, in UTC, up to which event-time timers are due; ``None`` before the first one.

        It stands still during a micro-batch, and never goes back. A row whose time is not after it
        came late; whether it still counts is the function's decision.
        """

    @property
    @abc.abstractmethod
    def domain(self) -> TimeDomain | None:
        """In ``on_timer``: which kind of timer fires. ``None`` elsewhere."""

    @abc.abstractmethod
    def register_processing_time(self, at: datetime) -> None:
        """Have ``on_timer`` called for the current key when the micro-batch's time reaches ``at``.

        Raises `ValueError` for a time without a zone, `StateAccessError` with no current key.
        """

    @abc.abstractmethod
    def register_event_time(self, at: datetime) -> None:
        """The same, when the watermark reaches ``at``.

        Raises `ConfigurationError` besides, unless the job names a column of event times.
        """

    @abc.abstractmethod
    def delete_processing_time(self, at: datetime) -> None:
        """Delete a timer of the current key; nothing happens where there is none."""

    @abc.abstractmethod
    def delete_event_time(self, at: datetime) -> None:
        """Delete a timer of the current key; nothing happens where there is none."""
