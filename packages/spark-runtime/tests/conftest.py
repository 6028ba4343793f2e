"""How tests wait for background work."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def done():
    """Waits until a pool of one thread has done what it was given until now."""

    def wait(pool):
        reached = threading.Event()
        pool.do(reached.set)
        assert reached.wait(30)

    return wait
