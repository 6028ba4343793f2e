"""Several drivers of one query at once: random schedules of their requests, deaths and sleeps.

In each schedule two to four runs begin and commit on one directory, two of them perhaps at once,
while a janitor clears it. Every request may be the one before which another thread goes on, hours
pass, or a task dies. Whatever happens, a manifest is put only after a look, made when the task's
data was durable, at a moment when no run with a higher rank had an entry.
"""

from __future__ import annotations

import itertools
import random
import uuid
from contextlib import suppress
from datetime import timedelta

import attrs
import pytest
from hypothesis import settings

from forebay_engine.versions import writer_memory
from forebay_engine.versions.choosing import fencing
from forebay_engine.versions.cleaning import janitor
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format import epochs
from forebay_engine.versions.format.epochs import EpochEntry, list_epochs
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ForebayError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.sequencer import ScheduleError, Sequencer
from forebay_testing.storage import ClockedStorage, Crash, WrappedStorage

pytestmark = pytest.mark.long

SCHEDULES = settings().max_examples * 2
FAULT_SCHEDULES = 1_000
"""The number of schedules within which each planted fault is found."""
STEPS = 500
SLEEPS = [timedelta(minutes=5), timedelta(minutes=11), timedelta(hours=3)]


@attrs.define(eq=False)
class Actor:
    """A thread: one task attempt, or a pass of the janitor."""

    name: str
    run_key: str
    begun: bool = False
    wrote_at: int = -1
    looked_at: int = -1
    newest: str | None = None
    """The highest-ranked run at the moment of the last look."""
    dies: str = ""
    sleeps: bool = False
    """Whether it goes on only when nobody else can."""


@attrs.define(eq=False)
class Driver:
    """One run's driver, which starts the tasks of its batches."""

    run: object
    batch: int
    left: set[int]
    working: dict[str, int] = attrs.field(factory=dict)
    """The actors at work, and their subtasks."""
    committed: int = 0
    """The newest version that is complete."""
    alive: bool = True


class Paused(WrappedStorage):
    """Stops the thread before each request, and shows the request and its answer."""

    def __init__(self, inner, schedule):
        super().__init__(inner)
        self.schedule = schedule

    def around(self, operation, name, request):
        schedule = self.schedule
        schedule.sequencer.at(f"{operation} {name}")
        actor = schedule.acting
        if actor.dies == "before":
            raise Crash
        found = False
        try:
            answer = request()
            found = True
        finally:
            schedule.saw(actor, operation, name, found)
        if actor.dies == "after":
            raise Crash
        return answer


class Schedule:
    """One random schedule; `play` raises an AssertionError if the fence was passed wrongly."""

    def __init__(self, make_query, seed):
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.inner = ClockedStorage(MemoryStorage(f"memory://{uuid.uuid4()}"), self.clock)
        self.query = make_query(self.inner, self.clock)
        self.paused = Paused(self.inner, self)
        self.names = itertools.count()
        self.step = 0
        self.acting = None
        self.drivers = []
        self.actors = {}
        self.marked = {}
        """Run → the step of its first marker."""

    def play(self):
        rng = self.random
        self.more = rng.randint(1, 4)
        self.deaths = rng.choice([0, 0, 1, 3])
        with Sequencer() as self.sequencer:
            self.start_driver()
            while self.step < STEPS and (self.actors or self.more):
                if self.more and (not self.actors or rng.random() < 0.03):
                    self.more -= 1
                    self.start_driver()
                    if self.more and rng.random() < 0.5:
                        self.more -= 1
                        self.start_driver()
                if all(actor.sleeps for actor in self.actors.values()):
                    self.wake()
                if rng.random() < 0.02:
                    self.clock.advance(rng.choice(SLEEPS))
                if rng.random() < 0.05:
                    self.start_janitor()
                self.advance()
        self.older_runs_are_stopped()

    def wake(self):
        """Time passes, perhaps with more runs and a pass of the janitor; then a sleeper goes on."""
        rng = self.random
        if rng.random() < 0.5:
            self.clock.advance(rng.choice(SLEEPS))
        if self.more:
            self.more -= 1
            self.start_driver()
        elif rng.random() < 0.5:
            self.start_janitor()
        else:
            rng.choice([*self.actors.values()]).sleeps = False

    def start_driver(self):
        rng = self.random
        done = max((one.committed for one in self.drivers), default=0)
        run = self.query.run(rng.choice([1, 1, 2]))
        driver = Driver(run, rng.choice([done, max(0, done - 1)]), set())
        self.drivers.append(driver)
        self.start_batch(driver)

    def start_batch(self, driver):
        driver.left = set(range(driver.run.parallelism))
        for subtask in range(driver.run.parallelism):
            self.start_task(driver, subtask)

    def start_task(self, driver, subtask):
        run, batch = driver.run, driver.batch
        if self.random.random() < 0.1:
            run.memory.forget()

        def work():
            task = run.begin(batch, subtask, storage=self.paused, new_state=batch > 0)
            task.commit()

        driver.working[self.start(run.key, work)] = subtask

    def start_janitor(self):
        able = [one for one in self.drivers if one.alive and one.committed]
        if able:
            driver = self.random.choice(able)
            sweeper = Janitor(
                self.paused, run_key=driver.run.key, retention=0, min_age=timedelta(0)
            )
            version = driver.committed
            self.start(driver.run.key, lambda: sweeper.sweep(version))

    def start(self, run_key, work):
        actor = Actor(f"{next(self.names)}", run_key)
        self.sequencer.start(actor.name, work)
        self.actors[actor.name] = actor
        return actor.name

    def advance(self):
        """Let one thread make some requests, or die at one of them."""
        rng = self.random
        actor = rng.choice([one for one in self.actors.values() if not one.sleeps] or [None])
        if actor is None:
            return
        for _ in range(rng.choice([1, 1, 2, 5, 20])):
            self.acting = actor
            self.step += 1
            if self.deaths and rng.random() < 0.03:
                self.deaths -= 1
                actor.dies = rng.choice(["before", "after"])
            try:
                point = self.sequencer.run_until(actor.name)
            except ScheduleError as ended:
                self.ended(actor, ended.__cause__)
                return
            if rng.random() < (0.05 if "taken/" in point else 0.003):
                actor.sleeps = True
                return

    def ended(self, actor, error):
        del self.actors[actor.name]
        if not isinstance(error, (ForebayError, Crash, type(None))):
            raise error
        driver = next((one for one in self.drivers if actor.name in one.working), None)
        if driver is None:
            return
        subtask = driver.working.pop(actor.name)
        if not driver.alive:
            return
        if error is None:
            driver.left.discard(subtask)
            if not driver.left:
                driver.committed = driver.batch + 1
                driver.batch += 1
                if self.random.random() < 0.7:
                    self.start_batch(driver)
        elif isinstance(error, Crash) and self.random.random() < 0.5:
            self.start_task(driver, subtask)
        else:
            driver.alive = False  # its other tasks go on: nobody stops them

    def saw(self, actor, operation, name, found):
        folder = name.split("/")[0]
        if "/marker-" in name and found:
            actor.begun = True
            self.marked.setdefault(actor.run_key, self.step)
        elif folder == "data" and operation.startswith("put"):
            actor.wrote_at = self.step
        elif actor.begun and (folder == "epochs" or (folder == "taken" and not found)):
            newest = list_epochs(self.inner).newest()
            actor.looked_at, actor.newest = self.step, newest and newest.run_key
        elif "/manifest-" in name and operation == "put":
            self.check(actor)

    def check(self, actor):
        assert actor.looked_at > actor.wrote_at, "the look came before the data"
        assert actor.newest == actor.run_key, "the look was passed while another run was newer"
        shown = list_epochs(self.inner)
        own = shown.of_run(actor.run_key)
        for run_key, marked_at in self.marked.items():
            other = shown.of_run(run_key)
            if own is not None and other is not None and other.rank > own.rank:
                assert marked_at > actor.looked_at, "a newer run had begun before the look"

    def older_runs_are_stopped(self):
        """After all that, no driver but the newest one's commits, whatever it remembers."""
        newest = list_epochs(self.inner).newest()
        for driver in self.drivers:
            if driver.run.key in self.marked and driver.run.key != newest.run_key:
                self.clock.advance(self.random.choice(SLEEPS))
                try:
                    driver.run.begin(driver.batch, new_state=True).commit()
                except ForebayError:
                    continue
                raise AssertionError("an older driver commits after a newer one has begun")


def play(make_query, seeds):
    for seed in seeds:
        try:
            Schedule(make_query, seed).play()
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise


def test_no_run_commits_after_a_newer_one_has_an_entry(make_query):
    play(make_query, range(SCHEDULES))


def entry_before_number(storage, run, since, seen):
    number = seen.highest + 1
    entry = EpochEntry(number, since, run.key, run.spark_run)
    storage.put_if_absent(entry.name, b"")
    storage.put_if_absent(epochs.taken_name(number), b"")
    return list_epochs(storage)


def numbers_with_gaps(storage, run, since, seen):
    number = seen.highest + 2
    storage.put_if_absent(epochs.taken_name(number), b"")
    storage.put_if_absent(EpochEntry(number, since, run.key, run.spark_run).name, b"")
    return list_epochs(storage)


def number_for_everybody(storage, number, run_key):
    storage.put_if_absent(epochs.taken_name(number), b"")
    return True


def look_before_the_data(monkeypatch):
    look = fencing.check_owner
    enter = fencing.enter

    def early(storage, task, memory):
        found = enter(storage, task, memory)
        look(storage, task, memory)
        return found

    monkeypatch.setattr(fencing, "enter", early)
    monkeypatch.setattr(fencing, "check_owner", lambda *_: None)


def clock_before_the_get(monkeypatch):
    def look(storage, task, memory):
        entry = memory.entry(storage.url, task.run.key, recent=True)
        if entry is not None and not epochs.is_taken(storage, entry.number + 1):
            return
        shown = list_epochs(storage)
        fencing._check_newest(shown, shown.of_run(task.run.key), task)

    monkeypatch.setattr(fencing, "check_owner", look)


def patch(module, name, value):
    return lambda monkeypatch: monkeypatch.setattr(module, name, value)


FAULTS = {
    "a number is taken after its entry is put": (patch(fencing, "mint", entry_before_number), 50),
    "numbers have gaps": (patch(fencing, "mint", numbers_with_gaps), 0),
    "a number that another run has taken is used": (
        patch(epochs, "_take", number_for_everybody),
        50,
    ),
    "the look comes before the data": (look_before_the_data, 0),
    "the look is left out": (patch(fencing, "check_owner", lambda *_: None), 0),
    "the clock is read before the get only": (clock_before_the_get, 66),
    "a process never lists again": (patch(writer_memory, "RECENT_S", float("inf")), 0),
    "the janitor deletes what is taken at once": (
        patch(janitor, "TAKEN_AGE", timedelta(0)),
        169,
    ),
}
"""Each with the first schedule to play: one shortly before the first that finds it."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(make_query, monkeypatch, fault):
    plant, first = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError), suppress(ObjectNotFoundError):
        play(make_query, range(first, first + FAULT_SCHEDULES))
