"""A plain model of the job ``visiting``, and comparisons of the job's output and state with it.

The model gets the rows of each micro-batch and the time that Spark has logged for it: a batch that
is run again after a kill, however much later, must expire and fire the same as at first.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob
from forebay_testing.typed_reads import read_state

JOB = Path(__file__).parents[1] / "jobs" / "visiting.py"
SPEC = importlib.util.spec_from_file_location("forebay_job_visiting", JOB)
visiting = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(visiting)

MAX_PARALLELISM = 128
PARALLELISMS = (1, 2, 3)
START = datetime(2024, 5, 1, tzinfo=UTC)
USERS = [f"user{n}" for n in range(20)]
EVENT, PROCESSING = "event_time", "processing_time"


# -- what happens -----------------------------------------------------------------------------


class Visit(NamedTuple):
    user: str
    at: datetime
    after_ms: int
    forget: bool


def everywhere():
    """Return one user for each subtask, so that each subtask gets the time of every batch."""
    first = {}
    for user in USERS:
        group = key_group_of(user, MAX_PARALLELISM)
        for parallelism in PARALLELISMS:
            first.setdefault((parallelism, subtask_of(group, parallelism, MAX_PARALLELISM)), user)
    assert len(first) == sum(PARALLELISMS)
    return sorted(set(first.values()))


def batch_of_visits(chance, number):
    """Put users of `ALWAYS` last, at the batch's latest time; other users come at times."""
    latest = START + timedelta(seconds=number)
    visits = [
        Visit(
            user,
            latest - timedelta(milliseconds=chance.randrange(6_000)),
            chance.choice([0, 150, 600, 2_500]),
            chance.random() < 0.3,
        )
        for user in chance.choices(USERS, k=10)
    ]
    return [*visits, *(Visit(user, latest, 400, False) for user in everywhere())]


def put(stage, count):
    """Return the input: a file for each micro-batch."""
    chance = random.Random(count)
    return [put_visits(stage, batch_of_visits(chance, number)) for number in range(count)]


def put_visits(stage, visits):
    """Write a file of visits, and return them."""
    stage.put(*[{**visit._asdict(), "at": visit.at.isoformat()} for visit in visits])
    return visits


# -- the model --------------------------------------------------------------------------------


class User:
    """The function's state of one user."""

    def __init__(self):
        self.step = 0
        self.due = None
        self.recent = (START, 0)
        self.marks = []
        self.places = {}
        self.timers = set()


class Model:
    """The function, by hand; cells with a TTL are stored with the time of their last change."""

    def __init__(self):
        self.users = defaultdict(User)
        self.batches = 0
        self.now = self.watermark = None
        self.latest = None
        """The latest event time of the previous batch."""
        self.out = []

    def run(self, visits, now):
        """Process one micro-batch."""
        self.now = now
        if self.latest is not None:
            self.watermark = self.latest - visiting.LATENESS
        self.fire(before_rows=True)
        for visit in visits:
            self.visit(visit)
        self.fire(before_rows=False)
        if visits:
            self.latest = max(visit.at for visit in visits)
        self.batches += 1

    def visit(self, visit):
        user = self.users[visit.user]
        if visit.forget and user.due is not None:
            user.timers.discard((PROCESSING, user.due))
        user.due = self.now + timedelta(milliseconds=visit.after_ms)
        user.timers |= {(PROCESSING, user.due), (EVENT, visit.at + visiting.QUIET)}
        self.step(visit.user, "visit", visit.at)

    def fire(self, *, before_rows):
        """Fire what is due for each user: by event time, then by the time of the batch.

        Processing-time timers that timers register before the rows fire after the rows.
        """
        for name, user in self.users.items():
            deferred = set()
            for domain, until in ((EVENT, self.watermark), (PROCESSING, self.now)):
                while due := [
                    timer
                    for timer in user.timers - deferred
                    if timer[0] == domain and until is not None and timer[1] <= until
                ]:
                    user.timers.discard(min(due))
                    _, at = min(due)
                    self.step(name, domain, at)
                    if domain == PROCESSING and user.step % 3 == 0:
                        again = (PROCESSING, at + visiting.AGAIN)
                        if before_rows and again not in user.timers:
                            deferred.add(again)
                        user.timers.add(again)

    def step(self, name, what, at):
        user = self.users[name]
        user.step += 1
        user.recent = self.now, (self.recent(name) or 0) + 1
        user.marks.append((self.now, user.step))
        user.places[f"place {user.step % visiting.PLACES}"] = self.now, user.step
        self.out.append(
            (
                name,
                user.step,
                self.batches,
                self.now.replace(tzinfo=None),
                what,
                at.replace(tzinfo=None),
                self.recent(name),
                self.marks(name),
                json.dumps(sorted(self.places(name).items())),
                self.tail(name),
            )
        )

    def tail(self, name):
        step = self.users[name].step
        return list(range(max(1, step - visiting.LONGEST + 1), step + 1))

    def recent(self, name):
        changed, count = self.users[name].recent
        return count if self.now < changed + visiting.RECENT_TTL else None

    def marks(self, name):
        kept = self.users[name].marks
        return [step for added, step in kept if self.now < added + visiting.MARKS_TTL]

    def places(self, name):
        kept = self.users[name].places.items()
        return {place: step for place, (put, step) in kept if self.now < put + visiting.PLACES_TTL}


# -- the results ------------------------------------------------------------------------------


def logged_time(stage, batch):
    """Return the time of a micro-batch, which Spark has logged before it ran the batch."""
    log = (stage.checkpoint / "offsets" / str(batch)).read_text().splitlines()
    return datetime.fromtimestamp(0, UTC) + timedelta(
        milliseconds=json.loads(log[1])["batchTimestampMs"]
    )


def check(stage, backend, batches):
    model = Model()
    for number, visits in enumerate(batches):
        model.run(visits, logged_time(stage, number))
    assert stage.rows(visiting.SCHEMA) == sorted(model.out)
    assert {what for _, _, _, _, what, *_ in model.out} == {"visit", EVENT, PROCESSING}
    assert any(recent < step for _, step, *_, recent, _, _, _ in model.out), "something has expired"
    job = job_on(stage, backend, model)
    check_state(job, model)
    check_what_comes(job, model)


def job_on(stage, backend, model):
    """Return a job that continues without Spark where the query has stopped."""
    (query,) = {path.parent.name for path in stage.state.glob("*/visits")}
    job = KeyedJob(
        plugins().backend(backend),
        open_storage(stage.state),
        parallelism=2,
        max_parallelism=MAX_PARALLELISM,
        key_type=str,
        clock=ManualClock(model.now),
        query=query,
        uid="visits",
        event_time=lambda visit: visit.at,
        lateness=visiting.LATENESS,
    )
    job.batch_id = model.batches
    return job


def check_state(job, model):
    for name, user in model.users.items():
        for descriptor, expected in (
            (visiting.STEP, user.step),
            (visiting.DUE, user.due),
            (visiting.RECENT, model.recent(name)),
            (visiting.MARKS, model.marks(name)),
            (visiting.PLACES_SEEN, model.places(name)),
            (visiting.TAIL, {step: step for step in model.tail(name)}),
        ):
            assert stored(job, descriptor, name) == expected


def stored(job, descriptor, name):
    return read_state(
        job.storage,
        descriptor,
        name,
        uid=job.uid,
        backend=job.backend_class,
        options=job.options,
        key_codec=job.key_codec,
        max_parallelism=job.max_parallelism,
        now_us=job.clock.now_us,
    )


def check_what_comes(job, model):
    """The remaining timers fire when they are due, and the remaining state expires in time."""
    function = visiting.Visits(0.0)
    for passing in (0.3, 0.5, 1, 3, 10, 10):
        job.clock.advance(timedelta(seconds=passing))
        latest = model.latest + timedelta(seconds=passing)
        visits = [Visit(user, latest, 200, False) for user in everywhere()]
        model.out = []
        model.run(visits, job.clock.now)
        assert sorted(map(as_read, job.run(function, visits))) == sorted(model.out)
    left = {timer for user in model.users.values() for timer in user.timers}
    assert len(left) <= 2 * len(everywhere()), "those of the last batch"


def as_read(row):
    """Return a row of the function in the form of the sink's reader."""
    return tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in row.values())
