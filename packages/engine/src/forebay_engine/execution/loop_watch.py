"""Warns of synchronous code that keeps a loop from turning while records wait for answers.

It also stops loops on which cancelled code spins.

A thread posts a beat to the loops of running subtasks a few times per second. A beat that did not
run in time, while the user's code is on the loop's thread, means that this code blocks all calls.
What counts is the time in which the thread ran or was blocked. On a machine with too much to do it
also waits for a CPU, and so does the thread that looks: neither is the code's fault.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.execution.task_thread import OWN_THREADS
from forebay_state_api.threads import PerProcess
from forebay_state_api.user_frames import users_stack

if TYPE_CHECKING:
    from forebay_engine.execution.awaitables import Awaits

_log = logging.getLogger(__name__)

BLOCKED_S: Final = 1.0
"""Seconds for which a loop may stand still before a warning."""

_LOOKS: Final = 4
"""The looks at each loop in `BLOCKED_S`."""

_warned: Final[set[str]] = set()
"""The operators of this process that have been warned of."""


@attrs.define(eq=False)
class _Beat:
    """A call on a loop, which shows that it turns."""

    looked: float
    """When it was posted, or looked at last."""
    waited_s: float = 0.0
    """How long the loop's thread had waited for a CPU when it was posted."""
    blocked_s: float = 0.0
    """How long it has been looked at, without the time by which looks were late."""
    done: bool = False

    def run(self) -> None:
        self.done = True


class LoopWatch:
    """Watches the loops of one process from a daemon thread, which sleeps while there is none."""

    def __init__(self) -> None:
        self._beats: dict[Awaits, _Beat] = {}
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"{OWN_THREADS}loop-watch", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # a process without another thread is not watched
            self._thread.start()

    def add(self, awaits: Awaits) -> None:
        """Watch the loop of a subtask, until `discard`."""
        with self._lock:
            self._beats[awaits] = _Beat(time.monotonic(), done=True)
            self._some.set()

    def discard(self, awaits: Awaits) -> None:
        """Stop watching."""
        with self._lock:
            self._beats.pop(awaits, None)
            if not self._beats:
                self._some.clear()

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(BLOCKED_S / _LOOKS)
            with self._lock:
                for awaits, beat in list(self._beats.items()):
                    self._look(awaits, beat)

    def _look(self, awaits: Awaits, beat: _Beat) -> None:
        now = time.monotonic()
        stop_at = awaits.must_stop_at
        if stop_at is not None and now >= stop_at:
            _call_on(awaits, awaits.loop.stop)
        if beat.done:
            self._beats[awaits] = again = _Beat(now, _waited_for_cpu_s(awaits.thread))
            _call_on(awaits, again.run)
            return
        beat.blocked_s += min(now - beat.looked, BLOCKED_S / _LOOKS)
        beat.looked = now
        if beat.blocked_s < BLOCKED_S or not awaits.in_flight:
            return
        blocked_s = beat.blocked_s - (_waited_for_cpu_s(awaits.thread) - beat.waited_s)
        if blocked_s >= BLOCKED_S:
            _warn(awaits, blocked_s)


def _waited_for_cpu_s(thread: int) -> float:
    """Return for how long a thread has waited for a CPU; 0 if the system does not report it."""
    found = (one.native_id for one in threading.enumerate() if one.ident == thread)
    try:
        text = Path(f"/proc/self/task/{next(found, None)}/schedstat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    return int(text.split()[1]) / 1e9


def _call_on(awaits: Awaits, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop was closed
        awaits.loop.call_soon_threadsafe(call)


def _warn(awaits: Awaits, seconds: float) -> None:
    uid = awaits.scheduler.context.operator_uid
    frame = sys._current_frames().get(awaits.thread)
    stack = "" if frame is None or uid in _warned else users_stack(frame)
    if stack:
        _warned.add(uid)
        _log.warning(
            "operator %r: synchronous code has run for more than %.2g s on the loop's thread, and "
            "all calls of the process wait for it. Await something asynchronous instead, or use "
            "asyncio.to_thread. It is at\n%s",
            uid,
            seconds,
            stack,
        )


loop_watch: Final = PerProcess(LoopWatch)
"""Returns the watch of this process."""
