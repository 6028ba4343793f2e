"""Failures of functions, workers and drivers: in the end, state and output as if nothing was."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from forebay_spark_runtime import keyed
from forebay_spark_runtime.demo.kill import end, unfinished, workers
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.storage import open_storage
from forebay_state_api.versions.markers import list_version

pytestmark = pytest.mark.spark

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(20)]
JOB = Path(__file__).parents[1] / "jobs" / "counting.py"
RESTARTS = 3
SOAK_RESTARTS = 20


def everybody(stage, times):
    for _ in range(times):
        stage.put(*[{"user": user} for user in USERS])


def all_counts(times):
    return sorted((user, n) for user in USERS for n in range(1, times + 1))


class Trouble(KeyedProcessFunction):
    """Counts; at its first row of batch 2 it does what it is told, as often as the file lasts."""

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
        ("exit", "crash|exited|Python worker"),
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
    """Counts slowly."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        time.sleep(0.01)
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


def uncommitted(stage, versions):
    """Task attempts that have a marker in one of these versions, and no manifest."""
    operator = stage.operators().get("counts")
    if operator is None:  # nothing has begun yet
        return set()
    storage = open_storage(operator)
    return set().union(*(unfinished(list_version(storage, version)) for version in versions))


def kill_in_a_version(stage, query, versions, chance):
    """SIGKILL to all workers while one of these versions is being made, at a random moment of it.

    Gives whether an attempt was lost by it: it is tried again where the kill came too late.
    """
    dead = uncommitted(stage, versions)
    jvm_pid = stage.spark._jvm.ProcessHandle.current().pid()
    while query.isActive:
        if not uncommitted(stage, versions) - dead:
            time.sleep(0.005)
            continue
        time.sleep(chance.uniform(0, 0.1))
        end(list(workers(jvm_pid)))
        if uncommitted(stage, versions) - dead:
            return True
    return False


def kill_workers(stage, restarts, batches):
    """Kill so often, each time within the next two versions; then the rest undisturbed."""
    everybody(stage, batches)
    chance = random.Random(os.urandom(8))
    counted = keyed(stage.source(), "user", uid="counts", parallelism=2).process(Slow(), SCHEMA)
    failures = 0
    for _ in range(restarts):
        target = len(stage.manifests()) + chance.randrange(1, 3) if failures else 1
        query = stage.start(counted)
        try:
            assert kill_in_a_version(stage, query, range(target, batches + 1), chance), (
                "the query ended before a version of it could be hit"
            )
            with pytest.raises(StreamingQueryException) as lost:
                query.awaitTermination()
            assert "FencedError" not in str(lost.value)
            assert "CorruptStateError" not in str(lost.value)
            failures += 1
        finally:
            query.stop()
    stage.run(counted)
    assert stage.rows(SCHEMA) == all_counts(batches)
    return failures


def test_workers_killed_at_random_moments(stage):
    assert kill_workers(stage, RESTARTS, batches=10) == RESTARTS


@pytest.mark.soak
def test_workers_killed_again_and_again(stage):
    assert kill_workers(stage, SOAK_RESTARTS, batches=60) == SOAK_RESTARTS


class Driver:
    """A driver process of its own, and its JVM and workers with it."""

    def __init__(self, stage, *, master="local[2]", **told):
        log = (stage.folder / "driver.log").open("ab")
        argument = json.dumps({"master": master, "folder": str(stage.folder), **told})
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), argument],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._log = Path(log.name)
        log.close()

    def kill(self):
        """Everything at once: the session is this driver's own."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Wait for the end; its return code."""
        return self.process.wait(180)

    @property
    def log(self):
        return self._log.read_text(errors="replace")


@pytest.fixture
def drive(stage):
    started = []

    def start(**told):
        started.append(Driver(stage, **told))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            driver.kill()


def test_a_task_that_fails_is_run_again_in_place(stage, drive):
    """With local[2,4] neither an exception nor the end of the worker ends the query."""
    everybody(stage, 5)
    trouble = {"1": "raise", "3": "exit"}
    driver = drive(trouble=trouble, master="local[2,4]")
    assert driver.end() == 0, driver.log
    assert stage.rows(SCHEMA) == all_counts(5)
    attempts = {version: len(names) for version, names in stage.manifests().items()}
    assert attempts == dict.fromkeys((1, 2, 3, 4, 5), 2)
    markers = list(stage.operators()["counts"].glob("versions/*/marker-*"))
    assert len(markers) > 10  # those of the attempts that failed among them


def versions_begun(stage):
    return len(list(stage.state.glob("*/counts/versions/*")))


def kill_drivers(stage, drive, restarts, batches):
    everybody(stage, batches)
    chance = random.Random(os.urandom(8))
    for turn in range(restarts):
        parallelism = 1 + turn % 3
        driver = drive(parallelism=parallelism, pause=0.005)
        target = versions_begun(stage) + chance.randrange(1, 3)
        deadline = time.monotonic() + 120
        while versions_begun(stage) < min(target, batches) and driver.process.poll() is None:
            assert time.monotonic() < deadline, driver.log
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.4))
        driver.kill()
    driver = drive(parallelism=2)
    assert driver.end() == 0, driver.log
    assert stage.rows(SCHEMA) == all_counts(batches)


@pytest.mark.timeout(300)
def test_drivers_killed_at_random_moments(stage, drive):
    """With another parallelism at each start."""
    kill_drivers(stage, drive, RESTARTS, batches=8)


@pytest.mark.soak
def test_drivers_killed_again_and_again(stage, drive):
    kill_drivers(stage, drive, SOAK_RESTARTS, batches=45)


class Count(KeyedProcessFunction):
    """What the job does, without its trouble."""

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.all = context.get_list_state(ListStateDescriptor("all", int))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        self.all.add(self.n.value())
        yield row.user, self.n.value()


def test_two_drivers_of_one_checkpoint(stage, drive):
    """The older one stops with the error that says so; the newer one's state is untouched."""
    everybody(stage, 4)
    gate = stage.folder / "gate"
    older = drive(gate={"batch": 2, "path": str(gate)})
    deadline = time.monotonic() + 120
    while versions_begun(stage) < 3:
        assert time.monotonic() < deadline, older.log
        assert older.process.poll() is None, older.log
        time.sleep(0.02)
    copied = stage.folder / "copied"
    shutil.copytree(stage.checkpoint, copied)
    output = stage.folder / "copied output"
    shutil.copytree(stage.output, output)
    counted = keyed(stage.source("user string"), "user", uid="counts", parallelism=3)
    newer = counted.process(Count(), SCHEMA)
    stage.run(newer, checkpoint=copied, output=output)
    # Spark leaves out what the sink's log names elsewhere: what the older driver wrote.
    assert stage.rows(SCHEMA, output=output) == sorted((u, n) for u in USERS for n in (3, 4))
    gate.touch()
    assert older.end() != 0
    assert "FencedError" in older.log
    assert "this query was started elsewhere, or its checkpoint was copied" in older.log
    everybody(stage, 1)
    stage.run(newer, checkpoint=copied, output=output)
    assert stage.rows(SCHEMA, output=output) == sorted((u, n) for u in USERS for n in (3, 4, 5))
