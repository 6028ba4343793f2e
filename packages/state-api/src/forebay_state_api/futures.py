"""Futures of state accesses: chained with ``then_*`` or awaited.

Grown from FLIP-424's ``StateFuture``. A future is used on the task thread of the operator that made
it; its callbacks run there, in the order of registration, with the record's key, namespace and
context restored. A callback attached to a completed future runs at once, in the caller. There is
no error callback and no blocking ``get``: an exception in a callback fails the micro-batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from forebay_state_api.errors import StateAccessError

if TYPE_CHECKING:
    from forebay_state_api._engine.scheduler import Record, Scheduler
    from forebay_state_api.iterators import StateIterator

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")

_SCOPE = threading.local()
"""``_SCOPE.scheduler`` is the engine's scheduler that runs on this thread, if one does."""

_lock: Final = threading.Lock()
"""Guards the futures that another thread may complete; held for a few instructions only."""


def current_scheduler() -> Scheduler | None:
    """The scheduler that runs on this thread now."""
    return getattr(_SCOPE, "scheduler", None)


def enter_scheduler(scheduler: Scheduler | None) -> Scheduler | None:
    """Make ``scheduler`` the one of this thread; give back the one before."""
    before = current_scheduler()
    _SCOPE.scheduler = scheduler
    return before


class StateFuture(Generic[T]):
    """The result of an asynchronous state access, now or later.

    ``StateFuture()`` makes a pending future that `complete` completes, from any thread: inside an
    operator its callbacks then run on the task thread, elsewhere in the completing thread.
    """

    __slots__ = ("_callbacks", "_claimed", "_done", "_scheduler", "_value")

    _value: T
    _callbacks: list[tuple[Record | None, Callable[[T], object]]] | None
    """Registered and not yet run; ``None`` once all have run."""

    def __init__(self) -> None:
        self._done = False
        self._claimed = False
        self._callbacks = []
        self._scheduler = current_scheduler()

    def __repr__(self) -> str:
        return f"<StateFuture {self._value!r}>" if self._done else "<StateFuture pending>"

    # -- completing ---------------------------------------------------------------------------

    def complete(self, value: T) -> None:
        """Complete the future with ``value``; a second time is a `StateAccessError`.

        May be called from any thread. Callbacks of an operator's records run on its task thread,
        after this has returned; all others run here, before it returns.
        """
        with _lock:
            if self._claimed:
                raise _completed_twice()
            self._claimed = True
            scheduler = self._scheduler
        if scheduler is None or scheduler.is_task_thread():
            self._fulfil(value)
        else:
            scheduler.post(partial(self._fulfil, value))

    def _fulfil(self, value: T) -> None:
        """Set the value and have the callbacks run."""
        with _lock:
            self._value = value
            self._done = True
            scheduler = self._scheduler
            if not self._callbacks:
                self._callbacks = None
                return
        if scheduler is None:
            self._deliver_here()
        elif scheduler.is_task_thread():
            scheduler.ready.append(self)
        else:
            # A record began to wait on the task thread while this thread was completing.
            scheduler.post(self._deliver)

    def _deliver(self) -> None:
        """Run the callbacks in order, those that come in meanwhile included; on the task thread.

        What is attached while the last one runs has nobody to wait for, and runs at once.
        """
        callbacks = self._callbacks or []
        value = self._value
        position = 0
        while position < len(callbacks):
            record, callback = callbacks[position]
            position += 1
            if position == len(callbacks):
                self._callbacks = None
            if record is None:
                callback(value)
            else:
                record.scheduler.resume(record, callback, value)

    def _deliver_here(self) -> None:
        """Run the callbacks in the completing thread; those of records go to their task thread."""
        position = 0
        while self._callbacks is not None:
            with _lock:
                record, callback = self._callbacks[position]
                position += 1
                if position == len(self._callbacks):
                    self._callbacks = None
            if record is None:
                callback(self._value)
            else:
                resume = record.scheduler.resume
                record.scheduler.post(partial(resume, record, callback, self._value))

    def _attach(self, callback: Callable[[T], object]) -> None:
        """Run ``callback`` with the value: at once if it is there and nobody waits before it."""
        scheduler = current_scheduler()
        with _lock:
            callbacks = self._callbacks
            if callbacks is not None:
                if scheduler is not None:
                    callbacks.append((scheduler.hold(), callback))
                    self._scheduler = scheduler
                elif self._scheduler is not None:
                    raise _chained_elsewhere()
                else:
                    callbacks.append((None, callback))
                return
        callback(self._value)

    # -- chaining -----------------------------------------------------------------------------

    def then_apply(self, fn: Callable[[T], U]) -> StateFuture[U]:
        """A future of ``fn(result)``."""
        after: StateFuture[U] = pending()
        self._attach(lambda value: after._fulfil(fn(value)))
        return after

    def then_accept(self, fn: Callable[[T], object]) -> StateFuture[None]:
        """A future of ``None``, done after ``fn(result)`` has run."""

        def accept(value: T) -> None:
            fn(value)
            after._fulfil(None)

        after: StateFuture[None] = pending()
        self._attach(accept)
        return after

    def then_compose(self, fn: Callable[[T], StateFuture[U]]) -> StateFuture[U]:
        """A future of what the future returned by ``fn(result)`` gives."""
        after: StateFuture[U] = pending()
        self._attach(lambda value: _composed(fn(value), "then_compose")._attach(after._fulfil))
        return after

    def then_combine(self, other: StateFuture[U], fn: Callable[[T, U], V]) -> StateFuture[V]:
        """A future of ``fn(this result, other result)``, run once both are done."""
        both: StateFuture[list[Any]] = combine_all([self, other])
        return both.then_apply(lambda values: fn(values[0], values[1]))

    def then_conditionally_apply(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], U],
        if_false: Callable[[T], U] | None = None,
    ) -> StateFuture[tuple[bool, U | None]]:
        """A future of ``(condition held, result of the chosen function)``.

        Without ``if_false`` a false condition gives ``(False, None)``.
        """

        def choose(value: T) -> tuple[bool, U | None]:
            if condition(value):
                return True, if_true(value)
            return False, None if if_false is None else if_false(value)

        return self.then_apply(choose)

    def then_conditionally_accept(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], object],
        if_false: Callable[[T], object] | None = None,
    ) -> StateFuture[bool]:
        """A future of whether the condition held, done after the chosen function has run."""
        chosen = self.then_conditionally_apply(condition, if_true, if_false)
        return chosen.then_apply(lambda outcome: outcome[0])

    def then_conditionally_compose(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], StateFuture[U]],
        if_false: Callable[[T], StateFuture[U]] | None = None,
    ) -> StateFuture[tuple[bool, U | None]]:
        """A future of ``(condition held, result of the chosen future)``."""

        def choose(value: T) -> StateFuture[tuple[bool, U | None]]:
            holds = bool(condition(value))
            branch = if_true if holds else if_false
            if branch is None:
                return completed_future((False, None))
            inner = _composed(branch(value), "then_conditionally_compose")
            return inner.then_apply(lambda result: (holds, result))

        return self.then_compose(choose)

    def __await__(self) -> Generator[StateFuture[T], None, T]:
        if self._callbacks is not None:
            yield self
        return self._value

    def _settled(self) -> bool:
        """The value is there and nobody waits for it any more."""
        return self._callbacks is None


class _Completed(StateFuture[T]):
    """A future that was done when it was made: what an access answered from memory gives."""

    __slots__ = ()

    def __init__(self, value: T) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<StateFuture {self._value!r}>"

    def complete(self, value: T) -> None:  # noqa: ARG002 - the signature of the contract
        raise _completed_twice()

    def _attach(self, callback: Callable[[T], object]) -> None:
        callback(self._value)

    def then_apply(self, fn: Callable[[T], U]) -> StateFuture[U]:
        return _Completed(fn(self._value))

    def then_accept(self, fn: Callable[[T], object]) -> StateFuture[None]:
        fn(self._value)
        return DONE

    def then_compose(self, fn: Callable[[T], StateFuture[U]]) -> StateFuture[U]:
        return _composed(fn(self._value), "then_compose")

    def __await__(self) -> Generator[StateFuture[T], None, T]:
        return self._value
        yield  # the unreachable yield makes this a generator function, as awaiting needs

    def _settled(self) -> bool:
        return True


# Nothing but iteration is ever asked of it.
_ENDED: Final[Generator[Any, None, None]] = iter(())  # type: ignore[assignment]


class _Done(_Completed[None]):
    """Awaiting it makes no generator: every asynchronous write of a record comes by here."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return _ENDED


DONE: Final[StateFuture[None]] = _Done(None)
"""The one completed future of ``None``."""


class _Promise(StateFuture[T]):
    """A future that the engine itself completes: no other thread touches it, so no lock does."""

    __slots__ = ()

    def __init__(self, scheduler: Scheduler) -> None:
        self._done = False
        self._callbacks = []
        self._scheduler = scheduler

    def complete(self, value: T) -> None:  # noqa: ARG002 - the signature of the contract
        message = "this StateFuture is completed by the engine; complete only what you have made"
        raise StateAccessError(message)

    def _fulfil(self, value: T) -> None:
        self._value = value
        self._done = True
        if self._callbacks:
            self._scheduler.ready.append(self)  # type: ignore[union-attr] # never None here
        else:
            self._callbacks = None

    def _attach(self, callback: Callable[[T], object]) -> None:
        callbacks = self._callbacks
        if callbacks is None:
            callback(self._value)
            return
        scheduler = current_scheduler()
        if scheduler is None or scheduler is not self._scheduler:
            raise _chained_elsewhere()
        callbacks.append((scheduler.hold(), callback))


def pending() -> StateFuture[Any]:
    """A future that only `StateFuture._fulfil` completes."""
    scheduler = current_scheduler()
    if scheduler is not None:
        return _Promise(scheduler)
    future: StateFuture[Any] = StateFuture()
    future._claimed = True
    return future


def completed_future(value: T) -> StateFuture[T]:
    """A future that is done with ``value``."""
    return _Completed(value)


def completed_void_future() -> StateFuture[None]:
    """A future that is done with ``None``."""
    return DONE


# A tuple is an iterable, too: the overloads overlap, and the first that fits counts.
@overload
def combine_all(  # type: ignore[overload-overlap]
    futures: tuple[StateFuture[T], StateFuture[U]],
) -> StateFuture[tuple[T, U]]: ...
@overload
def combine_all(  # type: ignore[overload-overlap]
    futures: tuple[StateFuture[T], StateFuture[U], StateFuture[V]],
) -> StateFuture[tuple[T, U, V]]: ...
@overload
def combine_all(  # type: ignore[overload-overlap]
    futures: tuple[StateFuture[T], StateFuture[U], StateFuture[V], StateFuture[W]],
) -> StateFuture[tuple[T, U, V, W]]: ...
@overload
def combine_all(  # type: ignore[overload-overlap]
    futures: tuple[StateFuture[T], ...],
) -> StateFuture[tuple[T, ...]]: ...
@overload
def combine_all(  # type: ignore[overload-overlap]
    futures: tuple[StateFuture[Any], ...],
) -> StateFuture[tuple[Any, ...]]: ...
@overload
def combine_all(futures: Iterable[StateFuture[T]]) -> StateFuture[list[T]]: ...
@overload
def combine_all(futures: Iterable[StateFuture[Any]]) -> StateFuture[list[Any]]: ...
def combine_all(futures: Iterable[StateFuture[Any]]) -> StateFuture[Any]:
    """A future of all results, in the order of the arguments; ``[]`` is done at once.

    The results are a tuple if the futures are, whose types a type checker knows one by one, and a
    list otherwise. Raises `ValueError` for a ``None`` among the futures and `TypeError` for
    anything else that is not a `StateFuture`.
    """
    members = list(futures)
    for position, member in enumerate(members):
        if member is None:
            message = f"combine_all: future number {position} is None"
            raise ValueError(message)
        if not isinstance(member, StateFuture):
            message = f"combine_all takes StateFutures; number {position} is {member!r}"
            raise TypeError(message)
    results = _gathered(members)
    return results.then_apply(tuple) if isinstance(futures, tuple) else results


def _gathered(members: list[StateFuture[Any]]) -> StateFuture[list[Any]]:
    results: list[Any] = [None] * len(members)
    after: StateFuture[list[Any]] = pending()
    missing = len(members)

    def collect(position: int, value: Any) -> None:
        nonlocal missing
        results[position] = value
        missing -= 1
        if missing == 0:
            after._fulfil(results)

    for position, member in enumerate(members):
        member._attach(partial(collect, position))
    if not members:
        after._fulfil(results)
    return after


def to_iterable(future: StateFuture[StateIterator[T]]) -> StateFuture[list[T]]:
    """A future of all elements of the iterator that ``future`` gives, every page loaded."""

    def load(iterator: StateIterator[T]) -> StateFuture[list[T]]:
        elements: list[T] = []
        return iterator.on_next(elements.append).then_apply(lambda _: elements)

    return future.then_compose(load)


def _composed(inner: object, method: str) -> StateFuture[Any]:
    if isinstance(inner, StateFuture):
        return inner
    message = (
        f"{method} takes a function that returns a StateFuture; it returned "
        f"{type(inner).__name__} {inner!r}. Use {method.replace('compose', 'apply')} for a plain "
        "result, or completed_void_future() where there is nothing to wait for"
    )
    raise TypeError(message)


def _completed_twice() -> StateAccessError:
    return StateAccessError("this StateFuture is completed already; a future is completed once")


def _chained_elsewhere() -> StateAccessError:
    return StateAccessError(
        "this StateFuture belongs to a record of an operator: chain and await it on the operator's "
        "task thread, within its micro-batch; other threads only complete futures"
    )
