"""`Stage`: actors on one store and one clock, of which one makes a request at a time."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from forebay_engine.versions.format.folder import OperatorStorage
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ForebayError, StorageError
from forebay_state_api.storage.retry import RetryingStorage, RetryPolicy
from forebay_state_api.threads import RANDOM
from forebay_testing.clock import ManualClock
from forebay_testing.simulator.actors import (
    Actor,
    ActorStorage,
    SeededIds,
    SimulatedProcess,
    Toxic,
)
from forebay_testing.simulator.choices import Choices
from forebay_testing.simulator.objects import ObjectsInMemory
from forebay_testing.simulator.oracle import FOLDER, Oracle, Violation
from forebay_testing.simulator.trace import Trace
from forebay_testing.storage import Crash

T = TypeVar("T")

LAST_STEPS: Final = 20_000
"""Requests in which everything that is left has to end."""


class Stage:
    """Starts actors, makes their requests or lets them fail, and shows each effect to the oracle.

    A subclass decides who acts: `_run` lets one actor make some requests.
    """

    def __init__(self, choices: Choices, seed: int) -> None:
        """``seed`` determines ids alone; all decisions are drawn from ``choices``."""
        self.choices: Final = choices
        self.clock: Final = ManualClock()
        self.trace: Final = Trace(self.clock)
        self._objects: Final = ObjectsInMemory(self.clock)
        self.oracle: Final = Oracle(self._objects, self.clock)
        self.step = 0
        self._seed: Final = seed
        self._random: Final = Random(f"{seed}/runs")
        self._acting: Actor | None = None
        self._actors: list[Actor] = []
        self._numbers: Final = itertools.count(1)
        self._deleted_at = -1
        """The step of the last delete."""
        self._retries: Final = choices.once_in(2)
        """Whether requests that failed are repeated, as the product does by default."""

    @contextmanager
    def _set(self) -> Iterator[None]:
        """Draw ids from the seed, and end all threads at the end."""
        before = getattr(RANDOM, "source", None)
        RANDOM.source = SeededIds(f"{self._seed}/world")
        try:
            yield
        finally:
            for actor in self._actors:
                actor.thread.abandon()
            if before is None:
                del RANDOM.source
            else:
                RANDOM.source = before

    def _run(self, actor: Actor, requests: int) -> None:
        self._acting, actor.requests_left = actor, requests
        if not actor.thread.step():
            raise Violation("an actor makes no progress", f"{actor.name} at {actor.next_request}")
        if actor.thread.ended:
            self._ended(actor)

    def requested(self, operation: str, name: str, request: Callable[[], T]) -> T:
        """Make a request of the acting actor, or let it fail."""
        actor = self._acting
        assert actor is not None
        actor.stop_at(f"{operation} {name}")
        if actor.process.dead:
            raise Crash
        toxic, actor.toxic = actor.toxic, Toxic.NOTHING
        what = f"{operation} {name.removeprefix(FOLDER + '/')}"
        self.step += 1
        if toxic in {Toxic.FAILS, Toxic.DIES}:
            self.trace.add(actor.name, what, toxic.value)
            self._strike(actor, toxic)
        answer: T | None = None
        try:
            answer = request()
            return answer
        finally:
            lost = toxic if toxic is not Toxic.NOTHING else None
            self.trace.add(actor.name, what, f"{_said(operation, answer)}{_lost(lost)}")
            if operation == "delete":
                self._deleted_at = self.step
            self.oracle.saw(actor, self.step, operation, name, answer)
            if lost is not None:
                self._strike(actor, toxic)

    def _strike(self, actor: Actor, toxic: Toxic) -> None:
        if toxic.kills:
            actor.process.dead = True
            raise Crash
        actor.was_hurt = True
        raise StorageError("injected by the simulator", transient=True)

    # -- actors -----------------------------------------------------------------------------------

    def _start(
        self,
        role: str,
        process: SimulatedProcess,
        work: Callable[[Actor, ObjectStorage], object],
        run_key: str = "",
    ) -> Actor:
        name = f"{role} {next(self._numbers)}"

        def run() -> object:
            return work(actor, self._storage(actor))

        actor = Actor.running(name, process, run, ids=f"{self._seed}/{name}", run_key=run_key)
        self._actors.append(actor)
        return actor

    def _storage(self, actor: Actor) -> ObjectStorage:
        storage: ObjectStorage = ActorStorage(self._objects, self)
        if self._retries:
            sleep = partial(self._retry_after, actor)
            policy = RetryPolicy(budget_s=60, clock=self._seconds, sleep=sleep, jitter=lambda: 0.5)
            storage = RetryingStorage(storage, policy)
        return OperatorStorage(storage, FOLDER)

    def _retry_after(self, actor: Actor, seconds: float) -> None:
        actor.stop_at("a pause")
        self.clock.advance(timedelta(seconds=seconds))

    def _ended(self, actor: Actor) -> None:
        """Conclude an actor that is done with its work, failed, or died."""
        self._actors.remove(actor)
        error = actor.thread.error
        self.trace.add(actor.name, "ends", "" if error is None else repr(error)[:200])
        if isinstance(error, Violation):
            raise error
        self.oracle.passes.pop(actor.name, None)
        if not isinstance(error, (ForebayError, Crash, type(None))):
            raise Violation("an actor fails", f"{actor.name}: {error!r}") from error
        self._left(actor, error)
        if actor.process.dead:
            self._bury(actor.process)

    def _left(self, actor: Actor, error: BaseException | None) -> None:
        """Go on without an actor; a subclass knows what it was for."""

    def _bury(self, process: SimulatedProcess) -> None:
        """End the other actors of a dead process: each of their requests raises `Crash`."""
        for actor in [one for one in self._actors if one.process is process]:
            if actor in self._actors:
                self._run(actor, LAST_STEPS)

    def _process(self, name: str) -> SimulatedProcess:
        number = next(self._numbers)
        skew = self.choices.one_of((0, 0, 86_400, -86_400))
        return SimulatedProcess(f"{name}/{number}", lambda: self._seconds() + skew)

    def _seconds(self) -> float:
        return self.clock.now.timestamp()

    def _new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))


def _said(operation: str, answer: Any) -> str:
    if operation == "put_if_absent":
        return "" if answer else "is there already"
    if operation.startswith("list"):
        return f"{len(answer)}" if answer is not None else ""
    return "nothing" if operation == "get" and answer is None else ""


def _lost(toxic: Toxic | None) -> str:
    return "" if toxic is None else f" ({toxic.value})"
