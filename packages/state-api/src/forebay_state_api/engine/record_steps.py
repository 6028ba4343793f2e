"""The steps of a record's method after it has suspended, where it may await foreign things."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from forebay_state_api.engine.record_task import RecordTask
from forebay_state_api.job.futures import check_awaited

if TYPE_CHECKING:
    from forebay_state_api.engine.awaits import Awaits
    from forebay_state_api.engine.record import Record


class RecordCancelledError(Exception):
    """A record's function ended in `asyncio.CancelledError`."""


def cancelled(error: asyncio.CancelledError) -> RecordCancelledError:
    """Return the error of a record that nobody but its own code has cancelled."""
    reason = f" ({error})" if str(error) else ""
    return RecordCancelledError(
        f"it was cancelled{reason}: what it awaited was cancelled, and it did not catch "
        "asyncio.CancelledError"
    )


def _generator_awaited(inner: Any) -> Any:
    """Return what an asynchronous generator awaits, or the generator that an iteration awaits."""
    if inspect.isasyncgen(inner):
        return inner.ag_await
    # An iteration shows its generator to the garbage collector only.
    return next(filter(inspect.isasyncgen, gc.get_referents(inner)), None)


def waiting_lines(coroutine: Any) -> list[str]:
    """Return the lines where a suspended coroutine waits, innermost last."""
    lines, inner = [], coroutine
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            lines.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        inner = getattr(inner, "cr_await", None) or _generator_awaited(inner)
    return lines


class RecordSteps:
    """Steps a suspended coroutine of a record until it ends."""

    __slots__ = (
        "_awaits",
        "_closing",
        "_namespace",
        "_record",
        "_task",
        "_waits",
        "awaited",
        "coroutine",
        "ended",
    )

    def __init__(self, awaits: Awaits, record: Record, coroutine: Any) -> None:
        self.coroutine = coroutine
        self.ended = False
        """Whether the coroutine has ended."""
        self.awaited: Any = None
        """The future that it waits for; ``None`` also for a turn of the loop."""
        self._awaits = awaits
        self._record = record
        self._task: RecordTask | None = None
        """Its task, once its code has asked for one."""
        self._namespace: Any = None
        self._waits = 0
        """The number of waits for state or a turn; a step of an earlier one comes too late."""
        self._closing = False

    def wait_for(self, awaited: Any) -> None:
        """Continue once ``awaited`` is done; raise `TypeError` for what cannot be awaited."""
        blocks = isinstance(awaited, asyncio.Future) and awaited._asyncio_future_blocking
        future: Any = awaited if blocks else check_awaited(awaited, self.coroutine)
        task = self._task
        if task is None:
            task = self._task = self._awaits.take_spare()
            if task is not None:
                task.bind(self)
        self._namespace = self._awaits.scheduler.context._namespace
        self.awaited = awaited
        if blocks:
            self._awaits.add(future, self)
        else:
            self._waits += 1
            future._attach(partial(self._step, self._waits))
        if task is not None:
            task.interrupt_new_wait()

    def __call__(self, _: object) -> None:
        """Continue, as the callback of a foreign future: nothing but that ends its wait."""
        awaits = self._awaits
        awaits.end_wait(self._record)
        awaits.scheduler.arrive(self._record, self._namespace, self._go_on, None)
        awaits.woke()

    def _step(self, wait: int, _: object) -> None:
        if wait == self._waits:
            self._go_on(None)

    def _interrupted(self, error: BaseException) -> None:
        self._go_on(error)

    def _go_on(self, error: Any) -> None:
        task, awaits = self._task, self._awaits
        self.awaited = None
        if task is None:
            self._advance(error)
            return
        awaits.step_as(task)
        try:
            self._advance(task.take_cancellation() if error is None else error)
        finally:
            awaits.step_as(None)

    def _advance(self, error: BaseException | None) -> None:
        coroutine = self.coroutine
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration:
            self._end()
        except asyncio.CancelledError as cancellation:
            self._end()
            if not self._closing:
                raise cancelled(cancellation) from cancellation
        except BaseException:
            self.ended = True
            raise
        else:
            self.wait_for(awaited)

    def _end(self) -> None:
        self.ended = True
        self._record.open -= 1

    # -- ending early -------------------------------------------------------------------------

    def interrupt(self, message: Any) -> bool:
        """End the wait with `asyncio.CancelledError`; the access itself takes effect."""
        awaited = self.awaited
        if self.ended or self._awaits.scheduler.current is self._record:
            return False
        if asyncio.isfuture(awaited) and isinstance(awaited, asyncio.Future):
            return awaited.cancel(msg=message)
        self._waits += 1
        record, scheduler = self._record, self._awaits.scheduler
        record.open += 1
        error = asyncio.CancelledError(*(() if message is None else (message,)))
        interrupted: Callable[[Any], object] = self._interrupted
        scheduler.arrive(record, self._namespace, interrupted, error)
        self._awaits.woke()
        return True

    def cancel(self) -> None:
        """Cancel the coroutine of a micro-batch that has failed already."""
        self._closing = True
        if self._task is None:
            self._task = RecordTask(self._awaits.loop)
            self._task.bind(self)
        self._task.cancel()

    def close(self) -> None:
        """Drop the coroutine, and cancel what it waits for."""
        awaited, self.awaited = self.awaited, None
        self.ended = True
        if isinstance(awaited, asyncio.Future):
            awaited.cancel()
        self.coroutine.close()

    def stack(self) -> str:
        """Return the lines where it waits, innermost last."""
        return "\n  ".join(waiting_lines(self.coroutine)[1:])
