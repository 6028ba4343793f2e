"""Faults of what commits report and keep, of objects, processes, threads and waits."""

from __future__ import annotations

import os
import tempfile
import threading
import time

import attrs

from forebay_state_api.contract.changes import ListChange
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.errors import CorruptStateError, StorageError
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.commit_results import ObjectTests, ReportTests, UnchangedTests
from forebay_testing.backends.kinds import KindTests
from forebay_testing.backends.processes import AnotherProcessTests, LeakTests, WaitingTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.tables import TableTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteTable


def changed(backend):
    return any(table.changes for table in backend.tables.values())


# -- commits without changes ------------------------------------------------------------


@caught_by(UnchangedTests.test_a_commit_without_changes_keeps_the_ranges_of_files)
class WidensFilesWithoutChanges(SqliteBackend):
    def commit(self, version):
        state, own = super().commit(version), self.opening.range
        if changed(self):
            return state
        return attrs.evolve(state, files=[attrs.evolve(one, range=own) for one in state.files])


@caught_by(UnchangedTests.test_meta_survives_a_commit_without_changes, "no table")
class DropsItsMetaWithoutChanges(SqliteBackend):
    """Its files are named in `meta`."""

    def commit(self, version):
        state = super().commit(version)
        names = [file.name for file in state.files]
        return attrs.evolve(state, meta={**state.meta, "names": names} if changed(self) else {})

    @classmethod
    def files_of(cls, opening):
        named = {name for parent in opening.parents for name in parent.meta.get("names", ())}
        return [file for file in super().files_of(opening) if file.name in named]


@caught_by(UnchangedTests.test_meta_survives_a_commit_without_changes, "no table")
class ForgetsAllThatNobodyAskedFor(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        return state if self.tables else attrs.evolve(state, files=[])


@caught_by(UnchangedTests.test_meta_survives_a_commit_without_changes, "a table")
class NamesTheNewestFileWithoutChanges(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        kept = len(state.files) if changed(self) else 1
        return attrs.evolve(state, files=state.files[-kept:])


# -- reports ------------------------------------------------------------


@caught_by(ReportTests.test_sizes_are_those_of_the_files)
class BytesOfTheNewestFile(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        return attrs.evolve(state, bytes_total=state.files[-1].size if state.files else 0)


@caught_by(ReportTests.test_sizes_are_those_of_the_files)
class BytesWrittenAddUp(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        return attrs.evolve(state, bytes_written=state.bytes_total)


@caught_by(ReportTests.test_counts_are_those_of_the_stored_cells)
class CountsWhatWasWritten(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        count = sum(len(table.changes) for table in self.tables.values())
        return attrs.evolve(state, keys=count)


@caught_by(ReportTests.test_counts_are_those_of_the_stored_cells)
class EveryWriteIsNew(SqliteBackend):
    def commit(self, version):
        state = super().commit(version)
        new = sum(len(table.changes) for table in self.tables.values())
        return attrs.evolve(state, keys_new=new, keys_removed=0)


@caught_by(ObjectTests.test_a_sweep_returns_how_much_it_has_removed)
class ReturnsWhatASweepHasChecked(SqliteTable):
    def sweep(self, checks, until_us):
        super().sweep(checks, until_us)
        return checks


# -- objects ------------------------------------------------------------


@caught_by(ObjectTests.test_opening_and_reading_write_nothing)
class LocksWhatItOpens(SqliteBackend):
    @classmethod
    def loaded(cls, opening):
        opening.storage.put("data/lock", b"")
        return super().loaded(opening)


@caught_by(ObjectTests.test_a_commit_writes_below_data_for_its_version)
class WritesAnIndexAtTheTop(SqliteBackend):
    def put(self, name, data):
        super().put(name, data)
        self.opening.storage.put(f"index/{name.rpartition('/')[2]}", b"x")


@caught_by(ObjectTests.test_a_commit_writes_below_data_for_its_version)
class NamesFilesForTheVersionItOpened(SqliteBackend):
    def new_name(self, version, kind):
        return data_name(max(version - 1, 0), f"sqlite-{kind}")


@caught_by(ObjectTests.test_an_attempt_without_a_manifest_deletes_nothing)
class TidiesUpWhatWasNotInstalled(SqliteBackend):
    mine = ()

    def put(self, name, data):
        super().put(name, data)
        self.mine = [name]

    def installed(self, manifest_id):
        self.mine = []
        super().installed(manifest_id)

    def close(self):
        self.opening.storage.delete(self.mine)
        super().close()


@caught_by(ObjectTests.test_a_read_that_fails_is_no_damage_and_may_be_repeated)
class TakesTroubleForDamage(SqliteBackend):
    @classmethod
    def read(cls, opening, file):
        try:
            return super().read(opening, file)
        except StorageError as error:
            raise CorruptStateError(f"{file.name} cannot be read") from error


@caught_by(ObjectTests.test_a_read_that_fails_is_no_damage_and_may_be_repeated)
class RemembersTrouble(SqliteBackend):
    troubled = {}  # noqa: RUF012 - the fault

    @classmethod
    def read(cls, opening, file):
        if file.name in cls.troubled:
            raise cls.troubled[file.name]
        try:
            return super().read(opening, file)
        except StorageError as error:
            cls.troubled[file.name] = error
            raise


@caught_by(ObjectTests.test_a_commit_that_fails_closes_without_an_error)
class CannotBeClosedAfterAFailure(SqliteBackend):
    failed = False

    def put(self, name, data):
        try:
            super().put(name, data)
        except StorageError:
            self.failed = True
            raise

    def close(self):
        if self.failed:
            raise RuntimeError("the last commit has failed")
        super().close()


@caught_by(ObjectTests.test_a_fork_writes_nothing_into_its_source)
class ForgetsWhoseAFileIs(SqliteBackend):
    @classmethod
    def read(cls, opening, file):
        return super().read(opening, attrs.evolve(file, name=file.name.removeprefix("from/")))


# -- ranges ------------------------------------------------------------


@caught_by(UnchangedTests.test_a_commit_without_changes_keeps_the_ranges_of_files)
class ReadsEachFileOnce(SqliteBackend):
    @classmethod
    def files_of(cls, opening):
        return [*{file.name: file for file in super().files_of(opening)}.values()]


@caught_by(UnchangedTests.test_a_commit_without_changes_keeps_the_ranges_of_files)
class ReadsFilesForTheWholeRange(SqliteBackend):
    @classmethod
    def files_of(cls, opening):
        found = super().files_of(opening)
        return [attrs.evolve(file, range=opening.range) for file in found]


@caught_by(RescaleTests.test_every_key_is_found_for_every_kind_with_its_times, "[1]")
class LeavesOutTheLastGroup(SqliteBackend):
    @classmethod
    def own(cls, file, operations):
        return [one for one in operations if file.range.start <= one[0] < file.range.end]


# -- processes ------------------------------------------------------------


@caught_by(AnotherProcessTests.test_another_process_goes_back_and_makes_the_version_again, "[0]")
class KeepsCopiesByVersion(SqliteBackend):
    made = {}  # noqa: RUF012 - the fault

    def commit(self, version):
        self.made[id(self.database)] = version
        return super().commit(version)

    @classmethod
    def is_of(cls, kept, opening):
        return cls.made.get(id(kept.database)) == opening.version


@caught_by(AnotherProcessTests.test_queries_with_one_uid_have_their_own_state)
class KeepsCopiesByUid(KeepsCopiesByVersion):
    made = {}  # noqa: RUF012 - the fault

    @classmethod
    def address(cls, opening):
        return opening.uid, opening.range


@caught_by(AnotherProcessTests.test_processes_take_turns)
class TakesAnOlderCopyForTheNewest(KeepsCopiesByVersion):
    made = {}  # noqa: RUF012 - the fault

    @classmethod
    def is_of(cls, kept, opening):
        return 0 <= opening.version - cls.made.get(id(kept.database), -9) <= 1


class Leaks(SqliteBackend):
    """Leaks something at each rewrite; the process ends before it is released."""

    def new_name(self, version, kind):
        if kind == "snapshot":
            self.leak()
        return super().new_name(version, kind)


LEAKED = []


@caught_by(LeakTests.test_many_batches_leave_nothing_behind)
class LeaksADescriptorPerRewrite(Leaks):
    def leak(self):
        LEAKED.append(os.open(os.devnull, os.O_RDONLY))


@caught_by(LeakTests.test_many_batches_leave_nothing_behind)
class LeaksAThreadPerRewrite(Leaks):
    def leak(self):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@caught_by(LeakTests.test_many_batches_leave_nothing_behind)
class LeaksATemporaryFilePerRewrite(Leaks):
    def leak(self):
        with tempfile.NamedTemporaryFile(delete=False):
            pass


@caught_by(LeakTests.test_many_batches_leave_nothing_behind)
class KeepsClosedBackends(Leaks):
    def leak(self):
        LEAKED.append(self)


@caught_by(LeakTests.test_many_batches_leave_nothing_behind)
class LeaksWhereACommitFails(SqliteBackend):
    def put(self, name, data):
        held = os.open(os.devnull, os.O_RDONLY)
        super().put(name, data)
        os.close(held)


# -- waits and threads ------------------------------------------------------------


@caught_by(WaitingTests.test_a_scan_returns_while_reads_are_blocked)
class ReadsWhileItMakesAScan(SqliteBackend):
    def new_table(self, spec):
        table = super().new_table(spec)
        scan, storage, files = table.scan, self.opening.storage, self.files_of(self.opening)

        def waiting(namespace, group, key):
            for file in files:
                storage.get(file.name)
            return scan(namespace, group, key)

        table.scan = waiting
        return table


@caught_by(WaitingTests.test_reads_of_every_shape_may_run_on_several_threads_at_once)
class KeepsArgumentsInTheTable(SqliteTable):
    def get_entries(self, namespace, cells):
        self.asked = cells
        time.sleep(0.002)
        return super().get_entries(namespace, self.asked)


# -- contents ------------------------------------------------------------


@caught_by(KindTests.test_namespaces_merge_and_sources_end_empty, "tight")
class AnElementOnce(SqliteTable):
    def change_list(self, namespace, key, change):
        once = [*dict.fromkeys(change.elements)]
        super().change_list(namespace, key, ListChange(change.group, change.replaced, once))


@caught_by(TableTests.test_nothing_is_an_empty_scan)
class AnEmptyReplacementIsNothing(SqliteTable):
    def change_list(self, namespace, key, change):
        if change.elements:
            super().change_list(namespace, key, change)


@caught_by(KindTests.test_a_list_keeps_the_order_of_insertion, "tight")
class AppendsInReverse(SqliteTable):
    def change_list(self, namespace, key, change):
        back = change.elements[::-1]
        super().change_list(namespace, key, ListChange(change.group, change.replaced, back))


@caught_by(CleanupTests.test_what_lives_stays, "full snapshot")
class ExpiresAMicrosecondEarly(SqliteBackend):
    def until(self, expiry):
        return super().until(expiry) + 1
