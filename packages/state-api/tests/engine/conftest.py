"""Run functions for the tests of the engine, on the reference backend, whose reads wait."""

from __future__ import annotations

import attrs
import pytest

from forebay_state_api.settings import EngineSettings
from forebay_state_api.testing import KeyedJob
from forebay_state_api.testing.conformance.subject import memory_storage
from forebay_state_api.testing.reference import ReferenceBackend

SETTINGS = EngineSettings(read_ahead=False)


@pytest.fixture
def new_job():
    """Makes a job; keyword arguments of `EngineSettings` too."""

    def make(backend=ReferenceBackend, *, storage=None, uid="operator", **settings):
        return KeyedJob(
            backend,
            storage or memory_storage(),
            settings=attrs.evolve(SETTINGS, **settings),
            uid=uid,
        )

    return make


@pytest.fixture
def job(new_job):
    return new_job()
