"""The lsm backend passes the conformance kit, whatever it may keep in memory.

By default a part of the kit runs once: with a tiny cache if it is about cells, which are then
spread over many files, and with defaults otherwise; the properties, on few examples, with a tiny
cache. The heap backend runs the cases and parts that are left out here, and the reference backend
those whose reads may wait. `slow` has all parts with caches of all sizes, on local and on slow
storage.
"""

from __future__ import annotations

import time

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api.storage.opening import open_storage
from forebay_testing import FaultyStorage, StateBackendTests, late_backend
from forebay_testing.backends import PropertyTests
from forebay_testing.backends.alike_names import ALIKE, AlikeNameTests
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.damage import DamageTests
from forebay_testing.backends.failing import FailureTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.iterators import PAGES, IteratorTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.kinds import KindTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.readers import ReaderTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.representations import VALUES, RepresentationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.subject import ENGINES, MANNERS, memory_storage
from forebay_testing.backends.timelines import TimelineTests
from forebay_testing.backends.timers import TimerTests
from forebay_testing.backends.ttl import TtlTests
from forebay_testing.backends.ttl_switch import TtlSwitchTests
from forebay_testing.backends.versions import VerificationTests, VersionTests


def cases(row, *ids):
    """Return the names of some of a row's cases, for ``slow_cases``, which `conftest` marks."""
    return {f"{row.__name__}[{case}]" for case in ids}


def rows_but(part, *kept):
    """Return the names of a part's rows, for ``slow_cases``, except some."""
    return {name for name in vars(part) if name.startswith("test_")} - {
        row.__name__ for row in kept
    }


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
    VerificationTests,
    ClearingTests,
    TimelineTests,
)
OTHERS = {*IN_MEMORY, VersionTests, GenerationTests, DamageTests}
"""Parts that run with a tiny cache in `slow` only, since it takes them four times as long.

Most run with defaults. ``files/test_damage.py`` damages the files of this backend, and the heap
backend's tests everything else.
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
        monkeypatch.setattr("forebay_engine.execution.engine.SPILL_CELLS", 2)


class Uncached(OfLsm):
    @pytest.fixture
    def backend_options(self):
        return {"block-cache-bytes": 0}


class TestTiny(TinyCache, *(part for part in StateBackendTests.__bases__ if part not in OTHERS)):
    """Run the kit with a tiny cache in memory: it spills, evicts and compacts.

    The heap backend, the reference backend and `slow` have all engines and pages.
    """

    # The heap backend has all examples by default, `TestSearchTiny` ten times as many.
    machine_examples = 8
    order_examples = 2
    # Texts are the names that differ most; `TestAllTiny` has the others.
    slow_cases = frozenset(
        {
            *cases(AlikeNameTests.test_namespaces_that_are_alike_are_apart, "list", "map"),
            *(
                case
                for kind in ALIKE
                if kind != "text"
                for case in (
                    *cases(
                        AlikeNameTests.test_keys_that_are_alike_are_apart,
                        *(f"{kind}-{shape}" for shape in ("point", "list", "map")),
                    ),
                    *cases(
                        AlikeNameTests.test_user_keys_that_are_alike_are_apart,
                        f"{kind}-map",
                        f"{kind}-sorted map",
                    ),
                )
            ),
            *cases(
                RepresentationTests.test_values_come_back_as_they_were,
                *(f"{kind}-plain" for kind in VALUES if kind not in ("text", "untyped")),
                *(f"{kind}-ttl" for kind in VALUES if kind != "float"),
            ),
        }
    )

    @pytest.fixture(params=["tight"])
    def engine_settings(self, request):
        return ENGINES[request.param]

    @pytest.fixture(params=[PAGES[1]], ids=["pages of 3"])
    def pages(self, request):
        return request.param


@slow_kit
class TestAllTiny(TinyCache, StateBackendTests):
    """Run the whole kit with a tiny cache in memory."""


class TestDefaultsInMemory(OfLsm, VersionTests, *IN_MEMORY):
    """Run versions, times, rescales, migrations and forks with defaults in memory.

    Where only the engine sees the style, each case runs in one; `TestAllDefaults` and the heap
    backend have the others.
    """

    # `TestAllDefaults` has all of these, and so has the heap backend by default.
    failure_examples = 3
    # Each row keeps the case that asks most of the files. Sweeps and compactions keep a row for
    # lists, and one for what lives; both decide in one place what has expired. What only the engine
    # decides about times to live runs on the heap backend and with the engine's tests.
    slow_cases = frozenset(
        {
            *rows_but(
                TtlTests,
                TtlTests.test_times_are_kept_to_the_microsecond,
                TtlTests.test_what_was_read_expired_is_removed,
                TtlTests.test_a_restart_and_a_clock_set_back_change_no_time,
            ),
            *cases(
                CleanupTests.test_the_epoch_is_a_time_like_others, "full snapshot", "incrementally"
            ),
            *cases(CleanupTests.test_elements_and_entries_go_one_by_one, "full snapshot"),
            *cases(CleanupTests.test_what_lives_stays, "incrementally"),
            *cases(
                CleanupTests.test_what_has_expired_leaves_the_storage_unread_and_is_logged,
                "every record",
            ),
            "test_keys_that_turn_over_do_not_pile_up",
            *cases(
                ReplayTests.test_batches_that_run_again_two_hours_later_store_the_same,
                "default",
                "full snapshot",
                "incrementally",
            ),
            *cases(ForkTests.test_every_key_is_found_with_its_times, "1", "3"),
            *cases(ForkTests.test_from_and_to_another_backend, "1"),
            *cases(
                RescaleTests.test_every_key_is_found_for_every_kind_with_its_times,
                "[1]",
                "[2, 5]",
                "[4, 4]",
            ),
            *cases(RescaleTests.test_there_and_back, "1-2-10"),
            *cases(RescaleTests.test_the_state_is_not_rewritten, "1", "8"),
            *cases(RescaleTests.test_each_key_is_counted_in_one_subtask, "1"),
            *cases(RescaleTests.test_each_key_is_stored_for_the_subtask_that_owns_it, "1"),
            *(
                case
                for row in (
                    ReaderTests.test_look_ups_show_the_version_that_was_opened,
                    ReaderTests.test_a_scan_yields_what_look_ups_find,
                    ReaderTests.test_each_key_group_is_scanned_alone,
                    ReaderTests.test_an_export_needs_no_table,
                    ReaderTests.test_stored_bytes_are_those_of_the_states,
                    ReaderTests.test_a_reader_writes_nothing_but_its_pin,
                )
                for case in cases(row, "plain")
            ),
            *cases(
                ReaderTests.test_a_difference_has_what_changed_and_nothing_else,
                "plain-at_once",
                "plain-in_passes",
                "ttl-at_once",
            ),
            *cases(
                TimerTests.test_a_rescale_finds_every_timer, "tight-[1, 2]-128", "tight-[4, 3]-10"
            ),
            *cases(
                NamespacedTimerTests.test_a_restart_and_a_rescale_keep_namespaces,
                "coroutine-(2, 5)",
                "coroutine-(8, 1)",
                "plain-(8, 1)",
            ),
            *cases(NamespacedTimerTests.test_a_merge_moves_all_timers_of_the_sources, "plain"),
            *cases(
                NamespacedTimerTests.test_state_that_begins_as_anothers_has_its_timers,
                "fork-unlisted-1",
                "savepoint-listed-1",
                "other backend-unlisted-1",
            ),
            *cases(
                TtlSwitchTests.test_a_ttl_that_is_switched_on_begins_with_the_restart,
                "None",
                "fork",
            ),
            *cases(
                TtlSwitchTests.test_a_ttl_that_is_switched_off_ends_with_the_restart, "None", "fork"
            ),
            *cases(
                TtlSwitchTests.test_times_begin_with_the_attempt_that_commits, "before its commit"
            ),
            *cases(
                TtlSwitchTests.test_times_end_with_the_attempt_that_commits, "before its commit"
            ),
            *cases(
                TtlSwitchTests.test_an_attempt_that_dies_has_switched_nothing,
                "before its commit-on",
                "before its commit-off",
            ),
            *cases(
                TtlSwitchTests.test_timers_stay_in_their_namespaces_and_listings,
                "on-restart",
                "off-restart",
            ),
        }
    )

    @pytest.fixture(params=["tight"])
    def manner(self, request):
        return MANNERS[request.param]


class TestGenerations(OfLsm, GenerationTests):
    """Run changes of types with files that are merged early; `TestAllDefaults` merges them late.

    A field that comes back has every change between two declarations. The other rows have mergers
    here, and the heap backend runs the rest.
    """

    slow_cases = frozenset(
        {
            *cases(GenerationTests.test_each_generation_drops_its_own, "rescaled"),
            *cases(GenerationTests.test_with_ttl, "same_process"),
            *cases(GenerationTests.test_what_is_deep_inside, "same_process"),
            *cases(
                GenerationTests.test_a_field_that_comes_back_without_a_default_is_refused_at_once,
                "same_process",
            ),
            *cases(
                GenerationTests.test_a_migration_that_is_not_declared_any_more_is_refused_at_once,
                "record-same_process",
                "float-same_process",
            ),
        }
    )

    @pytest.fixture
    def backend_options(self):
        return {"max-runs": 3}


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
class TestLate(IteratorTests, KindTests, OrderTests, TtlTests):
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

    @pytest.fixture(params=["synchronous", "coroutine"])
    def manner(self, request):
        return MANNERS[request.param]

    @pytest.fixture
    def storage(self):
        return slow(memory_storage())


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
