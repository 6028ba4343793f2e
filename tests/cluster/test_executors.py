"""Executors killed, lost, decommissioned and excluded: what a plain model says, nothing else.

The job, the model and the check are those of the kills of workers and drivers: timers of both
kinds, values, lists and maps with times to live.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ..loading import load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TESTS = Path(__file__).parents[1]
model = load(TESTS / "spark" / "test_timers_and_ttl_kills.py")

JOB = TESTS / "jobs" / "visiting.py"
BATCHES = 8
both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])


class Visits:
    """A driver that follows visits on two executors."""

    def __init__(self, stage, drive_cluster, backend, conf=None):
        self.stage, self.backend = stage, backend
        self.batches = model.put(stage, BATCHES)
        told = {"backend": backend, "parallelism": 2, "pause": model.PAUSE_S}
        told |= {"master": "local-cluster[2,1,1024]", "folder": str(stage.folder)}
        self.driver = drive_cluster(JOB, json.dumps(told), conf=conf)

    def versions_begun(self):
        return len(list(self.stage.state.glob("*/visits/versions/*")))

    def wait_for_version(self, number):
        self.wait_until(lambda: self.versions_begun() >= number)

    def wait_until(self, met):
        deadline = time.monotonic() + 240
        while not met():
            assert self.driver.is_running, self.driver.log[-8000:]
            assert time.monotonic() < deadline, self.driver.log[-8000:]
            time.sleep(0.02)

    def check(self):
        self.driver.end()
        model.check(self.stage, self.backend, self.batches)


@both_backends
def test_one_executor_killed_and_replaced(stage, drive_cluster, backend):
    visits = Visits(stage, drive_cluster, backend)
    for version in (2, 4, 6):
        visits.wait_for_version(version)
        before = set(visits.driver.executors())
        os.kill(min(before), signal.SIGKILL)
        visits.wait_until(lambda before=before: set(visits.driver.executors()) - before)
    visits.check()


@both_backends
def test_all_executors_lost_at_once(stage, drive_cluster, backend):
    visits = Visits(stage, drive_cluster, backend)
    visits.wait_for_version(3)
    lost = visits.driver.executors()
    assert len(lost) == 2
    for executor in lost:
        os.kill(executor, signal.SIGKILL)
    visits.check()
    assert "Lost executor" in visits.driver.log


def test_an_executor_that_is_decommissioned(stage, drive_cluster):
    """As Kubernetes announces the end of a pod: it finishes its tasks and gets no more."""
    visits = Visits(stage, drive_cluster, "lsm", {"spark.decommission.enabled": "true"})
    visits.wait_for_version(3)
    os.kill(min(visits.driver.executors()), signal.SIGPWR)
    visits.check()
    assert "ecommission" in visits.driver.log


def test_an_executor_that_is_excluded(stage, drive_cluster, tmp_path_factory):
    """Its Python dies under a task: Spark gives it no further one."""
    log = tmp_path_factory.mktemp("events")
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.excludeOnFailure.enabled": "true",
        "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
        "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor": "1",
        "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
        "spark.excludeOnFailure.application.maxFailedTasksPerNode": "9",
        "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode": "9",
        "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "3",
    }
    visits = Visits(stage, drive_cluster, "heap", conf)
    visits.wait_for_version(3)
    executor = min(visits.driver.executors())

    def has_failed():
        for worker in visits.driver.workers_of(executor):
            os.kill(worker, signal.SIGKILL)
        return "Lost task" in visits.driver.log

    visits.wait_until(has_failed)
    visits.check()
    events = [path.read_text() for path in log.rglob("*") if path.is_file()]
    assert any("SparkListenerExecutorExcluded" in text for text in events)
