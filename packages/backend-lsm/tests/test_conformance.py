"""The lsm backend passes the conformance kit, whatever it may keep in memory.

By default each part of the kit runs once: with a tiny cache if it is about cells, which are then
spread over many files, and with defaults otherwise. The properties run with both, on few examples.
`slow` has all parts with caches of all sizes, on local and on slow storage.
"""

from __future__ import annotations

import time

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing import FaultyStorage, StateBackendTests, Style, late_backend
from forebay_state_api.testing.conformance import PropertyTests
from forebay_state_api.testing.conformance.cleanup import CleanupTests
from forebay_state_api.testing.conformance.damage import DamageTests
from forebay_state_api.testing.conformance.failing import FailureTests
from forebay_state_api.testing.conformance.forks import ForkTests
from forebay_state_api.testing.conformance.futures import FutureTests
from forebay_state_api.testing.conformance.generations import GenerationTests
from forebay_state_api.testing.conformance.iterators import IteratorTests
from forebay_state_api.testing.conformance.kinds import KindTests
from forebay_state_api.testing.conformance.machine import BatchMachine
from forebay_state_api.testing.conformance.namespaced_timers import NamespacedTimerTests
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.readers import ReaderTests
from forebay_state_api.testing.conformance.replay import ReplayTests
from forebay_state_api.testing.conformance.rescale import RescaleTests
from forebay_state_api.testing.conformance.search import fresh_seed
from forebay_state_api.testing.conformance.subject import ENGINES, MANNERS, memory_storage
from forebay_state_api.testing.conformance.timers import TimerTests
from forebay_state_api.testing.conformance.ttl import TtlTests
from forebay_state_api.testing.conformance.ttl_switch import TtlSwitchTests
from forebay_state_api.testing.conformance.versions import MigrationTests, VersionTests


def slow_kit(cls):
    """Mark a class as slow: two hundred micro-batches on slow storage take minutes."""
    return pytest.mark.slow(pytest.mark.timeout(900)(cls))


TINY = {"block-cache-bytes": 1 << 16, "block-bytes": 512}
IN_MEMORY = (
    FailureTests,
    ReplayTests,
    RescaleTests,
    ReaderTests,
    TtlTests,
    TtlSwitchTests,
    CleanupTests,
    TimerTests,
    NamespacedTimerTests,
    MigrationTests,
    ForkTests,
)
OTHERS = {*IN_MEMORY, VersionTests, GenerationTests, DamageTests}
"""Parts that run with a tiny cache in `slow` only, since it takes them four times as long.

All but damages run with defaults. ``files/test_damage.py`` damages the files of this backend, and
the heap backend's tests everything else.
"""


class OfLsm:
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
    """Tiny blocks, cache and memtable, and an engine that flushes often."""

    @pytest.fixture
    def backend_options(self):
        return {**TINY, "memtable-bytes": 1, "max-runs": 3}

    @pytest.fixture(autouse=True)
    def _hands_over_often(self, monkeypatch):
        monkeypatch.setattr("forebay_state_api.engine.engine.SPILL_CELLS", 2)


class Uncached(OfLsm):
    @pytest.fixture
    def backend_options(self):
        return {"block-cache-bytes": 0}


class TestTiny(TinyCache, *(part for part in StateBackendTests.__bases__ if part not in OTHERS)):
    """Run the kit with a tiny cache in memory: it spills, evicts and compacts.

    A backend answers at once or is waited for; the heap backend and `slow` have all styles.
    """

    # The heap backend has all examples by default, `TestSearchTiny` ten times as many.
    history_examples = timer_examples = 4
    program_examples = 8

    @pytest.fixture(params=["synchronous", "tight"])
    def manner(self, request):
        return MANNERS[request.param]

    @pytest.fixture(params=["tight"])
    def some_manner(self, request):
        return MANNERS[request.param]


@slow_kit
class TestRestTiny(TinyCache, DamageTests, *IN_MEMORY, VersionTests, GenerationTests):
    """Run the rest of the kit with a tiny cache in memory."""


class TestDefaultsInMemory(OfLsm, PropertyTests, *IN_MEMORY):
    """Run times, rescales, migrations, forks and some histories with defaults in memory.

    Where only the engine sees the style, each case runs in one; `TestAllDefaults` and the heap
    backend have the others.
    """

    # `TestAllDefaults` has all of these, and so has the heap backend by default.
    failure_examples = machine_examples = 5
    history_examples = timer_examples = program_examples = 3

    # A kill at each request takes five times as long on local storage.
    test_a_kill_at_any_request_loses_nothing = VersionTests.test_a_kill_at_any_request_loses_nothing

    @pytest.fixture(params=["tight"])
    def some_manner(self, request):
        return MANNERS[request.param]


class TestGenerations(OfLsm, GenerationTests):
    """Run changes of types with files that are merged early; `TestAllDefaults` merges them late."""

    @pytest.fixture
    def backend_options(self):
        return {"max-runs": 3}


class TestDefaults(OnLocalStorage, VersionTests):
    """Run versions with defaults on local storage; `TestLocal` runs the whole kit."""

    @pytest.mark.slow
    def test_a_kill_at_any_request_loses_nothing(self, new_job, storage):
        """`TestDefaultsInMemory` runs it by default."""
        super().test_a_kill_at_any_request_loses_nothing(new_job, storage)


@slow_kit
class TestAllDefaults(OfLsm, StateBackendTests):
    """Run the rest of the kit with defaults."""


@slow_kit
class TestSearch(OfLsm, PropertyTests):
    """Search with fresh examples."""

    example_seed = fresh_seed()
    example_factor = 20


@slow_kit
class TestSearchTiny(TinyCache, OnLocalStorage, PropertyTests):
    """Search with fresh examples and a tiny cache."""

    example_seed = fresh_seed()
    example_factor = 10


@slow_kit
class TestLate(FutureTests, IteratorTests, KindTests, OrderTests, TtlTests):
    """Run the kit with reads that are answered late and out of order."""

    @pytest.fixture
    def backend_class(self):
        return late_backend(LsmBackend, seed=1)

    @pytest.fixture
    def forget(self):
        return CACHE.clear


@slow_kit
class TestLocal(OnLocalStorage, StateBackendTests):
    """Run the kit with defaults on local storage."""


@slow_kit
class TestUncached(Uncached, OnLocalStorage, StateBackendTests):
    """Run the kit without a cache on local storage."""


class OnSlowStorage(OfLsm):
    """Storage whose requests take 5 ms; runs only with the default engine, to save time."""

    machine_examples = 3

    @pytest.fixture
    def engine_settings(self):
        return ENGINES["defaults"]

    @pytest.fixture
    def some_manner(self):
        return MANNERS["coroutine"]

    @pytest.fixture(params=[style.value for style in Style])
    def manner(self, request):
        return MANNERS[request.param]

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
class TestOnSlowStorage(OnSlowStorage, StateBackendTests):
    """Run the kit with defaults on slow storage."""


@slow_kit
class TestOnSlowStorageTiny(TinyCache, OnSlowStorage, StateBackendTests):
    """Run the kit with a tiny cache on slow storage."""


@slow_kit
class TestOnSlowStorageUncached(Uncached, OnSlowStorage, StateBackendTests):
    """Run the kit without a cache on slow storage."""
