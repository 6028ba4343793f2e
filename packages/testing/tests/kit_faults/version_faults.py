"""Faults of opened versions: undeclared states, damaged files, rescales, types and forks."""

from __future__ import annotations

import contextlib

import attrs
import msgpack

from forebay_engine.versions.format.timer_tables import BY_KEY
from forebay_state_api.errors import ForebayError
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.ttl_switch import TtlSwitchTests
from forebay_testing.backends.versions import VerificationTests
from forebay_testing.backends.visits import VisitTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteTable

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
