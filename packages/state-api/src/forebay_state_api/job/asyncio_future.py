"""State futures as asyncio sees them: members of ``gather``, ``wait_for`` and ``shield``.

A task that awaits a state future, or a function of asyncio's that is given one, follows the
protocol of `asyncio.Future`. Cancelling such a wait ends the wait alone: the access that the future
belongs to takes effect as it would have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class AsyncioView:
    """Who waits for a state future by the protocol of asyncio."""

    __slots__ = ("callbacks", "cancelled", "ended", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.callbacks: list[tuple[Callable[[Any], object], Any]] = []
        self.cancelled = False
        self.ended = False

    def tell(self, future: Any) -> None:
        """Call the callbacks in the loop's next turn."""
        callbacks, self.callbacks = self.callbacks, []
        for callback, context in callbacks:
            self.loop.call_soon(callback, future, context=context)


class AsyncioFuture:
    """The methods of `asyncio.Future` that waiting for a future needs."""

    __slots__ = ()

    _view: Any
    _attach: Any

    @property
    def _asyncio_future_blocking(self) -> bool:
        """True: a future that a coroutine yields to asyncio is one that it awaits."""
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
        """Return the running loop: that of the record's subtask."""
        return asyncio.get_running_loop()

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        """Call ``fn`` with this future, in a turn of the loop after it has ended."""
        view = self._asyncio_view()
        view.callbacks.append((fn, context))
        if view.ended or view.cancelled:
            view.tell(self)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Take callbacks equal to ``fn`` back; return how many there were."""
        view = self._asyncio_view()
        before = len(view.callbacks)
        view.callbacks = [entry for entry in view.callbacks if entry[0] != fn]
        return before - len(view.callbacks)

    def cancel(self, msg: object = None) -> bool:
        """End all waits by asyncio's protocol; the access itself goes on and takes effect.

        Returns false if it has ended already.
        """
        del msg
        if self.done():
            return False
        view = self._asyncio_view()
        view.cancelled = True
        view.tell(self)
        return True

    def cancelled(self) -> bool:
        """Return whether a wait for this future was cancelled."""
        view: AsyncioView | None = getattr(self, "_view", None)
        return view is not None and view.cancelled

    def done(self) -> bool:
        """Return whether the result is known, or a wait for it was cancelled."""
        view: AsyncioView | None = getattr(self, "_view", None)
        if view is None:
            return self._has_result()
        return view.ended or view.cancelled

    def result(self) -> Any:
        """Return the result, or raise the error or what asyncio raises where there is none."""
        error = self.exception()
        if error is not None:
            raise error
        use = getattr(self, "_use", None)
        if use is not None:
            use()  # else it counts as a read that nobody awaited
        return self._value  # type: ignore[attr-defined] # of `StateFuture`

    def exception(self) -> BaseException | None:
        """Return the error; raise as `result` does where there is no outcome."""
        if self.cancelled():
            raise asyncio.CancelledError
        if not self._has_result():
            raise asyncio.InvalidStateError("the state future is not done")
        return getattr(self, "_error", None)

    def _has_result(self) -> bool:
        return hasattr(self, "_value") or getattr(self, "_error", None) is not None
