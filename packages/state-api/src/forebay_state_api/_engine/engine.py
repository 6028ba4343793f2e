"""Drives one function over the keyed rows of one subtask and micro-batch.

The fast path costs one key assignment and one call per record; a record that has to wait is handed
to the `Scheduler`. Whatever the form of the function (plain, generator, coroutine, asynchronous
generator), its rows end up in `Engine.rows_out`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import attrs

from forebay_state_api._engine.declare import DeclaredState, declare
from forebay_state_api._engine.scheduler import Counters, Entry, Scheduler
from forebay_state_api.context import NO_KEY, RuntimeContext
from forebay_state_api.errors import ConfigurationError, ForebayError, FunctionError
from forebay_state_api.functions import (
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
)
from forebay_state_api.futures import enter_scheduler
from forebay_state_api.iterators import check_awaited, drive, no_event_loop

if TYPE_CHECKING:
    from forebay_state_api.backend import StateBackend
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.descriptors import StateDescriptor

SPILL_CELLS: Final = 50_000
"""Cells read or written that the engine holds before it hands writes to a backend whose tables are
not resident, and forgets what it read."""


@attrs.frozen(kw_only=True)
class EngineSettings:
    """The limits of an engine; the settings of the same names in ``spark.forebay.*``."""

    in_flight_limit: int = 6_000
    batch_size: int = 1_000
    page_size: int = 128
    read_ahead: bool = True
    drain_timeout_s: float = 60.0


@attrs.frozen(kw_only=True)
class EngineMetrics:
    """What stands in the engine now, and what it did in this micro-batch."""

    in_flight: int
    waiting_requests: int
    blocked_keys: int
    records: int
    rows_out: int
    requests: int
    request_batches: int
    largest_in_flight: int
    read_ahead_cells: int
    sync_waits: int


class Engine:
    """One function over one opened backend. Used by one thread, the task thread."""

    def __init__(
        self,
        function: Any,
        backend: StateBackend,
        context: RuntimeContext,
        *,
        key_codec: ValueCodec,
        now_us: int,
        settings: EngineSettings | None = None,
    ) -> None:
        self.function = function
        self.backend = backend
        self.context = context
        self.key_codec = key_codec
        self.now_us = now_us
        self.settings = settings or EngineSettings()
        self.scheduler = Scheduler(
            context,
            in_flight_limit=self.settings.in_flight_limit,
            batch_size=self.settings.batch_size,
            drain_timeout_s=self.settings.drain_timeout_s,
        )
        self.rows_out: list[Any] = []
        """Rows given out and not yet taken by `take_rows`."""
        self.states: dict[str, DeclaredState] = {}
        self.records = 0
        self.sync_waits = 0
        self._rows_taken = 0
        self._read_ahead_cells = 0
        self._opening = False
        self._opened = False
        self._calls = record_methods(function)
        self._scheduler_before = enter_scheduler(self.scheduler)
        self.scheduler.start = self._start
        self.scheduler.bind_namespace = self._bind_namespace
        context._declare = self._declare
        context._set_namespace = self._set_namespace
        context.collect = self.rows_out.append

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Call the function's ``open``, in which it declares its states."""
        self._opening = True
        self._opened = True
        with self._blamed("open"):
            if isinstance(self.function, Function):
                self.function.open(self.context)
        self._opening = False

    def process(
        self, rows: Iterable[Any], keys: Sequence[Any], groups: Sequence[int], side: int = 0
    ) -> None:
        """Admit records in order; what cannot end yet stays in flight."""
        if self.settings.read_ahead:
            self._read_ahead(keys, groups)
        self.records += len(keys)
        with self._blamed(self._calls[side].name):
            self._calls[side].run(self, zip(rows, keys, groups, strict=True), side)
        self.context._key = NO_KEY
        if self._cells_held() > SPILL_CELLS:
            self.hand_over()

    def drain(self) -> None:
        """Until every record has ended."""
        with self._blamed(self._calls[0].name):
            self.scheduler.send()
            self.scheduler.drain()
        self.context._key = NO_KEY

    def hand_over(self) -> None:
        """Give the writes to the backend; what was read is forgotten where it may change."""
        with self._blamed(self._calls[0].name):
            self.scheduler.run_until(lambda: not self.scheduler.waiting_requests)
        for state in self.states.values():
            state.hand_over()

    def take_rows(self) -> list[Any]:
        """The rows given out since the last call."""
        rows = self.rows_out.copy()
        self.rows_out.clear()
        self._rows_taken += len(rows)
        return rows

    def finish(self) -> None:
        """Drain and hand all writes over: what a commit needs before it."""
        self.drain()
        self.hand_over()

    def close(self, *, failed: bool = False) -> None:
        """Call the function's ``close`` and let go of the threads.

        After a failure an exception of ``close`` is dropped in favour of the first one.
        """
        self.context._key = NO_KEY
        try:
            if self._opened and isinstance(self.function, Function):
                with self._blamed("close"):
                    self.function.close()
        except ForebayError:
            if not failed:
                raise
        finally:
            self.scheduler.close()
            enter_scheduler(self._scheduler_before)

    @property
    def metrics(self) -> EngineMetrics:
        """A reading of the engine."""
        counters: Counters = self.scheduler.counters
        return EngineMetrics(
            in_flight=len(self.scheduler.busy),
            waiting_requests=self.scheduler.waiting_requests,
            blocked_keys=self.scheduler.blocked,
            records=self.records,
            rows_out=self._rows_taken + len(self.rows_out),
            requests=counters.requests,
            request_batches=counters.batches,
            largest_in_flight=counters.largest_in_flight,
            read_ahead_cells=self._read_ahead_cells,
            sync_waits=self.sync_waits,
        )

    def descriptions(self) -> dict[str, dict[str, Any]]:
        """State name → description, of the declared states."""
        return {name: state.spec.description() for name, state in self.states.items()}

    # -- states -------------------------------------------------------------------------------

    def _declare(self, descriptor: StateDescriptor) -> Any:
        known = self.states.get(descriptor.name)
        if known is not None:
            if known.descriptor.identity() == descriptor.identity():
                return known.state
            message = (
                f"operator {self.context.operator_uid!r}: two descriptors disagree under the name "
                f"{descriptor.name!r}: {known.descriptor!r} and {descriptor!r}; give one of the "
                "states another name"
            )
            raise ConfigurationError(message)
        if not self._opening:
            message = f"declare state {descriptor.name!r} in open(), before the first record"
            raise ConfigurationError(message)
        self.states[descriptor.name] = declared = declare(self, descriptor)
        return declared.state

    def _set_namespace(self, namespace: Any) -> None:
        if self.context._key is NO_KEY:
            hash(NO_KEY)
        self.scheduler.current_record()
        self._bind_namespace(namespace)

    def _bind_namespace(self, namespace: Any) -> None:
        self.context._namespace = namespace
        for state in self.states.values():
            state.state.bind(namespace)

    def _read_ahead(self, keys: Sequence[Any], groups: Sequence[int]) -> None:
        """Fetch the point states of all keys in a few batched reads."""
        states = [state for state in self.states.values() if state.reads_ahead]
        if not states or self.scheduler.waiting_requests:
            return
        wanted = dict(zip(keys, groups, strict=True))
        for state in states:
            self._read_ahead_cells += state.read_ahead(
                wanted, self.settings.batch_size, self.scheduler.executor()
            )

    def _cells_held(self) -> int:
        return sum(state.cells_held() for state in self.states.values())

    # -- records ------------------------------------------------------------------------------

    def _start(self, entry: Entry) -> None:
        """Run a record that had to wait for its key."""
        row, key, group, side = entry
        self._calls[side].run(self, iter(((row, key, group),)), side)

    def run_plain(self, fn: Callable[..., Any], entries: Iterator[Any], side: int) -> None:
        """Plain functions and generators."""
        scheduler = self.scheduler
        context = self.context
        busy = scheduler.busy
        extend = self.rows_out.extend
        for row, key, group in entries:
            if busy and scheduler.must_wait(row, key, group, side):
                continue
            context._key = key
            context._group = group
            rows = fn(row, context)
            if rows is not None:
                if rows.__class__ is list or rows.__class__ is types.GeneratorType:
                    extend(rows)
                else:
                    self._give_out(rows)
            if busy and scheduler.current is not None:
                scheduler.leave()

    def run_map(self, fn: Callable[..., Any], entries: Iterator[Any], side: int) -> None:
        """Plain functions of one row in, one row out."""
        scheduler = self.scheduler
        context = self.context
        busy = scheduler.busy
        append = self.rows_out.append
        for row, key, group in entries:
            if busy and scheduler.must_wait(row, key, group, side):
                continue
            context._key = key
            context._group = group
            result = fn(row, context)
            if isinstance(result, types.CoroutineType):
                drive(result).then_apply(_one_row).then_accept(append)
            else:
                append(_one_row(result))
            if busy and scheduler.current is not None:
                scheduler.leave()

    def run_async(self, fn: Callable[..., Any], entries: Iterator[Any], side: int) -> None:
        """Coroutines and asynchronous generators.

        One driver coroutine awaits record after record; when one has to wait, the driver is set
        aside with it and a new one goes on with the next record.
        """
        drive_records = _DRIVERS[_form(fn)]
        while True:
            driver = drive_records(self, fn, entries, side)
            try:
                awaited = driver.send(None)
            except StopIteration:
                return
            self._suspend(driver, awaited)

    def run_async_map(self, fn: Callable[..., Any], entries: Iterator[Any], side: int) -> None:
        """Coroutines of one row in, one row out."""

        async def one(row: Any, context: RuntimeContext) -> list[Any]:
            return [_one_row(await fn(row, context))]

        self.run_async(one, entries, side)

    def _suspend(self, driver: Coroutine[Any, None, None], awaited: object) -> None:
        record = self.scheduler.current_record()

        def step(_: object) -> None:
            try:
                awaited = driver.send(None)
            except StopIteration:
                record.open -= 1
                return
            check_awaited(awaited, driver)._attach(step)

        record.driver = driver
        check_awaited(awaited, driver)._attach(step)
        self.scheduler.suspend(driver)

    def _give_out(self, rows: Any) -> None:
        """What a record method returned, neither ``None`` nor a list nor a generator."""
        if isinstance(rows, types.CoroutineType):
            drive(rows).then_accept(self._give_out_all)
        elif inspect.isasyncgen(rows):
            drive(_collected(rows)).then_accept(self.rows_out.extend)
        elif isinstance(rows, (tuple, dict, str, bytes)) or not isinstance(rows, Iterable):
            message = (
                f"the function returned a bare {type(rows).__name__}, {rows!r:.200}: return a list "
                "of rows ([row]), yield the row, or give it to ctx.collect(row)"
            )
            raise TypeError(message)
        else:
            self.rows_out.extend(rows)

    def _give_out_all(self, rows: Any) -> None:
        if rows is not None:
            self._give_out(rows)

    # -- blame --------------------------------------------------------------------------------

    def _blamed(self, method: str) -> _Blamed:
        return _Blamed(self, method)

    def blame(self, method: str, error: BaseException) -> NoReturn:
        """Raise the error of user code with the place it came from."""
        context = self.context
        key = "" if context._key is NO_KEY else f", key {context._key!r:.200}"
        where = (
            f"{function_name(self.function)}.{method} (operator {context.operator_uid!r}{key}, "
            f"batch {context.batch_id}, partition {context.subtask_index})"
        )
        if isinstance(error, RuntimeError):
            explained = no_event_loop(error)
            if explained is not error:
                explained.__cause__ = error
                error = explained
        message = f"{where} raised {type(error).__name__}: {error}"
        raise FunctionError(message) from error


class _Blamed:
    """Turns exceptions of user code into `FunctionError`; a plain class, as it is entered often."""

    __slots__ = ("_engine", "_method")

    def __init__(self, engine: Engine, method: str) -> None:
        self._engine = engine
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ForebayError):
            self._engine.blame(self._method, error)


async def _drive_coroutines(
    engine: Engine, fn: Callable[..., Any], entries: Iterator[Any], side: int
) -> None:
    scheduler = engine.scheduler
    context = engine.context
    busy = scheduler.busy
    extend = engine.rows_out.extend
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        rows = await fn(row, context)
        if rows is not None:
            if rows.__class__ is list:
                extend(rows)
            else:
                engine._give_out(rows)
        if busy and scheduler.current is not None:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


async def _drive_generators(
    engine: Engine, fn: Callable[..., Any], entries: Iterator[Any], side: int
) -> None:
    scheduler = engine.scheduler
    context = engine.context
    busy = scheduler.busy
    append = engine.rows_out.append
    for row, key, group in entries:
        if busy and scheduler.must_wait(row, key, group, side):
            continue
        context._key = key
        context._group = group
        async for out in fn(row, context):
            append(out)
        if busy and scheduler.current is not None:
            if scheduler.current.driver is not None:
                return
            scheduler.leave()


_DRIVERS: Final = {"coroutine": _drive_coroutines, "async generator": _drive_generators}


async def _collected(rows: Any) -> list[Any]:
    return [row async for row in rows]


def _one_row(result: Any) -> Any:
    if result is None:
        message = "a map function returned None; it returns one row (use flat_map for none or many)"
        raise TypeError(message)
    if isinstance(result, (list, types.GeneratorType)):
        message = f"a map function returned a {type(result).__name__}; it returns one row"
        raise TypeError(message)
    return result


@attrs.frozen
class _RecordMethod:
    """How the records of one input are run."""

    name: str
    run: Callable[[Engine, Iterator[Any], int], None]


def record_methods(function: Any) -> list[_RecordMethod]:
    """How the records of each input of ``function`` are run.

    Raises `ConfigurationError` for what is not a function.
    """
    if isinstance(function, KeyedProcessFunction):
        return [_rows_method("process_element", function.process_element)]
    if isinstance(function, KeyedCoProcessFunction):
        return [
            _rows_method("process_element1", function.process_element1),
            _rows_method("process_element2", function.process_element2),
        ]
    if isinstance(function, FlatMapFunction):
        return [_rows_method("flat_map", _with_context(function.flat_map))]
    if isinstance(function, MapFunction):
        return [_map_method("map", _with_context(function.map))]
    if callable(function):
        return [_rows_method("__call__", function)]
    message = f"{function!r} is neither a function class of forebay_state_api nor callable"
    raise ConfigurationError(message)


def map_callable(fn: Callable[[Any], Any]) -> MapFunction[Any, Any]:
    """A plain callable of one row in, one row out, as a function class."""

    class PlainMap(MapFunction[Any, Any]):
        map = staticmethod(fn)

    PlainMap.__name__ = PlainMap.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    return PlainMap()


def flat_map_callable(fn: Callable[[Any], Any]) -> FlatMapFunction[Any, Any]:
    """A plain callable of one row in, rows out, as a function class."""

    class PlainFlatMap(FlatMapFunction[Any, Any]):
        flat_map = staticmethod(fn)

    PlainFlatMap.__name__ = PlainFlatMap.__qualname__ = getattr(fn, "__name__", type(fn).__name__)
    return PlainFlatMap()


def _rows_method(name: str, fn: Callable[..., Any]) -> _RecordMethod:
    runner = Engine.run_plain if _form(fn) == "plain" else Engine.run_async
    return _RecordMethod(name, lambda engine, entries, side: runner(engine, fn, entries, side))


def _map_method(name: str, fn: Callable[..., Any]) -> _RecordMethod:
    form = _form(fn)
    if form == "async generator":
        message = "a map function gives one row; use flat_map for an asynchronous generator"
        raise ConfigurationError(message)
    runner = Engine.run_map if form == "plain" else Engine.run_async_map
    return _RecordMethod(name, lambda engine, entries, side: runner(engine, fn, entries, side))


def _with_context(fn: Callable[[Any], Any]) -> Callable[[Any, RuntimeContext], Any]:
    """Let a function of one row be called with the context too, keeping its form."""
    form = _form(fn)
    if form == "coroutine":

        async def coroutine(row: Any, _: RuntimeContext) -> Any:
            return await fn(row)

        return coroutine
    if form == "async generator":

        async def generator(row: Any, _: RuntimeContext) -> Any:
            async for out in fn(row):
                yield out

        return generator
    return lambda row, _: fn(row)


def _form(fn: Any) -> str:
    """``coroutine``, ``async generator`` or ``plain``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    candidates = (fn, getattr(type(fn), "__call__", None))
    if any(inspect.iscoroutinefunction(one) for one in candidates):
        return "coroutine"
    if any(inspect.isasyncgenfunction(one) for one in candidates):
        return "async generator"
    return "plain"


def function_name(function: Any) -> str:
    if isinstance(function, Function):
        return type(function).__qualname__
    return getattr(function, "__qualname__", type(function).__qualname__)
