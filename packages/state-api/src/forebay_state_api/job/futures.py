"""Futures of state accesses: chained with ``then_*`` or awaited.

Based on FLIP-424's ``StateFuture``. Inside an operator callbacks are steps of their record: they
run on the task thread, after the step that attached them, in the order of the record's requests
(docs/decisions/0008-the-life-of-a-record.md). Outside an operator a callback runs in the thread
that completes the future, or at once if the future is done. There is no error callback and no
blocking ``get``: an exception in a callback fails the micro-batch.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import (
    Any,
    Final,
    Generic,
    NoReturn,
    TypeVar,
    overload,
)

from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.asyncio_future import AsyncioFuture, attached_by
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.future_errors import (
    chained_elsewhere_error,
    engine_completes_error,
    not_callable_error,
    unstarted_generator_error,
)
from forebay_state_api.job.record_scope import (
    Waiter,
    WaitingRecord,
    current_scheduler,
    scheduler_of_a_record,
)
from forebay_state_api.not_awaited import not_awaited_error

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")

_lock: Final = threading.Lock()
"""Guards futures that another thread may complete; held for a few instructions only."""

_YIELDING: Final = frozenset({AsyncGeneratorType, GeneratorType})

LAST: Final = 1 << 62
"""The position after everything that already depends on a request."""


def _ignore(_: object) -> None:
    """Do nothing, in place of an attached callback."""


_RELEASED: Final = (None, None, _ignore, None)
"""Marks a callback that was withdrawn, or that is being delivered."""


class StateFuture(AsyncioFuture, Generic[T]):
    """The result of an asynchronous state access, available now or later.

    ``StateFuture()`` creates a pending future, which `complete` or `fail` ends, from any thread:
    inside an operator its callbacks then run on the task thread, elsewhere in the completing
    thread.

    A future is not its result: using one in a condition, a comparison, arithmetic, an iteration or
    a text is a `StateAccessError` that says so.
    """

    __slots__ = (
        "_callbacks",
        "_claimed",
        "_done",
        "_error",
        "_number",
        "_position",
        "_record",
        "_scheduler",
        "_value",
        "_view",
    )

    _value: T
    _callbacks: list[tuple[Any, Any, Callable[[T], object], StateFuture[Any] | None]] | None
    """Callbacks not yet run: (`WaitingRecord` or ``None``, namespace, callback, the future that the
    callback completes, or ``None`` for a coroutine to resume). ``None`` once the future is done."""
    _done: bool
    """Whether the value is available, so that later callbacks do not wait for it."""
    _claimed: bool
    """Whether the result is decided, so that the future can no longer be completed."""
    _record: Any
    """The `WaitingRecord` whose request it is; set on futures that the engine makes."""
    _number: int
    _position: int
    """The position of the future in the order of its record; see `Record.has_completed`."""

    def __init__(self) -> None:
        self._done = False
        self._claimed = False
        self._error: BaseException | None = None
        self._callbacks = []
        self._scheduler = current_scheduler()

    def __repr__(self) -> str:
        if not self._done:
            return "<StateFuture pending>"
        return f"<StateFuture {getattr(self, '_value', 'failed')!r}>"

    # -- completing ---------------------------------------------------------------------------

    def complete(self, value: T) -> None:
        """Complete the future with ``value``.

        May be called from any thread. Callbacks of an operator's records run on its task thread,
        after this has returned; all others run in this call. Raises `StateAccessError` for a future
        that has already completed or failed, and for a future that the engine completes.
        """
        self._claim()
        self._value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        """Fail the future with ``error``.

        May be called from any thread. ``await`` raises ``error``. Functions chained to the future
        do not run: in an operator the micro-batch fails, with ``error`` as the cause; elsewhere the
        chained futures fail with it. Raises `StateAccessError` as `complete` does, and `TypeError`
        if ``error`` is not an exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"StateFuture.fail takes an exception, not {error!r:.200}")
        self._claim()
        self._error = error
        self._end()

    def _claim(self) -> None:
        with _lock:
            if self._claimed:
                raise StateAccessError(
                    "this StateFuture is completed already; a future is completed once"
                )
            self._claimed = True

    def _fulfil(self, value: T) -> None:
        """Complete a future that was claimed when it was made."""
        self._value = value
        self._end()

    def _end(self) -> None:
        """Run the callbacks, here or on an operator's task thread."""
        scheduler = self._scheduler
        if scheduler is not None and not scheduler.is_task_thread():
            scheduler.post(self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        """Run the callbacks in order, including those that are attached in the meantime."""
        position = 0
        while self._callbacks is not None:
            with _lock:
                if position == len(self._callbacks):
                    self._callbacks = None
                    self._done = True
                    return
                record, namespace, callback, after = self._callbacks[position]
                self._callbacks[position] = _RELEASED
                position += 1
                if position == len(self._callbacks):
                    self._callbacks = None
                    self._done = True
            if record is None:
                self._run_here(callback, after)
            else:
                scheduler = record.scheduler
                arrive = partial(
                    scheduler.arrive, record, namespace, *self._outcome(callback, after)
                )
                if scheduler.is_task_thread():
                    arrive()
                else:
                    # A record began to wait on the task thread while this thread was completing.
                    scheduler.post(arrive)

    def _outcome(
        self, callback: Callable[[T], object], after: StateFuture[Any] | None
    ) -> tuple[Callable[[Any], object], Any]:
        """Return the function to call for ``callback``, and its argument."""
        call: Callable[[Any], object] = callback
        if self._error is None:
            return call, self._value
        # A coroutine resumes: its ``await`` raises the error.
        return (call, None) if after is None else (_raise, self._error)

    def _run_here(self, callback: Callable[[T], object], after: StateFuture[Any] | None) -> None:
        if self._error is None or after is None:
            callback(getattr(self, "_value", None))  # type: ignore[arg-type] # await raises
        else:
            after._error = self._error
            after._end()

    def _release(self, owner: object) -> None:
        """Forget a method that ``owner`` attached: its record need not wait for this future."""
        with _lock:
            callbacks = getattr(self, "_callbacks", None) or []
            for position, entry in enumerate(callbacks):
                if attached_by(entry[2]) is owner:
                    callbacks[position] = _RELEASED
                    break
            else:
                return
        record, namespace, *_ = entry
        if record is not None:
            record.scheduler.end_early(record, namespace)

    def _attach(
        self, callback: Callable[[T], object], after: StateFuture[Any] | None = None
    ) -> None:
        """Run ``callback`` with the value; ``after`` is the future that it completes, if any."""
        scheduler = current_scheduler()
        with _lock:
            callbacks = self._callbacks
            if callbacks is not None:
                if scheduler is not None:
                    record, namespace = scheduler.hold(), scheduler.context._namespace
                    callbacks.append((record, namespace, callback, after))
                    self._scheduler = scheduler
                elif self._scheduler is not None:
                    raise chained_elsewhere_error()
                else:
                    callbacks.append((None, None, callback, after))
                return
        if scheduler is not None and scheduler.context._key is not NO_KEY:
            record, namespace = scheduler.hold(), scheduler.context._namespace
            scheduler.arrive(record, namespace, *self._outcome(callback, after))
        else:
            self._run_here(callback, after)

    # -- chaining -----------------------------------------------------------------------------

    def then_apply(
        self, fn: Callable[[T], Coroutine[Any, Any, U]] | Callable[[T], U]
    ) -> StateFuture[U]:
        """Return a future of ``fn(result)``; ``fn`` may be an ``async def``."""

        def apply(value: T) -> None:
            _give(after, fn(value))

        if not callable(fn):
            raise not_callable_error(fn)
        after: StateFuture[U] = pending()
        self._attach(apply, after)
        return after

    def then_accept(self, fn: Callable[[T], object]) -> StateFuture[None]:
        """Return a future of ``None`` that completes after ``fn(result)``, which may be async."""

        def accept(value: T) -> None:
            returned = fn(value)
            if returned.__class__ is CoroutineType:
                _give(after, _dropping(returned))
            elif returned.__class__ in _YIELDING:
                raise unstarted_generator_error(returned)
            else:
                after._fulfil(None)

        if not callable(fn):
            raise not_callable_error(fn)
        after: StateFuture[None] = pending()
        self._attach(accept, after)
        return after

    def then_compose(
        self, fn: Callable[[T], StateFuture[U]] | Callable[[T], Coroutine[Any, Any, U]]
    ) -> StateFuture[U]:
        """Return a future of the result of the future or coroutine that ``fn(result)`` returns."""

        def compose(value: T) -> None:
            returned = fn(value)
            if returned.__class__ is CoroutineType:
                _give(after, returned)
            else:
                _composed(returned, "then_compose")._attach(after._fulfil, after)

        if not callable(fn):
            raise not_callable_error(fn)
        after: StateFuture[U] = pending()
        self._attach(compose, after)
        return after

    def then_combine(self, other: StateFuture[U], fn: Callable[[T, U], V]) -> StateFuture[V]:
        """Return a future of ``fn(this result, other result)``, called once both are done."""
        if not isinstance(other, StateFuture):
            raise TypeError(f"then_combine takes a StateFuture, not {other!r:.200}")
        both: StateFuture[list[Any]] = combine_all([self, other])
        return both.then_apply(lambda values: fn(values[0], values[1]))

    def then_conditionally_apply(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], U],
        if_false: Callable[[T], U] | None = None,
    ) -> StateFuture[tuple[bool, U | None]]:
        """Return a future of ``(condition held, result of the chosen function)``.

        Without ``if_false`` a false condition gives ``(False, None)``.
        """

        async def choose(value: T) -> tuple[bool, U | None]:
            holds = await _condition_held(condition(value))
            branch = if_true if holds else if_false
            result: Any = None if branch is None else branch(value)
            return holds, (await result) if result.__class__ is CoroutineType else result

        return self.then_apply(choose)

    def then_conditionally_accept(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], object],
        if_false: Callable[[T], object] | None = None,
    ) -> StateFuture[bool]:
        """Return a future of whether the condition held, done after the chosen function ran."""
        chosen = self.then_conditionally_apply(condition, if_true, if_false)
        return chosen.then_apply(lambda outcome: outcome[0])

    def then_conditionally_compose(
        self,
        condition: Callable[[T], bool],
        if_true: Callable[[T], StateFuture[U]],
        if_false: Callable[[T], StateFuture[U]] | None = None,
    ) -> StateFuture[tuple[bool, U | None]]:
        """Return a future of ``(condition held, result of the chosen future)``."""

        async def choose(value: T) -> tuple[bool, U | None]:
            holds = await _condition_held(condition(value))
            branch = if_true if holds else if_false
            if branch is None:
                return holds, None
            chosen: Any = branch(value)
            if chosen.__class__ is CoroutineType:
                return holds, await chosen
            return holds, await _composed(chosen, "then_conditionally_compose")

        return self.then_apply(choose)

    def __await__(self) -> Generator[Any, None, T]:
        if self._callbacks is not None:
            yield self
        if self._error is not None:
            raise self._error
        return self._value


_NOT_OF_A_FUTURE: Final = (
    "bool str format int float index iter len contains getitem eq ne lt le gt ge neg pos abs add "
    "radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow divmod rdivmod "
    "and rand or ror xor rxor"
)
"""Operations on a result; on its future they raise an error that it was not awaited."""


def _not_awaited(*_: object) -> NoReturn:
    raise not_awaited_error("StateFuture")


for _name in _NOT_OF_A_FUTURE.split():
    # Not in the class, because type checkers would treat a future as an iterable or a number.
    setattr(StateFuture, f"__{_name}__", _not_awaited)


class Promise(StateFuture[T]):
    """A future that the engine completes; no other thread uses it, so it needs no lock."""

    __slots__ = ()

    def __init__(self, record: WaitingRecord) -> None:
        self._done = self._claimed = False
        self._callbacks = []
        self._record = record

    def _claim(self) -> NoReturn:
        raise engine_completes_error()

    def _fulfil(self, value: T) -> None:
        self._value = value
        self._record.scheduler.complete(self)

    def _attach(
        self, callback: Callable[[T], object], after: StateFuture[Any] | None = None
    ) -> None:
        scheduler: Waiter = self._record.scheduler
        if current_scheduler() is not scheduler:
            raise chained_elsewhere_error()
        callbacks = self._callbacks
        record, namespace = scheduler.hold(), scheduler.context._namespace
        if callbacks is not None:
            callbacks.append((record, namespace, callback, after))
        elif record is self._record:
            record.push(0, LAST, namespace, callback, self._value)
        else:
            scheduler.arrive(record, namespace, callback, self._value)

    def _use(self) -> None:
        """Mark that the value is used."""

    def __await__(self) -> Generator[Any, None, T]:
        if self._callbacks is not None or not self._record.scheduler.passes(0, LAST):
            yield self
        return self._value


# The name that users see, also in messages about types.
Promise.__name__ = Promise.__qualname__ = StateFuture.__name__


def pending() -> StateFuture[Any]:
    """Return a future that only `StateFuture._fulfil` completes."""
    scheduler = scheduler_of_a_record()
    if scheduler is not None:
        return Promise(scheduler.current_record())
    future: StateFuture[Any] = StateFuture()
    future._claimed = True
    return future


def completed_future(value: T) -> StateFuture[T]:
    """Return a completed future with the result ``value``."""
    scheduler = scheduler_of_a_record()
    if scheduler is not None:
        answered: StateFuture[T] = scheduler.answer(value)
        return answered
    future: StateFuture[T] = StateFuture()
    future.complete(value)
    return future


def completed_void_future() -> StateFuture[None]:
    """Return a completed future with the result ``None``."""
    return completed_future(None)


# A tuple is also an iterable: the overloads overlap, and the first match counts.
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
    """Return a future of all results, in the order of the arguments; for ``[]`` it is done.

    The results are a tuple if ``futures`` is a tuple, so that a type checker knows each type, and a
    list otherwise. Raises `ValueError` for a ``None`` among the futures and `TypeError` for
    anything else that is not a `StateFuture`.
    """
    if isinstance(futures, StateFuture):
        raise TypeError("combine_all takes a list of StateFutures: combine_all([...])")
    members = list(futures)
    for position, member in enumerate(members):
        if member is None:
            raise ValueError(f"combine_all: future number {position} is None")
        if not isinstance(member, StateFuture):
            raise TypeError(f"combine_all takes StateFutures; number {position} is {member!r}")
    kind = tuple if isinstance(futures, tuple) else list
    scheduler = scheduler_of_a_record()
    if scheduler is not None:
        known: StateFuture[Any] | None = scheduler.combined(members, kind)
        if known is not None:
            return known
    if not members:
        return completed_future(kind())
    results = _gathered(members)
    return results.then_apply(tuple) if kind is tuple else results


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
        member._attach(partial(collect, position), after)
    return after


# -- coroutines -------------------------------------------------------------------------------


def drive(coroutine: Coroutine[Any, Any, U], result: StateFuture[U]) -> None:
    """Run a coroutine; complete ``result`` with its return value.

    A coroutine of a record may await whatever its subtask can; others await state futures.
    """
    scheduler = current_scheduler()
    if scheduler is not None and scheduler.drive(coroutine, result):
        return

    def step(_: object = None) -> None:
        try:
            awaited = next_await(coroutine)
        except StopIteration as stop:
            if driven:
                driven.discard(coroutine)
            result._fulfil(stop.value)
            return
        check_awaited(awaited, coroutine)._attach(step)

    driven: set[Any] | None = None
    if isinstance(result, Promise) and result._record.scheduler.isolates:
        driven = result._record.driven = result._record.driven or set()
        driven.add(coroutine)
    step()


AWAIT_HELP: Final = (
    "records can await state futures and whatever asyncio can, on the loop of their subtask; "
    "process_broadcast_element can await state futures only"
)


def asks_for_a_loop(error: BaseException) -> bool:
    """Return whether code failed because no loop of asyncio's runs."""
    found = isinstance(error, (AttributeError, RuntimeError))
    return found and re.search("event loop|'create_future'", str(error)) is not None


def next_await(coroutine: Coroutine[Any, Any, Any]) -> object:
    """Run a coroutine that can await state futures only, and return what it awaits next.

    Raises `TypeError` where it needs a loop of asyncio's.
    """
    try:
        return coroutine.send(None)
    except (AttributeError, RuntimeError) as error:
        if not asks_for_a_loop(error):
            raise
        raise TypeError(f"{error}: {AWAIT_HELP}") from error


def check_awaited(awaited: object, coroutine: Any) -> StateFuture[Any]:
    """Return the future that a driven coroutine awaits; for others raise `TypeError` in it."""
    if isinstance(awaited, StateFuture):
        return awaited
    scheduler = current_scheduler()
    wait: StateFuture[Any] | None = None if scheduler is None else scheduler.loop_wait(awaited)
    if wait is not None:
        return wait
    error = TypeError(f"awaited {awaited!r}: {AWAIT_HELP}")
    with contextlib.suppress(StopIteration):  # a coroutine may swallow the error and end
        coroutine.throw(error)
    raise error


def _give(after: StateFuture[Any], returned: Any) -> None:
    """Complete ``after`` with a callback's result, or later with its coroutine's result."""
    if returned.__class__ is CoroutineType:
        drive(returned, after)
    else:
        after._fulfil(returned)


async def _condition_held(returned: Any) -> bool:
    """Return whether a condition holds; it may be an ``async def``."""
    return bool(await returned if returned.__class__ is CoroutineType else returned)


async def _dropping(coroutine: Coroutine[Any, Any, Any]) -> None:
    await coroutine


# -- errors -----------------------------------------------------------------------------------


def _composed(inner: object, method: str) -> StateFuture[Any]:
    if isinstance(inner, StateFuture):
        return inner
    raise TypeError(
        f"{method} takes a function that returns a StateFuture or a coroutine; it returned "
        f"{type(inner).__name__} {inner!r}. Use {method.replace('compose', 'apply')} for a plain "
        "result, or completed_void_future() where there is nothing to wait for"
    )


def _raise(error: BaseException) -> NoReturn:
    raise error
