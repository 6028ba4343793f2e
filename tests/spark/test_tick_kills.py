"""Workers, drivers and JVMs killed in ticks, compared with a plain model.

In the model a tick is a micro-batch of which every subtask learns the time, as a row of a foreign
key without an event time would bring it. Restarts change the parallelism, and some have no ticks.
"""

from __future__ import annotations

import json
import time

import pyspark
import pytest
from pyspark import cloudpickle

from .visiting_model import PARALLELISMS, batch_of_visits, check, put_visits, visiting

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4", reason="sources in Python are of 4.0"),
]

TICKS = "50 milliseconds"
PAUSE_S = 0.02
KILLS, SOAK_KILLS = 1, 70
DRIVER_KILLS, SOAK_DRIVER_KILLS = 3, 30

both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])


@pytest.fixture(autouse=True)
def _job_travels_by_value():
    cloudpickle.register_pickle_by_value(visiting)
    yield
    cloudpickle.unregister_pickle_by_value(visiting)


@pytest.fixture(autouse=True)
def _whole_log(spark):
    yield
    spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


class Quiet:
    """A stream that gets a file now and then, and ticks in between."""

    def __init__(self, stage, chance, backend):
        self.stage = stage
        self.files = []
        self._chance = chance
        self._backend = backend

    def put(self):
        """Write the next file."""
        visits = batch_of_visits(self._chance, len(self.files))
        self.files.append(put_visits(self.stage, visits))

    def options(self, *, pause=PAUSE_S):
        """Draw what a run may change."""
        parallelism = self._chance.choice(PARALLELISMS)
        return {"backend": self._backend, "parallelism": parallelism, "pause": pause}

    def start(self, ticks=TICKS, *, is_endless, **options):
        source = self.stage.source(visiting.VISITS)
        found = visiting.visits(source, state_dir=self.stage.state, ticks=ticks, **options)
        return visiting.started(found, self.stage.folder, is_endless=is_endless)

    def run(self, ticks=TICKS):
        """Process what is available."""
        query = self.start(ticks, is_endless=False, **self.options(pause=0.0))
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def visits(self):
        """Return the visits of each micro-batch, by the offsets of the files; ticks have none."""
        entries = self.stage.checkpoint / "offsets"
        found, read = [], 0
        for batch in range(len(list(entries.glob("[0-9]*")))):
            _, _, *offsets = (entries / str(batch)).read_text().splitlines()
            until = 1 + next((fields["logOffset"] for fields in fields_of(offsets)), -1)
            found.append([visit for file in self.files[read:until] for visit in file])
            read = max(read, until)
        return found

    def await_tick(self, running):
        """Wait until the last file is committed; return the number of the next micro-batch."""
        deadline = time.monotonic() + 120
        while True:
            visits = self.visits()
            committed = len(list((self.stage.checkpoint / "commits").glob("[0-9]*")))
            if sum(map(len, visits[:committed])) == sum(map(len, self.files)):
                return committed
            assert running()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def check(self, killed):
        """Compare the output and the state of all micro-batches with those of the model."""
        self.run()
        visits = self.visits()
        assert not any(visits[number] for number in killed), "ticks have no rows"
        check(self.stage, self._backend, visits)


def fields_of(offsets):
    """Return the offsets of files."""
    return [fields for fields in map(json.loads, offsets) if "logOffset" in fields]


@pytest.fixture
def quiet(stage, chance):
    return lambda backend: Quiet(stage, chance, backend)


def kill_workers(quiet, kills, chance, count):
    killing, killed = kills("visits"), []
    for turn in range(count):
        quiet.put()
        query = quiet.start(is_endless=True, **quiet.options())
        tick = quiet.await_tick(lambda query=query: query.isActive)
        killing.in_a_version(query, range(tick + 1, tick + 9))
        killed.append(len(quiet.visits()) - 1)
        if turn % 5 == 1:
            quiet.put()
            quiet.run(chance.choice([None, TICKS]))
    quiet.check(killed)


def kill_drivers(quiet, drive, chance, count):
    killed = []
    kinds = ("kill", "kill_python", "kill_jvm")
    for turn in range(count):
        quiet.put()
        driver = drive(job="visiting", ticks=TICKS, **quiet.options())
        tick = quiet.await_tick(lambda driver=driver: driver.is_running)
        while len(quiet.visits()) <= tick:
            assert driver.is_running
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.6))
        getattr(driver, kinds[turn % len(kinds)])()
        killed.append(len(quiet.visits()) - 1)
        if turn % 5 == 1:
            quiet.put()
            quiet.run(chance.choice([None, TICKS]))
    quiet.check(killed)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_workers_killed_in_ticks(quiet, kills, chance):
    kill_workers(quiet("lsm"), kills, chance, KILLS)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_drivers_and_jvms_killed_in_ticks(quiet, drive, chance):
    kill_drivers(quiet("heap"), drive, chance, DRIVER_KILLS)


@both_backends
@pytest.mark.soak
def test_workers_killed_in_ticks_again_and_again(quiet, kills, chance, backend):
    kill_workers(quiet(backend), kills, chance, SOAK_KILLS)


@both_backends
@pytest.mark.soak
def test_drivers_and_jvms_killed_in_ticks_again_and_again(quiet, drive, chance, backend):
    kill_drivers(quiet(backend), drive, chance, SOAK_DRIVER_KILLS)
