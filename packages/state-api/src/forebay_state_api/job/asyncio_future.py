"""State futures as asyncio sees them: members of ``gather``, ``wait_for`` and ``shield``.

Functions of asyncio's use the protocol of `asyncio.Future`, which is here; a task that awaits a
state future waits for a future of asyncio's (`wait_of_task`). Cancelling ends waits and nothing
else: the access that the future belongs to takes effect as it would have.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any


class AsyncioView:
    """The functions of asyncio's that wait for a state future."""

    __slots__ = ("callbacks", "cancel_message", "cancelled", "ended", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.callbacks: list[tuple[Callable[[Any], object], contextvars.Context]] = []
        self.cancelled = False
        self.cancel_message: Any = None
        self.ended = False

    def tell(self, future: Any) -> None:
        """Call the callbacks in the loop's next turn. Callable from any thread."""
        callbacks, self.callbacks = self.callbacks, []
        on_loop = asyncio._get_running_loop() is self.loop
        call = self.loop.call_soon if on_loop else self.loop.call_soon_threadsafe
        for callback, context in callbacks:
            call(callback, future, context=context)


class AsyncioFuture:
    """The methods of `asyncio.Future` that waiting for a future needs."""

    __slots__ = ()

    _view: Any
    _attach: Any
    _release: Any

    @property
    def _asyncio_future_blocking(self) -> bool:
        """Marks a future that a coroutine yields to asyncio as awaited; always true."""
        return True

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, blocking: bool) -> None:
        pass

    def _asyncio_view(self) -> AsyncioView:
        view: AsyncioView | None = getattr(self, "_view", None)
        if view is None:
            view = self._view = AsyncioView()
            self._attach(self._end_view)
        return view

    def _end_view(self, _: object) -> None:
        view = self._view
        view.ended = True
        view.tell(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop: the loop of the record's subtask."""
        return asyncio.get_running_loop()

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call ``fn`` with this future, in a turn of the loop after it is done."""
        view = self._asyncio_view()
        view.callbacks.append((fn, context or contextvars.copy_context()))
        if view.ended or view.cancelled:
            view.tell(self)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Take callbacks equal to ``fn`` back; return how many there were."""
        view = self._asyncio_view()
        before = len(view.callbacks)
        view.callbacks = [entry for entry in view.callbacks if entry[0] != fn]
        return before - len(view.callbacks)

    def cancel(self, msg: Any = None) -> bool:
        """End all waits for this future; the access itself continues and takes effect.

        Returns false if it is done already. From then on it is cancelled for the functions of
        asyncio, and a later ``await`` gives the result all the same.
        """
        if self.done():
            return False
        view = getattr(self, "_view", None)
        if view is None:  # not attached: this may be a callback of the loop's
            view = self._view = AsyncioView()
        view.cancelled = True
        view.cancel_message = msg
        view.tell(self)
        for _, _, callback, _ in tuple(getattr(self, "_callbacks", None) or ()):
            if isinstance(callback, StateWait):
                callback.cancel(msg)
        self._release(self)  # the view waits for nothing any more
        return True

    def _cancel_with_followers(self) -> None:
        """End all waits for this future, and for those chained to it: it gets no result."""
        followers = tuple(getattr(self, "_callbacks", None) or ())
        self.cancel()
        for *_, after in followers:
            if after is not None:
                after._cancel_with_followers()

    def cancelled(self) -> bool:
        """Return whether `cancel` came before the end."""
        view: AsyncioView | None = getattr(self, "_view", None)
        return view is not None and view.cancelled

    @property
    def _cancel_message(self) -> Any:
        """The argument of `cancel`; ``asyncio.gather`` reads it."""
        return self._asyncio_view().cancel_message

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        """Return the error of a cancelled wait; ``asyncio.gather`` calls it."""
        message = self._cancel_message
        return asyncio.CancelledError(*(() if message is None else (message,)))

    def done(self) -> bool:
        """Return whether the result is known, or `cancel` was called."""
        view: AsyncioView | None = getattr(self, "_view", None)
        if view is None:
            return self._has_result()
        return view.ended or view.cancelled

    def result(self) -> Any:
        """Return the result, or raise the error or what asyncio raises where there is none."""
        error = self.exception()
        if error is not None:
            raise error
        return self._value  # type: ignore[attr-defined] # of `StateFuture`

    def exception(self) -> BaseException | None:
        """Return the error; raise as `result` does where there is no outcome."""
        if self.cancelled():
            raise self._make_cancelled_error()
        if not self._has_result():
            raise asyncio.InvalidStateError("the state future is not done")
        use = getattr(self, "_use", None)
        if use is not None:
            use()  # else it counts as a read that nobody awaited
        return getattr(self, "_error", None)

    def _has_result(self) -> bool:
        return hasattr(self, "_value") or getattr(self, "_error", None) is not None


class StateWait(partial[None]):
    """A callback that resumes the coroutine that awaits a future, or cancels the wait."""

    __slots__ = ()

    def cancel(self, message: Any) -> None:
        """End the wait; the access itself continues."""
        self.func.__self__.interrupt(message)  # type: ignore[attr-defined] # it is a method


def attached_by(callback: Any) -> object:
    """Return the object whose method is attached to a future, if it is one."""
    return getattr(getattr(callback, "func", callback), "__self__", None)


class WaitOfTask:
    """A task's wait for a state future."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.future._asyncio_future_blocking = True

    def end(self, _: object) -> None:
        """Let the task take the result."""
        if not self.future.done():
            self.future.set_result(None)

    def interrupt(self, message: Any) -> None:
        """Cancel the wait."""
        self.future.cancel(msg=message)


def wait_of_task(future: AsyncioFuture) -> asyncio.Future[None]:
    """Return the future that a task yields to its loop while its coroutine awaits ``future``."""
    wait = WaitOfTask()
    future._attach(StateWait(wait.end))
    if not hasattr(future, "_record"):  # of the user's: nobody may complete it
        wait.future.add_done_callback(lambda _: future._release(wait))
    return wait.future
