"""Faults that show beyond some number or size, mostly in what was stored before."""

from __future__ import annotations

from forebay_state_api.contract.changes import ABSENT
from forebay_testing.backends.stored_limits import StoredLimitTests
from forebay_testing.backends.tables import TableTests

from .planting import caught_by
from .sqlite_backend import Database, SqliteBackend, SqliteScan, SqliteTable

MOST = 1000


@caught_by(StoredLimitTests.test_many_stored_values_are_read_in_one_batch)
class SortsManyStoredAnswers(SqliteTable):
    def get_many(self, namespace, keys):
        if len(keys) > 100 and not self.changes:
            keys = sorted(keys, key=repr)
        return super().get_many(namespace, keys)


@caught_by(StoredLimitTests.test_many_stored_values_are_read_in_one_batch)
class AnswersAThousandStoredKeys(SqliteTable):
    def get_many(self, namespace, keys):
        found = super().get_many(namespace, keys)
        if self.changes:
            return found
        return [one if at < MOST else ABSENT for at, one in enumerate(found)]


@caught_by(StoredLimitTests.test_many_stored_entries_are_read_in_one_batch)
class AnswersAThousandStoredEntries(SqliteTable):
    def get_entries(self, namespace, cells):
        found = super().get_entries(namespace, cells)
        return found if self.changes else found[:MOST] + [ABSENT] * (len(found) - MOST)


@caught_by(StoredLimitTests.test_a_scan_has_every_stored_row, "128")
class ScansAThousandStoredRows(SqliteTable):
    def scan(self, namespace, group, key):
        scan = super().scan(namespace, group, key)
        scan.elements = scan.elements[: MOST if not self.changes else None]
        return scan


@caught_by(StoredLimitTests.test_a_range_has_every_stored_row, "up")
class RangesOfAThousandStoredRows(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        scan = super().scan_range(namespace, group, key, part)
        scan.elements = scan.elements[: MOST if not self.changes else None]
        return scan


@caught_by(StoredLimitTests.test_a_range_has_every_stored_row, "down")
class DescendsPageByPage(SqliteTable):
    def scan_range(self, namespace, group, key, part):
        scan = super().scan_range(namespace, group, key, part)
        if part.descending and len(scan.elements) > 100:
            pages = [scan.elements[at : at + 100][::-1] for at in range(0, len(scan.elements), 100)]
            scan.elements = [row for page in pages for row in page]
        return scan


@caught_by(TableTests.test_scans_come_in_pages_of_at_most_the_size, "[2]")
class RepeatsTheLastRowOfAPage(SqliteScan):
    def pages(self, page_size):
        last = []
        for page in super().pages(page_size):
            yield (last + page)[:page_size]
            last = page[-1:]


@caught_by(StoredLimitTests.test_a_scan_has_every_stored_row, "10000")
class KeepsTheNewestOfManyElements(SqliteTable):
    def elements(self, parts):
        return super().elements(parts[-1400:] if self.is_list else parts)


class NumberedAsText(Database):
    def part(self, number):
        return str(number).encode()

    def last(self, place):
        return len(self.parts(place)) - 1


class LittleEndian(NumberedAsText):
    def part(self, number):
        return number.to_bytes(8, "little")


class InOneByte(NumberedAsText):
    def part(self, number):
        return bytes([number % 256])


@caught_by(StoredLimitTests.test_a_list_keeps_its_order_over_hundreds_of_commits)
class NumbersElementsAsText(SqliteBackend):
    database_class = NumberedAsText


@caught_by(StoredLimitTests.test_a_list_keeps_its_order_over_hundreds_of_commits)
class NumbersElementsLittleEndian(SqliteBackend):
    database_class = LittleEndian


@caught_by(StoredLimitTests.test_a_list_keeps_its_order_over_hundreds_of_commits)
class NumbersElementsInOneByte(SqliteBackend):
    database_class = InOneByte


@caught_by(StoredLimitTests.test_key_groups_beyond_a_byte, "300")
class GroupsOfOneByte(SqliteTable):
    def operation(self, namespace, key, group, whole, parts):
        return super().operation(namespace, key, group & 0xFF, whole, parts)


@caught_by(StoredLimitTests.test_key_groups_beyond_a_byte, "32768")
class GroupsOfTwelveBits(SqliteTable):
    def operation(self, namespace, key, group, whole, parts):
        return super().operation(namespace, key, group & 0xFFF, whole, parts)


@caught_by(StoredLimitTests.test_many_namespaces)
class KeepsAHundredNamespaces(SqliteTable):
    def change_list(self, namespace, key, change):
        named = self.database.__dict__.setdefault("named", {})
        if namespace is None or len(named.setdefault(namespace, named)) == 0 or len(named) <= 100:
            super().change_list(namespace, key, change)


@caught_by(StoredLimitTests.test_many_states)
class WritesSixtyFourStates(SqliteBackend):
    def changed(self):
        return dict([*super().changed().items()][:64])


@caught_by(StoredLimitTests.test_many_cells_are_deleted_in_one_batch)
class DeletesAThousandInABatch(SqliteTable):
    gone = 0

    def set_point(self, namespace, key, group, value):
        self.gone += value is ABSENT
        if value is not ABSENT or self.gone <= MOST:
            super().set_point(namespace, key, group, value)


@caught_by(StoredLimitTests.test_an_export_and_the_keys_have_every_stored_cell)
class ExportsTwoThousand(SqliteTable):
    def export(self, keys):
        left = 2 * MOST
        for changes in super().export(keys):
            if left > 0:
                yield changes
            left -= keys


@caught_by(StoredLimitTests.test_an_export_and_the_keys_have_every_stored_cell)
class ListsKeysInOnePage(SqliteTable):
    def keys(self, namespace, page_size):
        every = [key for page in super().keys(namespace, page_size) for key in page]
        if len(every) > MOST:
            yield every
        else:
            yield from super().keys(namespace, page_size)
