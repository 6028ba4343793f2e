"""A few cells are the same cells as tuples and as columns: written, read and merged."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_backend_lsm.addressing import ClearKeys, EntryKeys, PlainKeys
from forebay_backend_lsm.files import CellKind, FileWriter, Filter, Probes, TableHeader
from forebay_backend_lsm.files.cells import Cells
from forebay_backend_lsm.files.few_cells import MOST, Cell, FewCells
from forebay_backend_lsm.merging import Dropped, MergeInput, Rules, merge
from forebay_backend_lsm.merging_few import merge_few
from forebay_state_api.contract.expiry import Deadline

ADDRESS = st.integers(0, (1 << 64) - 1)
SHAPES = [
    pytest.param("value", False, id="value"),
    pytest.param("value", True, id="value with TTL"),
    pytest.param("list", False, id="list"),
    pytest.param("list", True, id="list with TTL"),
    pytest.param("map", False, id="map"),
    pytest.param("map", True, id="map with TTL"),
]
KINDS = {
    "value": [CellKind.PUT, CellKind.DELETE],
    "list": [CellKind.PUT, CellKind.DELETE, CellKind.APPEND],
    "map": [CellKind.PUT, CellKind.DELETE, CellKind.CLEAR],
}


def header(kind, *, ttl, ordered=False):
    description = {"name": "t", "kind": kind, "ttl": ttl, "ordered": ordered}
    return TableHeader("t", description, ttl)


def values_of(model, kind, *, ttl):
    if kind == "list" and ttl:
        element = st.tuples(st.integers(1, 9), st.binary(max_size=2))
        return st.lists(element, min_size=1, max_size=3).map(lambda found: model.elements(*found))
    return st.binary(min_size=1, max_size=9)


@st.composite
def a_run(draw, model, kind, *, ttl, few=MOST):
    """Draw sorted cells of few keys, of which some share an address."""
    has_times = ttl and kind != "list"
    keys = st.tuples(st.sampled_from(b"ab"), st.sampled_from(b"xyz")).map(bytes)
    if kind == "map":
        keys |= keys.map(lambda key: key[:1])  # bare prefixes
    cells = []
    for key in draw(st.sets(keys, max_size=few)):
        bare = kind == "map" and len(key) == 1
        allowed = [one for one in KINDS[kind] if (one is CellKind.CLEAR) is bare]
        what = draw(st.sampled_from(allowed))
        value = (
            b""
            if what in (CellKind.DELETE, CellKind.CLEAR)
            else draw(values_of(model, kind, ttl=ttl))
        )
        address = key[0] << 48 | (len(key) > 1 and key[1] // 2)
        cells.append(Cell(address, key, int(what), draw(st.integers(0, 9)), value))
    cells = cells if has_times else [cell._replace(time=None) for cell in cells]
    return FewCells.sorted(cells, has_times=has_times)


def rows(cells):
    """Return cells of either form as tuples."""
    if isinstance(cells, FewCells):
        return [tuple(cell) for cell in cells.cells]
    times = [None] * len(cells) if cells.times is None else cells.times.tolist()
    columns = (cells.addresses.tolist(), cells.keys.to_pylist(), cells.kinds.tolist(), times)
    return [*zip(*columns, cells.values.to_pylist(), strict=True)]


@pytest.mark.parametrize(("kind", "ttl"), SHAPES)
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_both_forms_write_the_same_file(model, kind, ttl, compression, data):
    few = data.draw(a_run(model, kind, ttl=ttl))
    ordered = kind == "map" and data.draw(st.booleans())
    block_bytes = data.draw(st.sampled_from([1, 60, 200, 8192]))
    written = []
    for form in (few, few.columns if len(few) else few):
        writer = FileWriter(model.GROUPS, compression=compression, block_bytes=block_bytes)
        writer.begin(header(kind, ttl=ttl, ordered=ordered))
        writer.add(form)
        written.append(writer.finish())
    assert written[0].data == written[1].data
    assert written[0].meta == written[1].meta


@pytest.mark.parametrize(("kind", "ttl"), SHAPES)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_block_reads_back_and_each_cell_is_found(model, kind, ttl, data):
    few = data.draw(a_run(model, kind, ttl=ttl).filter(len))
    read = FewCells.of_block(few.raw, len(few), has_times=few.has_times)
    assert rows(read) == rows(few) == rows(few.columns)
    for cell in few.cells:
        assert read.find(cell.address, cell.key) == cell
        assert read.find(cell.address, cell.key + b"?") is None
        assert read.find(cell.address ^ 1 << 63, cell.key) is None


@settings(deadline=None)
@given(st.lists(ADDRESS, min_size=1, max_size=MOST), st.lists(ADDRESS))
def test_filters_of_few_addresses_are_like_others(addresses, others):
    built = Filter.build([np.array(addresses, np.uint64)])
    assert Filter.words_of(addresses) == built.words.tobytes()
    asked = [*addresses, *others]
    passing = built.passes(Probes.of(np.array(asked, np.uint64))).tolist()
    assert [built.may_hold(address) for address in asked] == passing


@given(st.lists(st.tuples(st.integers(0, 32_767), st.binary(max_size=4), st.binary(max_size=4))))
def test_keys_have_the_same_addresses_one_by_one(found):
    groups, prefixes, user_keys = ([one[part] for one in found] for part in range(3))
    forms = [
        PlainKeys(groups, prefixes),
        ClearKeys(groups, prefixes),
        EntryKeys(groups, prefixes, user_keys, ordered=False),
        EntryKeys(groups, prefixes, user_keys, ordered=True),
    ]
    for keys in forms:
        together = keys.addressed()
        assert [*keys.one_by_one()] == [
            *zip(together.addresses.tolist(), together.keys, strict=True)
        ]


class Limits(Deadline):
    """A deadline that moves on with each cell."""

    def __init__(self, every):
        self.every, self.at = every, 0

    def steps(self, cells):
        for _ in range(cells):
            self.at += 1
            yield 1, 3 + self.at // self.every


@pytest.mark.long
@pytest.mark.parametrize(("kind", "ttl"), SHAPES)
@settings(deadline=None, max_examples=60)
@given(data=st.data(), bottom=st.booleans(), every=st.sampled_from([None, 2, 100]))
def test_merging_few_cells_does_what_merging_columns_does(model, kind, ttl, data, bottom, every):
    runs = data.draw(st.lists(a_run(model, kind, ttl=ttl), min_size=1, max_size=5))
    has_times, stamped = ttl and kind != "list", ttl and kind == "list"

    def rules():
        deadline = Limits(every) if ttl and every else None
        return Rules(bottom=bottom, deadline=deadline, stamped_lists=stamped)

    merged = merge_few([run.cells for run in runs], rules(), has_times=has_times)
    inputs = [MergeInput(iter([(1 << 63, run.columns)])) for run in runs if len(run)]
    parts = [*merge(inputs, rules())] if inputs else []
    found = [row for part in parts for row in rows(part.cells)]
    assert rows(merged.cells) == found
    assert merged.entries_in == sum(part.entries_in for part in parts)
    dropped = Dropped()
    for part in parts:
        dropped = dropped.plus(part.dropped)
    assert merged.dropped == dropped


def test_merged_cells_that_are_many_are_columns():
    runs = [[Cell(n, b"%d" % n, 0, None, b"v")] for n in range(MOST + 1)]
    merged = merge_few(runs, Rules(bottom=False), has_times=False)
    assert isinstance(merged.cells, Cells)
    assert [row[0] for row in rows(merged.cells)] == [*range(MOST + 1)]


def test_parts_of_both_forms_make_one_table(model):
    cells = [Cell(n, b"%02d" % n, 0, None, b"v") for n in range(6)]
    parts = [FewCells(cells[at : at + 2], has_times=False) for at in (0, 2, 4)]
    written = set()
    for forms in itertools.product([False, True], repeat=3):
        writer = FileWriter(model.GROUPS)
        writer.begin(header("value", ttl=False))
        for part, as_columns in zip(parts, forms, strict=True):
            writer.add(part.columns if as_columns else part)
        written.add(writer.finish().data)
    whole = FileWriter(model.GROUPS)
    whole.begin(header("value", ttl=False))
    whole.add(FewCells(cells, has_times=False))
    assert written == {whole.finish().data}


def test_cells_without_the_times_of_their_table_are_refused(model):
    writer = FileWriter(model.GROUPS)
    writer.begin(header("value", ttl=True))
    writer.add(FewCells([Cell(1, b"a", 0, None, b"v")], has_times=False))
    with pytest.raises(ValueError, match="unexpected or missing times"):
        writer.finish()
