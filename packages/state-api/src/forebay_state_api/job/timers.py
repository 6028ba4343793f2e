"""`Timers`: the ``ctx.timers`` of a function. Timers need an ``on_timer`` method, clocks do not.

A timer belongs to a key, a namespace and a time; registering it again changes nothing, and
``on_timer`` begins in its namespace. Timers are state: they are stored with the version, kept
across a restart with any parallelism, and fire once. A micro-batch fires, in this order:

1. before its rows, the timers that are due when it begins: event-time timers up to the watermark,
   then processing-time timers up to the micro-batch's time, each in time order. An event-time timer
   that ``on_timer`` registers and that is due fires in the same round;
2. after its rows, the timers that the rows registered and that are already due, and the
   processing-time timers that ``on_timer`` registered before the rows and that are due.

A timer that ``on_timer`` registers for its own time or an earlier one, of its own kind, waits for
the next micro-batch. Without new data Spark runs no micro-batch, and nothing fires. The end of a
bounded DataFrame whose state is dropped fires all event-time timers, after everything else.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_state_api.job.futures import StateFuture


class TimeDomain(enum.Enum):
    """The clock of a timer."""

    PROCESSING_TIME = "processing_time"
    """The micro-batch's time."""
    EVENT_TIME = "event_time"
    """The watermark."""


class Timers(abc.ABC):
    """The clocks, and the timers of the current key and namespace.

    Times are ``datetime`` with a time zone.
    """

    @property
    @abc.abstractmethod
    def processing_time(self) -> datetime:
        """The micro-batch's time, in UTC; processing-time timers up to it are due.

        Under Spark Connect it is 1970 in a subtask without rows and timers so far.
        """

    @property
    @abc.abstractmethod
    def watermark(self) -> datetime | None:
        """The time, in UTC, up to which event-time timers are due; ``None`` before the first time.

        It does not change during a micro-batch, and never goes back. At the end of a bounded
        DataFrame, while all event-time timers fire, it is the last time that a ``datetime`` can be.
        Raises `ConfigurationError` unless the job names an event-time column.
        """

    @property
    @abc.abstractmethod
    def domain(self) -> TimeDomain | None:
        """In ``on_timer``, the kind of timer that fires; ``None`` elsewhere."""

    @abc.abstractmethod
    def is_late(self, at: datetime) -> bool:
        """Return whether ``at`` is not after the watermark; false before the first watermark.

        The function decides whether a late row still counts. Raises `ValueError` for a time without
        a zone, `ConfigurationError` unless the job names an event-time column.
        """

    @abc.abstractmethod
    def drop_late(self, at: datetime) -> bool:
        """Return `is_late`; if true, count a row that the function is about to drop.

        The count is ``late_rows_dropped`` of the engine's metrics.
        """

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

    @abc.abstractmethod
    def list_processing_time(self) -> list[datetime]:
        """Return the times of the processing-time timers of the current key and namespace.

        They are in UTC and in order; a timer that fires is no longer among them. The first call of
        this method, of `replace_processing_time`, `merge_namespaces` or one of their twins reads
        all timers of the subtask. From then on each timer is also stored under its key.
        """

    @abc.abstractmethod
    def list_event_time(self) -> list[datetime]:
        """Return the event-time timers, as `list_processing_time` does."""

    @abc.abstractmethod
    def async_list_processing_time(self) -> StateFuture[list[datetime]]:
        """`list_processing_time`, asynchronously."""

    @abc.abstractmethod
    def async_list_event_time(self) -> StateFuture[list[datetime]]:
        """`list_event_time`, asynchronously."""

    @abc.abstractmethod
    def replace_processing_time(self, at: datetime) -> None:
        """Make ``at`` the only processing-time timer of the current key and namespace."""

    @abc.abstractmethod
    def replace_event_time(self, at: datetime) -> None:
        """Make ``at`` the only event-time timer of the current key and namespace."""

    @abc.abstractmethod
    def async_replace_processing_time(self, at: datetime) -> StateFuture[None]:
        """`replace_processing_time`, asynchronously: it takes effect when the future completes.

        Await it before the next change of these timers: it deletes the timers that exist at the
        time of the call.
        """

    @abc.abstractmethod
    def async_replace_event_time(self, at: datetime) -> StateFuture[None]:
        """`replace_event_time`, asynchronously: it takes effect when the future completes.

        Await it before the next change of these timers: it deletes the timers that exist at the
        time of the call.
        """

    @abc.abstractmethod
    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        """Move the current key's timers of ``sources`` to ``target``, which keeps its own.

        Timers of one kind and time become one. Merging states leaves timers as they are.
        """

    @abc.abstractmethod
    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        """`merge_namespaces`, asynchronously: it takes effect when the future completes."""
