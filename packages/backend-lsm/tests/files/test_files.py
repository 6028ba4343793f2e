"""Sorted files: cells read back, lookups find them, and errors name file, state and block."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_backend_lsm.files import CellKind, FileWriter, Probes, SortedFile, columns, write_file
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError

KEYS = st.binary(min_size=1, max_size=3)


def content(keys=KEYS, kinds=(CellKind.PUT, CellKind.DELETE)):
    row = st.tuples(st.sampled_from(kinds), st.binary(max_size=6), st.integers(0, 9))
    return st.dictionaries(keys, row.map(lambda r: (int(r[0]), b"" if r[0] == 1 else r[1], r[2])))


@settings(deadline=None)
@given(content(), st.sampled_from(["lz4", "zstd", "none"]), st.integers(1, 200), st.booleans())
def test_what_is_written_reads_back(model, found, compression, block_bytes, ttl):
    storage, h = model.new_storage(), model.header(ttl=ttl)
    if not ttl:
        found = {key: (kind, value, 0) for key, (kind, value, _) in found.items()}
    file = model.write(
        storage, "d/f", [(h, found)], compression=compression, block_bytes=block_bytes
    )
    assert model.read_all(storage, file) == ({"t": found} if found else {})
    kinds = [kind for kind, _, _ in found.values()]
    assert (file.meta["entries"], file.meta["deletes"]) == (len(found), kinds.count(1))
    if found:
        table = SortedFile.open(storage, file).tables["t"]
        assert table.counts == tuple(kinds.count(kind) for kind in CellKind)
        times = [time for kind, _, time in found.values() if kind == CellKind.PUT]
        assert table.times == ((min(times), max(times)) if ttl and times else None)
        assert table.description == h.description


@settings(deadline=None)
@given(content(), st.lists(KEYS, max_size=40), st.integers(0, 48), st.integers(20, 300))
def test_lookups_find_what_is_there_whatever_collides(model, found, asked, bits, block_bytes):
    storage = model.new_storage()

    def address(key):
        return model.address(key, bits)

    cells = model.cells_of(found, address=address)
    file = write_file(
        storage,
        "f",
        [(model.header(), [cells] if found else [])],
        range=model.GROUPS,
        block_bytes=block_bytes,
    )
    asked = [*asked, *found]
    if not found or not asked:
        return
    table = SortedFile.open(storage, file).tables["t"]
    blocks = list(model.blocks_of(storage, table, "f"))
    addresses = np.array([address(key) for key in asked], np.uint64)
    candidates = table.candidates(addresses, Probes.of(addresses))
    for number in set(candidates.tolist()) - {-1}:
        which = np.flatnonzero(candidates == number)
        positions = blocks[number].find(addresses[which], [asked[i] for i in which])
        for i, position in zip(which.tolist(), positions.tolist(), strict=True):
            if position >= 0:
                assert blocks[number].key(position) == asked[i]
                assert blocks[number].value(position) == found[asked[i]][1]
            else:
                assert asked[i] not in found
    absent = [asked[i] for i in np.flatnonzero(candidates < 0)]
    assert not set(absent) & set(found)


@settings(deadline=None)
@given(content(), st.integers(0, 15), st.integers(0, 15), st.integers(20, 200))
def test_a_range_of_addresses_spans_the_blocks_that_hold_it(model, found, a, b, block_bytes):
    storage = model.new_storage()
    file = model.write(storage, "f", [(model.header(), found)], block_bytes=block_bytes)
    if not found:
        return
    start, end = min(a, b), max(a, b)
    table = SortedFile.open(storage, model.clipped(file, start, end)).tables["t"]
    seen = set()
    for number in table.span(start << 48, (end + 1 << 48) - 1):
        offset_length = table.location(number)
        block = table.decode(number, storage.get_ranges("f", [offset_length])[0])
        first, stop = block.slice_of(table.first, table.last)
        seen |= {block.key(i) for i in range(first, stop)}
    assert seen == {key for key in found if start <= key[0] % 16 <= end}
    addresses = np.array([model.address(key) for key in found], np.uint64)
    inside = table.candidates(addresses) >= 0
    assert inside.tolist() == [start <= key[0] % 16 <= end for key in found]


@settings(deadline=None)
@given(content(), st.lists(st.integers(0, 30)), st.integers(20, 300))
def test_the_bytes_do_not_depend_on_the_parts(model, found, cuts, block_bytes):
    cells = model.cells_of(found)
    bounds = sorted({0, len(found), *[min(cut, len(found)) for cut in cuts]})
    parts = [cells.slice(a, b) for a, b in itertools.pairwise(bounds)]
    made = []
    for given_parts in ([cells], parts):
        writer = FileWriter(model.GROUPS, block_bytes=block_bytes)
        writer.begin(model.header())
        for part in given_parts:
            writer.add(part)
        made.append(writer.finish().data)
    assert made[0] == made[1]


def test_all_cells_of_an_address_are_in_one_block(model, storage):
    found = {bytes([1, i]): (0, b"x" * 20, 0) for i in range(200)}
    cells = model.cells_of(found, address=lambda key: 1 << 48 | key[1] // 50)
    file = write_file(storage, "f", [(model.header(), [cells])], range=model.GROUPS, block_bytes=64)
    table = SortedFile.open(storage, file).tables["t"]
    assert table.cells.tolist() == [50, 50, 50, 50]
    assert len(set(table.first_addresses.tolist())) == 4


def test_tables_are_apart(model, storage):
    a = {b"\x01k": (0, b"1", 0)}
    b = {b"\x01k": (0, b"2", 5), b"\x02": (1, b"", 6)}
    file = model.write(storage, "f", [(model.header("a"), a), (model.header("b", ttl=True), b)])
    assert model.read_all(storage, file) == {"a": a, "b": b}
    opened = SortedFile.open(storage, file)
    assert [t.has_times for t in opened.tables.values()] == [False, True]
    assert opened.tables["b"].times == (5, 5)


def test_the_times_of_list_elements_are_those_of_the_section(model, storage):
    found = {
        b"\x01": (2, model.elements((50, b"a"), (7, b"bb")) + model.elements((60, b"")), 0),
        b"\x02": (1, b"", 0),
    }
    file = model.write(storage, "f", [(model.header("l", "list", ttl=True), found)])
    table = SortedFile.open(storage, file).tables["l"]
    assert (table.has_times, table.times) == (False, (7, 60))


def test_columns_begin_where_they_are_said_to(model, storage):
    found = {b"\x01a": (0, b"xyz", 11), b"\x02": (1, b"", 12)}
    file = model.write(storage, "f", [(model.header(ttl=True), found)])
    table = SortedFile.open(storage, file).tables["t"]
    block = next(model.blocks_of(storage, table, "f"))
    raw, place = bytes(block.raw), columns(block.count, has_times=True)
    assert np.frombuffer(raw, "<u8", 2, place.addresses).tolist() == block.addresses.tolist()
    assert np.frombuffer(raw, "<i8", 2, place.times).tolist() == [11, 12]
    assert np.frombuffer(raw, "<u4", 3, place.key_offsets).tolist() == [0, 2, 3]
    assert np.frombuffer(raw, "<u4", 3, place.value_offsets).tolist() == [0, 3, 3]
    assert raw[place.kinds :] == b"\x00\x01" + b"\x01a\x02" + b"xyz"
    assert block.nbytes == len(raw) == int(table.raw_sizes[0])


def test_what_cannot_be_searched_is_not_written(model):
    cells = model.cells_of({b"\x01": (0, b"", 0), b"\x02": (0, b"", 0)})
    writer = FileWriter(model.GROUPS)
    with pytest.raises(ValueError, match="call begin first"):
        writer.add(cells)
    writer.begin(model.header("b"))
    writer.add(cells)
    with pytest.raises(ValueError, match="not sorted"):
        writer.add(cells)
    with pytest.raises(ValueError, match="names must ascend"):
        writer.begin(model.header("a"))
    writer.begin(model.header("c", ttl=True))
    with pytest.raises(ValueError, match="times"):
        writer.add(cells)
    with pytest.raises(ValueError, match="compression is one of"):
        FileWriter(model.GROUPS, compression="gzip")


def test_opening_reads_the_end_once_and_no_block(model, storage, monkeypatch):
    found = {bytes([i % 250, i // 250]): (0, bytes(200), 0) for i in range(20_000)}
    file = model.write(storage, "f", [(model.header(), found)], compression="none")
    asked = []
    original = type(storage).get_ranges
    monkeypatch.setattr(
        type(storage),
        "get_ranges",
        lambda self, name, ranges: asked.extend(ranges) or original(self, name, ranges),
    )
    opened = SortedFile.open(storage, file)
    assert asked == [(file.size - file.meta["tail"], file.meta["tail"])]
    assert file.meta["tail"] < file.size / 50
    assert opened.memory_bytes < 2 * file.meta["tail"]
    asked.clear()
    plain = StateFile(name="f", size=file.size, range=file.range)
    assert SortedFile.open(storage, plain).tables["t"].counts == opened.tables["t"].counts
    assert len(asked) <= 2


def test_a_file_without_filters_can_only_be_gone_through(model, storage):
    file = model.write(storage, "f", [(model.header(), {b"\x01": (0, b"v", 0)})])
    table = SortedFile.open(storage, file, filters=False).tables["t"]
    assert table.candidates(np.array([model.address(b"\x01")], np.uint64)).tolist() == [-1]
    assert list(table.span(0, 1 << 60)) == [0]


def test_filters_let_few_through(model, storage):
    rng = np.random.default_rng(5)
    addresses = np.unique(rng.integers(0, 1 << 52, 20_000, dtype=np.uint64))
    keys = [b"%d" % i for i in range(len(addresses))]
    cells = model.Cells.of(addresses, CellKind.PUT, keys, keys)
    file = write_file(storage, "f", [(model.header(), [cells])], range=model.GROUPS)
    table = SortedFile.open(storage, file).tables["t"]
    assert (table.candidates(addresses) >= 0).all()
    others = rng.integers(0, 1 << 52, 20_000, dtype=np.uint64)
    assert (table.candidates(others) >= 0).mean() < 0.01


def test_a_missing_file_is_corrupt_state(model, storage):
    file = model.write(storage, "d/f", [(model.header(), {b"\x01": (0, b"v", 0)})])
    storage.delete(["d/f"])
    with pytest.raises(CorruptStateError, match="'d/f': it is missing"):
        SortedFile.open(storage, file)
