"""Faults of writes and of commits."""

from __future__ import annotations

import contextlib

import attrs

from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange
from forebay_state_api.errors import ForebayError
from forebay_testing.backends.kinds import KindTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.tables import CommitTests, TableTests
from forebay_testing.backends.versions import VersionTests

from .planting import caught_by
from .sqlite_backend import Kept, SqliteBackend, SqliteTable

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
