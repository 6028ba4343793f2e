"""Yields the cells of a point table, decoded by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from forebay_backend_lsm.addressing import AddressedKeys, by_head, key_in, namespace_of
from forebay_backend_lsm.batched_reads import Reads, where
from forebay_backend_lsm.files import Cells
from forebay_backend_lsm.files.blocks import Blobs
from forebay_backend_lsm.files.cells import GROUP_SHIFT
from forebay_backend_lsm.newest_cells import END, NewestCells
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Changes, PointChanges

_STEP: Final = 50_000
"""Cells of the largest run that are read at once."""
_ONE_BYTE: Final = 128
"""Shorter keys have a length of one byte in their prefix."""


@attrs.frozen(eq=False)
class _Packed:
    """Packed values, joined, and the bytes of each."""

    data: bytes
    lengths: Sequence[int]


def exported_points(spec: TableSpec, reads: Reads, page: int) -> Iterator[Changes]:
    """Yield the newest content of each key, at most ``page`` of them in each item."""
    newest, start = NewestCells(reads), 0
    while start < END:
        lanes, start = newest.window(start, END, max(page, _STEP))
        for reader, cells in lanes:
            for at in range(0, len(cells), page):
                part = cells.slice(at, min(at + page, len(cells)))
                yield from _changes(spec, reader, reads, part)


def _changes(spec: TableSpec, reader: TableSpec, reads: Reads, cells: Cells) -> Iterator[Changes]:
    with decoding(_where(spec, reads, cells)):
        points = _decoded(reader, cells)
        places = [*_namespaces(cells)]
    for namespace, at in places:
        yield Changes(points={namespace: points if at is None else _taken(points, at)})


def _decoded(reader: TableSpec, cells: Cells) -> PointChanges:
    keys, values = _keys(cells), _packed(Blobs.of(cells.values))
    contents = reader.value.unpack_each(values.data, values.lengths)
    if cells.times is not None:
        contents = [*zip(cells.times.tolist(), contents, strict=True)]
    groups = (cells.addresses >> np.uint64(GROUP_SHIFT)).tolist()
    return PointChanges(reader.key.unpack_each(keys.data, keys.lengths), groups, contents)


def _taken(points: PointChanges, at: Sequence[int]) -> PointChanges:
    columns = (points.keys, points.groups, points.values)
    return PointChanges(*([column[i] for i in at] for column in columns))


def _where(spec: TableSpec, reads: Reads, cells: Cells) -> Callable[[int | None], str]:
    """Return the function that names an unreadable cell and the newest file that has it."""

    def name(at: int | None) -> str:
        place = at or 0
        key = cells.keys[place].as_py()
        one = AddressedKeys(cells.addresses[place : place + 1], [key])
        return where(spec, one, reads.holders(one)[:1])

    return name


def _keys(cells: Cells) -> _Packed:
    """Return the packed keys that the cell keys hold."""
    if _is_plain(cells):
        return _without_heads(Blobs.of(cells.keys))
    keys = [key_in(one) for one in cells.keys.to_pylist()]
    return _Packed(b"".join(keys), [*map(len, keys)])


def _without_heads(keys: Blobs) -> _Packed:
    """Return the packed keys after two bytes: the namespace and the length."""
    count = len(keys.offsets) - 1
    data = np.frombuffer(keys.between(0, count), np.uint8)
    heads = keys.offsets[:-1] - keys.offsets[0]
    kept = np.ones(len(data), np.bool_)
    kept[heads] = kept[heads + 1] = False
    return _Packed(data[kept].tobytes(), (np.diff(keys.offsets) - 2).tolist())


def _is_plain(cells: Cells) -> bool:
    """Return whether all cells are in the default namespace and have short keys."""
    blobs = Blobs.of(cells.keys)
    data, starts = np.frombuffer(blobs.data, np.uint8), blobs.offsets[:-1]
    return not data[starts].any() and bool((data[starts + 1] < _ONE_BYTE).all())


def _packed(blobs: Blobs) -> _Packed:
    data = bytes(blobs.between(0, len(blobs.offsets) - 1))
    return _Packed(data, np.diff(blobs.offsets).tolist())


def _namespaces(cells: Cells) -> Iterator[tuple[Any, list[int] | None]]:
    """Yield each namespace with the positions of its cells; ``None`` means all of them."""
    if _is_plain(cells):
        yield None, None
        return
    keys: list[bytes] = cells.keys.to_pylist()
    places = {key: at for at, key in enumerate(keys)}
    for head, prefixes in by_head(keys).items():
        yield namespace_of(head), [places[prefix] for prefix in prefixes]
