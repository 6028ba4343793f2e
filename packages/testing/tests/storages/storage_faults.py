"""Storages that each break the contract in one point, with the row of the kit that finds it."""

from __future__ import annotations

import threading

import attrs

from forebay_state_api.contract.object_storage import ObjectPage
from forebay_state_api.storage import ForwardingStorage
from forebay_testing.storages import StorageTests

FAULTS = {}


def caught_by(row, **case):
    """Plant a fault; ``case`` are the row's parameters."""

    def plant(broken):
        FAULTS[broken.__name__] = broken, row, case
        return broken

    return plant


class OverMemory(ForwardingStorage):
    """A storage whose children share its fault."""


PROBED = StorageTests.test_a_promise_that_forebay_doctor_probes


@caught_by(StorageTests.test_a_folder_has_nothing_of_its_neighbours)
class ListsByPrefix(OverMemory):
    def list(self, prefix=""):
        if not prefix:
            return super().list()
        return [info for info in self.inner.list() if info.name.startswith(prefix.rstrip("/"))]


@caught_by(StorageTests.test_many_objects_are_listed_in_order_in_pages_and_deleted)
class ListsInTheOrderOfWriting(OverMemory):
    def list(self, prefix=""):
        return sorted(super().list(prefix), key=lambda info: (len(info.name), info.name))


@caught_by(StorageTests.test_a_range_past_the_end_is_an_error)
class ShortRanges(OverMemory):
    def get_ranges(self, name, ranges):
        data = self.inner.get(name)
        return [data[start : start + length] for start, length in ranges]


@caught_by(StorageTests.test_the_time_of_an_object_is_that_of_its_last_write)
class TimesWithoutAZone(OverMemory):
    def list(self, prefix=""):
        infos = super().list(prefix)
        return [attrs.evolve(one, modified=one.modified.replace(tzinfo=None)) for one in infos]


@caught_by(StorageTests.test_many_objects_are_listed_in_order_in_pages_and_deleted)
class PagesThatSkipAnObject(OverMemory):
    def list_page(self, after=""):
        found = [info for info in self.inner.list() if info.name > after]
        return ObjectPage(found[1:100] if after else found[:100], is_last=len(found) <= 100)


@caught_by(StorageTests.test_objects_of_any_size_come_back)
class SizesInBlocks(OverMemory):
    def list(self, prefix=""):
        return [attrs.evolve(one, size=-(-one.size // 512) * 512) for one in super().list(prefix)]


@caught_by(StorageTests.test_a_folder_has_nothing_of_its_neighbours)
class FoldersOfAnyDepth(OverMemory):
    def list_folders(self, prefix=""):
        paths = {info.name.rpartition("/")[0] for info in self.inner.list(prefix)}
        return sorted({part for path in paths for part in path.split("/") if part})


@caught_by(StorageTests.test_names_that_leave_the_folder_are_refused, name="../a")
class TakesAnyName(OverMemory):
    def put(self, name, data):
        self.inner.put(name.replace("..", "up"), data)


@caught_by(StorageTests.test_put_if_absent_has_one_winner)
class LooksBeforeItPuts(OverMemory):
    def put_if_absent(self, name, data):
        there = name in {info.name for info in self.inner.list()}
        if not there:
            threading.Event().wait(0.005)  # the others look, too
            self.inner.put(name, data)
        return not there


@caught_by(StorageTests.test_an_absent_object_is_an_error_that_names_it)
class RaisesKeyErrors(OverMemory):
    def get(self, name):
        if name not in {info.name for info in self.inner.list()}:
            raise KeyError(name)
        return super().get(name)


@caught_by(StorageTests.test_a_put_replaces_the_whole_object)
class WritesOverTheBeginning(OverMemory):
    def put(self, name, data):
        there = [info for info in self.inner.list() if info.name == name]
        older = self.inner.get(name) if there else b""
        self.inner.put(name, data + older[len(data) :])


@caught_by(StorageTests.test_put_if_absent_keeps_what_is_there)
class AnEmptyObjectIsAbsent(OverMemory):
    def put_if_absent(self, name, data):
        if self.inner.put_if_absent(name, data):
            return True
        if not self.inner.get(name):
            self.inner.put(name, data)
            return True
        return False


@caught_by(StorageTests.test_names_come_back_as_they_were)
class NamesWithoutCase(OverMemory):
    def put(self, name, data):
        self.inner.put(name.lower() if name == "Case" else name, data)

    def get(self, name):
        return self.inner.get(name.lower() if name == "Case" else name)


@caught_by(StorageTests.test_many_objects_are_listed_in_order_in_pages_and_deleted)
class DeletesAThousand(OverMemory):
    def delete(self, names):
        self.inner.delete([*names][:1000])


@caught_by(StorageTests.test_many_objects_are_listed_in_order_in_pages_and_deleted)
class ListsAThousand(OverMemory):
    def list(self, prefix=""):
        return super().list(prefix)[:1000]


@caught_by(StorageTests.test_ranges_come_in_the_order_in_which_they_were_asked_for)
class RangesInTheOrderOfTheObject(OverMemory):
    def get_ranges(self, name, ranges):
        return super().get_ranges(name, sorted(ranges))


@caught_by(StorageTests.test_nothing_is_there_at_first_and_nothing_is_made_by_looking)
class MakesFolders(OverMemory):
    def child(self, prefix):
        self.inner.put(f"{prefix.rstrip('/')}/.folder", b"")
        return super().child(prefix)


@caught_by(PROBED, promise="a deleted object is gone")
class RefusesToDeleteWhatIsNotThere(OverMemory):
    def delete(self, names):
        doomed = [*names]
        there = {info.name for info in self.inner.list()}
        if set(doomed) - there:
            raise FileNotFoundError(doomed[0])
        self.inner.delete(doomed)
