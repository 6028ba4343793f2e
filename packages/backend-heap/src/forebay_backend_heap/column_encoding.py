"""Encodes cells by columns to the sections of a file, and back: the bytes of `encoding`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from forebay_backend_heap.column_space import ColumnSpace, joined
from forebay_backend_heap.encoding import CHUNK_CELLS, NAMESPACE, NUMBER, TIME, check_counts
from forebay_backend_heap.files import Chunk, Operation, Section, chunk_of
from forebay_backend_heap.slots import Array
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.codecs.column_bytes import array_head, pack_each
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.codecs.columns import Column, Texts
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.columns import CellColumns, EncodedKeys
from forebay_state_api.contract.migration import reader_of
from forebay_state_api.errors import ForebayError

_AT_ONCE: Final = 4
"""Chunks that are packed at once; more need memory, and would not be faster."""

Part = tuple[Any, ColumnSpace, Array]
"""A namespace, its cells, and the slots of some of them."""


class UnheldValueError(ForebayError):
    """Stored data have no place in columns, or are damaged; a table by cells reports which."""


def encode_columns(
    spec: TableSpec,
    op: Operation,
    parts: Sequence[Part],
    groups: KeyGroupRange,
    pause: Callable[[], object] | None = None,
) -> list[Section]:
    """Return the section of cells of one or more namespaces; none without any cell.

    ``pause`` is called before each chunk; without it, several chunks are packed at once.
    """
    parts = [part for part in parts if len(part[2])]
    if not parts:
        return []
    own = np.concatenate([space.groups_of(slots) for _, space, slots in parts])
    order = np.argsort(own, kind="stable")
    counts = np.bincount(own)
    distinct = np.flatnonzero(counts)
    take = _taker(parts, cells=op is Operation.PUT)
    types = ColumnTypes.of(spec.value)
    indexes = None
    if len(parts) > 1:
        sizes = [len(slots) for _, _, slots in parts]
        indexes = np.repeat(np.arange(len(parts)), sizes)[order].astype(NUMBER)
    chunks: list[Chunk] = []
    step = CHUNK_CELLS if pause is not None else _AT_ONCE * CHUNK_CELLS
    for start in range(0, len(order), step):
        if pause is not None:
            pause()
        cells = slice(start, start + step)
        keys, values = take(order[cells])
        own_indexes = None if indexes is None else indexes[cells]
        chunks += _chunks(types, own_indexes, keys.encoded, values)
    section = Section(
        description=spec.description(),
        op=op,
        range=groups,
        namespaces=tuple(NAMESPACE.pack_one(namespace) for namespace, _, _ in parts),
        groups=distinct.astype(np.uint16),
        counts=counts[distinct],
        chunks=tuple(chunks),
    )
    return [section]


def _chunks(
    types: ColumnTypes, indexes: Array | None, keys: Texts, values: CellColumns | None
) -> Iterator[Chunk]:
    """Pack cells, and cut them into chunks."""
    times, packed = None, None
    if values is not None:
        packed = pack_each(values.columns, types.kinds, tuples=types.tuples)
        times = None if values.times is None else values.times.astype(TIME, copy=False)
    for start in range(0, len(keys), CHUNK_CELLS):
        stop = min(start + CHUNK_CELLS, len(keys))
        columns = [] if indexes is None else [indexes[start:stop].tobytes()]
        columns.append(_list_of(keys, start, stop))
        if times is not None:
            columns.append(times[start:stop].tobytes())
        if packed is not None:
            columns.append(_list_of(packed, start, stop))
        yield chunk_of(stop - start, columns)


def _list_of(values: Texts, start: int, stop: int) -> bytes:
    """Return the bytes of the list of some packed values."""
    part = values.data[int(values.offsets[start]) : int(values.offsets[stop])]
    return array_head(stop - start) + part.tobytes()


Taker = Callable[[Array], tuple[EncodedKeys, CellColumns | None]]


def _taker(parts: Sequence[Part], *, cells: bool) -> Taker:
    """Return what takes keys, with or without cells, by their positions in all ``parts``."""
    if len(parts) == 1:
        _, space, slots = parts[0]
        return lambda index: (
            space.keys_of(slots[index]),
            space.take(slots[index]) if cells else None,
        )
    taken = [space.keys_of(slots) for _, space, slots in parts]
    encoded = Texts.joined([keys.encoded for keys in taken])
    every = EncodedKeys(encoded, np.concatenate([keys.groups for keys in taken]))
    whole = joined([space.take(slots) for _, space, slots in parts]) if cells else None
    return lambda index: (every.take(index), None if whole is None else whole.take(index))


@attrs.frozen(eq=False)
class ColumnBlock:
    """Cells of one namespace in one chunk of a section."""

    namespace: Any
    keys: EncodedKeys
    cells: CellColumns | None
    """``None`` for deletes."""


def decode_columns(section: Section, spec: TableSpec) -> list[ColumnBlock]:
    """Return the cells of ``section`` that are in its range.

    Raises `UnheldValueError`, and `StateMigrationError` as `reader_of` does.
    """
    with decoding(lambda _: section.where):
        reader = reader_of(section.description, spec)
    try:
        return [*_decoded(section, reader)]
    except (ForebayError, MemoryError):
        raise
    except Exception as error:
        raise UnheldValueError(f"{section.where}: {error}") from error


def _decoded(section: Section, reader: TableSpec) -> Iterator[ColumnBlock]:
    start, stop = section.window()
    groups = np.repeat(section.groups, section.counts)
    check_counts(sum(chunk.cells for chunk in section.chunks), groups)
    namespaces = [NAMESPACE.unpack_one(namespace) for namespace in section.namespaces]
    key_types = ColumnTypes.of(reader.key)
    at = 0
    for chunk in section.chunks:
        inside = np.arange(max(start - at, 0), min(stop - at, chunk.cells))
        own = groups[at : at + chunk.cells]
        at += chunk.cells
        yield from _blocks(section, reader, chunk, key_types, namespaces, own, inside)


def _blocks(  # noqa: PLR0917 - one caller
    section: Section,
    reader: TableSpec,
    chunk: Chunk,
    key_types: ColumnTypes,
    namespaces: Sequence[Any],
    groups: Array,
    inside: Array,
) -> Iterator[ColumnBlock]:
    columns = chunk.columns()
    indexes = np.frombuffer(columns.pop(0), NUMBER) if len(namespaces) > 1 else None
    encoded = key_types.split(columns.pop(0))
    if encoded is None:
        raise UnheldValueError("a key that columns cannot hold")
    keys = EncodedKeys(encoded, groups)
    check_counts(chunk.cells, encoded, *([] if indexes is None else [indexes]))
    cells = None if section.op is Operation.DELETE else _cells(section, reader, columns)
    if cells is not None:
        check_counts(chunk.cells, *cells.columns)
    for number, namespace in enumerate(namespaces):
        index = inside if indexes is None else inside[indexes[inside] == number]
        if len(index) == chunk.cells:
            yield ColumnBlock(namespace, keys, cells)
        elif len(index):
            yield ColumnBlock(namespace, keys.take(index), cells and cells.take(index))


def _cells(section: Section, reader: TableSpec, columns: Sequence[memoryview]) -> CellColumns:
    times = np.frombuffer(columns[0], TIME) if reader.ttl else None
    packed = columns[-1]
    types = ColumnTypes.of(reader.value)
    found: tuple[Column, ...] | None
    if section.description["value"] == reader.value.description:
        found = types.unpack(packed)
    else:
        found = types.columns(reader.value.unpack(packed))
    if found is None:
        raise UnheldValueError("a value that columns cannot hold")
    return CellColumns(found, None, times)
