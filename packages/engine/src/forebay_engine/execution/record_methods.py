"""Run the record methods of a function, in each of their forms.

A record method is a plain function, a generator, a coroutine or an asynchronous generator; its rows
go to `Engine.rows_out`. Every record passes through the loops here. The fast path costs one key
assignment and one call per record; a record that has to wait is handed to the `Scheduler`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from forebay_engine.execution.declared_attributes import (
    check_attributes,
    declared_calls,
    declared_clients,
)
from forebay_engine.execution.generators import only_yields, yielded
from forebay_engine.execution.record_steps import RecordSteps, cancelled
from forebay_engine.execution.scheduler import FRESH
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import ReduceFunction, check_defined
from forebay_state_api.job.functions import (
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    TimedFunction,
)
from forebay_state_api.job.futures import StateFuture, check_awaited, drive, pending

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import RecordHost
    from forebay_state_api.job.context import RuntimeContext

F = TypeVar("F", bound=Function)

RecordFunction = Callable[..., Any]
"""Called with the row and the context."""

Entries = Iterator[tuple[Any, Any, int]]
"""(row, key, key group) of each record."""


@attrs.frozen
class RecordMethod:
    """Runs the records of one input."""

    name: str
    fn: RecordFunction
    runner: Callable[[RecordHost, RecordFunction, Entries, int], None]
    is_asynchronous: bool
    """Whether ``fn`` returns coroutines or asynchronous generators."""

    def run(self, host: RecordHost, entries: Entries, side: int) -> None:
        """Run the records of input ``side``, in order."""
        if self.is_asynchronous and host.scheduler.awaits is None:
            host.scheduler.find_loop()
        host.scheduler.loop_of(self.runner)(host, self.fn, entries, side)


class Adapter:
    """Base of Forebay's functions that run a user's function.

    Errors name the user's, and the operator state is that one's.
    """

    wrapped: Any
    """The user's function."""
    method: str
    """The record method's name in errors."""


def record_methods(function: Any) -> list[RecordMethod]:
    """Return the record method for each keyed input of ``function``."""
    check_attributes(function)
    if isinstance(function, Function):
        check_defined(function)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return [_rows_method("process_element", function.process_element)]
    if isinstance(function, KeyedProcessFunction):
        name = function.method if isinstance(function, Adapter) else "process_element"
        return [_rows_method(name, function.process_element)]
    if isinstance(function, KeyedCoProcessFunction):
        return [
            _rows_method("process_element1", function.process_element1),
            _rows_method("process_element2", function.process_element2),
        ]
    if isinstance(function, FlatMapFunction):
        return [_rows_method("flat_map", _with_context(function.flat_map), function.flat_map)]
    if isinstance(function, MapFunction):
        return [_map_method("map", _with_context(function.map))]
    if callable(function) and not isinstance(function, type):
        return [_rows_method("__call__", function)]
    raise ConfigurationError(
        f"{function!r} is neither callable nor of a subclass of KeyedProcessFunction or another "
        "function class of forebay_state_api"
    )


def awaits_anything(function: Any) -> bool:
    """Return whether a function may await more than state, as is known before its first record.

    It has an asynchronous method, or says that it calls the world. Others may return coroutines.
    """
    if declared_clients(function) is not None or declared_calls(function) is not None:
        return True
    methods = [*record_methods(function), timer_method(function)]
    return any(method is not None and method.is_asynchronous for method in methods)


def broadcast_method(function: Any) -> RecordMethod | None:
    """Return the method for rows of the broadcast input; ``None`` without such an input."""
    if isinstance(function, KeyedBroadcastProcessFunction):
        return _rows_method("process_broadcast_element", function.process_broadcast_element)
    return None


def visit_method(fn: Callable[[Any, Any], Any], state: Any) -> RecordMethod:
    """Return the method that calls ``fn(key, state)``; its rows are keys."""
    return _rows_method("apply_to_keyed_state", _with_context(fn, state), fn)


def timer_method(function: Any) -> RecordMethod | None:
    """Return the method that runs timers; ``None`` for a function without timers."""
    if isinstance(function, TimedFunction) and (
        type(function).on_timer is not TimedFunction.on_timer
    ):
        return _rows_method("on_timer", function.on_timer)
    return None


def takes_context(function: Any) -> bool:
    """Return whether a user's function gets the context, and so ``ctx.timers``, with its rows."""
    if isinstance(function, (Function, ReduceFunction)):
        return isinstance(function, TimedFunction) and not isinstance(function, Adapter)
    return True


def map_callable(fn: Callable[[Any], Any]) -> MapFunction[Any, Any]:
    """Return a function for a plain callable from one row to one row."""

    class PlainMap(MapFunction[Any, Any]):
        def map(self, row: Any) -> Any:
            return fn(row)

    return _named_after(PlainMap, fn)()


def flat_map_callable(fn: Callable[[Any], Any]) -> FlatMapFunction[Any, Any]:
    """Return a function for a plain callable from one row to several rows."""

    class PlainFlatMap(FlatMapFunction[Any, Any]):
        flat_map = staticmethod(fn)  # type: ignore[assignment]

    return _named_after(PlainFlatMap, fn)()


def function_name(function: Any) -> str:
    """Return the name of the user's function for errors."""
    if isinstance(function, Adapter):
        function = function.wrapped
    if isinstance(function, Function):
        return type(function).__qualname__
    return getattr(function, "__qualname__", type(function).__qualname__)


def _named_after(adapter: type[F], fn: Callable[..., Any]) -> type[F]:
    adapter.__name__ = adapter.__qualname__ = function_name(fn)
    return adapter


# -- forms ------------------------------------------------------------------------------------

_PLAIN: Final = "plain"
_GENERATOR: Final = "generator"
_COROUTINE: Final = "coroutine"
_ASYNC_GENERATOR: Final = "async generator"


def form_of(fn: Any) -> str:
    """Return ``plain`` (also for generators), ``coroutine`` or ``async generator``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    called: Any = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.iscoroutinefunction(called):
        return _COROUTINE
    return _ASYNC_GENERATOR if inspect.isasyncgenfunction(called) else _PLAIN


def _rows_method(name: str, fn: RecordFunction, users: Any = None) -> RecordMethod:
    """Return the method that runs ``fn``, which calls ``users``, if that is not ``fn`` itself."""
    form = form_of(fn)
    asynchronous = form is not _PLAIN
    if only_yields(fn if users is None else users):
        form = _GENERATOR
    return RecordMethod(name, fn, _RUNNERS[form], is_asynchronous=asynchronous)


def _map_method(name: str, fn: RecordFunction) -> RecordMethod:
    plain = form_of(fn) is _PLAIN
    return RecordMethod(name, fn, run_map if plain else run_async_map, is_asynchronous=not plain)


def _with_context(fn: Callable[..., Any], *more: Any) -> RecordFunction:
    """Let a function of one row, and of ``more``, be called with row and context; keep its form."""
    form = form_of(fn)
    if form is _COROUTINE:

        async def coroutine(row: Any, _: RuntimeContext) -> Any:
            return await fn(row, *more)

        return coroutine
    if form is _ASYNC_GENERATOR:

        async def generator(row: Any, _: RuntimeContext) -> Any:
            async for out in fn(row, *more):
                yield out

        return generator
    return lambda row, _: fn(row, *more)


# -- plain functions and generators -----------------------------------------------------------


def run_plain(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run plain functions, and generators that may return something."""
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    extend = rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        rows = fn(row, context)
        if rows.__class__ is list:
            extend(rows)
        elif rows is not None:
            give_out(host, rows)
        if busy and scheduler.current is not None:
            scheduler.leave()


def run_generators(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run generators of rows that return nothing."""
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    extend = rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        extend(fn(row, context))
        if busy and scheduler.current is not None:
            scheduler.leave()


def run_map(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run plain functions from one row to one row."""
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    append = rows_out.append
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        result = fn(row, context)
        if result.__class__ is tuple:
            append(result)
        else:
            give_out_one(host, result)
        if busy and scheduler.current is not None:
            scheduler.leave()


# -- coroutines and asynchronous generators ---------------------------------------------------


def run_coroutines(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run coroutines that return rows."""
    run_apart = functools.partial(_run_apart, host, fn, entries, side)
    if host.scheduler.busy and host.scheduler.awaits is not None and run_apart():
        return
    run_drivers(functools.partial(_drive_coroutines, host, fn, entries, side), host, run_apart)


def run_async_generators(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run asynchronous generators of rows."""
    run_drivers(functools.partial(_drive_generators, host, fn, entries, side), host)


def run_drivers(
    drive_records: Callable[[], Coroutine[Any, None, None]],
    host: RecordHost,
    run_apart: Callable[[], bool] | None = None,
) -> None:
    """Run all records.

    One driver coroutine awaits record after record. When a record has to wait, the driver is set
    aside with it, and a new driver continues with the next record. Where records await anything,
    ``run_apart`` runs those that follow, if given, until one ends without having waited.
    """
    while True:
        driver = drive_records()
        try:
            awaited = driver.send(None)
        except StopIteration:  # all records have been run
            return
        except asyncio.CancelledError as error:
            host.scheduler.fail_record(cancelled(error))
            continue
        try:
            _suspend(host, driver, awaited)
        except Exception as error:  # noqa: BLE001 - it awaited what cannot be awaited
            host.scheduler.fail_record(error)
        if run_apart is not None and host.scheduler.awaits is not None and run_apart():
            return


def run_async_map(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> None:
    """Run coroutines from one row to one row, and asynchronous generators of exactly one row."""
    run_coroutines(host, one_row_in_list(fn), entries, side)


def one_row_in_list(fn: RecordFunction) -> RecordFunction:
    """Return a coroutine that returns the only row of ``fn`` in a list."""
    if form_of(fn) is _COROUTINE:

        async def one(row: Any, context: RuntimeContext) -> list[Any]:
            return [_one_row(await fn(row, context))]
    else:

        async def one(row: Any, context: RuntimeContext) -> list[Any]:
            return [_only_row([out async for out in fn(row, context)])]

    return one


def _run_apart(host: RecordHost, fn: RecordFunction, entries: Entries, side: int) -> bool:
    """Run coroutines without a driver, which costs a record that has to wait more than it saves.

    Stops after a record that did not have to wait; returns whether all records have been run.
    """
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    extend = rows_out.extend
    awaits = scheduler.awaits
    assert awaits is not None

    def take(rows: Any) -> None:
        if rows.__class__ is list:
            extend(rows)
        else:
            give_out(host, rows)

    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        coroutine = fn(row, context)
        if coroutine.__class__ is not types.CoroutineType:
            coroutine = _awaiting(coroutine)
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            take(stop.value)
            if busy and scheduler.current is not None:
                scheduler.leave()
            return False
        except asyncio.CancelledError as error:
            raise cancelled(error) from error
        record = scheduler.current or scheduler.current_record()
        record.driver = steps = RecordSteps(awaits, record, coroutine, take)
        steps.wait_for(awaited)
        scheduler.suspend(steps)
    return True


async def _awaiting(awaitable: Any) -> Any:
    """Return what an awaitable returns that is no coroutine of Python's own."""
    return await awaitable


async def _drive_coroutines(
    host: RecordHost, fn: RecordFunction, entries: Entries, side: int
) -> None:
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    extend = rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        rows = await fn(row, context)
        if rows.__class__ is list:
            extend(rows)
        elif rows is not None:
            give_out(host, rows)
        if busy and scheduler.current is not None:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


async def _drive_generators(
    host: RecordHost, fn: RecordFunction, entries: Entries, side: int
) -> None:
    scheduler = host.scheduler
    context = host.context
    busy = scheduler.busy
    rows_out = host.rows_out
    append = rows_out.append
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        scheduler.tail = FRESH
        scheduler.mark = len(rows_out)
        scheduler.row = row
        async for out in fn(row, context):
            append(out)
        if busy and scheduler.current is not None:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


_RUNNERS: Final = {
    _PLAIN: run_plain,
    _GENERATOR: run_generators,
    _COROUTINE: run_coroutines,
    _ASYNC_GENERATOR: run_async_generators,
}
"""Form of a method that returns rows → the loop that runs it."""


def _suspend(host: RecordHost, driver: Coroutine[Any, None, None], awaited: object) -> None:
    """Set the current record aside; its driver resumes when ``awaited`` is done."""
    record = host.scheduler.current_record()
    if host.scheduler.awaits is not None:
        record.driver = steps = RecordSteps(host.scheduler.awaits, record, driver)
        steps.wait_for(awaited)
        host.scheduler.suspend(steps)
        return

    def step(_: object) -> None:
        try:
            awaited = driver.send(None)
        except StopIteration:
            record.open -= 1
            return
        check_awaited(awaited, driver)._attach(step)

    record.driver = driver
    check_awaited(awaited, driver)._attach(step)
    host.scheduler.suspend(driver)


# -- rows -------------------------------------------------------------------------------------


def give_out(host: RecordHost, rows: Any) -> None:
    """Emit a record method's result: rows, or a coroutine or generator of rows."""
    if rows is None:
        return
    if isinstance(rows, StateFuture):
        rows._attach(functools.partial(give_out, host))
    elif isinstance(rows, types.CoroutineType):
        _drive_to(rows, functools.partial(give_out, host))
    elif isinstance(rows, types.GeneratorType):
        host.rows_out.extend(yielded(rows))
    elif inspect.isasyncgen(rows):
        _drive_to(collected(rows), host.rows_out.extend)
    elif isinstance(rows, (tuple, dict, str, bytes)) or not isinstance(rows, Iterable):
        raise TypeError(
            f"the function returned a bare {type(rows).__name__}, {rows!r:.200}: return a list "
            "of rows ([row]), yield the row, or give it to ctx.collect(row)"
        )
    else:
        host.rows_out.extend(rows)


def give_out_one(host: RecordHost, result: Any) -> None:
    """Emit a map function's result: one row, or a coroutine or generator of it."""
    append = host.rows_out.append
    if isinstance(result, StateFuture):
        result._attach(lambda row: append(_one_row(row)))
    elif isinstance(result, types.CoroutineType):
        _drive_to(result, lambda row: append(_one_row(row)))
    elif inspect.isasyncgen(result):
        _drive_to(collected(result), lambda rows: append(_only_row(rows)))
    else:
        append(_one_row(result))


def _drive_to(coroutine: Coroutine[Any, Any, Any], take: Callable[[Any], object]) -> None:
    """Run a coroutine, and pass its result to ``take`` when it is done."""
    result = pending()
    drive(coroutine, result)
    if result._done:
        take(result._value)
    else:
        result._attach(take)


async def collected(rows: Any) -> list[Any]:
    """Return all rows of an asynchronous generator."""
    return [row async for row in rows]


def _one_row(result: Any) -> Any:
    if isinstance(result, types.GeneratorType):
        return _only_row(list(yielded(result)))
    if result is None:
        raise TypeError(
            "a map function returned None; it returns one row (use flat_map for none or many)"
        )
    if isinstance(result, list):
        raise TypeError(
            "a map function returned a list; it returns one row (use flat_map for none or many)"
        )
    return result


def _only_row(rows: list[Any]) -> Any:
    if len(rows) != 1:
        raise TypeError(f"a map function yielded {len(rows)} rows; it yields one (use flat_map)")
    return rows[0]
