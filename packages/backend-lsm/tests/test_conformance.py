"""The lsm backend keeps the contract that every backend keeps, whatever it may keep in memory.

Caches of all sizes, on local and on slow storage: those cells that take minutes are `slow`.
"""

from __future__ import annotations

import time

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api.storage import open_storage
from forebay_state_api.testing import FaultyStorage, StateBackendTests, late_backend
from forebay_state_api.testing.conformance.futures import FutureTests
from forebay_state_api.testing.conformance.iterators import IteratorTests
from forebay_state_api.testing.conformance.kinds import KindTests
from forebay_state_api.testing.conformance.machine import BatchMachine
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.subject import ENGINES, memory_storage
from forebay_state_api.testing.conformance.ttl import TtlTests


def slow_kit(cls):
    """Two hundred micro-batches on slow storage take minutes."""
    return pytest.mark.slow(pytest.mark.timeout(900)(cls))


TINY = {"block-cache-bytes": 1 << 16, "block-bytes": 512}


class OfLsm(StateBackendTests):
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return LsmBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear


class OnLocalStorage(OfLsm):
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(tmp_path)


class TinyCache(OfLsm):
    """Blocks, cache and memtable are tiny, and the engine hands over often."""

    @pytest.fixture
    def backend_options(self):
        return {**TINY, "memtable-bytes": 1, "max-runs": 3}

    @pytest.fixture(autouse=True)
    def _hands_over_often(self, monkeypatch):
        monkeypatch.setattr("forebay_state_api._engine.engine.SPILL_CELLS", 2)


class Uncached(OfLsm):
    @pytest.fixture
    def backend_options(self):
        return {"block-cache-bytes": 0}


class TestLsmBackend(OfLsm):
    """With its defaults, in memory."""


class TestTiny(TinyCache, OnLocalStorage):
    """With a tiny cache, on local storage."""

    machine_examples = 10


@slow_kit
class TestLate(FutureTests, IteratorTests, KindTests, OrderTests, TtlTests):
    """With reads that are answered late, in another order than they were asked."""

    @pytest.fixture
    def backend_class(self):
        return late_backend(LsmBackend, seed=1)

    @pytest.fixture
    def forget(self):
        return CACHE.clear


@slow_kit
class TestLocal(OnLocalStorage):
    """With its defaults, on local storage."""


@slow_kit
class TestUncached(Uncached, OnLocalStorage):
    """Without a cache, on local storage."""


class OnSlowStorage(OfLsm):
    """Every request takes 5 ms; only with the default engine, for the time it takes."""

    machine_examples = 3

    @pytest.fixture
    def engine_settings(self):
        return ENGINES["defaults"]

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


@slow_kit
class TestOnSlowStorage(OnSlowStorage):
    """With the defaults."""


@slow_kit
class TestOnSlowStorageTiny(TinyCache, OnSlowStorage):
    """With a tiny cache."""


@slow_kit
class TestOnSlowStorageUncached(Uncached, OnSlowStorage):
    """Without a cache."""
