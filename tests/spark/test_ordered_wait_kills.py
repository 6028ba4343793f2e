"""Workers and drivers killed during calls: in the end every row is in the sink once.

By default workers are killed while calls are out. Rows are carried over by batches that are run
again in ``waiting/test_carry.py`` of the runtime, and queries that start again ask under the same
keys in ``test_ordered_wait_restarts.py``. The tests that kill workers come first: they share a
driver with the first that kills a driver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial

import pytest

pytest.importorskip("aiohttp", reason="the job asks by aiohttp")

pytestmark = pytest.mark.spark

BATCHES, ROWS = 4, 40
ASKED = "id long, answer string"


@pytest.fixture
def service(http_service):
    http_service.delay_s = lambda _: 0.02
    return http_service


@pytest.fixture(autouse=True)
def _rows(stage):
    (stage.folder / "pids").mkdir()
    stage.put_ids(BATCHES, ROWS)


def wait_for_calls(service, count, driver):
    deadline = time.monotonic() + 120
    while len(service.calls) < count and driver.is_running:
        assert time.monotonic() < deadline, driver.log
        time.sleep(0.01)


def late_ones(row):
    """Every seventh row of the service takes longer than a micro-batch waits for it."""
    return 0.5 if row % 7 == 3 else 0.02


def check_carried(stage, service):
    """Check as `check`; rows that were added to make micro-batches have the id -1."""
    found = [row for row in stage.rows(ASKED) if row[0] >= 0]
    everything = service.answers(range(BATCHES * ROWS))
    assert found == everything
    keys = {(path, row, key) for path, row, key in service.calls if row >= 0}
    assert len(keys) == len({key for *_, key in keys}) == len(everything)


def check(stage, service):
    everything = service.answers(range(BATCHES * ROWS))
    assert stage.rows(ASKED) == everything
    # A repeated call of a row has the same key, and no two rows share a key.
    keys = set(service.calls)
    assert len(keys) == len({key for *_, key in keys}) == len(everything)


def kill_driver(stage, service, drive, job, chance, **options):
    """Kill a driver during its calls, from some row on; the next driver is this process."""
    count = chance.randrange(5, (BATCHES - 1) * ROWS)
    answered = service.delay_s
    service.delay_s = partial(_late_from, service, count, answered)
    driver = drive(job="waiting", url=service.url(), **options)
    wait_for_calls(service, count, driver)
    driver.kill()
    service.delay_s = answered
    job("waiting").run(stage.folder, service.url(), **options)


def kill_workers(stage, service, drive, chance, kills, **options):
    """Kill one driver's workers ``kills`` times; Spark runs their tasks again."""
    driver = drive(job="waiting", url=service.url(), **options)
    answered = service.delay_s
    for _ in range(kills):
        count = len(service.calls) + chance.randrange(5, 60)
        # The calls from some row on are out until the worker is killed.
        service.delay_s = partial(_late_from, service, count, answered)
        wait_for_calls(service, count, driver)
        for path in (stage.folder / "pids").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has exited by itself
                os.kill(int(path.name), signal.SIGKILL)
            path.unlink()
        service.delay_s = answered
    assert driver.end() is None


def _late_from(service, count, answered, row):
    return 10.0 if len(service.calls) >= count else answered(row)


@pytest.mark.timeout(300)
def test_workers_killed_while_calls_are_out(stage, service, drive, chance):
    kill_workers(stage, service, drive, chance, kills=1)
    check(stage, service)
    assert len(service.calls) > BATCHES * ROWS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_killed_while_rows_are_carried_over(stage, service, drive, chance):
    service.delay_s = late_ones
    kill_workers(stage, service, drive, chance, kills=2, carry=BATCHES * ROWS)
    check_carried(stage, service)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_killed_while_calls_are_out(stage, service, drive, job, chance):
    kill_driver(stage, service, drive, job, chance)
    check(stage, service)
    assert len(service.calls) > BATCHES * ROWS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_killed_while_rows_are_carried_over(stage, service, drive, job, chance):
    service.delay_s = late_ones
    kill_driver(stage, service, drive, job, chance, carry=BATCHES * ROWS)
    check_carried(stage, service)
    assert len(service.calls) > BATCHES * ROWS
