"""Faults planted in the SQLite backend, each with the row of the kit that catches it by itself.

A fault is a class that overrides a part of the backend, of its table, scan or database.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs
import msgpack

from forebay_engine.versions.format.timer_tables import BY_KEY, TIMERS
from forebay_state_api.codecs.plain import dump_typed
from forebay_state_api.contract.backend import Capability
from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange, Space
from forebay_state_api.errors import ForebayError
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.failing import FailureTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.kinds import KeysOfMapsTests, KindTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.tables import CommitTests, TableTests
from forebay_testing.backends.ttl import TtlTests
from forebay_testing.backends.ttl_switch import TtlSwitchTests
from forebay_testing.backends.versions import VerificationTests, VersionTests
from forebay_testing.backends.visits import VisitTests

from .sqlite_backend import Kept, SqliteBackend, SqliteScan, SqliteTable

Row = Callable[..., Any]


@attrs.frozen
class Fault:
    """One way to be wrong."""

    name: str
    backend: type[SqliteBackend]
    row: Row
    """The test of the kit that has to fail."""
    case: str
    """Its case, where the other ones pass or take long."""


FAULTS: dict[str, Fault] = {}


def caught_by(row: Row, case: str = "") -> Callable[[type], type]:
    """Plant the faults of a class: of a table if it is one, else of the backend."""

    def plant(broken: type) -> type:
        backend = broken
        if issubclass(broken, SqliteTable):
            backend = with_table(broken)
        elif issubclass(broken, SqliteScan):
            backend = with_table(with_scan(broken))
        backend.kept_databases = {}
        FAULTS[broken.__name__] = Fault(broken.__name__, backend, row, case)
        return broken

    return plant


def with_table(table_class: type[SqliteTable]) -> type[SqliteBackend]:
    class Backend(SqliteBackend):
        def new_table(self, spec):
            table = table_class(self.database, spec)
            self.unpack(table)
            return table

    return Backend


def with_scan(scan_class: type[SqliteScan]) -> type[SqliteTable]:
    class Table(SqliteTable):
        def scan(self, namespace, group, key):
            scan = super().scan(namespace, group, key)
            scan.__class__ = scan_class
            return scan

    return Table


# -- class attributes -------------------------------------------------------------------------


@caught_by(TableTests.test_the_class_says_what_it_is)
class AnotherContract(SqliteBackend):
    contract_version = 0


@caught_by(TableTests.test_the_class_says_what_it_is)
class ShoutedName(SqliteBackend):
    contract_version = 2
    name = "SQLite"


@caught_by(TableTests.test_a_space_is_the_same_object_each_time)
class ClaimsToBeResident(SqliteBackend):
    capabilities = SqliteBackend.capabilities | Capability.RESIDENT


# -- reads ------------------------------------------------------------------------------------


@caught_by(TableTests.test_a_space_is_the_same_object_each_time)
class NewTableEachTime(SqliteBackend):
    def table(self, spec):
        self.tables.pop(spec.name, None)
        return super().table(spec)


class NeverForgets(dict):
    """A dictionary from which nothing can be taken out."""

    def pop(self, key, default=None):
        return self.get(key, default)


@caught_by(FailureTests.test_scripts_that_fail_change_no_kind_of_state)
class KeepsWritesThatWerePutBack(SqliteTable):
    def space(self, namespace):
        space = super().space(namespace)
        if not isinstance(space.dirty, NeverForgets):
            space.dirty = NeverForgets(space.dirty)
        return space


@caught_by(NamespacedTimerTests.test_a_restart_and_a_rescale_keep_namespaces)
class RestoresTimersWithoutTheirNamespace(SqliteTable):
    def scan(self, namespace, group, key):
        scan = super().scan(namespace, group, key)
        if self.spec.name == TIMERS:
            scan.__class__ = WithoutNamespaces
        return scan


class WithoutNamespaces(SqliteScan):
    def pages(self, size):
        for page in super().pages(size):
            yield [((at_us, key, b""), value) for (at_us, key, _), value in page]


@caught_by(NamespacedTimerTests.test_a_merge_moves_all_timers_of_the_sources)
class ListsOneTimerOfAKey(SqliteTable):
    def scan(self, namespace, group, key):
        scan = super().scan(namespace, group, key)
        if self.spec.name == BY_KEY:
            scan.__class__ = FirstEntry
        return scan


class FirstEntry(SqliteScan):
    def pages(self, size):
        for page in super().pages(size):
            yield page[:1]


@caught_by(TableTests.test_a_space_is_the_same_object_each_time)
class NewSpaceEachTime(SqliteTable):
    def space(self, namespace):
        return Space(namespace, complete=False)


@caught_by(TableTests.test_point_reads_answer_in_order)
class AnswersInAnyOrder(SqliteTable):
    def get_many(self, namespace, keys):
        return super().get_many(namespace, keys)[::-1]


@caught_by(TableTests.test_point_reads_answer_in_order)
class LeavesOutWhatIsAbsent(SqliteTable):
    def get_many(self, namespace, keys):
        return [value for value in super().get_many(namespace, keys) if value is not ABSENT]


@caught_by(TableTests.test_point_reads_answer_in_order)
class AnswersEachKeyOnce(SqliteTable):
    def get_many(self, namespace, keys):
        return super().get_many(namespace, list(dict.fromkeys(keys)))


@caught_by(TableTests.test_point_reads_answer_in_order)
class NoneForAbsent(SqliteTable):
    def get_many(self, namespace, keys):
        return [None if one is ABSENT else one for one in super().get_many(namespace, keys)]


@caught_by(TableTests.test_point_reads_answer_in_order)
class IgnoresNamespacesOfPoints(SqliteTable):
    def get_many(self, namespace, keys):
        return super().get_many(None, keys)


@caught_by(KindTests.test_a_request_belongs_to_the_namespace_that_was_current)
class TakesFalsyForAbsent(SqliteTable):
    def value(self, packed):
        return super().value(packed) or ABSENT


@caught_by(TableTests.test_entry_reads_answer_in_order)
class IgnoresTheKeyOfEntries(SqliteTable):
    def get_entries(self, namespace, cells):
        first = cells[0][1]
        return super().get_entries(namespace, [(group, first, e) for group, _, e in cells])


@caught_by(TableTests.test_entry_reads_answer_in_order)
class NoneForAbsentEntries(SqliteTable):
    def get_entries(self, namespace, cells):
        return [None if one is ABSENT else one for one in super().get_entries(namespace, cells)]


@caught_by(KeysOfMapsTests.test_user_keys_that_are_prefixes_or_alike_never_mix)
class UserKeysAsText(SqliteTable):
    def packed_entry(self, address):
        if self.spec.user_key.description["type"] != "any":
            return super().packed_entry(address)
        return self.spec.user_key.pack_one(str(address))


@caught_by(KeysOfMapsTests.test_user_keys_that_are_prefixes_or_alike_never_mix)
class RemovesByPrefix(SqliteTable):
    def change_map(self, namespace, key, change):
        place = self.place(namespace, key)
        entries = dict(change.entries)
        for gone in [e for e, value in change.entries.items() if value is ABSENT]:
            for part, _ in self.database.parts(place):
                if str(self.address(part)).startswith(str(gone)):
                    entries[self.address(part)] = ABSENT
        super().change_map(namespace, key, MapChange(change.group, change.cleared, entries))


@caught_by(SortedMapTests.test_the_order_is_pythons, "int")
class OrderOfOtherBytes(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        scan = super().scan_range(namespace, group, key, part)
        scan.elements.sort(key=lambda entry: dump_typed(entry[0]), reverse=part.descending)
        return scan


@caught_by(TableTests.test_range_scans_come_in_order_and_in_pages)
class IncludesTheStopOfRanges(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        longer = part if part.high is None else attrs.evolve(part, high=part.high + 1)
        return super().scan_range(namespace, group, key, longer)


@caught_by(TableTests.test_range_scans_come_in_order_and_in_pages)
class AscendsInEveryDirection(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        return super().scan_range(namespace, group, key, attrs.evolve(part, descending=False))


@caught_by(TableTests.test_range_scans_come_in_order_and_in_pages)
class RangesMissTheLastWrites(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        scan = super().scan_range(namespace, group, key, part)
        stored = getattr(self, "before", {})
        scan.elements = [entry for entry in scan.elements if entry[0] in stored]
        return scan

    def apply(self, changes):
        of_all = [c.entries for maps in changes.maps.values() for c in maps.values()]
        self.before = getattr(self, "now", {})
        self.now = {**self.before, **{k: v for entries in of_all for k, v in entries.items()}}
        super().apply(changes)


@caught_by(SortedMapTests.test_a_removed_range_is_gone_at_once_and_for_good)
class RemovesOnlyTheFirstOfEntriesRemoved(SqliteTable):
    def change_map(self, namespace, key, change):
        gone = [e for e, value in change.entries.items() if value is ABSENT]
        entries = {e: v for e, v in change.entries.items() if e not in gone[1:]}
        super().change_map(namespace, key, MapChange(change.group, change.cleared, entries))


@caught_by(TableTests.test_a_batch_may_be_larger_than_what_a_store_takes_at_once)
class AllKeysInOneStatement(SqliteTable):
    def get_many(self, namespace, keys):
        packed = [self.spec.key.pack_one(key) for _, key in keys]
        found = self.values(namespace, packed)
        return [self.value(found.get(key)) for key in packed]


@caught_by(TableTests.test_reads_may_run_on_several_threads_at_once)
class OfOneThread(SqliteTable):
    def get_many(self, namespace, keys):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a connection belongs to the thread that has made it")
        return super().get_many(namespace, keys)


# -- scans ------------------------------------------------------------------------------------


@caught_by(TableTests.test_scans_come_in_pages_of_at_most_the_size)
class OnePage(SqliteScan):
    def pages(self, page_size):
        yield self.elements


@caught_by(TableTests.test_scans_come_in_pages_of_at_most_the_size)
class DropsTheLastPage(SqliteScan):
    def pages(self, page_size):
        yield from (page for page in super().pages(page_size) if len(page) == page_size)


@caught_by(TableTests.test_scans_come_in_pages_of_at_most_the_size)
class Backwards(SqliteScan):
    def pages(self, page_size):
        yield from SqliteScan(self.elements[::-1]).pages(page_size)


@caught_by(TableTests.test_the_view_of_a_scan_does_not_move)
class OnlyOnce(SqliteScan):
    def pages(self, page_size):
        yield from super().pages(page_size)
        self.elements = []


@caught_by(TableTests.test_the_view_of_a_scan_does_not_move)
class ViewMoves(SqliteTable):
    def scan(self, namespace, group, key):
        fresh = super().scan

        class Moving(SqliteScan):
            def pages(self, page_size):
                yield from fresh(namespace, group, key).pages(page_size)

        return Moving([])


# -- writes -----------------------------------------------------------------------------------


@caught_by(TableTests.test_point_reads_answer_in_order)
class KeepsDeletedPoints(SqliteTable):
    def set_point(self, namespace, key, group, value):
        if value is not ABSENT:
            super().set_point(namespace, key, group, value)


@caught_by(KindTests.test_a_list_is_replaced_and_cleared)
class AppendsWhatReplaces(SqliteTable):
    def change_list(self, namespace, key, change):
        super().change_list(namespace, key, ListChange(change.group, False, change.elements))


@caught_by(KindTests.test_a_list_keeps_the_order_of_insertion)
class ElementsInOrderOfValue(SqliteTable):
    def elements(self, parts):
        return sorted(super().elements(parts))


@caught_by(TableTests.test_entry_reads_answer_in_order)
class IgnoresTheClearOfMaps(SqliteTable):
    def change_map(self, namespace, key, change):
        super().change_map(namespace, key, MapChange(change.group, False, change.entries))


@caught_by(TableTests.test_entry_reads_answer_in_order)
class KeepsRemovedEntries(SqliteTable):
    def change_map(self, namespace, key, change):
        left = {entry: value for entry, value in change.entries.items() if value is not ABSENT}
        super().change_map(namespace, key, MapChange(change.group, change.cleared, left))


@caught_by(KindTests.test_a_none_that_was_put_is_there)
class NoneIsNoEntry(SqliteTable):
    def change_map(self, namespace, key, change):
        entries = {e: ABSENT if v is None else v for e, v in change.entries.items()}
        super().change_map(namespace, key, MapChange(change.group, change.cleared, entries))


@caught_by(KindTests.test_a_request_belongs_to_the_namespace_that_was_current)
class OneNamespaceOfABatch(SqliteTable):
    def apply(self, changes):
        points = dict(list(changes.points.items())[-1:])
        super().apply(Changes(points=points, lists=changes.lists, maps=changes.maps))


@caught_by(TableTests.test_point_reads_answer_in_order)
class ReadsOnlyWhatWasOpened(SqliteTable):
    def change(self, operation):
        self.changes.append(operation)


@caught_by(OrderTests.test_more_cells_than_the_engine_holds)
class KeepsTheLastChangeOfABatch(SqliteTable):
    def change_list(self, namespace, key, change):
        if any(one[1:3] == tuple(self.place(namespace, key)[1:]) for one in self.changes):
            change = ListChange(change.group, True, change.elements)
        super().change_list(namespace, key, change)


# -- commits ----------------------------------------------------------------------------------


@caught_by(CommitTests.test_when_nothing_changed_no_file_is_written)
class WritesWithoutNeed(SqliteBackend):
    def commit(self, version):
        for table in self.tables.values():
            table.changes.append((0, b"\xc0", b"\xc0", False, []))
        return super().commit(version)


@caught_by(CommitTests.test_objects_are_neither_changed_nor_deleted)
class OneNameForAllVersions(SqliteBackend):
    def new_name(self, version, kind):
        return f"data/{kind}-{self.opening.range.start}"


@caught_by(CommitTests.test_objects_are_neither_changed_nor_deleted)
class DeletesWhatASnapshotReplaces(SqliteBackend):
    def chain(self, files, new):
        if not files:
            old = [file.name for file in self.files_of(self.opening)]
            self.opening.storage.delete(old)
        return super().chain(files, new)


@caught_by(CommitTests.test_the_report_counts_cells_and_bytes)
class CountsRows(SqliteBackend):
    def commit(self, version):
        return attrs.evolve(super().commit(version), keys=1)


@caught_by(CommitTests.test_the_report_counts_cells_and_bytes)
class ForgetsBytes(SqliteBackend):
    def commit(self, version):
        return attrs.evolve(super().commit(version), bytes_total=0)


@caught_by(CommitTests.test_what_a_commit_writes_does_not_add_up_over_the_commits)
class DeltaIsNeverReset(SqliteBackend):
    def new_table(self, spec):
        table = super().new_table(spec)
        carried = self.database.__dict__.setdefault("carried", {})
        table.changes = carried.setdefault(spec.name, [])
        return table


@caught_by(VersionTests.test_what_a_manifest_names_is_durable_before_it)
class WritesAfterTheManifest(SqliteBackend):
    def put(self, name, data):
        self.late = (name, data)

    def installed(self, manifest_id):
        if hasattr(self, "late"):
            self.opening.storage.put(*self.late)
        super().installed(manifest_id)


@caught_by(VersionTests.test_a_write_that_fails_commits_all_or_nothing)
class SwallowsAFailedWrite(SqliteBackend):
    def put(self, name, data):
        with contextlib.suppress(ForebayError):
            super().put(name, data)


@caught_by(CommitTests.test_reopening_in_another_process_gives_exactly_that_version)
class NewestDeltaFirst(SqliteBackend):
    @classmethod
    def files_of(cls, opening):
        return super().files_of(opening)[::-1]


@caught_by(CommitTests.test_reopening_in_another_process_gives_exactly_that_version)
class ForgetsTheLastDelta(SqliteBackend):
    @classmethod
    def loaded(cls, opening):
        parents = [attrs.evolve(one, files=one.files[:-1] or one.files) for one in opening.parents]
        return super().loaded(attrs.evolve(opening, parents=parents))


@caught_by(MigrationTests.test_state_that_is_no_longer_declared_is_kept)
class SnapshotBeforeOlderDeltas(SqliteBackend):
    def chain(self, files, new):
        return [*files, new] if files else [new, *self.files_of(self.opening)]


@caught_by(KindTests.test_updating_with_none_clears)
class DeltaWithoutDeletions(SqliteTable):
    def change(self, operation):
        self.write(operation)
        if operation[-1]:
            self.changes.append(operation)


@caught_by(VersionTests.test_a_run_that_goes_back_sees_nothing_of_the_time_after)
class OpensWhatItKeepsWhateverTheManifest(SqliteBackend):
    @classmethod
    def is_of(cls, kept, opening):
        return bool(opening.parents)


@caught_by(RescaleTests.test_what_the_process_keeps_is_clipped_to_the_range_that_is_opened)
class CopyOfAnotherRange(SqliteBackend):
    @classmethod
    def address(cls, opening):
        return opening.path, opening.range.start

    @classmethod
    def is_of(cls, kept, opening):
        parents = opening.parents
        return len(parents) >= 1 and parents[0].manifest_id == kept.manifest_id


@caught_by(VersionTests.test_an_attempt_that_dies_before_its_commit_leaves_nothing)
class KeepsWhatAFailedAttemptWrote(SqliteBackend):
    def close(self):
        if self.database is not None and len(self.opening.parents) == 1:
            manifest_id = self.opening.parents[0].manifest_id
            self.keep(Kept(manifest_id, self.database))
            self.database = None
        super().close()


@caught_by(VersionTests.test_an_attempt_that_fails_in_its_commit_leaves_nothing_in_the_process)
class KeepsFromTheCommitOn(SqliteBackend):
    committed = False

    def commit(self, version):
        committed = super().commit(version)
        self.committed = True
        return committed

    def close(self):
        if self.committed and self.database is not None and len(self.opening.parents) == 1:
            self.keep(Kept(self.opening.parents[0].manifest_id, self.database))
            self.database = None
        super().close()


@caught_by(CommitTests.test_with_a_budget_of_nothing_nothing_is_kept_between_batches)
class IgnoresItsBudget(SqliteBackend):
    def budget(self):
        return 1 << 40


@caught_by(CommitTests.test_batches_leave_nothing_open)
class NeverClosesAConnection(SqliteBackend):
    leaked = []  # noqa: RUF012 - the fault

    def budget(self):
        return 0

    def installed(self, manifest_id):
        self.leaked.append(self.database)
        self.database = None


@caught_by(TableTests.test_closing_twice_is_safe)
class ClosesOnce(SqliteBackend):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("this backend is closed")
        self.closed = True
        super().close()


# -- states that are not declared ---------------------------------------------------------------


@caught_by(MigrationTests.test_state_that_is_no_longer_declared_is_kept)
class SnapshotOfDeclaredStatesOnly(SqliteBackend):
    def not_asked_for(self):
        return {}


@caught_by(MigrationTests.test_state_that_is_no_longer_declared_is_kept)
class KeepsOfUndeclaredStatesOneParent(SqliteBackend):
    def not_asked_for(self):
        return {name: blocks[:1] for name, blocks in super().not_asked_for().items()}


# -- files -------------------------------------------------------------------------


@caught_by(VerificationTests.test_damaged_files_are_found)
class BeginsAnewWhereAFileIsDamaged(SqliteBackend):
    @classmethod
    def read(cls, opening, file):
        with contextlib.suppress(ForebayError):
            return super().read(opening, file)
        return {}


@caught_by(VerificationTests.test_a_changed_bit_anywhere)
class ChecksNothing(SqliteBackend):
    @classmethod
    def read(cls, opening, file):
        data = opening.storage.get(file.name)
        with contextlib.suppress(Exception):
            return msgpack.unpackb(data[13:-16], raw=False, strict_map_key=False)["tables"]
        return {}


@caught_by(VerificationTests.test_damaged_files_are_found)
class RaisesWhatItHappensToMeet(SqliteBackend):
    @classmethod
    def read(cls, opening, file):
        try:
            return super().read(opening, file)
        except ForebayError as error:
            raise ValueError(str(error)) from error


# -- rescales -----------------------------------------------------------------------------------


@caught_by(RescaleTests.test_each_key_is_counted_in_one_subtask)
class TakesCellsOfOthers(SqliteBackend):
    @classmethod
    def own(cls, file, operations):
        return operations


@caught_by(RescaleTests.test_every_key_is_found_for_every_kind_with_its_times, "[1]")
class OpensOneParent(SqliteBackend):
    @classmethod
    def loaded(cls, opening):
        return super().loaded(attrs.evolve(opening, parents=opening.parents[:1]))


@caught_by(RescaleTests.test_there_and_back, "1-2-10")
class NamesInheritedFilesForItsOwnRange(SqliteBackend):
    def chain(self, files, new):
        own = self.opening.range
        return super().chain([attrs.evolve(file, range=own) for file in files], new)


@caught_by(RescaleTests.test_every_key_is_found_for_every_kind_with_its_times, "[1]")
class NoKeyGroups(SqliteTable):
    def operation(self, namespace, key, group, whole, parts):
        return super().operation(namespace, key, 0, whole, parts)


@caught_by(RescaleTests.test_the_state_is_not_rewritten)
class RewritesAfterARescale(SqliteBackend):
    def commit(self, version):
        for table in self.tables.values():
            if len(self.opening.parents) != 1 or not self.opening.parents[0].whole:
                table.changes += self.database.dump(table.spec.name, table.is_list)
        return super().commit(version)


# -- types ------------------------------------------------------------------------------------


@caught_by(MigrationTests.test_compatible_changes_read_old_values)
class ReadsEverythingAsDeclared(SqliteBackend):
    def reader(self, description, spec):
        return spec


@caught_by(
    GenerationTests.test_data_read_as_if_every_declaration_had_written_them,
    "a type that comes back",
)
class ForgetsGenerations(SqliteBackend):
    def reader(self, description, spec):
        return super().reader({**description, "generation": 0}, spec)


@caught_by(GenerationTests.test_data_read_as_if_every_declaration_had_written_them, "same_process")
class TakesRowsOfAnOlderTypeAsTheyAre(SqliteBackend):
    def unpack(self, table):
        if table.spec.name in self.database.descriptions:
            self.database.descriptions[table.spec.name] = table.spec.description()
        super().unpack(table)


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


# -- forks --------------------------------------------------------------------------------------


@caught_by(ForkTests.test_from_and_to_another_backend)
class ExportsOneNamespace(SqliteTable):
    def exported(self, namespace, operations):
        return super().exported(None, operations)


@caught_by(RescaleTests.test_each_key_is_stored_for_the_subtask_that_owns_it)
class ExportsTwice(SqliteTable):
    def export(self, keys):
        yield from super().export(keys)
        yield from super().export(keys)


@caught_by(VisitTests.test_every_key_that_has_the_state_is_visited_once)
class ListsEveryKeyTwice(SqliteTable):
    def keys(self, namespace, page_size):
        yield from super().keys(namespace, page_size)
        yield from super().keys(namespace, page_size)


@caught_by(VisitTests.test_a_visit_sees_what_the_visits_before_it_have_written, "tight")
class FindsAPageByItsPosition(SqliteTable):
    def keys(self, namespace, page_size):
        start = 0
        while page := [k for keys in super().keys(namespace, start + page_size) for k in keys][
            start : start + page_size
        ]:
            yield page
            start += page_size


@caught_by(VisitTests.test_a_visit_sees_what_the_visits_before_it_have_written)
class ListsOnlyWhatThisBatchLeftAlone(SqliteTable):
    def keys(self, namespace, page_size):
        written = {self.spec.key.unpack_one(key) for _, _, key, *_ in self.changes}
        for page in super().keys(namespace, page_size):
            yield [key for key in page if key not in written]


@caught_by(TtlSwitchTests.test_a_ttl_that_is_switched_off_ends_with_the_restart)
class ExportsWithoutTimes(SqliteTable):
    def exported(self, namespace, operations):
        changes = super().exported(namespace, operations)
        for points in changes.points.values():
            points.values = [value[1] if self.spec.ttl else value for value in points.values]
        return changes


@caught_by(TtlSwitchTests.test_timers_stay_in_their_namespaces_and_listings)
class ExportsNoListings(SqliteTable):
    def export(self, keys):
        return iter(()) if self.spec.name == BY_KEY else super().export(keys)


@caught_by(ForkTests.test_every_key_is_found_with_its_times)
class KnowsOnlyItsOwnFolder(SqliteBackend):
    @classmethod
    def files_of(cls, opening):
        return [file for file in super().files_of(opening) if not file.name.startswith("from/")]


@caught_by(ForkTests.test_nothing_is_copied)
class CopiesWhatAForkBeginsWith(SqliteBackend):
    def commit(self, version):
        for table in self.tables.values():
            if any(file.name.startswith("from/") for file in self.files_of(self.opening)):
                table.changes += self.database.dump(table.spec.name, table.is_list)
        return super().commit(version)
