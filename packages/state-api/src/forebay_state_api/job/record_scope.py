"""The scheduler whose record's code runs on a thread, as the futures of that code see it.

The engine implements the protocols; outside an operator there is no scheduler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from forebay_state_api.job.current_key import NO_KEY

_SCOPE = threading.local()
"""``_SCOPE.scheduler`` is the engine's scheduler that runs on this thread, if any."""


class WaitingRecord(Protocol):
    """A record of an operator, for the futures of its requests."""

    key: Any
    open: int
    """Number of pending steps and requests, plus one while the record method runs."""
    driven: set[Any] | None
    """The unfinished coroutines of callbacks, where records fail alone."""

    @property
    def scheduler(self) -> Waiter:
        """Runs the record."""

    def number(self, future: Any) -> None:
        """Make ``future`` the next request."""

    def push(
        self,
        number: int,
        position: int,
        namespace: Any,
        callback: Callable[[Any], object],
        value: Any,
    ) -> None:
        """Run a step that was counted in `open` at this place in the record's order."""


class _Current(Protocol):
    """The key and the namespace of the record whose code runs."""

    _key: Any
    _namespace: Any


class Waiter(Protocol):
    """Runs the records of one subtask on its task thread; the engine's scheduler."""

    dropped_reads: int
    """The number of reads that were neither awaited nor chained."""
    isolates: ClassVar[bool]
    """Whether records fail alone."""

    @property
    def context(self) -> _Current:
        """The place of the current key and namespace."""

    @property
    def current(self) -> WaitingRecord | None:
        """The record whose code runs, once it is on hold."""

    def current_record(self) -> WaitingRecord:
        """Return the record whose code runs and put it on hold."""

    def hold(self) -> WaitingRecord:
        """Return the current record, with one more step to come."""

    def arrive(
        self, record: Any, namespace: Any, callback: Callable[[Any], object], value: Any
    ) -> None:
        """Run a step of ``record`` that waited for other threads."""

    def end_early(self, record: Any, namespace: Any) -> None:
        """Cancel a pending step of ``record``."""

    def drive(self, coroutine: Any, result: Any) -> bool:
        """Run a coroutine of the current record, if it may await anything; return whether."""

    def complete(self, promise: Any) -> None:
        """Run the callbacks attached to ``promise`` next."""

    def passes(self, number: int, position: int) -> bool:
        """Return whether an await of a request resumes at once."""

    def answer(self, value: Any) -> Any:
        """Return a future of a request that memory answered."""

    def combined(self, members: Sequence[Any], kind: type[list[Any] | tuple[Any, ...]]) -> Any:
        """Return a future of all values, where they are known."""

    def siblings(self) -> Callable[[], None] | None:
        """Begin calls that are steps next to each other; call the result between them."""

    def loop_wait(self, awaited: object) -> Any:
        """Return a wait for ``awaited``; ``None`` if it cannot be awaited."""

    def is_task_thread(self) -> bool:
        """Return whether the caller runs on the task thread."""

    def post(self, action: Callable[[], object]) -> None:
        """Run ``action`` on the task thread. Callable from any thread."""


def current_scheduler() -> Waiter | None:
    """Return the scheduler that runs on this thread now."""
    return getattr(_SCOPE, "scheduler", None)


def enter_scheduler(scheduler: Waiter | None) -> Waiter | None:
    """Make ``scheduler`` this thread's scheduler; return the previous one."""
    before: Waiter | None = getattr(_SCOPE, "scheduler", None)
    _SCOPE.scheduler = scheduler
    return before


def scheduler_of_a_record() -> Waiter | None:
    """Return this thread's scheduler, if it runs the code of a record."""
    scheduler: Waiter | None = getattr(_SCOPE, "scheduler", None)
    return None if scheduler is None or scheduler.context._key is NO_KEY else scheduler
