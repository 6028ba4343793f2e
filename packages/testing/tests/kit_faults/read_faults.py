"""Faults of the class, its reads and its scans."""

from __future__ import annotations

import threading

import attrs

from forebay_engine.versions.format.timer_tables import BY_KEY, TIMERS
from forebay_state_api.codecs.plain import dump_typed
from forebay_state_api.contract.backend import Capability
from forebay_state_api.contract.changes import ABSENT, MapChange, Space
from forebay_testing.backends.failing import FailureTests
from forebay_testing.backends.kinds import KeysOfMapsTests, KindTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.tables import TableTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteScan, SqliteTable

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


@caught_by(FailureTests.test_a_failed_record_takes_back_what_it_wrote)
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
