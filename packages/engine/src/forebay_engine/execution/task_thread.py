"""Refuse accesses to states, timers and the context from threads other than the task thread.

The current key belongs to the record whose step runs, so an access from another thread would use an
arbitrary key. The check costs time in every access, so it is made only if the process has user
threads. These are detected by a look at the threads before each chunk of rows, and by the hook of
`threading.setprofile` for new threads.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.errors import StateAccessError

if TYPE_CHECKING:
    from forebay_state_api.job.context import RuntimeContext

OWN_THREADS: Final = "forebay-"
"""Prefix of the names of Forebay's own threads; none of them runs user code."""

_lock: Final = threading.Lock()

Guard = Callable[[], None]
"""Makes an engine refuse other threads from now on."""

_guards: Final[set[Guard]] = set()
"""The guards of this process, one for each open engine."""

_before: Final[list[Any]] = []
"""The profile function for new threads that `watch` has replaced, while an engine is open."""


class GuardedContext:
    """Replaces the context in states and timers; gives the current key only to the task thread."""

    __slots__ = ("_context", "_is_task_thread")

    def __init__(self, context: RuntimeContext, is_task_thread: Callable[[], bool]) -> None:
        self._context = context
        self._is_task_thread = is_task_thread

    @property
    def _key(self) -> Any:
        if not self._is_task_thread():
            raise wrong_thread_error()
        return self._context._key

    @property
    def _group(self) -> int:
        return self._context._group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def checking(self, method: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        """Return ``method`` of the context, restricted to the task thread."""

        def checked(argument: Any) -> None:
            _ = self._key  # refuses other threads
            method(argument)

        checked.__qualname__ = f"ctx.{name}"
        return checked


def wrong_thread_error() -> StateAccessError:
    """Return the error for an access from a thread that is not the task thread."""
    return StateAccessError(
        f"a state, a timer or ctx was used on thread {threading.current_thread().name!r}: they "
        "belong to the record whose code runs, on the task thread of its operator. Let the thread "
        "complete(value) or fail(error) a StateFuture, and await or chain it"
    )


_waiting: Final[set[int]] = set()
"""Threads that wait for a job of a task thread."""


@contextlib.contextmanager
def waits_for_task_thread() -> Iterator[None]:
    """Note that this thread runs no user code: it waits for the task thread."""
    ident = threading.get_ident()
    _waiting.add(ident)
    try:
        yield
    finally:
        _waiting.discard(ident)


def others_live(task_thread: int) -> bool:
    """Return whether threads other than the task thread and Forebay's exist."""
    return any(
        thread.ident != task_thread
        and thread.ident not in _waiting
        and not thread.name.startswith(OWN_THREADS)
        for thread in threading.enumerate()
    )


def watch(guard: Guard) -> None:
    """Call ``guard`` before a new user thread runs anything, until `unwatch`."""
    with _lock:
        if not _guards:
            _before.append(threading.getprofile())
            threading.setprofile(_on_start)
        _guards.add(guard)


def unwatch(guard: Guard) -> None:
    """Stop calling ``guard``; does nothing if it was never watched."""
    with _lock:
        if guard not in _guards:
            return
        _guards.discard(guard)
        if not _guards:
            before = _before.pop()
            if threading.getprofile() is _on_start:
                threading.setprofile(before)


def _on_start(frame: FrameType, event: str, argument: Any) -> None:
    """Handle the first profile event of a new thread, before `Thread.run`."""
    if not threading.current_thread().name.startswith(OWN_THREADS):
        for guard in tuple(_guards):
            guard()
    before = _before[-1] if _before else None
    sys.setprofile(before)
    if before is not None:
        before(frame, event, argument)
