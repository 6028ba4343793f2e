"""Decide which step of user code runs next.

A record that awaits only results from memory leaves no trace here. Every other record is held as a
`Record` under its key until its function and every future that it made are done; later records of
that key queue behind it (`Admission`). When no step can run, `Progress` sends reads and waits.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from forebay_engine.execution.admission import Admission
from forebay_engine.execution.awaitables import (
    Awaits,
    LoopWait,
    Scope,
    loop_wait,
    raise_unread,
    wrong_loop_error,
)
from forebay_engine.execution.awaited_calls import raise_unawaited
from forebay_engine.execution.cancelling import (
    cancel_all,
    cancel_state_waits,
    close_quietly,
    quietly,
)
from forebay_engine.execution.loop_watch import loop_watch
from forebay_engine.execution.progress import Progress
from forebay_engine.execution.read_requests import (
    ReadExecutor,
    ReadMany,
    ReadRequests,
    Request,
)
from forebay_engine.execution.record import Record
from forebay_engine.execution.record_deadlines import RecordDeadlines, RecordTimeoutError
from forebay_engine.execution.record_steps import RecordSteps
from forebay_engine.execution.request_futures import (
    Answered,
    AnsweredRead,
    Done,
    Ordered,
    OrderedDone,
    ReadPromise,
)
from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_engine.execution.waiting_lines import awaited_by, where_it_waits
from forebay_state_api.errors import FunctionError, StateAccessError
from forebay_state_api.job.asyncio_future import wait_of_task
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.futures import LAST, Promise, StateFuture
from forebay_state_api.job.record_scope import enter_scheduler
from forebay_state_api.metrics.engine import EngineMetrics

FRESH: Final = Done()
"""Used as the last request if every request so far was awaited."""

_ORDERED: Final = Done()
"""Used as the last request if the record numbers its requests."""
_ORDERED._done = False


def _references(future: object) -> int:
    return sys.getrefcount(future)


def _dropped_references() -> int:
    future = object()
    return _references(future)


_DROPPED: Final = _dropped_references()
"""The count of `_references` if the caller's variable is the future's only reference."""


def _references_of_attribute() -> int:
    scope = SimpleNamespace(done=object())
    return sys.getrefcount(scope.done)


_UNSHARED: Final = _references_of_attribute()
"""The count of references to an object that is an attribute, and nothing else."""


class Scheduler:
    """The in-flight records and requests of one subtask.

    All methods but `post` and `is_task_thread` are for the task thread: the one that entered the
    engine last.
    """

    # Slots, because every record reads and writes some of them.
    __slots__ = (
        "admission",
        "awaits",
        "bind_namespace",
        "busy",
        "calling",
        "context",
        "counters",
        "current",
        "deadlines",
        "describe",
        "describe_calls",
        "done",
        "dropped_reads",
        "fails_batch",
        "find_loop",
        "mark",
        "progress",
        "reads",
        "ready",
        "row",
        "rows_out",
        "side",
        "subtask_metrics",
        "tail",
        "task_thread",
    )

    isolates: ClassVar[bool] = False
    """Whether records fail alone; see `IsolatingScheduler`."""

    def __init__(
        self,
        context: RuntimeContext,
        *,
        in_flight_limit: int,
        batch_size: int,
        drain_timeout_s: float,
        calls_in_flight: int | None = None,
        record_timeout_s: float | None = None,
        subtask_metrics: SubtaskMetrics | None = None,
    ) -> None:
        self.context = context
        self.subtask_metrics = subtask_metrics or SubtaskMetrics()
        self.ready: deque[Record] = deque()
        """Records with a step that can run."""
        self.busy: dict[Any, Record] = {}
        self.calling = 0
        """Records that wait for the loop or for children."""
        self.current: Record | None = None
        self.tail: Answered[Any] = FRESH
        """The last request of the running record, while it needs no explicit order: once it is
        done, another request may be answered directly. `_ORDERED` if the record keeps order."""
        self.done = Done()
        """The future of writes while the record needs no explicit order."""
        self.rows_out: list[Any] = []
        """Rows of records that are done, followed by the running record's. Where records fail
        alone, those that are done leave it (`IsolatingScheduler`)."""
        self.mark = 0
        """The position in `rows_out` where the rows of the running record begin."""
        self.row: Any = None
        """The row of the record that a loop runs."""
        self.dropped_reads = 0
        """The number of reads that were neither awaited nor chained."""
        self.side = 0
        """The input from which rows are being taken."""
        self.fails_batch = False
        """Whether records that run now fail the micro-batch, also where others fail alone."""
        self.bind_namespace: Callable[[Any], None]
        """Set by the engine: makes a namespace current."""
        self.describe: Callable[[], str]
        """Set by the engine: function, operator, key, batch and partition, for errors."""
        self.describe_calls: Callable[[], str] = str
        """Set once calls are made: who has the places that calls wait for, for errors."""
        self.counters = EngineMetrics()
        self.deadlines = None if record_timeout_s is None else RecordDeadlines(record_timeout_s)
        self.reads = ReadRequests(batch_size, self.counters, post=self.post, answer=self._answer)
        """The reads that have no answer yet."""
        self.task_thread = threading.get_ident()
        self.progress = Progress(self, drain_timeout_s=drain_timeout_s)
        if self.deadlines is not None:
            self.progress.times.append(self.deadlines)
        self.admission = Admission(
            self, in_flight_limit=in_flight_limit, calls_in_flight=calls_in_flight
        )
        self.awaits: Awaits | None = None
        """The awaitables other than state; ``None`` means records await state only."""
        self.find_loop: Callable[[], bool] = _no_loop
        """Set by the engine: lets records await anything from now on; returns whether they may."""

    def await_anything(self, loop: asyncio.AbstractEventLoop) -> Awaits:
        """Let records await whatever ``loop`` can."""
        self.awaits = Awaits(self, loop)
        loop_watch().add(self.awaits)
        self.progress.wake_by(self.awaits)
        return self.awaits

    # -- records ------------------------------------------------------------------------------

    def current_record(self) -> Record:
        """Return the record whose code is running, and put it on hold if it was not yet."""
        record = self.current
        if record is None:
            key = self.context._key
            if key is NO_KEY:
                raise StateAccessError(
                    "there is no current record: a namespace is set, futures of states are waited "
                    "for, and calls and their keys are made per record, in the record method or in "
                    "callbacks of its futures, not in open() or close()"
                )
            record = self.current = Record(self, key, self.context._group, self.side)
            record.row = self.row
            record.namespace = self.context._namespace
            self.busy[key] = record
            if self.deadlines is not None:
                self.deadlines.add(record)
            in_flight = len(self.busy) + self.admission.blocked
            if in_flight > self.counters.largest_in_flight:  # noqa: PLR1730 - quicker than `max`
                self.counters.largest_in_flight = in_flight
        return record

    def hold(self) -> Record:
        """Return the current record, with one more step to come."""
        record = self.keep_order()
        record.open += 1
        return record

    def leave(self) -> None:
        """Note that the current record's method has returned."""
        record = self._set_aside()
        record.open -= 1
        self._go_on(record)

    def suspend(self, driver: Any) -> None:
        """Note that the current record's method waits inside ``driver``."""
        record = self.current or self.current_record()
        # What `_set_aside` does, without the call.
        self.current = None
        self.tail = FRESH
        if self.context._namespace is not None:
            self.bind_namespace(None)
        record.driver = driver
        if record.stack or record.turns:
            self._go_on(record)
        else:
            self._hold_back(record)

    def _set_aside(self) -> Record:
        record = self.current or self.current_record()
        self.current = None
        self.tail = FRESH
        if self.context._namespace is not None:
            self.bind_namespace(None)
        return record

    def _go_on(self, record: Record) -> None:
        if record.stack or record.turns:
            self._run_steps(record)
        if record.open:
            self._hold_back(record)
        else:
            self._finish(record)

    def _resume(self, record: Record) -> None:
        self.mark = len(self.rows_out)
        self._run_steps(record)
        if record.open:
            self._hold_back(record)
        else:
            self._finish(record)

    def run_ready(self) -> None:
        """Run the records that can go on."""
        context, ready, rows_out = self.context, self.ready, self.rows_out
        before = self.current, self.tail, context._key, context._group
        while ready:
            record = ready.popleft()
            stack = record.stack
            if record.turns or len(stack) != 1:
                if record.turns or stack:
                    self._resume(record)
                continue
            # What `_resume` does for a single step, without the calls.
            self.mark = len(rows_out)
            self.current, self.tail = record, _ORDERED
            context._key, context._group = record.key, record.group
            namespace, callback, value = stack.pop()
            record.open -= 1
            if context._namespace != namespace:
                self.bind_namespace(namespace)
            try:
                callback(value)
            except Exception as error:  # noqa: BLE001 - this runs any user code
                self._fail_step(record, error)
            if stack or record.turns:
                self._run_steps(record)
            elif context._namespace is not None:
                self.bind_namespace(None)
            self.current, self.tail, context._key, context._group = before
            if record.open:
                self._hold_back(record)
            else:
                self._finish(record)

    def _hold_back(self, record: Record) -> None:
        """Keep what an unfinished record emitted with it."""
        rows_out, mark = self.rows_out, self.mark
        if len(rows_out) > mark:
            if record.rows is None:
                record.rows = rows_out[mark:]
            else:
                record.rows += rows_out[mark:]
            del rows_out[mark:]

    def _finish(self, record: Record) -> None:
        """Emit the record's rows, free the key and start the records that waited for it."""
        if record.unread:
            raise_unread(record)
        if record.calls:
            raise_unawaited(record)
        if self.deadlines is not None:
            self.deadlines.remove(record)
        if record.rows:
            self.rows_out[self.mark : self.mark] = record.rows
        # It refers to the record: a cycle would be left to the garbage collector.
        record.driver = None
        del self.busy[record.key]
        if record.waiting:
            self.admission.start_next(record)

    # -- failures -----------------------------------------------------------------------------

    def emit_unchecked(self) -> None:
        """Emit rows of no record, which fail the micro-batch if they do not fit."""

    @property
    def rows_ready(self) -> int:
        """The number of rows that `take_rows` would return."""
        return len(self.rows_out)

    def take_rows(self) -> Sequence[Any]:
        """Return the rows of the records that finished since the last call."""
        rows = self.rows_out.copy()
        self.rows_out.clear()
        return rows

    def fail_record(self, error: Exception) -> None:
        """Handle an error of the record that a loop runs: it fails the micro-batch."""
        raise error

    def _fail_step(self, record: Record, error: Exception) -> None:  # noqa: ARG002 - see `IsolatingScheduler`
        """Handle an error of a step: it fails the micro-batch."""
        raise error

    def _end_cancelled(self, record: Record) -> None:
        """End a cancelled record once it has no pending calls; see `IsolatingScheduler`."""

    def note_failure(self, error: Exception) -> bool:  # noqa: ARG002 - see `IsolatingScheduler`
        """Let the running record fail with ``error``; return whether it can fail alone."""
        return False

    # -- coroutines of callbacks and plain methods --------------------------------------------

    def drive(self, coroutine: Any, result: StateFuture[Any]) -> bool:
        """Run a coroutine of the current record, if it may await anything; return whether."""
        if self.context._key is NO_KEY or (self.awaits is None and not self.find_loop()):
            return False
        assert self.awaits is not None
        RecordSteps(self.awaits, self.hold(), coroutine, result._fulfil).begin()
        return True

    # -- other awaitables ---------------------------------------------------------------------

    def loop_wait(self, awaited: Any) -> LoopWait | None:
        """Return a wait for an object that is not a state future.

        Returns ``None`` if it cannot be awaited. Only records may wait: they end after their waits.
        """
        if self.awaits is None or self.context._key is NO_KEY:
            return None
        self.counters.calls_awaited += 1
        return loop_wait(self.awaits, awaited)

    def wait_for_loop(self, record: Record, future: asyncio.Future[Any]) -> None:
        """Let ``record``, whose code runs, wait for a future of the loop."""
        awaits = self.awaits
        assert awaits is not None
        if future.get_loop() is not awaits.loop:
            raise wrong_loop_error(future)
        tail = self.tail
        if tail is not _ORDERED:
            if tail._done and sys.getrefcount(self.done) == _UNSHARED and record is self.current:
                self.tail = _ORDERED  # nothing is to be put in order
            else:
                self.keep_order()
        # What `hold` and `Awaits.begin_wait` do, without the calls.
        record.open += 1
        awaits.in_flight += 1
        record.loop_waits += 1
        if record.loop_waits == 1:
            self.calling += 1
        self.counters.calls_awaited += 1
        future._asyncio_future_blocking = False

    def loop_wait_ended(
        self, record: Record, namespace: Any, callback: Callable[[Any], object]
    ) -> None:
        """Run the step of a record that waited for such a future."""
        awaits = self.awaits
        assert awaits is not None
        # What `Awaits.end_wait` does, and `go_on_with` for a record of which nothing else waits.
        awaits.in_flight -= 1
        record.loop_waits -= 1
        if not record.loop_waits:
            self.calling -= 1
        if record.failed:
            return
        if record.stack or record.turns or record is self.current:
            self.go_on_with(record, namespace, callback, None)
            return
        record.issued += 1
        record.pushed += 1
        record.completed, record.reached = record.issued, record.pushed
        record.stack.append((namespace, callback, None))
        self.ready.append(record)

    # -- the order of a record ----------------------------------------------------------------

    def answer(self, value: Any, kind: type[Answered[Any]] = Answered) -> StateFuture[Any]:
        """Return a future of a request that memory answered."""
        if self.tail._done:
            self.tail = future = kind()
            future._value = value
            future._done = False
            return future
        return self.answer_in_order(value, kind)

    def answer_in_order(self, value: Any, kind: type[Answered[Any]]) -> StateFuture[Any]:
        """Return such a future, for a record with an unawaited earlier request."""
        record = self.keep_order()
        future = kind()
        future._value = value
        future._done = False
        future._order(record)
        return future

    def write(self) -> StateFuture[None]:
        """Return a future of a write, for a record with an unawaited earlier request."""
        record = self.current
        if self.tail is not _ORDERED or record is None:
            record = self.keep_order()
        if record.completed < record.issued or record.turns or record.stack:
            return self.answer_in_order(None, Answered)
        # As `Done` becomes in order, without the calls.
        future = OrderedDone()
        future._value = None
        future._done = True
        future._record = record
        future._number, future._position = 0, LAST
        return future

    def keep_order(self) -> Record:
        """Make the current record number its requests, beginning with a last one not yet ended."""
        record = self.current
        if self.tail is not _ORDERED or record is None:
            tail, self.tail = self.tail, _ORDERED
            record = record or self.current_record()
            if sys.getrefcount(self.done) > _UNSHARED:
                self.done._order(record)
                self.done = Done()
            if not tail._done and tail is not _ORDERED:
                if isinstance(tail, AnsweredRead) and _references(tail) == _DROPPED:
                    self.dropped_reads += 1
                    tail._done = True
                tail._order(record)
        return record

    def look_at_tail(self) -> None:
        """Count the last request if it was not awaited; called when no record follows."""
        tail, self.tail = self.tail, FRESH
        if not tail._done and isinstance(tail, AnsweredRead) and _references(tail) == _DROPPED:
            self.dropped_reads += 1

    def passes(self, number: int, position: int) -> bool:
        """Return whether an await resumes at once: nothing depends on it or an earlier request."""
        record = self.current
        if record is None:
            return True
        if record.has_completed(number, position):
            number, position = record.completed, LAST
        if record.stack or (record.turns and record.turns[0][:2] <= (number, position)):
            return False
        record.advance_to(number, position)
        return True

    def arrive(
        self, record: Record, namespace: Any, callback: Callable[[Any], object], value: Any
    ) -> None:
        """Schedule a step of ``record`` that waited for a future which other threads complete."""
        if record.failed:
            return
        if record is self.current:
            record.push_arrival(namespace, callback, value)
            return
        if record.stack or record.turns:
            record.push_arrival(namespace, callback, value)
        else:
            record.next_is(namespace, callback, value)
        self.ready.append(record)

    def go_on_with(
        self, record: Record, namespace: Any, callback: Callable[[Any], object], value: Any
    ) -> None:
        """Schedule a step of ``record`` that waited for the loop; pending requests do not delay it.

        So a wait with a time limit ends in time, whatever storage does.
        """
        if record.failed:
            return
        if record.stack or record.turns or record is self.current:
            record.push_next(namespace, callback, value)
        else:
            record.next_is(namespace, callback, value)
        self.ready.append(record)

    def end_early(self, record: Record, namespace: Any) -> None:
        """Cancel a pending step of ``record``, since nothing waits for it any more."""
        self.go_on_with(record, namespace, _nothing, None)
        if self.awaits is not None:
            self.awaits.woke()

    def siblings(self) -> Callable[[], None] | None:
        """Begin concurrent calls, each a step; the caller must call the result between them.

        Awaits in one of them resume after the last of them.
        """
        record = self.current
        if record is None:
            return None
        context = self.context
        namespace = context._namespace
        record.open += 1
        record.stack.append((namespace, _nothing, None))

        def again() -> None:
            if context._namespace != namespace:
                self.bind_namespace(namespace)

        return again

    def complete(self, promise: Promise[Any]) -> None:
        """Run everything that depends on ``promise`` next, in the order of attachment."""
        callbacks, promise._callbacks = promise._callbacks, None
        promise._done = True
        if not callbacks:
            return
        value, current = promise._value, self.current
        if len(callbacks) > 1:
            callbacks.reverse()
        for record, namespace, callback, _ in callbacks:
            if record is current:
                current.stack.append((namespace, callback, value))
            elif record is not None:
                self.arrive(record, namespace, callback, value)

    def combined(
        self, members: Sequence[StateFuture[Any]], kind: type[list[Any] | tuple[Any, ...]]
    ) -> StateFuture[Any] | None:
        """Return a future of all values if they are known; it ends with its last member."""
        record = self.keep_order()
        latest = 0
        for member in members:
            if isinstance(member, Ordered):
                if member._record is not record:
                    return None
                if not record.has_completed(member._number, member._position):
                    latest = max(latest, member._number)
            elif not isinstance(member, Answered) and (
                not isinstance(member, Promise) or member._callbacks is not None
            ):
                return None
        values = []
        for member in members:
            if isinstance(member, Answered | Promise):
                member._use()
            values.append(member._value)
        future: StateFuture[Any] = Ordered()
        future._value = kind(values)
        future._done = False
        future._record = record
        record.pushed += 1
        future._number, future._position = latest, record.pushed if latest else LAST
        return future

    def _run_steps(self, record: Record) -> None:
        """Run the steps of ``record`` until the next one waits for an answer, or none is left."""
        context, stack, turns = self.context, record.stack, record.turns
        before = self.current, self.tail, context._key, context._group
        self.current, self.tail = record, _ORDERED
        context._key, context._group = record.key, record.group
        while True:
            callback: Callable[[Any], object] | None
            if stack:
                namespace, callback, value = stack.pop()
            elif turns:
                number, position, _, namespace, callback, value = turns[0]
                if callback is None and not value._claimed:
                    break
                heapq.heappop(turns)
                record.advance_to(number, position)
            else:
                break
            record.open -= 1
            if callback is None:
                self.complete(value)
                continue
            if context._namespace != namespace:
                self.bind_namespace(namespace)
            try:
                callback(value)
            except Exception as error:  # noqa: BLE001 - this runs any user code
                self._fail_step(record, error)
        if context._namespace is not None:
            self.bind_namespace(None)
        self.current, self.tail, context._key, context._group = before
        if record.ending:
            self._end_cancelled(record)

    # -- reads --------------------------------------------------------------------------------

    def read(
        self,
        owner: object,
        read_many: ReadMany,
        namespace: Any,
        argument: Any,
        arrive: Callable[[Any], Any],
    ) -> StateFuture[Any]:
        """Return a future of ``arrive(answer)``; ``read_many`` answers on some thread.

        Requests of one ``owner`` and namespace are sent in one call; an owner has one
        ``read_many``.
        """
        promise = self.request()
        self.read_for(promise, owner, read_many, namespace, argument, arrive)
        return promise

    def read_for(  # noqa: PLR0917 - a request consists of them
        self,
        promise: Promise[Any],
        owner: object,
        read_many: ReadMany,
        namespace: Any,
        argument: Any,
        arrive: Callable[[Any], Any],
    ) -> None:
        """Answer ``promise`` with ``arrive(answer)``, unless it has been answered by then."""
        self.reads.add(owner, read_many, namespace, Request(promise, argument, arrive))

    def request(self, kind: type[Promise[Any]] = ReadPromise) -> Promise[Any]:
        """Add the next request of the current record, which `give` answers."""
        record = self.keep_order()
        promise = kind(record)
        record.push_request(promise)
        return promise

    def give(self, promise: Promise[Any], value: Any) -> None:
        """Answer a request; it completes when its turn comes."""
        promise._value = value
        promise._claimed = True
        record = promise._record
        turns = record.turns
        if record is not self.current and turns and turns[0][5] is promise:
            self.ready.append(record)

    def read_through(self, reads: ReadExecutor) -> None:
        """Let ``reads`` execute all reads from now on, instead of threads; for tests."""
        self.progress.inbox = reads
        self.reads.execute_in(reads, instead=True)

    def _answer(self, requests: list[Request], answers: Sequence[Any]) -> None:
        context = self.context
        before = self.current, context._key, context._group
        for request, answer in zip(requests, answers, strict=True):
            promise = request.promise
            if not promise._claimed:
                record = self.current = promise._record
                context._key, context._group = record.key, record.group
                self._take_answer(record, request, answer)
        self.current, context._key, context._group = before

    def _take_answer(self, record: Record, request: Request, answer: Any) -> None:  # noqa: ARG002 - see `IsolatingScheduler`
        value = request.arrive(answer)
        self.current = None
        self.give(request.promise, value)

    # -- progress -----------------------------------------------------------------------------

    def is_task_thread(self) -> bool:
        """Return whether the caller runs on the task thread."""
        return threading.get_ident() == self.task_thread

    def enter(self) -> None:
        """Make this thread the task thread."""
        self.task_thread = threading.get_ident()

    def post(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the task thread. Callable from any thread."""
        self.progress.inbox.put(action)

    def end_late(self, record: Record, deadlines: RecordDeadlines) -> None:
        """Handle a record that takes too long: it fails the micro-batch."""
        self.current, self.context._key = record, record.key
        late = RecordTimeoutError(f"it waits for {self.waited_for(record)}")
        raise FunctionError(
            f"{self.describe()} took longer than record_timeout={deadlines.limit_s:g} s: {late}"
        ) from late

    def waited_for(self, record: Record) -> str:
        """Describe, for its error, what a late record waits for, and where."""
        return f"{awaited_by(record)}{where_it_waits(record)}{self.describe_calls()}"

    def run_in_scope(self, scope: Scope, run: Callable[[], object]) -> None:
        """Run what a timer of the loop does for a record."""
        before = enter_scheduler(self)
        try:
            self.step_of_child(scope, run)
        finally:
            enter_scheduler(before)

    def step_of_child(self, child: Scope, run: Callable[..., Any], *arguments: Any) -> Any:
        """Run a step of a record's child, between the steps of records."""
        context, record = self.context, child.record
        key, group, current = context._key, context._group, self.current
        mark, namespace = self.mark, context._namespace
        self.mark = len(self.rows_out)
        self.current, self.tail = record, _ORDERED
        context._key, context._group = record.key, record.group
        if namespace != child.namespace:
            self.bind_namespace(child.namespace)
        try:
            awaited = run(*arguments)
            if isinstance(awaited, StateFuture):
                child.state_wait = awaited = wait_of_task(awaited)
            return awaited
        finally:
            child.namespace = context._namespace
            self._hold_back(record)
            if context._namespace != namespace:
                self.bind_namespace(namespace)
            self.current, self.tail, self.mark = current, FRESH, mark
            context._key, context._group = key, group
            if (record.stack or record.turns) and not record.failed:
                self.ready.append(record)

    # -- the end ------------------------------------------------------------------------------

    def cancel_all(self) -> None:
        """Cancel what is in flight, because the micro-batch has failed."""
        if self.awaits is not None and self.busy:
            self.current = None
            cancel_all(self, self.awaits, self.progress.wait_quietly)

    def run_quietly(self) -> bool:
        """Run what can run of cancelled records; return whether there was anything.

        Their errors come after the one that counts.
        """
        moved = False
        while True:
            if self.ready:
                record = self.ready.popleft()
                if not quietly(self._run_steps, record):
                    self.ready.append(record)  # for its other steps
                    self.current = None
                    cancel_state_waits(record)
            elif (arrival := self.progress.arrived()) is not None:
                quietly(arrival)
            else:
                return moved
            self.current, self.tail = None, FRESH
            moved = True

    def close(self) -> None:
        """Release the threads; results of pending requests are ignored, coroutines are closed."""
        if self.awaits is not None:
            loop_watch().discard(self.awaits)
        self.progress.close()
        self.reads.close()
        for record in self.busy.values():
            for coroutine in (record.driver, *(record.driven or ())):
                if coroutine is not None:
                    close_quietly(coroutine)
        self.busy.clear()


def _no_loop() -> bool:
    """Return false: nothing but state can be awaited."""
    return False


def _nothing(_: object) -> None:
    """Do nothing: the callback keeps its turn among the others."""
