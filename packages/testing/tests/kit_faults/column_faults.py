"""Faults of reads and writes by columns."""

from __future__ import annotations

import attrs
import numpy as np

from forebay_state_api.codecs.columns import Column, Texts
from forebay_state_api.contract.columns import CellColumns, EncodedKeys
from forebay_state_api.errors import ColumnValueError
from forebay_testing.backends.columns import ColumnTests, UnheldValueTests

from .planting import caught_by
from .sqlite_backend import SqliteTable


@caught_by(ColumnTests.test_columns_answer_in_the_order_of_the_keys)
class AnswersInTheOrderOfItsStore(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        order = np.array(sorted(range(len(keys)), key=keys.encoded.parts().__getitem__), int)
        return super().get_columns(spec, namespace, keys.take(order))


@caught_by(ColumnTests.test_a_cell_that_is_not_there_is_not_present)
class ZeroForWhatIsNotThere(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        return attrs.evolve(super().get_columns(spec, namespace, keys), present=None)


@caught_by(ColumnTests.test_deleted_cells_are_gone_and_come_back)
class DeletesNothingByColumns(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        if cells.present is not None:
            there = np.flatnonzero(cells.present)
            keys, cells = keys.take(there), cells.take(there)
        super().apply_columns(spec, namespace, keys, cells)


@caught_by(ColumnTests.test_namespaces_are_apart)
class OneNamespaceForColumns(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        super().apply_columns(spec, None, keys, cells)


@caught_by(ColumnTests.test_programs_that_change_sides_keep_one_state)
class KeepsColumnsInMemoryAlone(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        held = [*self.changes]
        super().apply_columns(spec, namespace, keys, cells)
        self.changes[:] = held


@caught_by(ColumnTests.test_cells_with_a_time_to_live_have_their_times)
class RenewsTheTimesOfAllCells(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        times = None if cells.times is None else np.full(len(keys), cells.times.max(initial=0))
        super().apply_columns(spec, namespace, keys, attrs.evolve(cells, times=times))


@caught_by(ColumnTests.test_values_of_each_type_come_back, "[0]")
class IntsAsFloats(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        found = super().get_columns(spec, namespace, keys)
        return attrs.evolve(found, columns=tuple(map(rounded, found.columns)))


def rounded(column):
    values = column.values
    if isinstance(values, Texts) or values.dtype != np.int64:
        return column
    return Column(values.astype(float).clip(-(2**62), 2**62).astype(np.int64), column.valid)


@caught_by(ColumnTests.test_values_of_each_type_come_back, "[7]")
class EmptyForNone(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        columns = tuple(Column(column.values) for column in cells.columns)
        super().apply_columns(spec, namespace, keys, attrs.evolve(cells, columns=columns))


@caught_by(ColumnTests.test_values_of_each_type_come_back, "[3]")
class ShortTexts(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        found = super().get_columns(spec, namespace, keys)
        return attrs.evolve(found, columns=tuple(map(shortened, found.columns)))


def shortened(column):
    if not isinstance(column.values, Texts):
        return column
    parts = [part[:255] for part in column.values.parts()]
    return Column(Texts.of(parts, binary=column.values.binary), column.valid)


@caught_by(ColumnTests.test_an_export_has_each_key_once_in_its_group, "[3]")
class ExportsTheFirstPage(SqliteTable):
    def export_columns(self, spec, keys):
        yield from [*super().export_columns(spec, keys)][:1]


@caught_by(ColumnTests.test_an_export_has_each_key_once_in_its_group, "[1000]")
class ExportsColumnsTwice(SqliteTable):
    def export_columns(self, spec, keys):
        yield from super().export_columns(spec, keys)
        yield from super().export_columns(spec, keys)


@caught_by(ColumnTests.test_programs_that_change_sides_keep_one_state)
class OneGroupForColumns(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        one = EncodedKeys(keys.encoded, np.full_like(keys.groups, keys.groups.max(initial=0)))
        super().apply_columns(spec, namespace, one, cells)


@caught_by(ColumnTests.test_arrays_belong_to_the_reader)
class LendsItsArrays(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        lent = self.__dict__.setdefault("lent", {})
        address = (namespace, keys.encoded.data.tobytes())
        if address not in lent:
            lent[address] = super().get_columns(spec, namespace, keys)
        return lent[address]


@caught_by(ColumnTests.test_keys_that_were_read_are_written)
class TrustsANoteOfAnotherStore(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        if "read" not in keys.noted:
            keys.noted["read"] = np.arange(len(keys))
            self.__dict__.setdefault("read", {})[namespace] = keys
        noted = self.__dict__.get("read", {}).get(namespace, keys)
        return super().get_columns(spec, namespace, noted.take(keys.noted["read"]))

    def apply_columns(self, spec, namespace, keys, cells):
        if "read" in keys.noted and namespace not in self.__dict__.get("read", {}):
            return
        super().apply_columns(spec, namespace, keys, cells)


@caught_by(ColumnTests.test_single_cells_show_what_columns_wrote)
class ColumnsBesideTheCells(SqliteTable):
    def apply_columns(self, spec, namespace, keys, cells):
        beside = self.__dict__.setdefault("beside", {})
        values = cells.cells(spec.value)
        beside |= zip([(namespace, key) for key in keys.decoded(spec.key)], values, strict=True)

    def get_columns(self, spec, namespace, keys):
        found = super().get_columns(spec, namespace, keys).cells(spec.value)
        beside = self.__dict__.get("beside", {})
        decoded = keys.decoded(spec.key)
        cells = [beside.get((namespace, key), old) for key, old in zip(decoded, found, strict=True)]
        return CellColumns.of(spec.value, decoded, cells, ttl=spec.ttl)


@caught_by(UnheldValueTests.test_a_value_that_columns_cannot_hold_is_named, "int")
class ZeroForAnIntThatIsTooLarge(SqliteTable):
    def get_columns(self, spec, namespace, keys):
        try:
            return super().get_columns(spec, namespace, keys)
        except ColumnValueError:
            return CellColumns((Column(np.zeros(len(keys), np.int64)),))
