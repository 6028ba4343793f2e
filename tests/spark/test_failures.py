"""Failures of functions, workers and drivers: state and output are as without failures.

By default workers are killed at random moments here, and a driver in
``test_timers_and_ttl_kills.py``. Next to a broadcast input a worker ends in one known place.
"""

from __future__ import annotations

import os
import shutil
import time

import pytest

from forebay_spark_runtime import broadcast, keyed
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(20)]
RESTARTS = 2
SOAK_RESTARTS = 20


def everybody(stage, times):
    for _ in range(times):
        stage.put(*[{"user": user} for user in USERS])


def put_rules(stage, count):
    for n in range(count):
        stage.put({"n": n}, into=stage.folder / "rules")


def all_counts(times):
    return sorted((user, n) for user in USERS for n in range(1, times + 1))


class Trouble(KeyedProcessFunction):
    """Counts; at its first row of batch 2 it causes trouble, as often as the file allows."""

    def __init__(self, kind, once):
        self.kind = kind
        self.once = once

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        if ctx.batch_id == 2 and row.user == USERS[-1] and self.once.exists():
            self.once.unlink()
            if self.kind == "exit":
                os._exit(17)
            message = "trouble"
            raise ValueError(message)
        yield row.user, self.n.value()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raise", r"Trouble.process_element \(operator 'counts', key 'user19', batch 2, partition"),
        # By default: a worker ends in test_failing_records.py.
        pytest.param("exit", "crash|exited|Python worker", marks=pytest.mark.slow),
    ],
)
def test_a_failure_ends_the_query_and_a_restart_goes_on(stage, kind, says):
    everybody(stage, 4)
    once = stage.folder / "once"
    once.touch()
    result = keyed(stage.source(), "user", uid="counts", parallelism=2).process(
        Trouble(kind, once), SCHEMA
    )
    with pytest.raises(Exception, match=says) as caught:
        stage.run(result)
    if kind == "raise":
        assert "raised ValueError: trouble" in str(caught.value)
    assert stage.rows(SCHEMA) == all_counts(2)
    stage.run(result)
    assert stage.rows(SCHEMA) == all_counts(4)


class Slow(KeyedProcessFunction):
    """Counts slowly, and waits in a micro-batch as long as a file exists."""

    def __init__(self, hold, held_batch):
        self.hold = hold
        self.held_batch = held_batch

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        time.sleep(0.02)
        while ctx.batch_id == self.held_batch and self.hold.exists():
            time.sleep(0.01)
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


class SlowCoroutine(Slow):
    async def process_element(self, row, ctx):
        for counted in super().process_element(row, ctx):
            yield counted


def kill_workers(stage, kills, restarts, batches):
    everybody(stage, batches)
    killing = kills("counts")
    counting = keyed(stage.source(), "user", uid="counts", parallelism=2)
    counted = counting.process(Slow(killing.hold, batches - 1), SCHEMA)
    killing.workers(counted, restarts=restarts, batches=batches)
    assert stage.rows(SCHEMA) == all_counts(batches)


def test_workers_killed_at_random_moments(stage, kills):
    kill_workers(stage, kills, RESTARTS, batches=4)


@pytest.mark.slow
def test_workers_killed_beside_a_broadcast_input(stage, job, kills):
    batches = 4
    everybody(stage, batches)
    put_rules(stage, batches)
    killing = kills("counts")
    rules = broadcast(stage.source("n long", folder=stage.folder / "rules"))
    counting = keyed(stage.source(), "user", uid="counts", parallelism=2).connect(rules)
    slow = SlowCoroutine(killing.hold, batches - 1)
    counted = counting.process(job("counting").CountWithRules(slow), SCHEMA)
    killing.workers(counted, restarts=RESTARTS, batches=batches)
    assert stage.rows(SCHEMA) == all_counts(batches)


@pytest.mark.soak
def test_workers_killed_again_and_again(stage, kills):
    # If a kill comes too late, more versions have been made.
    kill_workers(stage, kills, SOAK_RESTARTS, batches=120)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rules", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_task_that_fails_is_run_again_in_place(stage, drive, rules):
    """If Spark may try a task again, neither an exception nor a worker's end ends the query."""
    everybody(stage, 5)
    put_rules(stage, 5)
    trouble = {"1": "raise", "2": "exit after rule", "3": "exit"}
    assert drive(trouble=trouble, rules=rules).end() is None
    assert stage.rows(SCHEMA) == all_counts(5)  # the last reads what each retry stored
    attempts = {version: len(names) for version, names in stage.manifests().items()}
    assert attempts == dict.fromkeys((1, 2, 3, 4, 5), 2)
    markers = list(stage.operators()["counts"].glob("versions/*/*/marker-*"))
    assert len(markers) > 10  # including those of failed attempts


class Count(KeyedProcessFunction):
    """The function of the job, without its trouble."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.all = context.get_list_state(ListStateDescriptor("all", int))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        self.all.add(self.n.value())
        yield row.user, self.n.value()


@pytest.mark.timeout(300)
def test_two_drivers_of_one_checkpoint(stage, drive, kills):
    """The older query stops with an error that explains it; the newer one's state is intact."""
    everybody(stage, 3)
    gate = stage.folder / "gate"
    older = drive(gate={"batch": 1, "path": str(gate)})
    deadline = time.monotonic() + 120
    while kills("counts").versions_begun() < 2:
        assert time.monotonic() < deadline, older.log
        assert older.is_running, older.log
        time.sleep(0.02)
    copied = stage.folder / "copied"
    shutil.copytree(stage.checkpoint, copied)
    output = stage.folder / "copied output"
    shutil.copytree(stage.output, output)
    counted = keyed(stage.source("user string"), "user", uid="counts", parallelism=3)
    newer = counted.process(Count(), SCHEMA)
    stage.run(newer, checkpoint=copied, output=output)
    # Spark skips files that the sink's log names elsewhere, which the older driver wrote.
    assert stage.rows(SCHEMA, output=output) == sorted((u, n) for u in USERS for n in (2, 3))
    gate.touch()
    ended = older.end()
    assert "FencedError" in ended
    assert "this query was started elsewhere, or its checkpoint was copied" in ended
    everybody(stage, 1)
    stage.run(newer, checkpoint=copied, output=output)
    assert stage.rows(SCHEMA, output=output) == sorted((u, n) for u in USERS for n in (2, 3, 4))


def kill_drivers(stage, drive, job, kills, restarts, batches):
    everybody(stage, batches)
    put_rules(stage, batches)

    def start(turn):
        return drive(parallelism=1 + turn % 3, pause=0.005, rules=True)

    kills("counts").drivers(start, restarts=restarts, batches=batches)
    job("counting").run(stage.folder, parallelism=2, rules=True)
    assert stage.rows(SCHEMA) == all_counts(batches)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_killed_at_a_random_moment(stage, drive, job, kills):
    """Start with another parallelism each time, which the broadcast state follows."""
    kill_drivers(stage, drive, job, kills, 1, batches=6)


@pytest.mark.soak
def test_drivers_killed_again_and_again(stage, drive, job, kills):
    kill_drivers(stage, drive, job, kills, SOAK_RESTARTS, batches=45)
