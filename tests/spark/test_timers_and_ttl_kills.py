"""Workers and drivers killed while timers fire and state expires, compared with a plain model.

By default one driver is killed; workers are killed in ``test_failures.py``.
"""

from __future__ import annotations

import pytest
from pyspark import cloudpickle

from .visiting_model import PARALLELISMS, check, put, visiting

pytestmark = pytest.mark.spark

BATCHES, WORKER_RESTARTS, DRIVER_RESTARTS = 8, 2, 1
SOAK_BATCHES, SOAK_RESTARTS = 60, 20
PAUSE_S = 0.02

both_backends = pytest.mark.parametrize("backend", ["heap", "lsm"])


@pytest.fixture(autouse=True)
def _job_travels_by_value():
    cloudpickle.register_pickle_by_value(visiting)
    yield
    cloudpickle.unregister_pickle_by_value(visiting)


# -- kills ------------------------------------------------------------------------------------


def kill_workers(stage, kills, backend, restarts, batches, *, by_columns=False):
    visits = put(stage, batches)
    killing = kills("visits")
    found = visiting.visits(
        stage.source(visiting.VISITS),
        backend=backend,
        parallelism=2,
        state_dir=stage.state,
        pause=PAUSE_S,
        hold=killing.hold,
        held_batch=batches - 1,
        by_columns=by_columns,
    )
    killing.workers(found, restarts=restarts, batches=batches)
    check(stage, backend, visits)


def kill_drivers(stage, drive, kills, backend, restarts, batches, *, by_columns=False):
    """Start with another parallelism each time, and with ``by_columns`` with the other face."""
    visits = put(stage, batches)

    def parallelism(turn):
        return PARALLELISMS[turn % len(PARALLELISMS)]

    def options(turn):
        columns = by_columns and turn % 2 == 0
        return {"backend": backend, "parallelism": parallelism(turn), "by_columns": columns}

    def start(turn):
        return drive(job="visiting", pause=PAUSE_S, **options(turn))

    kills("visits").drivers(start, restarts=restarts, batches=batches)
    visiting.run(stage.folder, **options(restarts))
    check(stage, backend, visits)


@both_backends
@pytest.mark.slow
def test_workers_killed_at_random_moments(stage, kills, backend):
    kill_workers(stage, kills, backend, WORKER_RESTARTS, BATCHES)


@both_backends
@pytest.mark.slow
def test_workers_of_a_batch_function_killed_at_random_moments(stage, kills, backend):
    kill_workers(stage, kills, backend, WORKER_RESTARTS, BATCHES, by_columns=True)


@both_backends
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_drivers_killed_while_a_job_changes_its_face_and_parallelism(stage, drive, kills, backend):
    kill_drivers(stage, drive, kills, backend, 2, BATCHES, by_columns=True)


@pytest.mark.timeout(300)
def test_a_driver_killed_at_a_random_moment(stage, drive, kills):
    """Uses lsm, which has more files; the soak tests also use heap.

    The driver is that of the tests in ``test_failures.py``, which run before: each costs a JVM.
    """
    kill_drivers(stage, drive, kills, "lsm", DRIVER_RESTARTS, BATCHES)


@both_backends
@pytest.mark.soak
def test_workers_killed_again_and_again(stage, kills, backend):
    kill_workers(stage, kills, backend, SOAK_RESTARTS, SOAK_BATCHES)


@both_backends
@pytest.mark.soak
def test_drivers_killed_again_and_again(stage, drive, kills, backend):
    kill_drivers(stage, drive, kills, backend, SOAK_RESTARTS, SOAK_BATCHES)


@both_backends
@pytest.mark.soak
def test_workers_of_a_batch_function_killed_again_and_again(stage, kills, backend):
    kill_workers(stage, kills, backend, SOAK_RESTARTS, SOAK_BATCHES, by_columns=True)


@both_backends
@pytest.mark.soak
def test_drivers_killed_again_and_again_while_faces_change(stage, drive, kills, backend):
    kill_drivers(stage, drive, kills, backend, SOAK_RESTARTS, SOAK_BATCHES, by_columns=True)
