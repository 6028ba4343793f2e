"""The thread whose loop never stops: it runs the functions of a process that await anything.

Clients belong to a loop, their connections live longer than a micro-batch, and calls are in flight
while a task waits for its next rows. So the loop must not sleep between an engine's pieces of work:
those come as jobs, each stops the loop for as long as it runs, and the engine turns the loop itself
where it waits (docs/decisions/0022-awaiting-anything.md).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

from forebay_engine.execution.awaitables import loop_of_thread, serve_loop
from forebay_engine.execution.task_thread import OWN_THREADS, waits_for_task_thread
from forebay_state_api.threads import PerProcess, start_thread

P = ParamSpec("P")
T = TypeVar("T")

_TURNS_BEFORE_A_JOB: Final = 2
"""One in which the loop sees that a server has closed a connection, one in which clients do."""


class LoopThread:
    """A daemon thread that turns its loop, and runs jobs in between."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"{OWN_THREADS}loop", daemon=True
        )
        start_thread(self._thread)
        ready.result()

    def _run(self, ready: Future[None]) -> None:
        try:
            loop = loop_of_thread()
        except BaseException as error:  # noqa: BLE001 - raised where the thread is started
            ready.set_exception(error)
            return
        assert loop is not None
        self.loop = loop
        serve_loop(self.post)
        ready.set_result(None)
        while True:
            loop.run_forever()
            for _ in range(_TURNS_BEFORE_A_JOB):
                loop.call_soon(loop.stop)
                loop.run_forever()
            while True:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                job()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def post(self, job: Callable[[], object]) -> None:
        """Run ``job`` on the thread soon; it must not raise."""
        self._jobs.put(job)
        self.loop.call_soon_threadsafe(self.loop.stop)

    def call(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn`` on the thread, and return or raise what it does."""
        done: Future[T] = Future()

        def job() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                done.set_exception(error)

        with waits_for_task_thread():
            self.post(job)
            return done.result()


class LentLoop:
    """Lends the thread's loop to another thread, for coroutines that plain methods return.

    A plain method runs on the task's thread. That it returns coroutines is known when it has
    returned the first one, whose steps belong on a loop that always turns.
    """

    def __init__(self, owner: LoopThread) -> None:
        """Wait until the owner has stopped the loop."""
        self.post = owner.post
        self._returned = threading.Event()
        taken = threading.Event()

        def lend() -> None:
            taken.set()
            self._returned.wait()

        owner.post(lend)
        taken.wait()
        self.loop = owner.loop

    def give_back(self) -> None:
        """Let the owner turn the loop again."""
        self._returned.set()


loop_thread: Final = PerProcess(LoopThread)
"""Returns the thread of this process, started; raises `NoThreadError` if it can have no other."""


def lend_loop() -> LentLoop:
    """Lend the loop of the thread of this process."""
    return LentLoop(loop_thread())


def on_loop_thread() -> bool:
    """Return whether the caller runs on the thread of this process."""
    found = loop_thread.made
    return found is not None and found.is_current
