"""`World`: one simulation. It chooses who makes the next request, and what else happens.

The threads of all actors share one store and one clock. Between two requests of one actor any
number of requests of others may come, hours may pass, drivers start and die, and the query may go
back to an older batch. At the end nothing fails any more: then a new driver must go on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeVar

from forebay_engine.versions.choosing.finality import mark_final, newest_shown
from forebay_engine.versions.choosing.pins import LEASE
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import (
    ConfigurationError,
    FencedError,
    ForebayError,
    StorageError,
    VersionGoneError,
)
from forebay_testing.simulator.actors import (
    Actor,
    SimulatedProcess,
    Toxic,
)
from forebay_testing.simulator.choices import Choices
from forebay_testing.simulator.oracle import JanitorPass, Violation
from forebay_testing.simulator.spark_model import Driver, SparkCheckpoint
from forebay_testing.simulator.stage import LAST_STEPS, Stage
from forebay_testing.simulator.toy_query import Query, read_content
from forebay_testing.storage import Crash

T = TypeVar("T")

STEPS: Final = 400
"""The default number of requests after which nothing fails any more."""
_SLEEPS: Final = (timedelta(minutes=5), timedelta(minutes=11), timedelta(hours=3))
_MIN_AGE: Final = timedelta(hours=1)
_ATTEMPTS: Final = 4
"""Attempts of a task before its driver gives up."""
_CALM_BATCHES: Final = 2
_PINNED: Final = timedelta(days=1)
"""The lease of a reader that sleeps."""
_LAST_WAITS: Final = (*[timedelta(hours=2)] * 3, timedelta(days=8), *[timedelta(hours=2)] * 2)
"""Pauses before the last passes of the janitor; sleeping readers go on before the longest."""
_EVERY: Final = 1_000
_EVENTS: Final = (
    ("let_time_pass", 20),
    ("start_janitor", 25),
    ("start_reader", 20),
    ("start_second_driver", 25),
    ("kill_driver", 10),
    ("go_back", 6),
    ("copy_checkpoint", 2),
    ("kill_process", 8),
    ("run_twice", 12),
    ("lose_contact", 12),
    ("fall_asleep", 10),
)
"""Events besides requests, and in how many of 1,000 turns each happens."""


class World(Stage):
    """One simulation of a query's runs on the toy data layer; `play` plays it to the end."""

    def __init__(self, choices: Choices, seed: int = 0, steps: int = STEPS) -> None:
        """``seed`` determines ids alone; all decisions are drawn from ``choices``."""
        super().__init__(choices, seed)
        self.attempts = 0
        self._steps: Final = steps
        self._drivers: list[Driver] = []
        self._readers: dict[Actor, tuple[int, bool]] = {}
        """Reader → the step at which it began, and whether there was a version then."""
        self._query: Final = Query(self._objects, self.clock, self._new_uuid)
        self._main: Final = SparkCheckpoint("here")
        self._calm = False
        self._calm_until = 0
        """The batch at which the last driver ends."""
        self._copies = 0
        self._retention: Final = 1 + choices.index(3)
        self._toxics: Final = choices.one_of((0, 0, 1, 4))
        """In how many of 100 turns a request goes wrong."""
        self._silent: Final = choices.once_in(3)
        """Whether subtasks without rows do not learn the batch's time."""
        self._paces: Final = choices.one_of(((20, 5, 2, 1, 1), (20, 5, 3, 1, 1), (3, 2, 1, 1)))
        """How many requests an actor makes in a turn."""
        self._more: int = choices.index(7)
        """Drivers that may still be started, besides restarts."""
        self._deaths: int = choices.one_of((0, 1, 3))

    def play(self) -> None:
        """Play to the end; raises `Violation` if a promise is broken."""
        with self._set():
            self._start_driver(self._main)
            while self.step < self._steps and self._turn():
                pass
            self._calm_down()

    # -- turns ------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """Let one thing happen; return whether anything can."""
        drawn = _EVERY - 1 - self.choices.index(_EVERY)
        for event, weight in _EVENTS:
            if drawn < weight:
                getattr(self, f"_{event}")()
                return True
            drawn -= weight
        awake = [actor for actor in self._actors if not actor.sleeps]
        if awake:
            self._advance(self.choices.one_of(awake))
            return True
        return self._wake()

    def _wake(self) -> bool:
        """Nobody is awake: start a driver if none lives, or let a sleeper go on."""
        if not self._actors and not self._more:
            return False
        if self.choices.index(2):
            self._let_time_pass()
        event = self.choices.index(4)
        if self._more and (event < 2 or not self._actors):  # noqa: PLR2004 - every other time
            self._start_second_driver()
        elif event == 2 or not self._actors:  # noqa: PLR2004
            self._start_janitor()
        else:
            self.choices.one_of(self._actors).sleeps = False
        return True

    def _advance(self, actor: Actor) -> None:
        """Let an actor make some requests; something may happen to the first one."""
        if self._deaths and self.choices.once_in(40):
            self._deaths -= 1
            actor.toxic = self.choices.one_of((Toxic.DIES, Toxic.DIES_AFTER))
        elif self._toxics and self.choices.index(100) >= 100 - self._toxics:
            actor.toxic = self.choices.one_of((Toxic.FAILS, Toxic.ANSWER_LOST))
        self._run(actor, self.choices.one_of(self._paces))
        if not actor.thread.ended:
            often = "taken/" in actor.next_request or "/manifest-" in actor.next_request
            actor.sleeps = self.choices.once_in(12 if often else 200)

    def _left(self, actor: Actor, error: BaseException | None) -> None:
        driver = next((one for one in self._drivers if actor in one.working), None)
        if driver is not None:
            self._task_ended(driver, actor, error)
        elif actor in self._readers:
            self._reader_ended(actor, error)

    # -- drivers ----------------------------------------------------------------------------------

    def _start_driver(self, checkpoint: SparkCheckpoint) -> Driver:
        parallelism = self.choices.one_of((1, 2, 1, 3))
        run = self._query.run(parallelism)
        name = f"run {len(self._drivers) + 1}"
        processes = [self._process(name) for _ in range(1 + self.choices.index(2))]
        said = checkpoint.as_tasks_know_it()
        driver = Driver(name, run, checkpoint, checkpoint.committed, said, processes)
        self._drivers.append(driver)
        self.trace.name_run(run.key, name)
        self.trace.add(name, f"starts at batch {driver.batch} of {checkpoint.location}")
        self._start_batch(driver)
        return driver

    def _start_batch(self, driver: Driver) -> None:
        checkpoint, version = driver.checkpoint, driver.batch + 1
        checkpoint.plan(driver.batch)
        self.oracle.plan(version, driver.run.key, checkpoint.history(version))
        driver.left = set(range(driver.run.parallelism))
        driver.failures.clear()
        for subtask in range(driver.run.parallelism):
            self._start_task(driver, subtask)

    def _start_task(self, driver: Driver, subtask: int) -> None:
        checkpoint, batch = driver.checkpoint, driver.batch
        planned, opens = checkpoint.plan(batch), checkpoint.history(batch)
        attempt = next(driver.attempts)
        process = driver.processes[subtask % len(driver.processes)]
        whole = not self._calm and self.choices.once_in(3)
        how: dict[str, Any] = {
            "attempt": attempt,
            "token": planned.token,
            "checkpoint": driver.said,
            "batch_ms": planned.ms_in(subtask) if self._silent else planned.at_ms,
            "consecutive": True,
            "memory": process.memory,
        }

        def work(actor: Actor, storage: ObjectStorage) -> None:
            task = driver.run.begin(batch, subtask, storage=storage, **how)
            self.oracle.opened(actor, task, opens)
            if self._silent and not driver.is_current:
                actor.wrong = ""  # no version shows that its batch was planned again since
            if actor.wrong and self.oracle.owner() == driver.run.key:
                raise Violation("a batch opens another state", actor.wrong)
            task.commit(task.write(whole=whole))

        self.attempts += 1
        role = f"{driver.name}.{batch}.{subtask}"
        driver.working[self._start(role, process, work, driver.run.key)] = subtask

    def _task_ended(self, driver: Driver, actor: Actor, error: BaseException | None) -> None:
        subtask = driver.working.pop(actor)
        if error is not None:
            self._check_excused(driver, actor, error)
        if not driver.alive:
            return
        if error is None:
            driver.left.discard(subtask)
            if subtask == 0:
                driver.newest = driver.batch + 1
            if not driver.left:
                self._batch_ended(driver)
        elif isinstance(error, FencedError | ConfigurationError):
            self._stop(driver, "is stopped")
        elif subtask in driver.left and subtask not in driver.working.values():
            driver.failures[subtask] += 1
            if driver.failures[subtask] >= _ATTEMPTS:
                self._stop(driver, "gives up")
            else:
                self._start_task(driver, subtask)

    def _check_excused(self, driver: Driver, actor: Actor, error: BaseException) -> None:
        """Raise unless a task of this driver may fail in this way."""
        if isinstance(error, Crash) or not driver.alive:
            return
        if actor.was_hurt and isinstance(error, StorageError):
            return
        if self._copies and isinstance(error, ConfigurationError | FencedError):
            return
        if driver.batch < self.oracle.floor:
            return  # it slept while another driver, or a copy, went on and cleared what it opens
        if self.oracle.owner() in {None, driver.run.key}:
            detail = f"{actor.name}: {error!r}"
            raise Violation("a task of the newest run fails", detail) from error

    def _batch_ended(self, driver: Driver) -> None:
        """Spark commits the batch, unless the driver dies before, or another one has."""
        checkpoint = driver.checkpoint
        if not self._calm and self._deaths and self.choices.once_in(12):
            self._deaths -= 1
            self._stop(driver, "dies before its commit")
            return
        if checkpoint.committed != driver.batch:
            self._stop(driver, "finds its batch committed by another driver")
            return
        checkpoint.committed = driver.batch = driver.batch + 1
        driver.working.clear()
        self.trace.add(driver.name, f"commits batch {driver.batch - 1}")
        self._read_something(driver)
        if driver.batch in checkpoint.planned:
            self._stop(driver, "finds its next batch planned by another driver")
        elif driver.batch >= self._calm_until if self._calm else self.choices.once_in(8):
            self._stop(driver, "ends")
        else:
            self._start_mark(driver)
            self._start_batch(driver)

    def _start_mark(self, driver: Driver) -> None:
        """The listener puts the mark of a final version, on a thread of its own."""
        version, run_key = driver.batch, driver.run.key
        if not self._calm and self.choices.once_in(3):
            process = self._process("listener")
            self._start("listener", process, lambda _, to: mark_final(to, version, run_key))

    def _stop(self, driver: Driver, how: str) -> None:
        """The driver ends; nobody stops its tasks."""
        driver.alive = False
        self.trace.add(driver.name, how)

    def _living(self) -> list[Driver]:
        return [driver for driver in self._drivers if driver.alive]

    # -- events -----------------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        self.clock.advance(self.choices.one_of(_SLEEPS))

    def _start_second_driver(self) -> None:
        if self._more:
            self._more -= 1
            self._start_driver(self._main)

    def _kill_driver(self) -> None:
        """A driver dies with its processes, or without them; another one starts, perhaps later."""
        if living := self._living():
            driver = self.choices.one_of(living)
            self._stop(driver, "is killed")
            for process in driver.processes:
                if not self.choices.index(3):
                    self._kill(process)
            if self.choices.index(2):
                self._start_driver(driver.checkpoint)

    def _kill(self, process: SimulatedProcess) -> None:
        self.trace.add(process.name, "is killed")
        process.dead = True
        self._bury(process)

    def _kill_process(self) -> None:
        """A worker process dies; the driver starts another one for the tasks that it had."""
        if living := self._living():
            driver = self.choices.one_of(living)
            at = self.choices.index(len(driver.processes))
            dead = driver.processes[at]
            driver.processes[at] = self._process(driver.name)
            self._kill(dead)

    def _go_back(self) -> None:
        """Somebody stops all drivers and deletes the newest commits of the checkpoint."""
        for driver in self._living():
            self._stop(driver, "is stopped by hand")
            for process in driver.processes:
                if not self.choices.once_in(4):
                    self._kill(process)
        oldest = max(self.oracle.floor, 0)
        most = max(0, self._main.committed - oldest)
        to = self._main.committed - self.choices.index(most + 1)
        self._main.go_back(to, planned=not self.choices.index(2))
        self.trace.add("checkpoint", f"goes back to batch {to}")
        self._start_driver(self._main)

    def _copy_checkpoint(self) -> None:
        if self._more and not self._silent:
            self._more -= 1
            self._copies += 1
            self._start_driver(self._main.copied(f"copy {self._copies}"))

    def _run_twice(self) -> None:
        """Spark starts another attempt of a task that is at work, or done."""
        if living := self._living():
            driver = self.choices.one_of(living)
            self._start_task(driver, self.choices.index(driver.run.parallelism))

    def _lose_contact(self) -> None:
        """Spark takes an attempt for lost, and starts another one; the first goes on."""
        working = [(one, actor) for one in self._living() for actor in one.working]
        if working:
            driver, actor = self.choices.one_of(working)
            subtask = driver.working.pop(actor)
            actor.sleeps = self.choices.once_in(2)
            self.trace.add(driver.name, f"loses contact with {actor.name}")
            if subtask in driver.left and subtask not in driver.working.values():
                self._start_task(driver, subtask)

    def _fall_asleep(self) -> None:
        if self._actors:
            self.choices.one_of(self._actors).sleeps = True

    # -- janitors and readers ---------------------------------------------------------------------

    def _start_janitor(self) -> None:
        owner = self.oracle.owner()
        able = [
            one for one in self._drivers if one.newest and (one.is_current or one.run.key != owner)
        ]
        if able:
            driver = self.choices.one_of(able)
            process = driver.processes[0]
            if not driver.alive or self.choices.once_in(4):
                process = self._process("command")
            self._sweep(driver, process)

    def _sweep(self, driver: Driver, process: SimulatedProcess) -> Actor:
        version, run_key = driver.newest, driver.run.key
        floor = version - self._retention
        if driver.is_current:  # otherwise a newer run stops it before it deletes anything
            self.oracle.floor = max(self.oracle.floor, floor)

        def work(actor: Actor, storage: ObjectStorage) -> None:
            self.oracle.passes[actor.name] = JanitorPass(floor, self.step)
            janitor = Janitor(
                storage,
                run_key=run_key,
                retention=self._retention,
                min_age=_MIN_AGE,
                remembered=process.swept,
            )
            janitor.sweep(version)

        return self._start("janitor", process, work)

    def _start_reader(self) -> None:
        version = None
        newest, oldest = self._main.committed, max(1, self.oracle.floor)
        if newest >= oldest and self.choices.index(2):
            version = newest - self.choices.index(newest - oldest + 1)
        shown = version is None and self.choices.index(2) == 1
        nap = self.choices.once_in(2)
        lease = _PINNED if nap else LEASE
        process = self._process("reader")

        def work(actor: Actor, storage: ObjectStorage) -> None:
            begun_at = self.clock.now
            at = newest_shown(storage, provisional=False) if shown else None
            if shown and at is None:
                return
            run_key = None if at is None else at.at.run_key
            number = version if at is None else at.at.version
            with open_version(
                storage, uid="op", version=number, run_key=run_key, lease=lease
            ) as reader:
                actor.sleeps = actor.holds_a_pin = nap
                actor.requests_left = 0
                try:
                    found = read_content(storage, reader.parents)
                except ForebayError as error:
                    if self.clock.now - begun_at < lease and not actor.was_hurt:
                        detail = f"{actor.name}: {error!r}"
                        raise Violation("a reader loses what it has pinned", detail) from error
                    raise
                self.oracle.read(reader.version, reader.run_key or "", *found)

        actor = self._start("reader", process, work)
        self._readers[actor] = self.step, bool(self._main.committed)

    def _reader_ended(self, actor: Actor, error: BaseException | None) -> None:
        began, had_version = self._readers.pop(actor)
        excused = isinstance(error, (Crash, VersionGoneError, type(None))) or actor.was_hurt
        nothing_yet = isinstance(error, ConfigurationError) and (
            not had_version or self._began_twice()
        )
        if not excused and not nothing_yet and self._deleted_at < began:
            raise Violation("a reader fails", f"{actor.name}: {error!r}") from error

    def _began_twice(self) -> bool:
        """Return whether two runs began at batch 0: the newer one's timeline is empty at first."""
        return sum(not driver.since for driver in self._drivers) > 1

    def _read_something(self, driver: Driver) -> None:
        """Read the version that Spark has just committed, and an older one that is retained."""
        oldest = max(1, self.oracle.floor, driver.batch - self._retention)
        for version in {driver.batch, max(1, oldest)}:
            self._read(version, driver)

    def _read(self, version: int, driver: Driver) -> None:
        storage = self.oracle.storage
        try:
            with open_version(storage, uid="op", version=version) as reader:
                found = read_content(storage, reader.parents)
                self.oracle.read(reader.version, reader.run_key or "", *found)
                if not self._copies and reader.version != version:
                    raise Violation("a retained version is missing", f"version {version}")
        except ForebayError as error:
            if not self._copies:
                detail = f"version {version} after batch {driver.batch - 1}: {error!r}"
                raise Violation("a retained version cannot be read", detail) from error

    # -- the end ----------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Let everything end, without faults; then start a driver that must go on."""
        self._calm = True
        self.trace.add("simulator", "stops all faults")
        for driver in self._living():
            self._stop(driver, "is stopped by hand")
        self._finish()
        for number in range(3):
            self._calm_until = self._main.committed + _CALM_BATCHES + self._retention
            driver = self._start_driver(self._main)
            self._finish()
            if driver.batch >= self._calm_until:
                break
            if number and not self._copies:
                raise Violation("a query makes no progress without faults", driver.name)
        self._clean_up(driver)

    def _finish(self, *, readers: bool = False) -> None:
        """Let all actors end; those that hold a pin only with ``readers``."""
        for _ in range(LAST_STEPS):
            left = [one for one in self._actors if readers or not one.holds_a_pin]
            if not left:
                return
            left[0].toxic, left[0].sleeps = Toxic.NOTHING, False
            self._run(left[0], LAST_STEPS)
        raise Violation("something never ends without faults", self._actors[0].name)

    def _clean_up(self, driver: Driver) -> None:
        """Sweep until nothing is left to delete: what is stored is bounded."""
        can_sweep = driver.newest and driver.batch >= self._calm_until
        for wait in _LAST_WAITS:
            if wait > _PINNED:
                self._finish(readers=True)
            self.clock.advance(wait)
            if can_sweep:
                self._sweep(driver, driver.processes[0])
            self._finish()
        if can_sweep:
            self._check_bounded(driver)

    def _check_bounded(self, driver: Driver) -> None:
        base = driver.newest - self._retention
        if left := self.oracle.useless(base, _MIN_AGE):
            raise Violation("a file that nobody needs stays", ", ".join(left))
        if old := {m.by.version for m in self.oracle.stored() if m.by.version < base}:
            raise Violation("a version below the retention stays", f"{sorted(old)}")
        if len(taken := self.oracle.storage.list("taken")) > 1:
            raise Violation("numbers of older runs stay", f"{len(taken)}")
