"""Faults of times to live and of their clean-up."""

from __future__ import annotations

import time

from forebay_state_api.contract.changes import ABSENT
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.ttl import TtlTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteTable

# -- time to live -------------------------------------------------------------------------------


@caught_by(TtlTests.test_times_are_kept_to_the_microsecond)
class TimesInSeconds(SqliteTable):
    def packed(self, value):
        if self.spec.ttl and value is not ABSENT:
            value = (value[0] // 1_000_000 * 1_000_000, value[1])
        return super().packed(value)


@caught_by(CleanupTests.test_what_lives_stays, "full snapshot")
class SnapshotDropsWhatLives(SqliteBackend):
    def until(self, expiry):
        return self.opening.now_us


@caught_by(
    CleanupTests.test_what_has_expired_leaves_the_storage_unread_and_is_logged, "full snapshot"
)
class ClaimsACleanUpThatItDoesNotDo(SqliteBackend):
    def drop_expired(self):
        pass


@caught_by(
    CleanupTests.test_what_has_expired_leaves_the_storage_unread_and_is_logged, "full snapshot"
)
class DropsInSilence(SqliteBackend):
    def log(self, state, dropped):
        pass


@caught_by(ReplayTests.test_batches_that_run_again_two_hours_later_store_the_same, "full snapshot")
class AsksTheClockOfTheWorker(SqliteBackend):
    def until(self, expiry):
        return expiry.until_us(time.time_ns() // 1_000)


@caught_by(CleanupTests.test_each_access_checks_so_many_cells)
class SweepsEverything(SqliteTable):
    def sweep(self, checks, until_us):
        return super().sweep(1_000_000, until_us)


@caught_by(CleanupTests.test_each_access_checks_so_many_cells)
class ExpiresAfterTheTime(SqliteTable):
    def has_expired(self, time, until_us):
        return time < until_us


@caught_by(CleanupTests.test_the_epoch_is_a_time_like_others, "incrementally")
class TakesTheEpochForNoTime(SqliteTable):
    def has_expired(self, time, until_us):
        return time > 0 and super().has_expired(time, until_us)


@caught_by(CleanupTests.test_the_walk_goes_on_in_another_process)
class SweepsFromTheBeginning(SqliteTable):
    def sweep(self, checks, until_us):
        self.database.swept.clear()
        return super().sweep(checks, until_us)


@caught_by(CleanupTests.test_each_access_checks_so_many_cells)
class SweepsOnlyInMemory(SqliteTable):
    def note(self, removed):
        pass


@caught_by(CleanupTests.test_elements_and_entries_go_one_by_one, "incrementally")
class SweepsWholeLists(SqliteTable):
    def remove(self, rows):
        super().remove(rows)
        for namespace, key, *_ in rows:
            self.database.clear([self.spec.name, namespace, key])
