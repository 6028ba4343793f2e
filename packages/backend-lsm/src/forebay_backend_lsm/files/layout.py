"""The tail of a file: filters, index and footer. Opening a file reads nothing else.

``docs/reference/lsm-file-format.md`` specifies every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import attrs
import msgpack
import numpy as np
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files.cells import I64, U64, CellKind
from forebay_backend_lsm.files.few_cells import MOST, MOST_BYTES
from forebay_backend_lsm.files.filter import Filter
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.errors import CorruptStateError, StateMigrationError

MAGIC: Final = b"FBYLSM\r\n"
FORMAT_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<QQQQQQIHHQ")
_CHECKSUM: Final = struct.Struct("<Q")
FOOTER_BYTES: Final = _FIELDS.size + _CHECKSUM.size + len(MAGIC)
_WORD_BYTES: Final = 8
_SIZE_BYTES: Final = 4
_SMALL: Final = 512
"""Most words of a filter that are copied, so that they do not hold the tail that they are from."""
_PARSED_FACTOR: Final = 3
"""Memory of a section's packed and parsed index, compared with the packed one."""
_SECTION_BYTES: Final = 1_000
"""Memory of a section's objects."""
_BYTES_BYTES: Final = 33
"""Memory of an object of bytes without its bytes."""


@attrs.define(kw_only=True, eq=False)
class PackedIndex:
    """The index of a section's blocks as a file has it: `BlockIndex`, packed."""

    offset: int
    """Offset of the first block in the file."""
    first: bytes
    sizes: bytes
    raw_sizes: bytes
    cells: bytes
    checksums: bytes
    first_keys: Sequence[bytes] = ()


@attrs.frozen(kw_only=True, eq=False)
class BlockIndex:
    """Describes a section's blocks without reading them, in arrays with one item per block."""

    first: U64
    """Address of the block's first cell."""
    offsets: I64
    """Offset in the file."""
    sizes: I64
    """Stored bytes."""
    raw_sizes: I64
    """Bytes of the columns, decompressed."""
    cells: I64
    checksums: U64
    """xxh3 (64 bits) of the stored bytes."""
    first_keys: Sequence[bytes] = ()
    """Key bytes of the block's first cell; in ordered map tables only."""


@attrs.frozen(kw_only=True, eq=False)
class Section:
    """The cells of one table in a file."""

    description: Mapping[str, Any]
    """`TableSpec.description` of the writer."""
    has_times: bool
    counts: tuple[int, int, int, int]
    """Number of cells of each `CellKind`, in the order of the kinds."""
    times: tuple[int, int] | None
    """The least and the greatest time of puts, in lists of elements; ``None`` without times."""
    addresses: tuple[int, int]
    """Addresses of the first and the last cell."""
    keys: tuple[bytes, bytes]
    """Key bytes of the first and the last cell."""
    compression: str
    blocks: BlockIndex
    filter: Filter

    @property
    def name(self) -> str:
        """The name of the state."""
        return str(self.description["name"])

    @property
    def cells(self) -> int:
        """Number of cells."""
        return sum(self.counts)


@attrs.define(kw_only=True, eq=False)
class WrittenSection:
    """A section as its writer describes it, with the parts of `Section`."""

    description: Mapping[str, Any]
    has_times: bool
    counts: Sequence[int]
    times: tuple[int, int] | None
    addresses: tuple[int, int]
    keys: tuple[bytes, bytes]
    compression: str
    blocks: PackedIndex
    filter_words: bytes


class StoredSection:
    """A section as the index holds it, packed, and the parts that are needed of each.

    A file may have many sections, of which few are read; and it is work for the garbage collector
    to look at a section's parts again and again.
    """

    __slots__ = (
        "block_count",
        "cells",
        "checksum",
        "compression",
        "described",
        "filter_words",
        "has_few",
        "has_times",
        "name",
        "offset",
        "packed",
        "raw_size",
        "size",
    )

    def __init__(self, packed: bytes, plain: Mapping[str, Any], filter_words: Any) -> None:
        """``packed`` holds ``plain``; ``filter_words`` are the filter's words, as bytes."""
        self.packed: Final = packed
        self.filter_words: Final = filter_words
        self.name: Final = str(plain["table"]["name"])
        """The name of the state."""
        self.described: Final = packed_description(plain["table"])
        """The writer's `TableSpec.description`, packed: equal to that of an equal one."""
        self.cells: Final[int] = sum(plain["counts"])
        """Number of cells."""
        self.has_times: Final = bool(plain["has_times"])
        """Whether cells have a time."""
        self.compression: Final = str(plain["compression"])
        """The compression of the blocks."""
        self.offset: Final[int] = plain["offset"]
        """Offset of the first block; ``size``, ``raw_size`` and ``checksum`` are its, too."""
        self.size: Final = _first_of(plain["sizes"], _SIZE_BYTES)
        self.raw_size: Final = _first_of(plain["raw_sizes"], _SIZE_BYTES)
        self.checksum: Final = _first_of(plain["checksums"], _WORD_BYTES)
        self.block_count: Final = len(plain["checksums"]) // _WORD_BYTES
        few_bytes = 2 * MOST_BYTES
        self.has_few: Final = (
            self.block_count == 1 and self.cells <= MOST and self.raw_size <= few_bytes
        )
        """Whether its cells are few, in one small block; they are read as `FewCells`."""

    @classmethod
    def of(cls, written: WrittenSection, filter_at: int) -> Self:
        """Describe a section whose filter is ``filter_at`` bytes after the file's first."""
        blocks, words = written.blocks, written.filter_words
        plain = {
            "table": written.description,
            "has_times": written.has_times,
            "counts": written.counts,
            "times": written.times,
            "addresses": written.addresses,
            "keys": written.keys,
            "compression": written.compression,
            "filter": (filter_at, len(words) // _WORD_BYTES),
            "offset": blocks.offset,
            "first": blocks.first,
            "sizes": blocks.sizes,
            "raw_sizes": blocks.raw_sizes,
            "cells": blocks.cells,
            "checksums": blocks.checksums,
        }
        if blocks.first_keys:
            plain["first_keys"] = [*blocks.first_keys]
        return cls(msgpack.packb(plain), plain, words)

    @property
    def end(self) -> int:
        """The offset after the first block."""
        return self.offset + self.size

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory when its filter and index are used; of its cells, too, if few."""
        index = len(self.packed) * _PARSED_FACTOR + len(self.filter_words)
        return index + _SECTION_BYTES + (_BYTES_BYTES + self.raw_size if self.has_few else 0)

    @property
    def filter(self) -> Filter:
        """The filter of the addresses."""
        return Filter(np.frombuffer(self.filter_words, "<u8"))

    @property
    def description(self) -> Mapping[str, Any]:
        """`TableSpec.description` of the writer."""
        found: Mapping[str, Any] = msgpack.unpackb(self.described)
        return found

    def parsed(self) -> Section:
        """Return the section with all its parts."""
        return _section_from_plain(msgpack.unpackb(self.packed), self.filter)


def packed_description(description: Mapping[str, Any]) -> bytes:
    """Return the bytes by which descriptions are compared."""
    packed: bytes = msgpack.packb(description)
    return packed


def _first_of(packed: bytes, width: int) -> int:
    return int.from_bytes(packed[:width], "little")


@attrs.frozen(kw_only=True, eq=False)
class Tail:
    """Everything in a file except its blocks."""

    sections: Sequence[StoredSection]
    range: KeyGroupRange
    """The key groups that it was written for."""
    body_bytes: int
    """Bytes before the tail."""
    body_checksum: int

    @property
    def cells(self) -> int:
        """Number of cells of all sections."""
        return sum(section.cells for section in self.sections)

    def without_filters(self) -> Tail:
        """Return the tail with filters that nothing passes."""
        none = bytes(_WORD_BYTES)
        sections = [StoredSection(s.packed, msgpack.unpackb(s.packed), none) for s in self.sections]
        return attrs.evolve(self, sections=sections)

    def to_bytes(self) -> bytes:
        """Lay out filters, index and footer."""
        filters = b"".join([section.filter_words for section in self.sections])
        index = b"".join(
            [
                msgpack.Packer().pack_array_header(len(self.sections)),
                *[section.packed for section in self.sections],
            ]
        )
        tail = filters + index
        fields = _FIELDS.pack(
            self.body_bytes,
            self.body_bytes + len(filters),
            len(index),
            self.cells,
            self.body_checksum,
            xxh3_64_intdigest(tail),
            FORMAT_VERSION,
            self.range.start,
            self.range.end,
            0,
        )
        return tail + fields + _CHECKSUM.pack(xxh3_64_intdigest(fields)) + MAGIC

    @classmethod
    def parse(cls, tail: bytes, where: str) -> Tail:
        """Parse the bytes that `to_bytes` wrote. ``where`` begins the message of an error.

        Raises `CorruptStateError` if they were altered, `StateMigrationError` if a newer release
        wrote them.
        """
        footer = Footer.parse(tail[-FOOTER_BYTES:], where)
        body = memoryview(tail)[: len(tail) - FOOTER_BYTES]
        if len(tail) != footer.tail_bytes or xxh3_64_intdigest(body) != footer.tail_checksum:
            raise CorruptStateError(f"{where}: its index is truncated or altered")
        filters = footer.index - footer.tail
        with decoding(lambda _: where):
            index = body[filters : filters + footer.index_bytes]
            sections = [*_sections(index, body[:filters])]
        return cls(
            sections=sections,
            range=footer.range,
            body_bytes=footer.tail,
            body_checksum=footer.body_checksum,
        )


@attrs.frozen(kw_only=True)
class Footer:
    """The last bytes of a file."""

    tail: int
    """Offset of the filters."""
    index: int
    index_bytes: int
    body_checksum: int
    """xxh3 (64 bits) of everything before ``tail``."""
    tail_checksum: int
    """xxh3 (64 bits) of the bytes from ``tail`` to the footer."""
    range: KeyGroupRange

    @property
    def tail_bytes(self) -> int:
        """Bytes of filters, index and footer."""
        return self.index - self.tail + self.index_bytes + FOOTER_BYTES

    @classmethod
    def parse(cls, data: bytes, where: str) -> Footer:
        """Parse and verify a footer; raises the errors of `Tail.parse`."""
        if len(data) != FOOTER_BYTES or data[-len(MAGIC) :] != MAGIC:
            raise CorruptStateError(f"{where}: it does not end with {MAGIC!r}")
        (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
        if xxh3_64_intdigest(data[: _FIELDS.size]) != checksum:
            raise CorruptStateError(f"{where}: its footer is altered")
        tail, index, length, _, body, tail_sum, version, start, end, _ = _FIELDS.unpack_from(data)
        if version != FORMAT_VERSION:
            raise StateMigrationError(
                f"{where}: it has format version {version}, this release reads {FORMAT_VERSION}; "
                "install the release of forebay-backend-lsm that wrote it, or a newer one"
            )
        return cls(
            tail=tail,
            index=index,
            index_bytes=length,
            body_checksum=body,
            tail_checksum=tail_sum,
            range=KeyGroupRange(start, end),
        )


def seal_of(tail: bytes) -> str:
    """Return the footer's checksum as the manifest holds it; it covers the whole file."""
    return tail[_FIELDS.size - FOOTER_BYTES : -len(MAGIC)].hex()


def _sections(index: memoryview, filters: memoryview) -> Iterator[StoredSection]:
    """Yield the sections that an index holds."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(index), 1))
    unpacker.feed(index)
    start = 0
    for number in range(-1, unpacker.read_array_header()):
        if number >= 0:
            plain = unpacker.unpack()
            at, words = plain["filter"]
            found = filters[at : at + _WORD_BYTES * words]
            if len(found) != _WORD_BYTES * words:
                raise ValueError(f"one of its filters ends after their {len(filters)} bytes")
            packed = bytes(index[start : unpacker.tell()])
            yield StoredSection(packed, plain, found if words > _SMALL else bytes(found))
        start = unpacker.tell()
    if start != len(index):
        raise ValueError("the index has trailing bytes after its last section")


def _section_from_plain(plain: Mapping[str, Any], test: Filter) -> Section:
    sizes = np.frombuffer(plain["sizes"], "<u4").astype(np.int64)
    put, delete, append, clear = plain["counts"]
    assert len(CellKind) == len(plain["counts"])
    return Section(
        description=plain["table"],
        has_times=plain["has_times"],
        counts=(put, delete, append, clear),
        times=plain["times"] and tuple(plain["times"]),
        addresses=tuple(plain["addresses"]),
        keys=tuple(plain["keys"]),
        compression=plain["compression"],
        blocks=BlockIndex(
            first=np.frombuffer(plain["first"], "<u8"),
            offsets=plain["offset"] + np.cumsum(sizes) - sizes,
            sizes=sizes,
            raw_sizes=np.frombuffer(plain["raw_sizes"], "<u4").astype(np.int64),
            cells=np.frombuffer(plain["cells"], "<u4").astype(np.int64),
            checksums=np.frombuffer(plain["checksums"], "<u8"),
            first_keys=plain.get("first_keys", ()),
        ),
        filter=test,
    )
