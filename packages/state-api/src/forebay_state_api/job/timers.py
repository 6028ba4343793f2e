"""`Timers`: the ``ctx.timers`` of a function that has an ``on_timer`` method.

A timer belongs to a key and a time; registering it again changes nothing. Timers are state: they
are stored with the version, kept across a restart with any parallelism, and fire once. A
micro-batch fires, in this order:

1. before its rows, the timers that are due when it begins: event-time timers up to the watermark,
   then processing-time timers up to the micro-batch's time, each in time order. An event-time timer
   that ``on_timer`` registers and that is due fires in the same round;
2. after its rows, the timers that the rows registered and that are already due, and the
   processing-time timers that ``on_timer`` registered before the rows and that are due.

A timer that ``on_timer`` registers for its own time or an earlier one, of its own kind, waits for
the next micro-batch. Without new data Spark runs no micro-batch, and nothing fires.
"""

from __future__ import annotations

import abc
import enum
from datetime import datetime


class TimeDomain(enum.Enum):
    """The clock of a timer."""

    PROCESSING_TIME = "processing_time"
    """The micro-batch's time."""
    EVENT_TIME = "event_time"
    """The watermark."""


class Timers(abc.ABC):
    """The timers of the current key. Times are ``datetime`` with a time zone."""

    @property
    @abc.abstractmethod
    def processing_time(self) -> datetime:
        """The micro-batch's time, in UTC; processing-time timers up to it are due.

        1970 in a subtask that has had neither a row nor a timer yet.
        """

    @property
    @abc.abstractmethod
    def watermark(self) -> datetime | None:
        """The time, in UTC, up to which event-time timers are due; ``None`` before the first time.

        It does not change during a micro-batch, and never goes back. A row whose time is not after
        it is late; the function decides whether the row still counts.
        """

    @property
    @abc.abstractmethod
    def domain(self) -> TimeDomain | None:
        """In ``on_timer``, the kind of timer that fires; ``None`` elsewhere."""

    @abc.abstractmethod
    def register_processing_time(self, at: datetime) -> None:
        """Call ``on_timer`` for the current key when the micro-batch's time reaches ``at``.

        Raises `ValueError` for a time without a zone, `StateAccessError` with no current key.
        """

    @abc.abstractmethod
    def register_event_time(self, at: datetime) -> None:
        """Call ``on_timer`` for the current key when the watermark reaches ``at``.

        Raises the same errors, and `ConfigurationError` unless the job names an event-time column.
        """

    @abc.abstractmethod
    def delete_processing_time(self, at: datetime) -> None:
        """Delete a timer of the current key, if it exists."""

    @abc.abstractmethod
    def delete_event_time(self, at: datetime) -> None:
        """Delete a timer of the current key, if it exists."""
