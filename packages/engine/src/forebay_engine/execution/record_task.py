"""The task that asyncio sees while a record's code runs.

``asyncio.timeout``, ``TaskGroup`` and most clients ask for the current task, keep it, and cancel it
later. A `RecordTask` answers them for one record. It is made once and serves all records that never
ask: a record that has kept it takes it along when it suspends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextvars import Context


class Interruptible(Protocol):
    """The steps of a suspended record."""

    @property
    def coroutine(self) -> Any:
        """The coroutine that they run."""

    @property
    def ended(self) -> bool:
        """Whether it is done."""

    def interrupt(self, message: Any) -> bool:
        """End the wait with `asyncio.CancelledError`; return false if it is done already."""


class RecordTask:
    """The task that a record's code gets from ``asyncio.current_task()``.

    It has the methods of `asyncio.Task` that code outside of a task's own coroutine calls.
    """

    __slots__ = (
        "__weakref__",
        "_cancels",
        "_loop",
        "_message",
        "_must_cancel",
        "_running",
        "_steps",
        "cancelled_record",
    )

    _fut_waiter = None
    """Read by anyio; what a record awaits is for its steps to cancel."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, running: Callable[[], Any | None] | None = None
    ) -> None:
        self._loop = loop
        self._running = running
        """Returns the record whose code runs, if any; of a task that serves many records."""
        self.cancelled_record: Any | None = None
        """The record that cancelled itself before it suspended for the first time."""
        self._steps: Interruptible | None = None
        self._must_cancel = False
        self._cancels = 0
        self._message: Any = None

    def __repr__(self) -> str:
        return f"<RecordTask of {self.get_coro()!r}>"

    def bind(self, steps: Interruptible) -> None:
        """Become the task of one suspended record."""
        self._steps = steps

    def forget_ended(self, running: Any | None) -> None:
        """Forget a cancellation of a record other than ``running``: that one is done."""
        if self.cancelled_record is not None and self.cancelled_record is not running:
            self.cancelled_record = None
            self._must_cancel = False

    def take_cancellation(self) -> asyncio.CancelledError | None:
        """Return the error to raise in the record's next step, if it was cancelled; once."""
        if not self._must_cancel:
            return None
        self._must_cancel = False
        return asyncio.CancelledError(*(() if self._message is None else (self._message,)))

    def interrupt_new_wait(self) -> None:
        """End a wait that begins although the record was cancelled before."""
        if self._must_cancel and self._steps is not None and self._steps.interrupt(self._message):
            self._must_cancel = False

    # -- asyncio.Task -------------------------------------------------------------------------

    def cancel(self, msg: Any = None) -> bool:
        """Raise `asyncio.CancelledError` in the record where it waits, or where it waits next.

        Returns false if the record's coroutine is done.
        """
        if self._steps is not None and self._steps.ended:
            return False
        if self._steps is None and self._running is not None:
            self.cancelled_record = self._running()
            if self.cancelled_record is None:
                return False
        self._cancels += 1
        self._message = msg
        if self._steps is None or not self._steps.interrupt(msg):
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """Return the number of cancellations that were not reverted."""
        return self._cancels

    def uncancel(self) -> int:
        """Revert one cancellation; return how many are left."""
        self._cancels = max(self._cancels - 1, 0)
        if not self._cancels:
            self._must_cancel = False
        return self._cancels

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the record's subtask."""
        return self._loop

    def get_coro(self) -> Any:
        """Return the record's coroutine, once it has been suspended."""
        return None if self._steps is None else self._steps.coroutine

    def get_name(self) -> str:
        """Return the name of all these tasks."""
        return "forebay-record"

    def get_context(self) -> Context | None:
        """Return ``None``, since records run in the context of their thread."""
        return None

    def done(self) -> bool:
        """Return false: a record's task does not outlive the record."""
        return False

    def cancelled(self) -> bool:
        """Return false, as `done` does."""
        return False

    def add_done_callback(self, *_: Any, **__: Any) -> None:
        """Refuse: the end of a record is not observable."""
        raise RuntimeError("a record's task has no callbacks: await in the record itself")
