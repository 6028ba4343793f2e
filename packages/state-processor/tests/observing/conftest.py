"""Operators' folders as jobs leave them: manifests with figures."""

from __future__ import annotations

import uuid

import pytest

from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.committing_job import CommittingJob
from forebay_testing.storage import ClockedStorage


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def storage(clock):
    """Storage in memory whose objects get the manual clock's times."""
    return ClockedStorage(MemoryStorage(f"memory://{uuid.uuid4()}"), clock)


@pytest.fixture
def job(storage, clock):
    return CommittingJob(storage, clock)


@pytest.fixture
def make_committing_job(clock):
    """Return a function that makes jobs on a given storage."""

    def make(storage, **how):
        return CommittingJob(storage, clock, **how)

    return make
