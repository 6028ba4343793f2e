"""Marks the running user code: its thread, and the place that its errors name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn, Protocol

from forebay_engine.execution.awaitables import Awaits
from forebay_engine.execution.error_hints import hint
from forebay_engine.execution.record import Record
from forebay_state_api.errors import ForebayError, FunctionError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.job.record_scope import Waiter, enter_scheduler
from forebay_state_api.user_frames import users_frames


class RunningRecords(Waiter, Protocol):
    """The scheduler, which runs the code of records."""

    awaits: Awaits | None
    side: int

    @property
    def current(self) -> Record | None:
        """The record whose code runs, if it is on hold."""

    def enter(self) -> None:
        """Make this thread the task thread."""

    def note_failure(self, error: Exception) -> bool:
        """Let the running record fail with ``error``; return whether it can fail alone."""


class UserCode:
    """The code of one function as it runs, and the errors that fail its micro-batch."""

    def __init__(
        self,
        function: str,
        context: RuntimeContext,
        scheduler: RunningRecords,
        method_of: Callable[[int], str],
    ) -> None:
        """``function`` names the function in errors, ``method_of`` an input's record method."""
        self._function: Final = function
        self._context: Final = context
        self.scheduler: Final = scheduler
        self._method_of: Final = method_of
        self.phase: str | None = None
        """Name of the running method, if it is not a record method."""
        self.failure: ForebayError | None = None
        """An error that fails the micro-batch even if the user's code caught it."""

    def running(self, phase: str | None) -> Running:
        """Return what wraps everything that may run user code.

        ``phase`` is the name of the method; ``None`` for those of records.
        """
        return Running(self, phase)

    def fail(self, error: Exception) -> None:
        """Fail the running record, or the micro-batch, even if user code catches ``error``."""
        if not self.scheduler.is_task_thread():
            return
        if self.phase is None and self.scheduler.note_failure(error):
            return
        if self.failure is None:
            if isinstance(error, ForebayError):
                self.failure = error
                return
            try:
                self.blame(error)
            except FunctionError as failure:
                self.failure = failure

    def where(self) -> str:
        """Describe the running user code: function, operator, key, batch and partition."""
        context = self._context
        key = "" if context._key is NO_KEY else f", key {context._key!r:.200}"
        return (
            f"{self._function}.{self._running()} (operator "
            f"{context.operator_uid!r}{key}, batch {context.batch_id}, partition "
            f"{context.subtask_index})"
        )

    def _running(self) -> str:
        if self.phase is not None:
            return self.phase
        record = self.scheduler.current
        side = self.scheduler.side if record is None else record.side
        return self._method_of(side)

    def blame(self, error: BaseException) -> NoReturn:
        """Raise an error of user code as a `FunctionError` that names the place."""
        advice = hint(error, self._running())
        raise FunctionError(
            f"{self.where()} raised {type(error).__name__}: {error}{advice}"
        ) from error


class Running:
    """Wraps everything that may run user code: makes this the task thread, and reports errors."""

    __slots__ = ("_before", "_code", "_enters", "_phase", "_phase_before")

    def __init__(self, code: UserCode, phase: str | None) -> None:
        self._code = code
        self._phase = phase

    def __enter__(self) -> None:
        code = self._code
        self._phase_before, code.phase = code.phase, self._phase
        code.scheduler.enter()
        self._before = enter_scheduler(code.scheduler)
        awaits = code.scheduler.awaits
        self._enters = awaits is None or awaits.enter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        code = self._code
        try:
            failure, code.failure = code.failure, None
            if isinstance(failure, FunctionError):
                raise failure
            if failure is not None and failure is not error:
                failure.add_note(f"in {code.where()}{users_frames(failure)}")
                raise failure
            if isinstance(error, FunctionError):
                return
            if isinstance(error, (ForebayError, KeyboardInterrupt)):
                error.add_note(f"in {code.where()}{users_frames(error)}")
            elif isinstance(error, (Exception, SystemExit, asyncio.CancelledError)):
                code.blame(error)
        finally:
            if self._enters and (awaits := code.scheduler.awaits) is not None:
                awaits.leave()
            code.phase = self._phase_before
            enter_scheduler(self._before)
