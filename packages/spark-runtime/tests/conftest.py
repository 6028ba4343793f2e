"""Waiting for background work in tests."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def done():
    """Return a function that waits until a pool of one thread has done all its work so far."""

    def wait(pool):
        reached = threading.Event()
        pool.do(reached.set)
        assert reached.wait(100)

    return wait
