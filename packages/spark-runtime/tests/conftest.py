"""How the tests draw their examples, and how they wait for background work."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no defect of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def done():
    """Waits until a pool of one thread has done what it was given until now."""

    def wait(pool):
        reached = threading.Event()
        pool.do(reached.set)
        assert reached.wait(30)

    return wait
