"""Repeatable schedules of several threads: a test decides which thread runs next.

::

    with Sequencer() as sequencer:
        storage = FaultyStorage(inner, latency=lambda op, name: sequencer.at(f"{op} {name}"))
        sequencer.start("old", lambda: commit(storage))
        sequencer.run_until("old", "put versions/*/manifest-*")  # stops before that request
        ...  # something else happens now
        sequencer.finish("old")
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Self

import attrs

_PATIENCE_S = 100.0


class ScheduleError(AssertionError):
    """The threads did not follow the schedule."""


class _Abandoned(BaseException):
    """Ends a thread whose test is over."""


@attrs.define(eq=False)
class _Actor:
    name: str
    target: str | None = "*"
    """Pattern of the point to stop at; ``None`` to run to the end."""
    stopped_at: str | None = None
    running: bool = False
    ended: bool = False
    abandoned: bool = False
    result: Any = None
    error: BaseException | None = None
    thread: threading.Thread | None = None


class Sequencer:
    """Runs one thread at a time, from one named point to another.

    A thread that the sequencer did not start passes every point without stopping.
    """

    def __init__(self) -> None:
        """Create a sequencer without threads; see `start`."""
        self._changed = threading.Condition()
        self._actors: dict[str, _Actor] = {}
        self._local = threading.local()

    def start(self, name: str, work: Callable[[], object]) -> None:
        """Add a thread that will run ``work``; it starts at the first `run_until` or `finish`."""
        actor = _Actor(name)
        actor.thread = threading.Thread(target=self._run, args=(actor, work), daemon=True)
        self._actors[name] = actor

    def at(self, point: str) -> None:
        """Announce that this thread has reached ``point``; return when the test continues it."""
        actor: _Actor | None = getattr(self._local, "actor", None)
        if actor is None or actor.target is None or not fnmatchcase(point, actor.target):
            return
        with self._changed:
            actor.stopped_at, actor.running = point, False
            self._changed.notify_all()
            self._changed.wait_for(lambda: actor.running or actor.abandoned)
            if actor.abandoned:
                raise _Abandoned
            actor.stopped_at = None

    def run_until(self, name: str, pattern: str = "*") -> str:
        """Run a thread to the next point that matches; return that point.

        Raises `ScheduleError` if the thread ends before; its exception is the cause.
        """
        actor = self._go(name, pattern)
        if actor.stopped_at is None:
            raise ScheduleError(f"{name} ended before it came to {pattern!r}") from actor.error
        return actor.stopped_at

    def finish(self, name: str) -> Any:
        """Run a thread to its end; return its result, or raise its exception."""
        actor = self._go(name, None)
        if actor.error is not None:
            raise actor.error
        return actor.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all threads that are stopped at a point."""
        with self._changed:
            for actor in self._actors.values():
                actor.abandoned = True
            self._changed.notify_all()
        for actor in self._actors.values():
            if actor.thread is not None and actor.thread.ident is not None:
                actor.thread.join(_PATIENCE_S)

    def _go(self, name: str, pattern: str | None) -> _Actor:
        actor = self._actors[name]
        if actor.ended:
            return actor
        with self._changed:
            actor.target, actor.running = pattern, True
            if actor.thread is not None and actor.thread.ident is None:
                actor.thread.start()
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not actor.running, _PATIENCE_S):
                raise ScheduleError(
                    f"{name} reached neither {pattern!r} nor its end within {_PATIENCE_S} s"
                )
        return actor

    def _run(self, actor: _Actor, work: Callable[[], object]) -> None:
        self._local.actor = actor
        try:
            actor.result = work()
        except _Abandoned:
            pass  # the test is over, and nobody needs a result
        except BaseException as error:  # noqa: BLE001 - handed to the test by finish
            actor.error = error
        with self._changed:
            actor.ended, actor.running = True, False
            self._changed.notify_all()
