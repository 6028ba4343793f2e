"""Workers and drivers killed while rows and namespaced timers fail alone, compared with a model.

Event times do not depend on when a batch runs, so the model needs the files alone. By default
records fail without kills in ``test_failing_records.py``, and processes are killed without failing
records in ``test_failures.py`` and ``test_timers_and_ttl_kills.py``.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

import pytest

pytestmark = pytest.mark.spark

START = datetime(2024, 5, 1, tzinfo=UTC)
USERS = [f"user{n}" for n in range(8)]
ORDERS = ["one", "two", "fragile"]
BATCHES, WORKER_RESTARTS, DRIVER_RESTARTS = 6, 2, 1
SOAK_BATCHES, SOAK_RESTARTS = 60, 20
LAST_BATCHES = 2
"""Run after all kills: the first is an hour later, so that in the second all timers fire."""
PAUSE_S = 0.01

both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])


def rows_at(chance, minute):
    """Return two rows of every user at one time, so that it is the watermark of every subtask."""
    return [
        {
            "n": minute * len(USERS) * 2 + n,
            "user": user,
            "at": (START + timedelta(minutes=minute)).isoformat(),
            "order_id": chance.choice(ORDERS),
            "after": chance.randrange(1, 4),
            "what": chance.choice(["add", "add", "only", "fail"]),
        }
        for n, user in enumerate(USERS * 2)
    ]


def put(stage, count):
    """Write a file for each micro-batch that may be killed; return the rows of all files."""
    chance = random.Random(count)
    hour_later = range(count + 60, count + 60 + LAST_BATCHES)
    files = [rows_at(chance, minute) for minute in [*range(count), *hour_later]]
    for rows in files[:count]:
        stage.put(*rows)
    return files


def batches_of(stage, files):
    """Return the rows of each batch, by Spark's log: a killed driver may leave one of two files."""
    logs = sorted(stage.checkpoint.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
    ends = [json.loads(log.read_text().splitlines()[2])["logOffset"] + 1 for log in logs]
    return [[*chain(*files[start:end])] for start, end in pairwise([0, *ends])]


class Model:
    """The function, by hand: what fails changes nothing, and is a row with its error."""

    def __init__(self, job):
        self.job = job
        self.rows, self.reminded = Counter(), Counter()
        self.seen = defaultdict(list)
        """(User, order) → the numbers of the rows since the last reminder."""
        self.timers = set()
        """(Time, user, order)."""
        self.watermark = None
        self.out, self.failed = [], []

    def run(self, rows):
        while due := [one for one in self.timers if self.watermark and one[0] <= self.watermark]:
            self.fire(*min(due))
        for row in rows:
            self.process(row["user"], row["order_id"], row)
        self.watermark = max(datetime.fromisoformat(row["at"]) for row in rows)

    def process(self, user, order, row):
        if row["what"] == "fail":
            self.failed.append(("ValueError", "process_element", user, row["n"], None))
            return
        self.rows[user] += 1
        self.seen[user, order].append(self.rows[user])
        at = datetime.fromisoformat(row["at"])
        if row["what"] == "only":
            self.timers = {one for one in self.timers if one[1:] != (user, order)}
        self.timers.add((at + row["after"] * self.job.MINUTE, user, order))
        counts = self.rows[user], self.reminded[user]
        self.out.append((user, order, at, *counts, list(self.seen[user, order])))

    def fire(self, at, user, order):
        self.timers.remove((at, user, order))
        if self.job.fails(order, at):
            self.failed.append(("LookupError", "on_timer", user, None, at))
            return
        self.reminded[user] += 1
        if order != self.job.AGAIN:
            self.timers.add((at + 2 * self.job.MINUTE, user, self.job.AGAIN))
        self.out.append((user, order, at, None, None, self.seen.pop((user, order), [])))


def found(stage, job):
    """Return the rows of the output and of its errors, in the form of the model's."""
    good, failed = [], []
    for *row, error in stage.rows_by_spark(f"{job.SCHEMA}, {job.ERROR}"):
        if error is None:
            user, order, at, *rest = row
            good.append((user, order, at.astimezone(UTC), *rest))
        else:
            assert row == [None] * len(row)
            n = error.row and json.loads(error.row)["n"]
            timer = error.timer and error.timer.astimezone(UTC)
            failed.append((error.type, error.method, error.key, n, timer))
    return good, failed


def check(stage, job, files, df):
    """Run the last batches, and compare the output with the model's."""
    for rows in files[-LAST_BATCHES:]:
        stage.put(*rows)
    stage.run(df)
    model = Model(job)
    for rows in batches_of(stage, files):
        model.run(rows)
    good, failed = found(stage, job)
    assert sorted(good, key=repr) == sorted(model.out, key=repr)
    assert sorted(failed, key=repr) == sorted(model.failed, key=repr)
    assert {type_of for type_of, *_ in failed} == {"ValueError", "LookupError"}


def reminders(stage, job, backend, parallelism, **more):
    source = stage.source(job.ORDERS)
    return job.reminders(
        source, backend=backend, parallelism=parallelism, state_dir=stage.state, **more
    )


def kill_workers(stage, job, kills, backend, restarts, batches):
    files = put(stage, batches)
    killing = kills("reminders")
    held = {"pause": PAUSE_S, "hold": killing.hold, "held_batch": batches - 1}
    df = reminders(stage, job, backend, 2, **held)
    killing.workers(df, restarts=restarts, batches=batches)
    check(stage, job, files, df)


def kill_drivers(stage, job, drive, kills, backend, restarts, batches):
    """Start with another parallelism each time."""
    files = put(stage, batches)

    def start(turn):
        return drive(job="reminding", backend=backend, parallelism=1 + turn % 3, pause=PAUSE_S)

    kills("reminders").drivers(start, restarts=restarts, batches=batches)
    check(stage, job, files, reminders(stage, job, backend, 2))


@both_backends
@pytest.mark.slow
def test_workers_killed_at_random_moments(stage, job, kills, backend):
    kill_workers(stage, job("reminding"), kills, backend, WORKER_RESTARTS, BATCHES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_drivers_killed_at_random_moments(stage, job, drive, kills):
    kill_drivers(stage, job("reminding"), drive, kills, "heap", DRIVER_RESTARTS, BATCHES)


@both_backends
@pytest.mark.soak
def test_workers_killed_again_and_again(stage, job, kills, backend):
    kill_workers(stage, job("reminding"), kills, backend, SOAK_RESTARTS, SOAK_BATCHES)


@both_backends
@pytest.mark.soak
def test_drivers_killed_again_and_again(stage, job, drive, kills, backend):
    kill_drivers(stage, job("reminding"), drive, kills, backend, SOAK_RESTARTS, SOAK_BATCHES)
