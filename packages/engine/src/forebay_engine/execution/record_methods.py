"""The record methods of a function: what runs the records of each input, and in which form.

A record method is a plain function, a generator, a coroutine or an asynchronous generator; its rows
go to `Engine.rows_out`. `record_loops` has the loop for each form.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from forebay_engine.execution.declared_attributes import (
    check_attributes,
    declared_calls,
    declared_clients,
)
from forebay_engine.execution.generators import only_yields
from forebay_engine.execution.record_loops import (
    ASYNC_GENERATOR,
    COROUTINE,
    GENERATOR,
    ISOLATING_LOOPS,
    MAP,
    ORDINARY_LOOPS,
    PLAIN,
)
from forebay_engine.execution.returned_rows import one_row, only_row
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import ReduceFunction, check_defined
from forebay_state_api.job.functions import (
    FlatMapFunction,
    Function,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    TimedFunction,
)

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import Entries, RecordFunction, RecordHost
    from forebay_state_api.job.context import RuntimeContext

F = TypeVar("F", bound=Function)


@attrs.frozen
class RecordMethod:
    """Runs the records of one input."""

    name: str
    fn: RecordFunction
    form: str
    """A form of `record_loops`."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether ``fn`` returns coroutines or asynchronous generators."""
        return self.form in {COROUTINE, ASYNC_GENERATOR}

    def loop(self, host: RecordHost) -> Callable[[Entries, int], Any]:
        """Return the loop that runs the records of an input in order."""
        loops = ISOLATING_LOOPS if host.scheduler.isolates else ORDINARY_LOOPS
        return functools.partial(loops[self.form], host, self.fn)


class Adapter:
    """Base of Forebay's functions that run a user's function.

    Errors name the user's function, and the operator state belongs to it.
    """

    wrapped: Any
    """The user's function."""
    method: str
    """The record method's name in errors."""


def record_methods(function: Any) -> list[RecordMethod]:
    """Return the record method for each keyed input of ``function``; none of a batch function."""
    check_attributes(function)
    if isinstance(function, Function):
        check_defined(function)
    return _methods_of(function)


def _methods_of(function: Any) -> list[RecordMethod]:
    if isinstance(function, KeyedBatchFunction) and not isinstance(function, _OF_RECORDS):
        return []
    if isinstance(function, KeyedProcessFunction | KeyedBroadcastProcessFunction):
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


_OF_RECORDS = (
    KeyedProcessFunction,
    KeyedCoProcessFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
    FlatMapFunction,
)
"""The classes of functions of one row."""


_BROADCAST: Final = "process_broadcast_element"


def awaits_anything(function: Any) -> bool:
    """Return whether a function declares that it may await more than state.

    It has an asynchronous method, or declares `Calls` or `Clients`. A plain method of another
    function may still return a coroutine.
    """
    if declared_clients(function) is not None or declared_calls(function) is not None:
        return True
    methods = [*record_methods(function), timer_method(function)]
    return any(method is not None and method.is_asynchronous for method in methods)


def broadcast_method(function: Any) -> RecordMethod | None:
    """Return the method for rows of the broadcast input; ``None`` without such an input."""
    if isinstance(function, KeyedBroadcastProcessFunction) or (
        isinstance(function, KeyedBatchFunction) and hasattr(function, _BROADCAST)
    ):
        return _rows_method(_BROADCAST, getattr(function, _BROADCAST))
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
        kinds = TimedFunction, KeyedBatchFunction
        return isinstance(function, kinds) and not isinstance(function, Adapter)
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
        flat_map = staticmethod(fn)  # type: ignore[assignment] # without a frame for each row

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


def form_of(fn: Any) -> str:
    """Return ``plain`` (also for generators), ``coroutine`` or ``async generator``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    called: Any = fn if inspect.isroutine(fn) else type(fn).__call__
    if inspect.iscoroutinefunction(called):
        return COROUTINE
    return ASYNC_GENERATOR if inspect.isasyncgenfunction(called) else PLAIN


def _rows_method(name: str, fn: RecordFunction, users: Any = None) -> RecordMethod:
    """Return the method that runs ``fn``, which calls ``users``, if that is not ``fn`` itself."""
    form = GENERATOR if only_yields(fn if users is None else users) else form_of(fn)
    return RecordMethod(name, fn, form)


def _map_method(name: str, fn: RecordFunction) -> RecordMethod:
    if form_of(fn) is PLAIN:
        return RecordMethod(name, fn, MAP)
    return RecordMethod(name, one_row_in_list(fn), COROUTINE)


def _with_context(fn: Callable[..., Any], *more: Any) -> RecordFunction:
    """Let a function of one row, and of ``more``, be called with row and context; keep its form."""
    form = form_of(fn)
    if form is COROUTINE:

        async def coroutine(row: Any, _: RuntimeContext) -> Any:
            return await fn(row, *more)

        return coroutine
    if form is ASYNC_GENERATOR:

        async def generator(row: Any, _: RuntimeContext) -> Any:
            async for out in fn(row, *more):
                yield out

        return generator
    return lambda row, _: fn(row, *more)


def one_row_in_list(fn: RecordFunction) -> RecordFunction:
    """Return a coroutine that returns the only row of ``fn`` in a list."""
    if form_of(fn) is COROUTINE:

        async def one(row: Any, context: RuntimeContext) -> list[Any]:
            return [one_row(await fn(row, context))]
    else:

        async def one(row: Any, context: RuntimeContext) -> list[Any]:
            return [only_row([out async for out in fn(row, context)])]

    return one
