"""The lsm backend keeps the contract that every backend keeps, whatever it may keep in memory."""

from __future__ import annotations

import time

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api.storage import open_storage
from forebay_state_api.testing import FaultyStorage, StateBackendTests
from forebay_state_api.testing.conformance.machine import BatchMachine
from forebay_state_api.testing.conformance.subject import ENGINES, memory_storage

TINY = {"block-cache-bytes": 1 << 16, "block-bytes": 512}


class OfLsm(StateBackendTests):
    @pytest.fixture
    def backend_class(self):
        return LsmBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear


class TestLsmBackend(OfLsm):
    """With its defaults, in memory."""


class TestTiny(OfLsm):
    """On local storage; blocks, cache and memtable are tiny, and the engine hands over often."""

    machine_examples = 10

    @pytest.fixture
    def backend_options(self):
        return {**TINY, "memtable-bytes": 1, "max-runs": 3}

    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(tmp_path)

    @pytest.fixture(autouse=True)
    def _hands_over_often(self, monkeypatch):
        monkeypatch.setattr("forebay_state_api._engine.engine.SPILL_CELLS", 2)


class OnSlowStorage(OfLsm):
    """Every request takes 5 ms."""

    machine_examples = 3

    @pytest.fixture
    def storage(self):
        return slow(memory_storage())

    @pytest.fixture
    def new_machine(self, new_job, forget):
        def on_slow_storage(*descriptors, storage, **more):
            return new_job(*descriptors, storage=slow(storage), **more)

        return lambda: BatchMachine(on_slow_storage, forget)


def slow(storage):
    return FaultyStorage(storage, latency=lambda operation, name: time.sleep(0.005))


@pytest.mark.slow
class TestOnSlowStorage(OnSlowStorage):
    """With the defaults."""

    @pytest.fixture
    def engine_settings(self):
        return ENGINES["defaults"]


@pytest.mark.slow
class TestOnSlowStorageUncached(OnSlowStorage):
    """Without a cache."""

    @pytest.fixture
    def backend_options(self):
        return {"block-cache-bytes": 0}

    @pytest.fixture
    def engine_settings(self):
        return ENGINES["defaults"]


@pytest.mark.slow
class TestUncached(OfLsm):
    """Without a cache, on local storage."""

    @pytest.fixture
    def backend_options(self):
        return {"block-cache-bytes": 0}

    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(tmp_path)
