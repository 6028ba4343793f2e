"""Futures of a record's requests: those that memory answered, and reads that storage answers.

All of them are a `StateFuture` to users. A record makes one for each access, so the methods of each
class do only what its kind needs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from forebay_state_api.job.future_errors import chained_elsewhere_error, failed_record_error
from forebay_state_api.job.futures import LAST, Promise, StateFuture
from forebay_state_api.job.record_scope import (
    WaitingRecord,
    current_scheduler,
    scheduler_of_a_record,
)

T = TypeVar("T")


class Answered(StateFuture[T]):
    """A request that memory answered, made while its record needs no explicit order.

    Every earlier request of the record has completed. If it is awaited before the next request is
    made, as coroutines do, it costs no more than its value; otherwise it becomes an `Ordered` one.
    """

    __slots__ = ()

    if not TYPE_CHECKING:
        # Calling the class needs no Python frame.
        __init__ = object.__init__

    def _attach(
        self, callback: Callable[[T], object], after: StateFuture[Any] | None = None
    ) -> None:
        scheduler = after._record.scheduler if type(after) is Promise else scheduler_of_a_record()
        if scheduler is None:
            self._run_here(callback, after)
            return
        record = scheduler.hold()  # may have put this future in order
        self._done = True
        if isinstance(self, Ordered):
            number, position = self._number, self._position
        else:
            number, position = 0, LAST
        record.push(number, position, scheduler.context._namespace, callback, self._value)

    def _run_here(self, callback: Callable[[T], object], after: StateFuture[Any] | None) -> None:
        del after
        callback(self._value)

    _claim = Promise._claim

    def __repr__(self) -> str:
        return f"<StateFuture {self._value!r}>"

    def _use(self) -> None:
        """Mark that the value is used."""
        self._done = True

    def __await__(self) -> Generator[Any, None, T]:
        if self._done and self._has_to_wait():
            yield self
        self._done = True
        return self._value

    def _has_to_wait(self) -> bool:
        """Return whether a second await waits for steps that depend on completed requests."""
        scheduler = scheduler_of_a_record()
        return scheduler is not None and not scheduler.passes(0, LAST)

    def _order(self, record: WaitingRecord) -> None:
        """Become the next request of ``record`` in its order."""
        self.__class__ = Ordered
        record.number(self)


class AnsweredRead(Answered[T]):
    """A read that memory answered; dropping it without awaiting it is a mistake."""

    __slots__ = ()

    def _order(self, record: WaitingRecord) -> None:
        self.__class__ = OrderedRead  # type: ignore[assignment] # the slots are the same
        record.number(self)


# It is only ever iterated.
_ENDED: Final[Generator[Any, None, None]] = iter(())  # type: ignore[assignment]


class Done(Answered[None]):
    """A write with no pending request before it: complete at once, and shared by many writes.

    Awaiting it creates no generator, because every asynchronous write of a record passes through
    it. As soon as a record keeps order, its writes are `Ordered`, and wait where they must.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._value = None
        self._done = True

    def __await__(self) -> Generator[Any, None, None]:
        return _ENDED

    def _order(self, record: WaitingRecord) -> None:
        """Become a completed request of ``record``."""
        self.__class__ = Ordered  # type: ignore[assignment] # the slots are the same
        self._record = record
        self._number, self._position = 0, LAST


class Ordered(Answered[T]):
    """A request that memory answered, with its number among the requests of its record."""

    __slots__ = ()

    def _attach(
        self,
        callback: Callable[[T], object],
        after: StateFuture[Any] | None = None,  # noqa: ARG002 - it never fails
    ) -> None:
        record = self._record
        scheduler = current_scheduler()
        if scheduler is not record.scheduler:
            raise chained_elsewhere_error()
        self._done = True
        namespace = scheduler.context._namespace
        if scheduler.current is record:
            record.open += 1
            record.push(self._number, self._position, namespace, callback, self._value)
        elif self._number:
            scheduler.arrive(scheduler.hold(), namespace, callback, self._value)
        else:
            scheduler.hold().push(0, LAST, namespace, callback, self._value)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._record.scheduler.passes(self._number, self._position):
            yield self
        self._done = True
        return self._value

    def _order(self, record: WaitingRecord) -> None:
        """Do nothing: it is already in order."""


class OrderedDone(Ordered[None]):
    """A write of a record that keeps order, with no pending request before it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        record: Any = self._record.scheduler.current
        if record is not None:
            if record.stack or record.turns:
                return super().__await__()
            record.reached = LAST  # the steps of the last request have run
        return _ENDED


class OrderedRead(Ordered[T]):
    """A numbered read; it is counted if it is dropped without being awaited or chained."""

    __slots__ = ()

    def __del__(self) -> None:
        if not self._done:
            self._record.scheduler.dropped_reads += 1


class ReadPromise(Promise[T]):
    """A request that storage answers; it is counted if nobody has awaited or chained it."""

    __slots__ = ()

    def __init__(self, record: WaitingRecord) -> None:
        super().__init__(record)
        self._position = 0
        """The number of times it was awaited or chained."""

    def _use(self) -> None:
        self._position += 1

    def _attach(
        self, callback: Callable[[T], object], after: StateFuture[Any] | None = None
    ) -> None:
        self._position += 1
        super()._attach(callback, after)

    def __await__(self) -> Generator[Any, None, T]:
        self._position += 1
        return super().__await__()

    def __del__(self) -> None:
        if self._done and not self._position:
            self._record.scheduler.dropped_reads += 1


class Dropped(Promise[T]):
    """A request of a record that failed before it was answered: it has no result."""

    __slots__ = ()

    def _attach(
        self,
        callback: Callable[[T], object],  # noqa: ARG002 - nothing calls it
        after: StateFuture[Any] | None = None,  # noqa: ARG002 - it never ends
    ) -> None:
        raise failed_record_error(self._record.key)

    def __await__(self) -> Generator[Any, None, T]:
        raise failed_record_error(self._record.key)


for _class in (
    *(Answered, AnsweredRead, Done, Dropped),
    *(Ordered, OrderedDone, OrderedRead, ReadPromise),
):
    # The name that users see, also in messages about types.
    _class.__name__ = _class.__qualname__ = StateFuture.__name__
