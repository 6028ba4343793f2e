"""The column methods that the contract implements for every backend, and their keys."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_engine.stored.restore import default_options
from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.columns import Texts
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, PointChanges, Shape
from forebay_state_api.contract.columns import CellColumns, EncodedKeys, hashes_of
from forebay_state_api.errors import ColumnValueError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.obstore import ObstoreStorage


def spec_of(value, *, ttl=False, key=str):
    return TableSpec(
        name="s",
        shape=Shape.POINT,
        kind="value",
        key=codec_for(key, what="k"),
        value=codec_for(value, what="state 's'"),
        ttl=ttl,
    )


@pytest.fixture(params=[HeapBackend, LsmBackend])
def backend(request):
    storage = ObstoreStorage(MemoryStore(), "memory://columns")
    opened = request.param.open(
        Opening.outside_job(storage, "op", KeyGroupRange(0, 7), default_options(request.param))
    )
    yield opened
    opened.close()


def keys_of(spec, *keys):
    return EncodedKeys.of(spec.key, keys, [1] * len(keys))


@pytest.mark.parametrize("ttl", [False, True])
def test_columns_are_read_and_written_by_cells(backend, ttl):
    spec = spec_of(tuple[int, str | None], ttl=ttl)
    table = backend.table(spec)
    keys = keys_of(spec, "a", "b", "c")
    cells = [(1, "x"), (2, None), (3, "z")]
    if ttl:
        cells = [(10 + at, value) for at, value in enumerate(cells)]
    table.apply_columns(spec, None, keys, CellColumns.of(spec.value, "abc", cells, ttl=ttl))
    assert table.get_many(None, [(1, "b"), (1, "d")]) == [cells[1], ABSENT]
    asked = keys_of(spec, "d", "c", "a")
    found = table.get_columns(spec, None, asked)
    assert found.present.tolist() == [False, True, True]
    assert found.cells(spec.value) == [ABSENT, cells[2], cells[0]]
    assert table.get_columns(spec, "elsewhere", asked).cells(spec.value) == [ABSENT] * 3
    gone = CellColumns(found.columns, np.array([False, False, True]), found.times)
    table.apply_columns(spec, None, asked, gone)
    exported = {}
    for namespace, some, columns in table.export_columns(spec, 1):
        assert namespace is None
        assert some.groups.tolist() == [1] * len(some)
        exported.update(zip(some.decoded(spec.key), columns.cells(spec.value), strict=True))
    assert exported == {"a": cells[0], "b": cells[1]}


def test_a_write_by_columns_is_read_by_records(backend):
    spec = spec_of(int)
    table = backend.table(spec)
    space = table.space(None)
    if space.complete:
        space.cells["a"] = 1
    table.apply(Changes(points={None: PointChanges(["a"], [1], [1])}))
    keys = keys_of(spec, "a", "b")
    found = table.get_columns(spec, None, keys)
    table.apply_columns(spec, None, keys, CellColumns(found.columns))
    assert table.get_many(None, [(1, "a"), (1, "b")]) == [1, 0]
    if space.complete:
        assert space.cells == {"a": 1, "b": 0}


@pytest.mark.parametrize(("value", "declared"), [(1 << 80, int), ("\ud800", str)])
def test_a_value_without_a_place_in_columns_is_named(backend, value, declared):
    spec = spec_of(declared)
    table = backend.table(spec)
    if table.space(None).complete:
        table.space(None).cells["k"] = value
    table.apply(Changes(points={None: PointChanges(["k"], [1], [value])}))
    with pytest.raises(ColumnValueError, match="state 's', key 'k'"):
        table.get_columns(spec, None, keys_of(spec, "a", "k"))
    with pytest.raises(ColumnValueError, match="state 's', key 'k'"):
        next(table.export_columns(spec, 10))


@given(st.lists(st.binary(max_size=30), unique=True, max_size=20))
def test_a_hash_depends_on_the_bytes_alone(parts):
    hashes = hashes_of(Texts.of(parts, binary=True)).tolist()
    assert len({*hashes}) == len(parts)
    assert 0 not in hashes
    data = np.frombuffer(b"before" + b"".join(parts) + b"after", np.uint8)
    offsets = np.cumsum([len(b"before"), *map(len, parts)])
    assert hashes_of(Texts(offsets, data, binary=True)).tolist() == hashes


def test_a_part_of_the_keys_keeps_their_hashes_and_what_a_store_noted():
    spec = spec_of(int, key=tuple[int, str])
    keys = EncodedKeys.of(spec.key, [(1, "a"), (2, "b"), (3, "c")], [5, 6, 7])
    hashes = keys.hashes
    keys.noted["store"] = np.array([1, 2, 3])
    part = keys.take(np.array([2, 0]))
    assert part.decoded(spec.key) == [(3, "c"), (1, "a")]
    assert part.groups.tolist() == [7, 5]
    assert part.hashes.tolist() == hashes[[2, 0]].tolist() == hashes_of(part.encoded).tolist()
    assert part.noted["store"].tolist() == [3, 1]


def test_the_contract_does_not_import_numpy():
    code = (
        "import sys; import forebay_state_api.contract.backend; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
