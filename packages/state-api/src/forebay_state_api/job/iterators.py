"""Iterators over list and map states, loaded page by page as they are consumed.

Based on FLIP-424's ``StateIterator``. An iterator is a snapshot: it shows the state at the time
when the iteration was requested, whatever is put or removed later, and it can be consumed twice.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.futures import (
    StateFuture,
    combine_all,
    completed_void_future,
    drive,
    pending,
)
from forebay_state_api.job.record_scope import current_scheduler

T = TypeVar("T")
U = TypeVar("U")


class Cursor(Protocol):
    """One pass over the pages of a snapshot."""

    def next_page(self) -> StateFuture[tuple[list[Any], bool]]:
        """Return the next page, and whether it is the last. Called for one page at a time."""


class PageSource(Protocol):
    """A snapshot that can be read more than once."""

    def after_first_page(self) -> Cursor:
        """Return a cursor that starts at the second page."""


class StateIterator(Generic[T]):
    """The elements of a list state, or the entries, keys or values of a map state.

    Its first page is loaded; the others are loaded as it is consumed. It belongs to the record that
    requested it.
    """

    __slots__ = ("_first", "_first_is_last", "_shape", "_source")

    def __init__(
        self,
        source: PageSource,
        first: list[Any],
        *,
        first_is_last: bool,
        shape: Callable[[Any], T] | None = None,
    ) -> None:
        """``shape`` converts a stored element into a new object for the consumer."""
        self._source = source
        self._first = first
        self._first_is_last = first_is_last
        self._shape = shape

    if not TYPE_CHECKING:  # type checkers report its misuse themselves

        def __bool__(self) -> bool:
            raise StateAccessError("a StateIterator is neither true nor false: ask its is_empty()")

    def is_empty(self) -> bool:
        """Return true only if the loaded page is empty and no other page follows."""
        return not self._first and self._first_is_last

    def on_next(self, fn: Callable[[T], Any]) -> StateFuture[Any]:
        """Call ``fn`` with each element, in order.

        The future completes when the iteration and every future that ``fn`` returned have
        completed. Its result is the list of those futures' results in iteration order, without
        calls that returned ``None``; or ``None`` if there were elements and no call returned a
        future; or ``[]`` if there were no elements. ``fn`` may be a coroutine function; any other
        return value is a `TypeError`.
        """
        return _Iteration(self, fn).start()

    async def __aiter__(self) -> AsyncIterator[T]:
        shape = self._shape
        for element in self._first:
            yield element if shape is None else shape(element)
        last = self._first_is_last
        cursor = None if last else self._source.after_first_page()
        while not last:
            assert cursor is not None
            elements, last = await cursor.next_page()
            for element in elements:
                yield element if shape is None else shape(element)


class _Iteration(Generic[T]):
    """One consumption of an iterator by `StateIterator.on_next`, a request of its record."""

    __slots__ = ("_cursor", "_fn", "_futures", "_iterator", "_result", "_saw_elements")

    _cursor: Cursor

    def __init__(self, iterator: StateIterator[T], fn: Callable[[T], Any]) -> None:
        self._iterator = iterator
        self._fn = fn
        self._futures: list[StateFuture[Any]] = []
        self._saw_elements = False
        self._result: StateFuture[Any] = pending()

    def start(self) -> StateFuture[Any]:
        completed_void_future()._attach(self._begin, self._result)
        return self._result

    def _begin(self, _: None) -> None:
        iterator = self._iterator
        if not iterator._first_is_last:
            self._cursor = iterator._source.after_first_page()
        self._turn((iterator._first, iterator._first_is_last))

    def _turn(self, page: tuple[list[Any], bool]) -> None:
        elements, last = page
        self._take(elements)
        if not last:
            self._cursor.next_page()._attach(self._turn, self._result)
        elif self._futures:
            combine_all(self._futures)._attach(self._result._fulfil, self._result)
        else:
            self._result._fulfil(None if self._saw_elements else [])

    def _take(self, elements: list[Any]) -> None:
        """Call the function with each element, always in the namespace of the iteration."""
        fn, shape = self._fn, self._iterator._shape
        scheduler = current_scheduler()
        again = None if scheduler is None else scheduler.siblings()
        for element in elements:
            self._saw_elements = True
            returned = fn(element if shape is None else shape(element))
            if returned is not None:
                self._futures.append(_as_future(returned))
            if again is not None:
                again()


def _as_future(returned: Any) -> StateFuture[Any]:
    if isinstance(returned, StateFuture):
        return returned
    if inspect.iscoroutine(returned):
        result: StateFuture[Any] = pending()
        drive(returned, result)
        return result
    raise TypeError(
        f"on_next takes a function that returns nothing, a StateFuture or a coroutine; it "
        f"returned {type(returned).__name__} {returned!r:.200}"
    )


def to_iterable(future: StateFuture[StateIterator[T]]) -> StateFuture[list[T]]:
    """Return a future of the list of all elements of the iterator that ``future`` returns."""

    def load(iterator: StateIterator[T]) -> StateFuture[list[T]]:
        elements: list[T] = []
        return iterator.on_next(elements.append).then_apply(lambda _: elements)

    return future.then_compose(load)
