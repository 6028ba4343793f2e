"""The steps of a record's method after it has suspended, where it may await more than state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from sys import getrefcount
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.closing_coroutines import close_coroutine
from forebay_engine.execution.record_task import RecordTask
from forebay_engine.execution.waiting_lines import waiting_lines
from forebay_state_api.job.asyncio_future import StateWait
from forebay_state_api.job.futures import StateFuture, check_awaited

if TYPE_CHECKING:
    from forebay_engine.execution.awaitables import Awaits
    from forebay_engine.execution.record import Record


_Future: Final = asyncio.Future


def _references_of_a_task() -> int:
    scope = SimpleNamespace(task=object())
    return getrefcount(scope.task)


_UNKEPT: Final = _references_of_a_task()
"""The count of references to a task that nothing but its steps has."""

_RUNS: Final = object()
"""Marks, in place of an awaited object, that a step runs or is about to run."""


class RecordCancelledError(Exception):
    """A record's function ended in `asyncio.CancelledError`."""


def record_cancelled_error(error: asyncio.CancelledError) -> RecordCancelledError:
    """Return the error of a record that was cancelled by its own code."""
    reason = f" ({error})" if str(error) else ""
    return RecordCancelledError(
        f"it was cancelled{reason}: what it awaited was cancelled, and it did not catch "
        "asyncio.CancelledError"
    )


def _look_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future that is not awaited any more.

    So that asyncio does not log it.
    """
    if not future.cancelled():
        future.exception()


class RecordSteps:
    """Steps a suspended coroutine of a record until it ends."""

    __slots__ = (
        "_awaits",
        "_closing",
        "_namespace",
        "_record",
        "_take",
        "_task",
        "_waits",
        "awaited",
        "cancellation_taken",
        "coroutine",
        "ended",
    )

    def __init__(
        self,
        awaits: Awaits,
        record: Record,
        coroutine: Any,
        take: Callable[[Any], object] | None = None,
    ) -> None:
        """``take`` gets what the coroutine returns; ``None`` for the engine's own drivers."""
        self.coroutine = coroutine
        self._take = take
        self.ended = False
        """Whether the coroutine is done."""
        self.awaited: Any = _RUNS
        """The future that it waits for; ``None`` for a turn of the loop."""
        self._awaits = awaits
        self._record = record
        self._task: RecordTask | None = None
        """Its task, once its code has asked for one."""
        self._namespace: Any = None
        self._waits = 0
        """The number of waits for state or a turn; a step of an earlier one comes too late."""
        self._closing = False
        self.cancellation_taken = False
        """Whether the coroutine has run since `cancel`, so that it has cancelled its tasks."""

    def begin(self) -> None:
        """Run the first step of a coroutine that the record's code has returned."""
        awaits, record = self._awaits, self._record
        if awaits.spare_is_free():
            self._advance(None)
        else:
            self._task = RecordTask(awaits.loop)
            self._task.bind(self)
            self._go_on(None)
        if not self.ended:
            record.driven = record.driven or set()
            record.driven.add(self)

    def wait_for(self, awaited: Any) -> None:
        """Continue once ``awaited`` is done; raise `TypeError` for what cannot be awaited."""
        awaits = self._awaits
        blocks = isinstance(awaited, _Future) and awaited._asyncio_future_blocking
        future: Any = awaited if blocks else check_awaited(awaited, self.coroutine)
        task = self._task
        if task is None:
            spare = awaits.spare
            if getrefcount(spare) > awaits.unkept or spare.cancelled_record is not None:
                task = self._task = awaits.take_spare()
                if task is not None:
                    task.bind(self)
        scheduler = awaits.scheduler
        self._namespace = scheduler.context._namespace
        self.awaited = awaited
        if blocks:
            scheduler.wait_for_loop(self._record, future)
            future.add_done_callback(self, context=awaits.wake_context)
        else:
            self._waits += 1
            future._attach(StateWait(self._step, self._waits))
        if task is not None:
            task.interrupt_new_wait()

    def __call__(self, _: object) -> None:
        """Continue, as the callback of a future of the loop: nothing but that ends its wait."""
        awaits = self._awaits
        awaits.scheduler.loop_wait_ended(self._record, self._namespace, self._go_on)
        if not awaits.has_stopped:
            awaits.woke()

    def _step(self, wait: int, _: object) -> None:
        if wait == self._waits:
            self._go_on(None)

    def _interrupted(self, error: BaseException) -> None:
        self._go_on(error)

    def _go_on(self, error: Any) -> None:
        task, awaited = self._task, self.awaited
        self.cancellation_taken = self._closing
        self.awaited = _RUNS
        if task is None:
            self._advance(error)
            return
        awaits = self._awaits
        before = awaits.step_as(task)
        cancellation = task.take_cancellation()
        if cancellation is not None and isinstance(awaited, _Future):
            _look_at(awaited)
        try:
            self._advance(cancellation if error is None else error)
        finally:
            awaits.step_as(before)

    def _advance(self, error: BaseException | None) -> None:
        coroutine = self.coroutine
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            self.ended = True
            self._task = None
            record = self._record
            record.open -= 1
            if record.driven:
                record.driven.discard(self)
            if self._take is not None:
                self._take(stop.value)
        except asyncio.CancelledError as cancellation:
            self._end_without_result()
            if not self._closing:
                raise record_cancelled_error(cancellation) from cancellation
        except BaseException:
            self._end_without_result()
            raise
        else:
            self.wait_for(awaited)

    def _end_without_result(self) -> None:
        self.ended = True
        self._task = None  # a reference to the task keeps the steps alive
        self._record.open -= 1
        if self._record.driven:
            self._record.driven.discard(self)
        result = getattr(self._take, "__self__", None)
        if isinstance(result, StateFuture):
            result._cancel_with_followers()

    def task_is_kept(self) -> bool:
        """Return whether other code has a reference to the record's task, and may cancel it."""
        return self._task is not None and getrefcount(self._task) > _UNKEPT

    # -- ending early -------------------------------------------------------------------------

    def interrupt(self, message: Any) -> bool:
        """End the wait with `asyncio.CancelledError`; the access itself takes effect."""
        awaited = self.awaited
        if self.ended or awaited is _RUNS:
            return False
        if awaited is not None and not isinstance(awaited, StateFuture):
            cancelled: bool = awaited.cancel(msg=message)
            return cancelled
        self._waits += 1
        self.awaited = _RUNS
        record, scheduler = self._record, self._awaits.scheduler
        record.open += 1
        error = asyncio.CancelledError(*(() if message is None else (message,)))
        interrupted: Callable[[Any], object] = self._interrupted
        scheduler.go_on_with(record, self._namespace, interrupted, error)
        self._awaits.woke()
        if awaited is not None:
            awaited._release(self)
        return True

    def cancel(self) -> None:
        """Cancel the coroutine of a record or micro-batch that has failed already."""
        self._closing = True
        if self._task is None:
            self._task = RecordTask(self._awaits.loop)
            self._task.bind(self)
        self._task.cancel()

    def close(self) -> None:
        """Drop the coroutine, and cancel what it waits for."""
        awaited, self.awaited = self.awaited, _RUNS
        self.ended = True
        if isinstance(awaited, asyncio.Future):
            awaited.cancel()
            awaited.add_done_callback(_look_at)
        close_coroutine(self.coroutine)

    def stack(self) -> str:
        """Return the lines where it waits, innermost last."""
        lines = waiting_lines(self.coroutine)
        is_loop = self._take is None  # the engine's own, which runs the method
        return "\n  ".join(lines[1:] if is_loop else lines)
