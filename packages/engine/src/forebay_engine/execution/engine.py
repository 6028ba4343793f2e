"""Run one function over the keyed rows of one subtask and micro-batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.calls.caller import NoClient
from forebay_engine.execution.access_warnings import AccessWarnings
from forebay_engine.execution.awaitables import loop_of_thread
from forebay_engine.execution.awaited_calls import check_called, note_call
from forebay_engine.execution.broadcast import BroadcastInput, undeclared_state_error
from forebay_engine.execution.declared_attributes import declared_calls
from forebay_engine.execution.declared_state import (
    DeclaredState,
)
from forebay_engine.execution.descriptor_equality import disagreement
from forebay_engine.execution.engine_interface import StateHost
from forebay_engine.execution.guarded_table import guarded
from forebay_engine.execution.kept_calls import KeptCalls
from forebay_engine.execution.record_calls import RecordCalls
from forebay_engine.execution.record_keys import RecordKeys
from forebay_engine.execution.record_methods import (
    awaits_anything,
    broadcast_method,
    function_name,
    record_methods,
    timer_method,
    visit_method,
)
from forebay_engine.execution.scheduler import Scheduler
from forebay_engine.execution.subtask_metrics import SubtaskMetrics, figures_of
from forebay_engine.execution.subtask_states import SubtaskStates
from forebay_engine.execution.task_clients import CallClients, TaskClients
from forebay_engine.execution.task_thread import (
    GuardedContext,
    others_live,
    unwatch,
    watch,
    wrong_thread_error,
)
from forebay_engine.execution.user_code import UserCode
from forebay_engine.isolation.isolating_scheduler import IsolatingScheduler
from forebay_engine.isolation.journaled_timers import JournaledEngineTimers
from forebay_engine.timers.clocks import NoTimers
from forebay_engine.timers.service import EngineTimers
from forebay_engine.timers.watermark import TimerClocks
from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.calls.declared import Calls
from forebay_state_api.contract.migration import says_more
from forebay_state_api.errors import (
    ConfigurationError,
    ForebayError,
    StateAccessError,
)
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.functions import Function, called
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.metrics.phases import Phase, PhaseClock
from forebay_state_api.settings import EngineSettings

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import Entries
    from forebay_engine.execution.late_rows import LateRow
    from forebay_engine.execution.loop_thread import LentLoop
    from forebay_engine.execution.record_methods import RecordMethod
    from forebay_engine.isolation.failed_record import ErrorRows
    from forebay_engine.isolation.journal import Journal
    from forebay_engine.journal.call_journal import CallJournal
    from forebay_engine.operator_state.subtask_state import OperatorState
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import StateBackend, Table, TableSpec
    from forebay_state_api.contract.migration import Lineage
    from forebay_state_api.job.descriptors import StateDescriptor

_log = logging.getLogger(__name__)

SPILL_CELLS: Final = 50_000
"""Number of cells that the engine holds before it hands writes to a backend whose tables are not
resident, and forgets the cells that it read."""

FIRED_AT_ONCE: Final = 8_192
"""Timers that fire before writes may be handed over and rows taken."""


class Engine:
    """Runs one function on one opened backend. Used by one thread, the task thread."""

    by_columns = False
    """Whether point states are read and written for many keys at once."""

    def __init__(
        self,
        function: Any,
        backend: StateBackend,
        context: RuntimeContext,
        *,
        key_codec: ValueCodec,
        now_us: int,
        settings: EngineSettings | None = None,
        operator_state: OperatorState | None = None,
        lineages: Mapping[str, Lineage] | None = None,
        rewrites: bool = False,
        times: TimerClocks | None = None,
        has_event_time: bool = False,
        error_rows: ErrorRows | None = None,
        subtask_metrics: SubtaskMetrics | None = None,
        query: str = "",
        lend_loop: Callable[[], LentLoop] | None = None,
        call_journal: CallJournal | None = None,
    ) -> None:
        """``operator_state`` belongs to ``function``; without it there is only keyed state.

        ``lineages`` are the earlier declarations of the states that the backend has opened; with
        ``rewrites`` it is empty, and their cells are copied into it after `open`. ``times`` are the
        clocks of timers; default: ``now_us`` and no watermark.
        With ``error_rows`` records fail alone; without it a failure fails the micro-batch.
        ``query`` is the query in idempotency keys. ``lend_loop`` lends the loop for coroutines of
        plain methods; without it they have the loop of this thread. ``call_journal`` keeps the
        answers of ``ctx.kept_call``, which is refused without it.
        """
        self.function = function
        self.operator_state = operator_state
        self.backend = backend
        self.context = context
        self.now_us = now_us
        self.settings = settings or EngineSettings()
        self.subtask_metrics = subtask_metrics or SubtaskMetrics()
        self.states = SubtaskStates(context)
        self.scheduler, journal = self._make_scheduler(error_rows)
        self._methods = self._methods_of(function)
        self._timer_side = len(self._methods)
        if (on_timer := self._timer_method_of(function)) is not None:
            self._methods.append(on_timer)
        self._user_code = UserCode(
            function_name(function), context, self.scheduler, self._name_of_side
        )
        self._access_warnings = AccessWarnings(
            self.scheduler,
            uid=context.operator_uid,
            function=function_name(function),
            is_asynchronous=any(method.is_asynchronous for method in self._methods),
        )
        self._host = StateHost(
            context=context,
            scheduler=self.scheduler,
            settings=self.settings,
            backend=backend,
            key_codec=key_codec,
            lineages=lineages or {},
            rewrites=rewrites,
            now_us=now_us,
            subtask_metrics=self.subtask_metrics,
            waits=self._access_warnings.waits,
            fail=self._user_code.fail,
            journal=journal,
            by_columns=self.by_columns,
        )
        self.rows_out = self.scheduler.rows_out
        """The running record's rows, after others that the scheduler has not emitted yet."""
        self.counters = self.scheduler.counters
        self._opened = False
        self._guarded = False
        """Whether states and timers check which thread uses them."""
        self._late_error: BaseException | None = None
        """An error of a record that went on between two calls."""
        self.timers: EngineTimers | None = None
        """Set from `open` on, for a function with timers."""
        self._times = TimerClocks(now_us=now_us) if times is None else times
        self._has_event_time = has_event_time
        self._broadcast = self._broadcast_input()
        self._lend_loop = lend_loop
        self._lent: LentLoop | None = None
        if awaits_anything(function):
            self._await_anything(loop_of_thread())
        self.scheduler.find_loop = self._find_loop
        self.scheduler.admission.loops = [method.loop(self) for method in self._methods]
        self.scheduler.bind_namespace = self.states.bind
        self.scheduler.describe = self._user_code.where
        self._calls: RecordCalls | None = None
        self._call_journal = call_journal
        self._serve(context, query)

    def _serve(self, context: RuntimeContext, query: str) -> None:
        """Let the user's code reach this engine by its context."""
        context._declare = self._declare
        context._set_namespace = self._set_namespace
        keys = RecordKeys(query, self.scheduler, self._name_of_side)
        context._idempotency_key = keys.of_current_record
        context._call = self._call
        context._kept_call = KeptCalls(
            self.scheduler, self._call_journal, self._made, self._user_code.fail
        ).call
        context._broadcast = self._broadcast
        context.collect = self.rows_out.append
        context.timers = NoTimers(  # type: ignore[assignment] # all but its clocks raises an error
            function_name(self.function),
            self._times,
            self.counters,
            uid=context.operator_uid,
            has_event_time=self._has_event_time,
        )

    def _make_scheduler(self, error_rows: ErrorRows | None) -> tuple[Scheduler, Journal | None]:
        """Return the scheduler, and its journal if records fail alone."""
        limits: dict[str, Any] = {
            "in_flight_limit": self.settings.in_flight_limit,
            "batch_size": self.settings.batch_size,
            "drain_timeout_s": self.settings.drain_timeout_s,
            "calls_in_flight": self.settings.calls_in_flight,
            "record_timeout_s": self.settings.record_timeout_s,
            "subtask_metrics": self.subtask_metrics,
        }
        if error_rows is None:
            return Scheduler(self.context, **limits), None
        scheduler = IsolatingScheduler(self.context, **limits, error_rows=error_rows)
        scheduler.method_of = self._name_of_side
        scheduler.forget_requests = self.states.forget_requests
        return scheduler, scheduler.journal

    def _methods_of(self, function: Any) -> list[RecordMethod]:
        """Return the methods of the inputs."""
        return record_methods(function)

    def _timer_method_of(self, function: Any) -> RecordMethod | None:
        return timer_method(function)

    def _name_of_side(self, side: int) -> str:
        return self._methods[side].name

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Call those methods of the function that run before its first record.

        In ``initialize_state`` and ``open`` the function declares its states.
        """
        operator = self.operator_state
        watch(self.guard)
        if len(self._methods) > self._timer_side:
            kind = EngineTimers if self._host.journal is None else JournaledEngineTimers
            self.timers = self.context.timers = kind(
                self._host,
                self._times,
                has_event_time=self._has_event_time,
                declare=self._declare_own,
            )
        self._declaring(is_open=True)
        self._opened = True
        if operator is not None:
            with self._user_code.running(operator.first_phase):
                operator.initialize(self.context)
        with self._user_code.running("open"):
            if isinstance(self.function, Function):
                called(self.function.open, self.context)
        self._declaring(is_open=False)
        if self.rows_out:
            raise StateAccessError(
                f"{function_name(self.function)} emitted {self.rows_out[0]!r:.200} before the "
                "first record: ctx.collect is for record methods, callbacks and on_timer"
            )
        if operator is not None:
            with self._user_code.running("notify_checkpoint_complete"):
                operator.notify()

    def process(
        self, rows: Iterable[Any], keys: Sequence[Any], groups: Sequence[int], side: int = 0
    ) -> None:
        """Admit records in order; records that cannot end yet stay in flight with their requests.

        Timers that were due when the micro-batch began have fired before the first one.
        """
        self._before_rows()
        if self.settings.read_ahead:
            self._read_ahead(keys, groups)
        self.counters.records += len(keys)
        self.scheduler.side = side
        with self._user_code.running(None):
            self._run(self._methods[side], zip(rows, keys, groups, strict=True), side)
            self.scheduler.progress.advance()
        self.context._key = NO_KEY
        self._access_warnings.warn_of_dropped_reads()
        self._spill()

    def _run(self, method: RecordMethod, entries: Entries, side: int) -> None:
        """Run the records of input ``side``, in order."""
        if method.is_asynchronous and self.scheduler.awaits is None:
            self._find_loop()
        self.scheduler.admission.loops[side](entries, side)

    def process_broadcast(self, rows: Iterable[Any]) -> None:
        """Run rows of the broadcast input, each after everything before it is done.

        Timers that were due when the micro-batch began have fired before the first one.
        """
        broadcast = self._broadcast
        if broadcast is None:
            raise StateAccessError(f"{function_name(self.function)} has no broadcast input")
        self._before_rows()
        with self._user_code.running(None):
            self.scheduler.progress.drain()
        self.context._key = NO_KEY
        for row in rows:
            self.counters.records += 1
            with self._user_code.running(broadcast.name):
                broadcast.run(row)
        self.scheduler.emit_unchecked()

    def emit_late(self, rows: Sequence[LateRow]) -> None:
        """Emit rows that describe late ones, between records."""
        self.rows_out.extend(rows)
        self.scheduler.emit_unchecked()

    @contextmanager
    def at_key(self, key: Any, group: int) -> Iterator[None]:
        """Make a key current between records, for synchronous accesses to its state."""
        context = self.context
        with self._user_code.running(None):
            context._key, context._group = key, group
            try:
                yield
            finally:
                context._key = NO_KEY

    def fire_timers(self) -> bool:
        """Fire some due timers, without waiting for all; return whether there may be more."""
        timers = self.timers
        if timers is None or not timers.pending:
            return False
        scheduler = self.scheduler
        before, scheduler.side = scheduler.side, self._timer_side
        with self._user_code.running(None):
            method = self._methods[self._timer_side]
            self._run(method, timers.due(FIRED_AT_ONCE), self._timer_side)
            self.states.bind(None)
            scheduler.progress.advance()
        scheduler.side = before
        self.context._key = NO_KEY
        self._spill()
        return timers.pending

    def drain(self) -> None:
        """Run until every record is done, and every due timer has fired."""
        self._raise_late_error()
        while self.fire_timers():
            pass
        with self._user_code.running(None):
            self.scheduler.progress.drain()
        self.context._key = NO_KEY
        self._access_warnings.warn_of_dropped_reads()
        if self.timers is not None:
            while self.timers.look_again():
                self.fire_timers()

    def end_event_time(self) -> None:
        """Drain, and let all event-time timers be due, which `fire_timers` and `drain` fire."""
        self.drain()
        if self.timers is not None:
            self.timers.end_event_time()

    def hand_over(self) -> None:
        """Pass the writes to the backend, and forget cells that were read and may change.

        The writes under the keys of unfinished records are kept.
        """
        with self._user_code.running(None):
            self.scheduler.progress.settle()
        self.context._key = NO_KEY
        open_keys = self.scheduler.busy
        touched = self.states.hand_over(open_keys)
        if self.timers is not None:
            touched = self.timers.hand_over(open_keys, touched)
        self.counters.keys_touched += touched

    def clean_up(self) -> None:
        """Let the tables remove expired data; called after the last `hand_over`."""
        self.counters.values_expired += self.states.clean_up(self.counters.records, self.now_us)

    def snapshot(self) -> None:
        """Call the function's ``snapshot_state``, after the last record."""
        if self.operator_state is not None:
            self.context.collect = _collect_after_end
            with self._user_code.running("snapshot_state"):
                self.operator_state.snapshot()

    @property
    def rows_ready(self) -> int:
        """The number of rows that `take_rows` would return."""
        return self.scheduler.rows_ready

    def take_rows(self) -> Sequence[Any]:
        """Return the rows of the records that finished since the last call."""
        rows = self.scheduler.take_rows()
        self.counters.rows_out += len(rows)
        return rows

    def finish(self) -> None:
        """Drain and hand all writes over, as a commit requires."""
        self.drain()
        self.hand_over()

    def close(self, *, failed: bool = False) -> None:
        """Call the function's ``close`` and release the threads.

        After a failure an exception of ``close`` is only logged, in favour of the first one.
        """
        self.context._key = NO_KEY
        self.context.collect = _collect_after_end
        self._access_warnings.warn_of_waits()
        self._cancel_all()
        try:
            if self._opened and isinstance(self.function, Function):
                with self._user_code.running("close"):
                    called(self.function.close)
        except ForebayError as error:
            if not failed:
                raise
            _log.warning("after another failure: %s", error)
        finally:
            unwatch(self.guard)
            if self._calls is not None:
                self._calls.close()
            self.scheduler.close()
            self.give_loop_back()

    def _go_on(self) -> None:
        """Run the records that can go on, between two calls of this engine's methods."""
        if not self.scheduler.busy or self._late_error is not None:
            return
        # Meanwhile the task does something else, whose time the clock divides.
        clock, self.subtask_metrics.clock = self.subtask_metrics.clock, PhaseClock()
        try:
            with self._user_code.running(None):
                self.scheduler.progress.advance()
        except BaseException as error:  # noqa: BLE001 - raised by the next call
            self._late_error = error
        finally:
            self.subtask_metrics.clock = clock
        self.context._key = NO_KEY

    def _raise_late_error(self) -> None:
        """Raise the error of a record that failed between two calls."""
        error, self._late_error = self._late_error, None
        if error is not None:
            raise error

    def _cancel_all(self) -> None:
        """Cancel the records that are still in flight, after a failure."""
        if self.scheduler.awaits is None or not self.scheduler.busy:
            return
        with contextlib.suppress(ForebayError), self._user_code.running(None):
            self.scheduler.cancel_all()
        self.context._key = NO_KEY

    @property
    def metrics(self) -> EngineMetrics:
        """Return the engine's current metrics."""
        return attrs.evolve(
            self.counters,
            in_flight=len(self.scheduler.busy),
            waiting_requests=self.scheduler.progress.waiting_requests,
            blocked_keys=self.scheduler.admission.blocked,
            rows_out=self.counters.rows_out + self.rows_ready,
        )

    def descriptions(self) -> dict[str, dict[str, Any]]:
        """Return state name → description, for the declared states and the timers."""
        return {spec.name: spec.description() for spec, _ in self.tables()}

    def generations(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        """Return state name → `TableSpec.generations`, if they add to the description."""
        return {spec.name: spec.generations for spec, _ in self.tables() if says_more(spec)}

    def tables(self) -> list[tuple[TableSpec, Table]]:
        """Return the backend's tables of the declared states and of the timers."""
        tables = [(state.spec, state.table) for state in self.states.values()]
        return tables if self.timers is None else [*tables, *self.timers.tables]

    # -- loops --------------------------------------------------------------------------------

    @property
    def awaits_anything(self) -> bool:
        """Whether records may await anything: from now on the loop's own thread runs them."""
        return self.scheduler.awaits is not None

    def _await_anything(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        if loop is not None:
            self.scheduler.await_anything(loop).go_on = self._go_on
        return loop is not None

    def _find_loop(self) -> bool:
        """Let coroutines of plain methods await anything, from the first one on."""
        if self._lend_loop is None:
            found = self._await_anything(loop_of_thread())
        else:
            self._lent = self._lend_loop()
            found = self._await_anything(self._lent.loop)
            awaits = self.scheduler.awaits
            assert awaits is not None
            awaits.post = self._lent.post
        if found and self.scheduler.awaits is not None:
            self.scheduler.awaits.enter()
        return found

    def give_loop_back(self) -> None:
        """Give a lent loop back: its own thread turns it, and is to run the engine from now on."""
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.give_back()

    # -- calls of external services ----------------------------------------------------------------

    def _call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return a call of the running record, which is made when it is awaited."""
        if not self.scheduler.is_task_thread():
            raise wrong_thread_error()
        check_called(fn)
        record = self.scheduler.current_record()
        call: Any = self._made(fn, args, kwargs)
        call.__qualname__ = "ctx.call"
        note_call(record, call)
        return call

    async def _made(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._calls is None:
            clients = self.context.clients
            self._calls = RecordCalls(
                self.scheduler,
                declared_calls(self.function) or Calls(),
                in_flight=self.settings.calls_in_flight,
                client=CallClients(clients) if isinstance(clients, TaskClients) else NoClient(),
            )
        return await self._calls.call(fn, args, kwargs)

    def call_figures(self) -> dict[str, float]:
        """Return the figures of calls; empty if no call was made or answered."""
        if self._calls is None and self._call_journal is None:
            return {}
        counts = CallMetrics() if self._calls is None else self._calls.counted()
        if self._call_journal is not None:
            self._call_journal.count(counts)
        return figures_of(counts) if counts.tries or counts.answered else {}

    # -- the broadcast input ------------------------------------------------------------------

    def _broadcast_input(self) -> BroadcastInput | None:
        method = broadcast_method(self.function)
        if method is None:
            return None
        if self.operator_state is None:
            raise ConfigurationError("a broadcast input needs operator state")
        return BroadcastInput(self, method, self.operator_state.store, self._visit)

    def _visit(self, descriptor: StateDescriptor, fn: Callable[[Any, Any], Any]) -> None:
        """Run ``fn`` for every key that has a state, as records; nothing else is in flight."""
        visited = self.states.get(getattr(descriptor, "name", ""))
        if visited is None or disagreement(visited.descriptor, descriptor) is not None:
            raise undeclared_state_error(descriptor, self.context.operator_uid)
        scheduler = self.scheduler
        before, scheduler.side = scheduler.side, len(self._methods)
        scheduler.fails_batch = True
        self._methods.append(visit_method(fn, visited.state))
        scheduler.admission.loops.append(self._methods[-1].loop(self))
        try:
            with self._user_code.running(None):
                self._visit_pages(visited, self._methods[-1])
        except ForebayError as error:
            # The micro-batch fails even if the caller catches it.
            self._user_code.failure = error
            raise
        finally:
            self._methods.pop()
            scheduler.admission.loops.pop()
            scheduler.side = before
            scheduler.fails_batch = False

    def _visit_pages(self, visited: DeclaredState, method: RecordMethod) -> None:
        scheduler, side = self.scheduler, self.scheduler.side
        for filled in visited.filled_pages(self._host):
            self._run(method, ((key, key, group) for key, group in filled), side)
            scheduler.progress.drain()
            self.context._key = NO_KEY
            self._access_warnings.warn_of_dropped_reads()
            with guarded(self._user_code.fail, "a write"):
                self._spill()

    # -- states -------------------------------------------------------------------------------

    def _declare(self, descriptor: StateDescriptor) -> Any:
        """Return the state of a descriptor for the function, which may declare it."""
        state = self.states.declared(self._host, descriptor)
        if self._guarded:
            self.guard()
        return state

    def _declare_own(self, descriptor: StateDescriptor) -> Any:
        """Declare a state of the engine's own, at any time."""
        state = self.states.declare_own(self._host, descriptor)
        if self._guarded:
            self.guard()
        return state

    def guard(self) -> None:
        """Make states, timers and ``ctx`` refuse other threads from now on.

        Callable from any thread.
        """
        self._guarded = True
        guarded: Any = GuardedContext(self.context, self.scheduler.is_task_thread)
        for state in tuple(self.states.values()):
            state.state._context = guarded
        context = self.context
        context._set_namespace = guarded.checking(self._set_namespace, "set_current_namespace")
        if context.collect == self.rows_out.append:
            context.collect = guarded.checking(self.rows_out.append, "collect")
        if self.timers is not None:
            self.timers._context = guarded

    def _before_rows(self) -> None:
        """Look for threads of the user's, and fire the timers that are due."""
        self._raise_late_error()
        if not self._guarded and others_live(threading.get_ident()):
            self.guard()
        if self.timers is not None:
            while self.fire_timers():
                pass

    def _declaring(self, *, is_open: bool) -> None:
        self.states.is_open = is_open
        if self.operator_state is not None:
            self.operator_state.store.is_open = is_open

    def _set_namespace(self, namespace: Any) -> None:
        self.scheduler.current_record()
        self.states.bind(canonical_namespace(namespace))

    def _read_ahead(self, keys: Sequence[Any], groups: Sequence[int]) -> None:
        """Fetch the point states of all keys in a few batched reads."""
        if any(state.reads_ahead for state in self.states.values()):
            with self.subtask_metrics.clock.during(Phase.READ_AHEAD):
                cells = self.states.read_ahead(keys, groups, self.settings, self.scheduler.reads)
                self.counters.read_ahead_cells += cells

    def _spill(self) -> None:
        """Hand writes over if too many cells are held in memory."""
        if self._cells_held() > SPILL_CELLS:
            self.hand_over()

    def _cells_held(self) -> int:
        held = 0 if self.timers is None else self.timers.held
        return held + self.states.cells_held()


def _collect_after_end(row: Any) -> None:
    raise StateAccessError(
        f"ctx.collect({row!r:.200}) came after the last record of the micro-batch had ended"
    )
