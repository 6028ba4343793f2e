"""The awaitables other than state that the records of one subtask await.

The engine steps user code itself, outside ``run_forever``. While it does, the loop counts as
running and a `RecordTask` as the current task, so asyncio's own tools work in a record's first step
as in every other. The loop turns where the engine would wait, and now and then between records
(docs/decisions/0022-awaiting-anything.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import sys
import threading
import time
from asyncio import tasks
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from forebay_engine.execution.closing_coroutines import close_coroutine
from forebay_engine.execution.record_task import RecordTask
from forebay_engine.execution.wait_limit import WaitLimit
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.record_scope import current_scheduler, enter_scheduler
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.threads import new_loop

if TYPE_CHECKING:
    from forebay_engine.execution.record import Record
    from forebay_state_api.job.context import RuntimeContext

_log = logging.getLogger(__name__)

_LOOPS: Final = threading.local()

TURN_EVERY_S: Final = 0.001
"""Seconds for which records are admitted between turns of the loop."""


class Steps(Protocol):
    """The engine's scheduler, which runs the steps of records."""

    current: Record | None
    ready: deque[Record]
    busy: dict[Any, Record]
    counters: EngineMetrics
    calling: int

    @property
    def context(self) -> RuntimeContext:
        """The current key and namespace."""

    def current_record(self) -> Record:
        """Return the record whose code runs and put it on hold."""

    def hold(self) -> Record:
        """Return the current record, with one more step to come."""

    def go_on_with(
        self, record: Any, namespace: Any, callback: Callable[[Any], object], value: Any
    ) -> None:
        """Run a step of ``record`` that waited for the loop."""

    def wait_for_loop(self, record: Record, future: asyncio.Future[Any]) -> None:
        """Let the running record wait for a future of the loop."""

    def loop_wait_ended(
        self, record: Record, namespace: Any, callback: Callable[[Any], object]
    ) -> None:
        """Run the step of a record that waited for such a future."""


def loop_of_thread() -> asyncio.AbstractEventLoop | None:
    """Return this thread's loop for records; ``None`` where another loop is running."""
    if asyncio._get_running_loop() is not None:
        return None
    loop: asyncio.AbstractEventLoop | None = getattr(_LOOPS, "loop", None)
    if loop is None or loop.is_closed():
        loop = _LOOPS.loop = new_loop()
        loop.set_task_factory(_new_task)
    return loop


@contextlib.contextmanager
def records_on(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let records on this thread run on ``loop`` meanwhile."""
    before: asyncio.AbstractEventLoop | None = getattr(_LOOPS, "loop", None)
    loop.set_task_factory(_new_task)
    _LOOPS.loop = loop
    try:
        yield
    finally:
        _LOOPS.loop = before


def serve_loop(post: Callable[[Callable[[], object]], None]) -> None:
    """Let records on this thread's loop go on by ``post``, while their engine does nothing."""
    _LOOPS.post = post


class Scope(Protocol):
    """The scope of code that a record's code has started: a child, or a second try of a call."""

    record: Record
    namespace: Any
    state_wait: Any
    """The last future of asyncio's that it awaited for a state future."""


class WakingInbox(queue.SimpleQueue[Callable[[], object]]):
    """Actions for the task thread; each stops a loop in which that thread waits."""

    awaits: Awaits | None = None
    """The awaitables that the thread waits for; ``None`` if it never waits in a loop."""

    def put(self, item: Callable[[], object], *_: Any) -> None:
        super().put(item)
        awaits = self.awaits
        if awaits is not None and awaits.turning:
            awaits.loop.call_soon_threadsafe(awaits.loop.stop)


class Awaits:
    """The loop of one subtask, and the calls in flight on it."""

    def __init__(self, scheduler: Steps, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.scheduler = scheduler
        self.in_flight = 0
        """Futures that records wait for, children of records, and generators being closed."""
        self.turning = False
        """Whether the engine lets the loop turn."""
        self.has_stopped = False
        """Whether the loop stops after this turn, because a record can go on."""
        self.go_on: Callable[[], object] | None = None
        """Runs the records that can go on, as a job of a thread whose loop always turns."""
        self.post: Callable[[Callable[[], object]], None] | None = getattr(_LOOPS, "post", None)
        """Runs a job on the thread that always turns the loop, if there is one."""
        self.must_stop_at: float | None = None
        """The time of `time.monotonic` at which `LoopWatch` stops the loop, whatever runs on it."""
        self._posted = False
        self._entered: RecordTask | None = None
        self.spare = RecordTask(loop, self._running_record)
        """The task of all records that have not asked for theirs."""
        # More references are `_entered`, asyncio's and the caller's.
        self.unkept = sys.getrefcount(self.spare) + 3
        """The references to an entered spare in a caller's variable, if no record has kept it."""
        self._hooks: Any = None
        self.thread = threading.get_ident()
        """The thread that runs the engine, or ran it last."""
        # uvloop's own time stands still between turns.
        self._now = loop.time if isinstance(loop, asyncio.BaseEventLoop) else time.monotonic
        self._limit = WaitLimit(loop, self._now)
        self._turned = self._now()
        self.wake_context = contextvars.Context()
        """The context in which the ends of waits are noted; no user code runs in it."""

    # -- user code ----------------------------------------------------------------------------

    def enter(self) -> bool:
        """Let the loop count as running; return false if it does already."""
        if self._entered is not None:
            return False
        self.thread = threading.get_ident()
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self.finalize)
        self._begin(self.spare)
        return True

    def leave(self) -> None:
        """End what `enter` began; does nothing if that was not called."""
        if self._entered is None:
            return
        self._limit.close()
        self._end()
        sys.set_asyncgen_hooks(*self._hooks)

    def _begin(self, task: RecordTask) -> None:
        asyncio._set_running_loop(self.loop)
        tasks._enter_task(self.loop, task)  # type: ignore[arg-type] # asyncio takes any object
        self._entered = task

    def _end(self) -> None:
        tasks._leave_task(self.loop, self._entered)  # type: ignore[arg-type] # any object
        self._entered = None
        asyncio._set_running_loop(None)

    def step_as(self, task: RecordTask | None) -> RecordTask | None:
        """Make ``task``, by default the spare one, the current task; return the previous one."""
        before, entered = self._entered, self.spare if task is None else task
        if before is None:
            self._begin(entered)
        else:
            tasks._leave_task(self.loop, before)  # type: ignore[arg-type] # as in `_begin`
            tasks._enter_task(self.loop, entered)  # type: ignore[arg-type] # as in `_begin`
            self._entered = entered
        return None if before is self.spare else before

    def spare_is_free(self) -> bool:
        """Return whether code may run as the spare task.

        It is current, and no code holds a reference to it.
        """
        spare = self.spare
        kept = sys.getrefcount(spare) > self.unkept
        return self._entered is spare and not kept and spare.cancelled_record is None

    def take_spare(self) -> RecordTask | None:
        """Return the spare task if the running record kept or cancelled it; make another one."""
        spare = self.spare
        if spare.cancelled_record is not None:
            spare.forget_ended(self.scheduler.current)
        kept = sys.getrefcount(spare) > self.unkept
        if self._entered is not spare or not (kept or spare.cancelled_record):
            return None
        self.spare = RecordTask(self.loop, self._running_record)
        self.step_as(None)
        return spare

    def _running_record(self) -> Record | None:
        """Return the record whose step runs; ``None`` while the loop turns."""
        running = self.scheduler.context._key is not NO_KEY
        return self.scheduler.current_record() if running else None

    def finalize(self, generator: Any) -> None:
        """Close an asynchronous generator that is not iterated any more; from any thread."""
        if threading.get_ident() == self.thread:
            self._close(generator)
        else:
            self.loop.call_soon_threadsafe(self._close, generator)

    def _close(self, generator: Any) -> None:
        # As the task of no record: whose step runs now says nothing about the generator.
        scope = enter_scheduler(None)
        task = self.loop.create_task(generator.aclose())
        enter_scheduler(scope)
        self.in_flight += 1
        task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[Any]) -> None:
        self.in_flight -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("an abandoned generator failed when it was closed", exc_info=error)
        self.woke()

    # -- turns --------------------------------------------------------------------------------

    def turn(self) -> None:
        """Run what the loop has ready, and what depends on that, without waiting."""
        self.loop.call_soon(self._stop_after_next)
        self._run()

    def _stop_after_next(self) -> None:
        # Callbacks of a future run in the turn after that in which it ends.
        self.loop.call_soon(self.loop.stop)

    def turn_is_due(self) -> bool:
        """Return whether the loop has not turned for `TURN_EVERY_S` while something is in flight.

        A turn has its price, 6 µs on asyncio's loop and 26 on uvloop, also where nothing is ready.
        """
        return bool(self.in_flight) and self._now() - self._turned >= TURN_EVERY_S

    def wait(self, inbox: WakingInbox, timeout_s: float | None) -> bool:
        """Run the loop until a record can go on; return false after ``timeout_s`` seconds."""
        if timeout_s is not None:
            self._limit.begin(timeout_s)
        self.turning = True
        if inbox.empty():
            self._run()
        self.turning = False
        late = timeout_s is not None and self._limit.end()
        return not late or bool(self.scheduler.ready) or not inbox.empty()

    def _run(self) -> None:
        """Run the loop until it is stopped; no record is current meanwhile."""
        context, entered, turning = self.scheduler.context, self._entered, self.turning
        before = context._key, context._group
        context._key = NO_KEY
        scope = enter_scheduler(None)
        if entered is not None:
            self._end()
        self.turning, self.has_stopped = True, False
        try:
            self.loop.run_forever()
        finally:
            self.turning, self._turned = turning, self._now()
            self.has_stopped = False
            if entered is not None:
                self._begin(entered)
            enter_scheduler(scope)
            context._key, context._group = before

    def begin_wait(self, record: Record) -> None:
        """Count one more wait of ``record`` for the loop."""
        self.in_flight += 1
        record.loop_waits += 1
        if record.loop_waits == 1:
            self.scheduler.calling += 1

    def end_wait(self, record: Record) -> None:
        """Note the end of such a wait."""
        self.in_flight -= 1
        record.loop_waits -= 1
        if not record.loop_waits:
            self.scheduler.calling -= 1

    def woke(self) -> None:
        """Let the engine run a record that can go on; called on the loop."""
        if self.turning:
            if not self.has_stopped:
                self.has_stopped = True
                self.loop.stop()
        elif self.post is not None and not self._posted:
            self._posted = True
            self.post(self._go_on)

    def _go_on(self) -> None:
        self._posted = False
        if self.go_on is not None:
            self.go_on()


class LoopWait:
    """A record's wait for a future of the loop, or for its next turn."""

    __slots__ = ("_awaited", "_awaits")

    def __init__(self, awaits: Awaits, awaited: Any) -> None:
        self._awaits = awaits
        self._awaited = awaited

    def _attach(self, callback: Callable[[Any], object], after: Any = None) -> None:
        """Run ``callback`` as a step of the current record once the wait is done."""
        del after
        awaits = self._awaits
        scheduler = awaits.scheduler
        record, namespace = scheduler.hold(), scheduler.context._namespace

        def wake(_: object = None) -> None:
            awaits.end_wait(record)
            scheduler.go_on_with(record, namespace, callback, None)
            awaits.woke()

        awaits.begin_wait(record)
        if self._awaited is None:
            awaits.loop.call_soon(wake)
        else:
            self._awaited._asyncio_future_blocking = False
            self._awaited.add_done_callback(wake)


def loop_wait(awaits: Awaits, awaited: Any) -> LoopWait | None:
    """Return the wait for an object that a coroutine awaits; ``None`` if it cannot be awaited."""
    if awaited is None:
        return LoopWait(awaits, None)
    if not getattr(awaited, "_asyncio_future_blocking", None):
        return None
    if awaited.get_loop() is not awaits.loop:
        raise wrong_loop_error(awaited)
    return LoopWait(awaits, awaited)


def wrong_loop_error(awaited: Any) -> RuntimeError:
    """Return the error for a future of another loop."""
    return RuntimeError(f"{awaited!r:.200} belongs to another event loop")


# -- children ---------------------------------------------------------------------------------


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
    """Make a task; one that a record's code makes runs with the record's key and namespace."""
    named.pop("eager_start", None)
    scheduler: Any = current_scheduler()
    if scheduler is None or scheduler.awaits is None or scheduler.context._key is NO_KEY:
        return asyncio.Task(coroutine, loop=loop, **named)
    record, namespace = scheduler.hold(), scheduler.context._namespace
    child = Child(coroutine, record, namespace)
    task: asyncio.Task[Any] = asyncio.Task(child, loop=loop, **named)
    scheduler.awaits.begin_wait(record)
    if record.children is None:
        record.children = set()
    record.children.add(task)
    task.add_done_callback(partial(_child_ended, record, namespace))
    return task


def _child_ended(record: Record, namespace: Any, task: asyncio.Task[Any]) -> None:
    scheduler: Any = record.scheduler
    assert record.children is not None
    record.children.discard(task)
    scheduler.awaits.end_wait(record)
    driver: Any = record.driver
    if record.loop_waits and driver is not None and not driver.ended and not _has_failed(task):
        record.open -= 1  # the record waits for something else, often because of this child
        return
    scheduler.go_on_with(record, namespace, partial(_keep_ended, record), task)
    scheduler.awaits.woke()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task was cancelled, or failed with an error that was never retrieved."""
    return task.cancelled() or task._log_traceback


def _keep_ended(record: Record, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task._log_traceback:
        record.unread = [*(record.unread or ()), task]
    if record.driver is None or record.driver.ended:
        raise_unread(record)


def raise_unread(record: Record) -> None:
    """Raise the exception of a child that failed and was never awaited."""
    unread, record.unread = record.unread, None
    for task in unread or ():
        if task._log_traceback and (error := task.exception()) is not None:
            raise error


class Child(Coroutine[Any, Any, Any]):
    """A coroutine whose steps run with the key and the namespace of a record."""

    def __init__(self, coroutine: Any, record: Record, namespace: Any) -> None:
        self._coroutine = coroutine
        self._is_closed = False
        self.record = record
        self.namespace = namespace
        self.state_wait: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        if self._is_closed:
            raise asyncio.CancelledError
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def close_by_force(self) -> None:
        """End the coroutine now; its task counts as cancelled."""
        self._is_closed = True
        with contextlib.suppress(Exception):
            self._step(lambda: close_coroutine(self._coroutine))

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def _step(self, run: Callable[..., Any], *arguments: Any) -> Any:
        scheduler: Any = self.record.scheduler
        scope, hooks = enter_scheduler(scheduler), sys.get_asyncgen_hooks()
        # The loop's own hook would close a generator after the record is done.
        sys.set_asyncgen_hooks(finalizer=scheduler.awaits.finalize)
        try:
            return scheduler.step_of_child(self, run, *arguments)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            enter_scheduler(scope)
            if self.record.stack or self.record.turns:
                scheduler.awaits.woke()
