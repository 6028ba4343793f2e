"""Iterators over list and map states, loaded page by page as the consumer goes on.

Grown from FLIP-424's ``StateIterator``. The view is a snapshot: it shows the state as it stood when
the iteration was requested, whatever is put or removed meanwhile, and it can be consumed twice.
"""

from __future__ import annotations

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


class PageSource(Protocol[T]):
    """Where an iterator gets its pages from."""

    def page(self, number: int) -> StateFuture[tuple[list[T], bool]]:
        """Page ``number``, from 0, and whether it is the last one."""


class StateIterator(Generic[T]):
    """The elements of a list state, or the entries, keys or values of a map state."""

    __slots__ = ("_first", "_first_is_last", "_source")

    def __init__(self, source: PageSource[T], first: list[T], *, first_is_last: bool) -> None:
        self._source = source
        self._first = first
        self._first_is_last = first_is_last

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
        for element in self._first:
            yield element
        number, last = 1, self._first_is_last
        while not last:
            elements, last = await self._source.page(number)
            for element in elements:
                yield element
            number += 1


class _Iteration(Generic[T]):
    """One consumption of an iterator by `StateIterator.on_next`."""

    __slots__ = ("_fn", "_futures", "_iterator", "_result", "_saw_elements")

    def __init__(self, iterator: StateIterator[T], fn: Callable[[T], Any]) -> None:
        self._iterator = iterator
        self._fn = fn
        self._futures: list[StateFuture[Any]] = []
        self._saw_elements = False
        self._result: StateFuture[Any] = pending()

    def start(self) -> StateFuture[Any]:
        self._take(self._iterator._first)
        if self._iterator._first_is_last:
            return self._outcome()
        self._load(1)
        return self._result

    def _load(self, number: int) -> None:
        """Go on from page ``number``: in a loop while pages are at hand, then by callback."""
        while True:
            page = self._iterator._source.page(number)
            if not page._settled():
                page._attach(lambda loaded, number=number: self._turn(number, loaded))
                return
            elements, last = page._value
            self._take(elements)
            if last:
                self._end()
                return
            number += 1

    def _turn(self, number: int, page: tuple[list[T], bool]) -> None:
        elements, last = page
        self._take(elements)
        if last:
            self._end()
        else:
            self._load(number + 1)

    def _end(self) -> None:
        self._outcome()._attach(self._result._fulfil)

    def _take(self, elements: list[T]) -> None:
        fn = self._fn
        for element in elements:
            self._saw_elements = True
            returned = fn(element)
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
        f"returned {type(returned).__name__} {returned!r}"
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

    try:
        step()
    except RuntimeError as error:
        raise no_event_loop(error) from error
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
    coroutine.throw(error)
    raise error


def no_event_loop(error: RuntimeError) -> Exception:
    """``asyncio`` functions fail for want of an event loop: say what to use instead."""
    if current_scheduler() is not None and "event loop" in str(error):
        return TypeError(f"{error}: {AWAIT_HELP}")
    return error
