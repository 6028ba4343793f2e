"""Iterators over list and map states, loaded page by page as the consumer goes on.

Grown from FLIP-424's ``StateIterator``. The view is a snapshot: it shows the state as it stood when
the iteration was requested, whatever is put or removed meanwhile, and it can be consumed twice.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from forebay_state_api.futures import (
    StateFuture,
    combine_all,
    completed_future,
    current_scheduler,
    pending,
)

T = TypeVar("T")
U = TypeVar("U")


class Cursor(Protocol):
    """One pass over the pages of a snapshot."""

    def next_page(self) -> StateFuture[tuple[list[Any], bool]]:
        """The next page, and whether it is the last one. Asked for one page at a time."""


class PageSource(Protocol):
    """A snapshot that can be passed over more than once."""

    def after_first_page(self) -> Cursor:
        """A cursor that gives the second page first."""


class StateIterator(Generic[T]):
    """The elements of a list state, or the entries, keys or values of a map state.

    Its first page is loaded, the others come as it is consumed. It belongs to the record that
    asked for it.
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
        """``shape`` makes of a stored element what the consumer gets, each time anew."""
        self._source = source
        self._first = first
        self._first_is_last = first_is_last
        self._shape = shape

    def is_empty(self) -> bool:
        """True only if the loaded page is empty and nothing more is to come."""
        return not self._first and self._first_is_last

    def on_next(self, fn: Callable[[T], Any]) -> StateFuture[Any]:
        """Call ``fn`` with each element, in order.

        The future ends when the iteration and every future that ``fn`` returned have ended. It
        gives the list of those futures' results in iteration order, ``None`` returns left out;
        ``None`` if there were elements and none of the calls returned a future; ``[]`` if there
        were no elements. A coroutine ``fn`` is driven; any other return value is a `TypeError`.
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
    """One consumption of an iterator by `StateIterator.on_next`."""

    __slots__ = ("_cursor", "_fn", "_futures", "_iterator", "_result", "_saw_elements")

    _cursor: Cursor

    def __init__(self, iterator: StateIterator[T], fn: Callable[[T], Any]) -> None:
        self._iterator = iterator
        self._fn = fn
        self._futures: list[StateFuture[Any]] = []
        self._saw_elements = False

    def start(self) -> StateFuture[Any]:
        iterator = self._iterator
        self._take(iterator._first)
        if iterator._first_is_last:
            return self._outcome()
        self._result: StateFuture[Any] = pending()
        self._cursor = iterator._source.after_first_page()
        self._load()
        return self._result

    def _load(self) -> None:
        """Go on with the next page: in a loop while pages are at hand, then by callback."""
        while True:
            page = self._cursor.next_page()
            if not page._settled():
                page._attach(self._turn)
                return
            elements, last = page._value
            self._take(elements)
            if last:
                self._end()
                return

    def _turn(self, page: tuple[list[Any], bool]) -> None:
        elements, last = page
        self._take(elements)
        if last:
            self._end()
        else:
            self._load()

    def _end(self) -> None:
        self._outcome()._attach(self._result._fulfil)

    def _take(self, elements: list[Any]) -> None:
        fn, shape = self._fn, self._iterator._shape
        for element in elements:
            self._saw_elements = True
            returned = fn(element if shape is None else shape(element))
            if returned is not None:
                self._futures.append(_as_future(returned))

    def _outcome(self) -> StateFuture[Any]:
        if self._futures:
            return combine_all(self._futures)
        return completed_future(None if self._saw_elements else [])


def _as_future(returned: Any) -> StateFuture[Any]:
    if isinstance(returned, StateFuture):
        return returned
    if inspect.iscoroutine(returned):
        return drive(returned)
    message = (
        f"on_next takes a function that returns nothing, a StateFuture or a coroutine; it "
        f"returned {type(returned).__name__} {returned!r:.200}"
    )
    raise TypeError(message)


def drive(coroutine: Coroutine[StateFuture[Any], None, U]) -> StateFuture[U]:
    """Run a coroutine that awaits state futures; the future gives what it returns."""
    result: StateFuture[U] = pending()

    def step(_: object = None) -> None:
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            result._fulfil(stop.value)
            return
        check_awaited(awaited, coroutine)._attach(step)

    step()
    return result


AWAIT_HELP = (
    "a keyed function can await state futures only. Use combine_all([...]) for several states at "
    "once, and ordered_wait (of forebay-spark-runtime) for calls to the outside world"
)


def check_awaited(awaited: object, coroutine: Any) -> StateFuture[Any]:
    """The future that a driven coroutine waits for; a `TypeError` in it for anything else."""
    if isinstance(awaited, StateFuture):
        return awaited
    error = TypeError(f"awaited {awaited!r}: {AWAIT_HELP}")
    with contextlib.suppress(StopIteration):  # a coroutine may swallow the error and end
        coroutine.throw(error)
    raise error


def no_event_loop(error: RuntimeError) -> Exception:
    """``asyncio`` functions fail for want of an event loop: say what to use instead."""
    if current_scheduler() is not None and "event loop" in str(error):
        return TypeError(f"{error}: {AWAIT_HELP}")
    return error
