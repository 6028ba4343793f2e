"""Lays out and parses heap files: sections of packed columns, every byte under a checksum.

``docs/reference/heap-format.md`` is the specification. A file is a prefix, a msgpack header and
the chunks of its sections, one after the other. The prefix holds the header's checksum, the header
holds the chunks' checksums, and the manifest holds the checksum of prefix and header. So a reader
can fetch and verify any range of chunks without the rest.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import attrs
import msgpack
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import CorruptStateError, StateMigrationError

MAGIC: Final = b"FBYHEAP"
FORMAT_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<7sBIQ")
PREFIX_BYTES: Final = _PREFIX.size

Groups = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.int64]


class Operation(enum.Enum):
    """The operation of a section on its cells. Sections of one table apply in file order."""

    PUT = "put"
    """Sets the whole content of the cell."""
    DELETE = "delete"
    """Deletes the cell."""
    MERGE = "merge"
    """Appends elements to a list, puts entries into a map."""
    REMOVE = "remove"
    """Removes entries from a map."""


class FileRole(enum.Enum):
    """The role of a file in a version that names it."""

    SNAPSHOT = "snapshot"
    """Holds all cells of its range."""
    DELTA = "delta"
    """Holds what changed since the files before it."""


@attrs.frozen
class Chunk:
    """Consecutive cells, column after column."""

    cells: int
    checksum: int
    """xxh3 (64 bits) of ``data``."""
    lengths: tuple[int, ...]
    """Bytes of each column, in order."""
    offset: int = 0
    """Offset in the body of the file that it is read from."""
    data: bytes | memoryview | None = None
    """``None`` until it is read."""

    @property
    def size(self) -> int:
        """Bytes of all columns."""
        return sum(self.lengths)

    def detached(self) -> Chunk:
        """Return the chunk with its own copy of the bytes."""
        return attrs.evolve(self, data=bytes(self.data)) if self.data is not None else self

    def columns(self) -> list[memoryview]:
        """Return views of the bytes of each column."""
        assert self.data is not None
        data, ends = memoryview(self.data), accumulate(self.lengths)
        return [data[end - n : end] for n, end in zip(self.lengths, ends, strict=True)]


def chunk_of(cells: int, columns: Sequence[bytes]) -> Chunk:
    """Make a chunk from packed columns."""
    data = b"".join(columns)
    return Chunk(cells, xxh3_64_intdigest(data), tuple(map(len, columns)), data=data)


@attrs.frozen(kw_only=True, eq=False)
class Section:
    """Cells of one table to which one operation applies, sorted by key group."""

    description: Mapping[str, Any]
    """`TableSpec.description` of the writer."""
    op: Operation
    range: KeyGroupRange
    """Cells outside it are not part of the section, although a chunk may hold them."""
    namespaces: tuple[bytes, ...]
    """The packed namespaces; if there are several, the first column holds each cell's index among
    them."""
    groups: Groups
    """The distinct key groups, ascending."""
    counts: Counts
    """Cells of each of ``groups``."""
    chunks: tuple[Chunk, ...]
    where: str = "memory"
    """The file it was read from, for messages."""

    @property
    def table(self) -> str:
        """The name of the state."""
        return str(self.description["name"])

    @property
    def cells(self) -> int:
        """Number of cells in its chunks."""
        return int(self.counts.sum())

    @property
    def size(self) -> int:
        """Bytes of its chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def window(self) -> tuple[int, int]:
        """First and last (exclusive) of its cells that are in ``range``."""
        ends = np.concatenate(([0], np.cumsum(self.counts)))
        first = np.searchsorted(self.groups, self.range.start, "left")
        last = np.searchsorted(self.groups, self.range.end, "right")
        return int(ends[first]), int(ends[last])

    def clipped(self, to: KeyGroupRange) -> Section | None:
        """Clip the range to ``to``, dropping chunks outside it; ``None`` if no cell is left."""
        if (both := self.range.intersection(to)) is None:
            return None
        start, stop = (section := attrs.evolve(self, range=both)).window()
        return _trimmed(section, start, stop) if start < stop else None

    def detached(self) -> Section:
        """Copy the section's bytes, so that it does not keep the whole file in memory."""
        chunks = [
            attrs.evolve(c, data=None if c.data is None else bytes(c.data)) for c in self.chunks
        ]
        return attrs.evolve(self, chunks=tuple(chunks))


def _trimmed(section: Section, start: int, stop: int) -> Section:
    """Drop the chunks that hold none of the cells from ``start`` to ``stop``."""
    ends = np.cumsum([chunk.cells for chunk in section.chunks])
    first = int(np.searchsorted(ends, start, "right"))
    last = int(np.searchsorted(ends, stop, "left")) + 1
    if (first, last) == (0, len(section.chunks)):
        return section
    low = int(ends[first - 1]) if first else 0
    group_ends = np.clip(np.cumsum(section.counts), low, int(ends[last - 1]))
    counts = np.diff(group_ends, prepend=low)
    kept = counts > 0
    return attrs.evolve(
        section,
        groups=section.groups[kept],
        counts=counts[kept],
        chunks=section.chunks[first:last],
    )


@attrs.frozen
class FileBytes:
    """A file to be written."""

    data: bytes
    head: bytes
    """Prefix and header, which a reader of part of the file fetches first."""


def file_bytes(role: FileRole, version: int, sections: Sequence[Section]) -> FileBytes:
    """Lay out the bytes of a file."""
    header = msgpack.packb(
        {
            "role": role.value,
            "version": version,
            "sections": [_section_header(section) for section in sections],
        }
    )
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(header), xxh3_64_intdigest(header))
    body = [chunk.data for section in sections for chunk in section.chunks]
    assert None not in body
    data = b"".join([prefix, header, *body])  # type: ignore[list-item]  # as just asserted
    return FileBytes(data, prefix + header)


def state_file(  # noqa: PLR0917 - what a manifest records of a file
    name: str,
    role: FileRole,
    version: int,
    groups: KeyGroupRange,
    head: bytes,
    size: int,
    sections: Sequence[Section],
) -> StateFile:
    """Return a file of ``size`` bytes and some sections as a manifest names it."""
    meta = {
        "role": role.value,
        "version": version,
        "range": [groups.start, groups.end],
        "header": len(head),
        "checksum": seal_of(head),
        "cells": sum(section.cells for section in sections),
    }
    return StateFile(name=name, size=size, range=groups, meta=meta)


def seal_of(head: bytes) -> str:
    """Return the checksum of prefix and header, as the manifest holds it."""
    return f"{xxh3_64_intdigest(head):016x}"


def _section_header(section: Section) -> dict[str, Any]:
    return {
        "table": dict(section.description),
        "op": section.op.value,
        "range": [section.range.start, section.range.end],
        "namespaces": list(section.namespaces),
        "groups": section.groups.astype("<u2").tobytes(),
        "counts": section.counts.astype("<u4").tobytes(),
        "chunks": [[c.cells, c.checksum, *c.lengths] for c in section.chunks],
    }


def head_bytes(prefix: bytes) -> int:
    """Return the length of prefix and header, given the first `PREFIX_BYTES` of a file."""
    length: int = _PREFIX.unpack(prefix)[2]
    return PREFIX_BYTES + length


def parse_head(head: bytes, where: str, tables: Collection[str] | None = None) -> list[Section]:
    """Return the sections that prefix and header describe, without their data.

    With ``tables``, only the sections of these tables are returned.
    Raises `CorruptStateError` if the header was altered, and `StateMigrationError` if a newer
    release wrote it. ``where`` begins the message.
    """
    if len(head) < _PREFIX.size:
        raise CorruptStateError(f"{where}: only {len(head)} bytes")
    magic, version, length, checksum = _PREFIX.unpack_from(head)
    if magic != MAGIC:
        raise CorruptStateError(f"{where}: it does not begin with {MAGIC!r}")
    header = head[_PREFIX.size : _PREFIX.size + length]
    if len(header) != length or xxh3_64_intdigest(header) != checksum:
        raise CorruptStateError(f"{where}: its header is truncated or altered")
    if version != FORMAT_VERSION:
        raise StateMigrationError(
            f"{where}: it has format version {version}, this release reads {FORMAT_VERSION}; "
            "install the release of forebay-backend-heap that wrote it, or a newer one"
        )
    with decoding(lambda _: where):
        return _sections(msgpack.unpackb(header)["sections"], tables)


def _sections(
    headers: Iterable[Mapping[str, Any]], tables: Collection[str] | None
) -> list[Section]:
    sections: list[Section] = []
    offset = 0
    for header in headers:
        chunks = []
        for cells, checksum, *lengths in header["chunks"]:
            chunks.append(Chunk(cells, checksum, tuple(lengths), offset))
            offset += sum(lengths)
        if tables is None or header["table"]["name"] in tables:
            sections.append(_section(header, tuple(chunks)))
    return sections


def _section(header: Mapping[str, Any], chunks: tuple[Chunk, ...]) -> Section:
    return Section(
        description=header["table"],
        op=Operation(header["op"]),
        range=KeyGroupRange(*header["range"]),
        namespaces=tuple(header["namespaces"]),
        groups=np.frombuffer(header["groups"], "<u2"),
        counts=np.frombuffer(header["counts"], "<u4").astype(np.int64),
        chunks=chunks,
    )
