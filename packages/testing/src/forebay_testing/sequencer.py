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

from forebay_testing.stepped_thread import PATIENCE_S, SteppedThread


class ScheduleError(AssertionError):
    """The threads did not follow the schedule."""


@attrs.define(eq=False)
class _Actor:
    name: str
    thread: SteppedThread
    target: str | None = "*"
    """Pattern of the point to stop at; ``None`` to run to the end."""
    stopped_at: str | None = None


class Sequencer:
    """Runs one thread at a time, from one named point to another.

    A thread that the sequencer did not start passes every point without stopping.
    """

    def __init__(self) -> None:
        """Create a sequencer without threads; see `start`."""
        self._actors: dict[str, _Actor] = {}
        self._local = threading.local()

    def start(self, name: str, work: Callable[[], object]) -> None:
        """Add a thread that will run ``work``; it starts at the first `run_until` or `finish`."""

        def run() -> object:
            self._local.actor = actor
            return work()

        actor = _Actor(name, SteppedThread(run, name))
        self._actors[name] = actor

    def at(self, point: str) -> None:
        """Announce that this thread has reached ``point``; return when the test continues it."""
        actor: _Actor | None = getattr(self._local, "actor", None)
        if actor is None or actor.target is None or not fnmatchcase(point, actor.target):
            return
        actor.stopped_at = point
        actor.thread.pause()
        actor.stopped_at = None

    def run_until(self, name: str, pattern: str = "*") -> str:
        """Run a thread to the next point that matches; return that point.

        Raises `ScheduleError` if the thread ends before; its exception is the cause.
        """
        actor = self._go(name, pattern)
        if actor.stopped_at is None:
            raise ScheduleError(
                f"{name} ended before it came to {pattern!r}"
            ) from actor.thread.error
        return actor.stopped_at

    def finish(self, name: str) -> Any:
        """Run a thread to its end; return its result, or raise its exception."""
        actor = self._go(name, None)
        if actor.thread.error is not None:
            raise actor.thread.error
        return actor.thread.result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all threads that are stopped at a point."""
        for actor in self._actors.values():
            actor.thread.abandon()

    def _go(self, name: str, pattern: str | None) -> _Actor:
        actor = self._actors[name]
        if actor.thread.ended:
            return actor
        actor.target = pattern
        if not actor.thread.step():
            raise ScheduleError(
                f"{name} reached neither {pattern!r} nor its end within {PATIENCE_S} s"
            )
        return actor
