"""Workers and drivers killed while calls are out: no call whose answer is kept is made again.

By default one worker of a keyed operator and of an ordered wait is killed. What does not need a
process to die is tested in ``execution/test_kept_calls.py`` of the engine and in
``waiting/test_kept_answers.py`` of the runtime.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from forebay_engine.journal.answer_objects import stored_answers
from forebay_engine.versions.format.layout import AnswersName

pytest.importorskip("aiohttp", reason="the job asks by aiohttp")

pytestmark = pytest.mark.spark

BATCHES, ROWS = 2, 100
PARALLELISM, IN_FLIGHT = 2, 4
OPERATORS = ["heap", "lsm", "wait"]
SOAK_KILLS = 25


@pytest.fixture
def service(http_service):
    http_service.delay_s = lambda _: 0.01
    return http_service


@pytest.fixture(autouse=True)
def _rows(stage):
    (stage.folder / "pids").mkdir()
    stage.put_ids(BATCHES, ROWS)


def kept(stage):
    """Return the number of answers of each version."""
    found: dict[int, int] = {}
    for path in stage.state.glob("**/asks/data/*/calls/*"):
        name = AnswersName.parse(str(path.relative_to(path.parents[3])))
        if name is None:
            continue  # it is not written whole yet
        with contextlib.suppress(FileNotFoundError):  # a wait deletes those of earlier batches
            answers = len(stored_answers(path.read_bytes(), path.name))
            found[name.version] = found.get(name.version, 0) + answers
    return found


class Holding:
    """Lets calls wait, from some call on, until every other answer of the batch is stored."""

    def __init__(self, stage, service, chance, lost):
        self._stage, self._service = stage, service
        self._answered = service.delay_s
        before = len(service.calls) - lost
        self._first = len(service.calls) + chance.randrange(5, ROWS // 2)
        self._lost = lost
        assert before < BATCHES * ROWS - ROWS // 2, "enough rows are left to hold some"
        self.out = 0
        service.delay_s = self._delay_s

    def _delay_s(self, row):
        if len(self._service.calls) < self._first:
            return self._answered(row)
        self.out += 1
        return 100.0

    def wait(self, driver):
        """Wait until calls are out, and the answers of all others are stored."""
        deadline = time.monotonic() + 120
        while not (self.out and self._others_are_kept()):
            assert driver.is_running, driver.log
            assert time.monotonic() < deadline, (driver.log, kept(self._stage), self.out)
            time.sleep(0.01)

    def _others_are_kept(self):
        answered = len(self._service.calls) - self.out - self._lost
        found = kept(self._stage)
        newest = max(found, default=1)
        return found.get(newest, 0) + (newest - 1) * ROWS == answered

    def release(self):
        self._service.delay_s = self._answered


def kill_workers(stage):
    for path in (stage.folder / "pids").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has exited by itself
            os.kill(int(path.name), signal.SIGKILL)
        path.unlink()


def check(stage, service, lost):
    """Check that ``lost`` calls alone, which were out when a process was killed, are repeated."""
    rows = range(BATCHES * ROWS)
    assert stage.rows("id long, answer string") == service.answers(rows)
    assert {row for _, row, _ in service.calls} == set(rows)
    assert len(service.calls) == len(rows) + lost


def lose_workers(stage, service, drive, chance, operator, kills):
    driver = drive(job="keeping", url=service.url(), operator=operator, parallelism=PARALLELISM)
    lost = 0
    for _ in range(kills):
        holding = Holding(stage, service, chance, lost)
        holding.wait(driver)
        kill_workers(stage)
        assert 0 < holding.out <= PARALLELISM * IN_FLIGHT
        lost += holding.out
        holding.release()
    assert driver.end() is None
    check(stage, service, lost)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("operator", ["heap", "wait"])
def test_workers_killed_while_calls_are_out(stage, service, drive, chance, operator):
    lose_workers(stage, service, drive, chance, operator, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("operator", OPERATORS)
def test_workers_killed_twice_in_a_batch(stage, service, drive, chance, operator):
    lose_workers(stage, service, drive, chance, operator, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_driver_killed_while_calls_are_out(stage, service, drive, job, chance, operator):
    """The next driver is this process, with another parallelism."""
    driver = drive(job="keeping", url=service.url(), operator=operator, parallelism=4)
    holding = Holding(stage, service, chance, 0)
    holding.wait(driver)
    driver.kill()
    holding.release()
    job("keeping").run(stage.folder, service.url(), operator=operator, parallelism=3)
    check(stage, service, holding.out)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("turn", range(SOAK_KILLS))
@pytest.mark.parametrize("operator", OPERATORS)
def test_workers_and_drivers_killed_again_and_again(
    stage, service, drive, job, chance, operator, turn
):
    """With `SOAK_KILLS` turns these are some 225 kills: two of workers and a driver in each."""
    lost = 0
    driver = drive(job="keeping", url=service.url(), operator=operator, parallelism=1 + turn % 4)
    for kill in (kill_workers, kill_workers, lambda _: driver.kill()):
        holding = Holding(stage, service, chance, lost)
        holding.wait(driver)
        kill(stage)
        lost += holding.out
        holding.release()
    job("keeping").run(stage.folder, service.url(), operator=operator, parallelism=2)
    check(stage, service, lost)
