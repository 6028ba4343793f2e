"""Encodes cells as columns: from Python objects to the sections of a file, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from forebay_backend_heap.files import Chunk, Groups, Operation, Section, chunk_of
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import codec_for, decoding
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Shape

CHUNK_CELLS: Final = 4096
"""Cells in a chunk: a reader of part of a file decodes at most this many in vain at each end."""

NAMESPACE: Final = codec_for(None, what="namespaces")
NUMBER: Final = "<u4"
TIME: Final = "<i8"
_NEVER: Final = (1 << 63) - 1
"""The time of content that never expires."""


@attrs.frozen(eq=False)
class Block:
    """Cells of one table, in columns, to which one operation applies."""

    namespaces: Sequence[Any]
    """The distinct namespaces; most tables have one."""
    indexes: npt.NDArray[np.uint32] | None
    """Index into ``namespaces`` of each cell; ``None`` with a single namespace."""
    keys: list[Any]
    groups: Groups
    """The key group of each cell."""
    contents: list[Any] | None
    """The content of each cell; the user keys of `Operation.REMOVE`; ``None`` for deletes."""

    @classmethod
    def joined(cls, parts: Sequence[tuple[Any, list[Any], Groups, list[Any] | None]]) -> Block:
        """Join (namespace, keys, groups, contents) tuples of distinct namespaces."""
        if len(parts) == 1:
            namespace, keys, groups, contents = parts[0]
            return cls([namespace], None, keys, groups, contents)
        contents = None
        if parts[0][3] is not None:
            contents = [content for part in parts for content in part[3] or ()]
        indexes = np.repeat(np.arange(len(parts), dtype=np.uint32), [len(p[1]) for p in parts])
        keys = [key for part in parts for key in part[1]]
        groups = np.concatenate([part[2] for part in parts])
        return cls([part[0] for part in parts], indexes, keys, groups, contents)

    def by_namespace(self) -> Iterable[tuple[Any, list[Any], Groups, list[Any] | None]]:
        """Split into (namespace, keys, groups, contents) tuples, one for each namespace."""
        if self.indexes is None:
            only = (self.namespaces[0], self.keys, self.groups, self.contents)
            return [only] if self.keys else []
        cells: dict[int, list[int]] = {}
        for cell, index in enumerate(self.indexes.tolist()):
            cells.setdefault(index, []).append(cell)
        return [
            (
                self.namespaces[index],
                [*map(self.keys.__getitem__, own)],
                self.groups[own],
                None if self.contents is None else [*map(self.contents.__getitem__, own)],
            )
            for index, own in cells.items()
        ]


def encode(
    spec: TableSpec,
    op: Operation,
    block: Block,
    groups: KeyGroupRange,
    pause: Callable[[], object] = lambda: None,
) -> Section:
    """Pack the cells of ``block``, sorted by key group; ``groups`` is the writer's range.

    ``pause`` is called before each chunk.
    """
    order = np.argsort(block.groups, kind="stable")
    distinct, counts = np.unique(block.groups, return_counts=True)
    indexes = None if block.indexes is None else block.indexes[order].astype(NUMBER)
    index = order.tolist()
    chunks = []
    for start in range(0, len(index), CHUNK_CELLS):
        pause()
        part = slice(start, start + CHUNK_CELLS)
        cells = index[part]
        columns = [] if indexes is None else [indexes[part].tobytes()]
        columns.append(spec.key.pack([*map(block.keys.__getitem__, cells)]))
        if block.contents is not None:
            columns += _packed(spec, op, [*map(block.contents.__getitem__, cells)])
        chunks.append(chunk_of(len(cells), columns))
    return Section(
        description=spec.description(),
        op=op,
        range=groups,
        namespaces=tuple(map(NAMESPACE.pack_one, block.namespaces)),
        groups=distinct,
        counts=counts,
        chunks=tuple(chunks),
    )


def decode(section: Section, reader: TableSpec) -> Block:
    """Unpack the cells of ``section`` that are in its range, with the codecs of ``reader``.

    All keys are unpacked before the first content: a large dictionary reads its keys again each
    time that it grows, and finds them faster side by side. Raises `CorruptStateError`, naming file,
    state and key, for bytes that no codec has packed.
    """
    blocks = [*_decoded(section, reader, all_keys_first=True)]
    indexes = [block.indexes for block in blocks if block.indexes is not None]
    bare = section.op is Operation.DELETE
    return Block(
        blocks[0].namespaces if blocks else [],
        np.concatenate(indexes) if indexes else None,
        [*chain.from_iterable(block.keys for block in blocks)],
        np.concatenate([np.zeros(0, np.uint16), *(block.groups for block in blocks)]),
        None if bare else [*chain.from_iterable(block.contents or () for block in blocks)],
    )


def decode_chunks(section: Section, reader: TableSpec) -> Iterator[Block]:
    """Yield what `decode` returns, chunk by chunk."""
    return _decoded(section, reader, all_keys_first=False)


def _decoded(section: Section, reader: TableSpec, *, all_keys_first: bool) -> Iterator[Block]:
    start, stop = section.window()
    groups = np.repeat(section.groups, section.counts)
    with decoding(lambda _: section.where):
        check_counts(sum(chunk.cells for chunk in section.chunks), groups)
        namespaces = [NAMESPACE.unpack_one(namespace) for namespace in section.namespaces]
    at = 0
    unpacked: Iterable[_Keys] = (_keys(section, chunk, reader) for chunk in section.chunks)
    for chunk in [*unpacked] if all_keys_first else unpacked:
        contents = _contents(section, chunk, reader)
        part = slice(max(start - at, 0), max(stop - at, 0))
        yield Block(
            namespaces,
            None if chunk.indexes is None else chunk.indexes[part],
            _cut(chunk.keys, part),
            groups[at : at + chunk.cells][part],
            None if section.op is Operation.DELETE else _cut(contents, part),
        )
        at += chunk.cells


def _cut(cells: list[Any], part: slice) -> list[Any]:
    """Return a part of a list; the list itself, not a copy, if that is all of it."""
    return cells if part.start == 0 and part.stop >= len(cells) else cells[part]


@attrs.frozen(eq=False)
class _Keys:
    """The cells of a chunk, of which only keys and namespaces are unpacked."""

    cells: int
    indexes: npt.NDArray[np.uint32] | None
    keys: list[Any]
    columns: list[memoryview]
    """The columns of the contents."""


def _keys(section: Section, chunk: Chunk, reader: TableSpec) -> _Keys:
    columns = chunk.columns()
    with decoding(lambda _: section.where):
        several = len(section.namespaces) > 1
        indexes = np.frombuffer(columns.pop(0), NUMBER) if several else None
        keys = reader.key.unpack(columns.pop(0))
        check_counts(chunk.cells, keys, *([] if indexes is None else [indexes]))
        _check_namespaces(section, indexes)
    return _Keys(chunk.cells, indexes, keys, columns)


def _contents(section: Section, chunk: _Keys, reader: TableSpec) -> list[Any]:
    if section.op is Operation.DELETE:
        return []
    columns = chunk.columns
    with decoding(lambda at: f"{section.where}{_of_key(reader, chunk.keys, columns, at)}"):
        contents = _unpacked(reader, section.op, columns)
        check_counts(chunk.cells, contents)
    return contents


def check_counts(cells: int, *parts: Sized) -> None:
    """Raise `ValueError` unless each of ``parts`` has a value for each of ``cells``."""
    found = sorted({len(part) for part in parts} - {cells})
    if found:
        raise ValueError(f"a column has {found[0]} values instead of {cells}")


def _check_namespaces(section: Section, indexes: npt.NDArray[np.uint32] | None) -> None:
    last = 0 if indexes is None else int(indexes.max(initial=0))
    if last >= len(section.namespaces):
        raise ValueError(f"cells of namespace {last} among {len(section.namespaces)}")


def _of_key(
    reader: TableSpec, keys: Sequence[Any], columns: Sequence[memoryview], at: int | None
) -> str:
    """Name the key whose value is at a position of the last columns, for messages."""
    if at is None or not keys:
        return ""
    if reader.shape is not Shape.POINT:
        at = int(np.searchsorted(np.cumsum(np.frombuffer(columns[0], NUMBER)), at, "right"))
    return f", key {keys[at]!r:.200}"


def oldest_time(section: Section, reader: TableSpec) -> int:
    """Return the oldest time in a section of a table with TTL; the latest possible without any."""
    if section.op in (Operation.DELETE, Operation.REMOVE):
        return _NEVER
    skipped = len(section.namespaces) > 1
    at = skipped + {Shape.LIST: 2, Shape.MAP: 3}.get(reader.shape, 1)
    times = [np.frombuffer(chunk.columns()[at], TIME) for chunk in section.chunks]
    return min((int(part.min()) for part in times if len(part)), default=_NEVER)


def _packed(spec: TableSpec, op: Operation, contents: list[Any]) -> list[bytes]:
    """Pack the contents of cells into columns."""
    if spec.shape is Shape.POINT:
        return _pack_values(spec, contents)
    lengths = np.fromiter(map(len, contents), NUMBER, len(contents)).tobytes()
    if spec.shape is Shape.LIST:
        return [lengths, *_pack_values(spec, [*chain.from_iterable(contents)])]
    user_keys = _pack_user_keys(spec, chain.from_iterable(contents))
    if op is Operation.REMOVE:
        return [lengths, user_keys]
    values = [*chain.from_iterable(entries.values() for entries in contents)]
    return [lengths, user_keys, *_pack_values(spec, values)]


def _unpacked(reader: TableSpec, op: Operation, columns: Sequence[memoryview]) -> list[Any]:
    """Unpack columns: the inverse of `_packed`."""
    if reader.shape is Shape.POINT:
        return _unpack_values(reader, columns)
    ends = np.cumsum(np.frombuffer(columns[0], NUMBER), dtype=np.int64).tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if reader.shape is Shape.LIST:
        elements = _unpack_values(reader, columns[1:])
        check_counts(sum(ends[-1:]), elements)
        return [elements[span] for span in spans]
    addresses = _unpack_user_keys(reader, columns[1])
    check_counts(sum(ends[-1:]), addresses)
    if op is Operation.REMOVE:
        return [addresses[span] for span in spans]
    values = _unpack_values(reader, columns[2:])
    check_counts(len(addresses), values)
    return [dict(zip(addresses[span], values[span], strict=True)) for span in spans]


def _pack_values(spec: TableSpec, values: list[Any]) -> list[bytes]:
    """Return one column of values; with TTL a column of last access times before it."""
    if not spec.ttl:
        return [spec.value.pack(values)]
    times = np.fromiter(map(itemgetter(0), values), TIME, len(values))
    return [times.tobytes(), spec.value.pack([*map(itemgetter(1), values)])]


def _unpack_values(reader: TableSpec, columns: Sequence[memoryview]) -> list[Any]:
    if not reader.ttl:
        return reader.value.unpack(columns[0])
    times = np.frombuffer(columns[0], TIME).tolist()
    return [*zip(times, reader.value.unpack(columns[1]), strict=True)]


def _pack_user_keys(spec: TableSpec, addresses: Iterable[Any]) -> bytes:
    assert spec.user_key is not None
    original = spec.user_key.original
    return spec.user_key.pack([*addresses] if original is None else [*map(original, addresses)])


def _unpack_user_keys(reader: TableSpec, data: memoryview) -> list[Any]:
    assert reader.user_key is not None
    user_keys = reader.user_key.unpack(data)
    address = reader.user_key.address
    return user_keys if address is None else [*map(address, user_keys)]
