"""`SteppedThread`: a thread that runs only while somebody waits for it.

So of many such threads one runs at a time, and its owner decides which. A change of threads takes
two hand-overs of a lock, some tens of microseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 100.0
"""How long an owner waits for a thread that neither pauses nor ends."""


class Abandoned(BaseException):
    """Ends a paused thread that nobody will continue."""


class SteppedThread:
    """A thread that begins at the first `step`, and stops wherever it calls `pause`."""

    def __init__(self, work: Callable[[], object], name: str) -> None:
        """``work`` is called on the thread; nothing is started yet."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        self._work: Final = work
        self._continued: Final = _taken()
        self._stopped: Final = _taken()
        self._abandoned = False
        self._thread: Final = threading.Thread(target=self._run, name=name, daemon=True)

    def step(self, patience_s: float = PATIENCE_S) -> bool:
        """Let the thread run until it pauses or ends; return whether it did, in ``patience_s``."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._continued.release()
        return self._stopped.acquire(timeout=patience_s)

    def pause(self) -> None:
        """Stop this thread, which calls it, until the next `step`; raises `Abandoned`."""
        if not self._abandoned:
            self._stopped.release()
            self._continued.acquire()
        if self._abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """End the thread: what it is paused in raises `Abandoned`, now and from now on."""
        if self._thread.ident is None:
            return
        self._abandoned = True
        if not self.ended:
            self._continued.release()
        self._thread.join(PATIENCE_S)

    @property
    def is_alive(self) -> bool:
        """Whether the thread has begun and not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Abandoned:
            pass  # nobody needs a result
        except BaseException as error:  # noqa: BLE001 - for the owner
            self.error = error
        self.ended = True
        self._stopped.release()


def _taken() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
