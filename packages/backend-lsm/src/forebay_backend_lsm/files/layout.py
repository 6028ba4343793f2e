"""The tail of a file: filters, index and footer. Opening a file reads nothing else.

``docs/reference/lsm-file-format.md`` specifies every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import msgpack
import numpy as np
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files.cells import I64, U64, Kind
from forebay_backend_lsm.files.filter import Filter
from forebay_state_api.codecs import decoding
from forebay_state_api.errors import CorruptStateError, StateMigrationError
from forebay_state_api.keys import KeyGroupRange

MAGIC: Final = b"FBYLSM\r\n"
FORMAT_VERSION: Final = 1
_FIELDS: Final = struct.Struct("<QQQQQQIHHQ")
_CHECKSUM: Final = struct.Struct("<Q")
FOOTER_BYTES: Final = _FIELDS.size + _CHECKSUM.size + len(MAGIC)


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
    """Number of cells of each `Kind`, in the order of the kinds."""
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


@attrs.frozen(kw_only=True, eq=False)
class Tail:
    """Everything in a file except its blocks."""

    sections: Sequence[Section]
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
        none = Filter(np.zeros(1, np.uint64))
        return attrs.evolve(self, sections=[attrs.evolve(s, filter=none) for s in self.sections])

    def to_bytes(self) -> bytes:
        """Lay out filters, index and footer."""
        filters = [s.filter.words.astype("<u8").tobytes() for s in self.sections]
        ends = np.cumsum([0, *map(len, filters)]).tolist()
        index = msgpack.packb(
            [_section_to_plain(s, at) for s, at in zip(self.sections, ends, strict=False)]
        )
        tail = b"".join([*filters, index])
        fields = _FIELDS.pack(
            self.body_bytes,
            self.body_bytes + ends[-1],
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
            plain = msgpack.unpackb(body[filters : filters + footer.index_bytes])
            sections = [_section_from_plain(p, body) for p in plain]
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


def _section_to_plain(section: Section, filter_at: int) -> dict[str, Any]:
    blocks = section.blocks
    return {
        "table": dict(section.description),
        "has_times": section.has_times,
        "counts": list(section.counts),
        "times": section.times,
        "addresses": section.addresses,
        "keys": section.keys,
        "compression": section.compression,
        "filter": [filter_at, len(section.filter.words)],
        "offset": int(blocks.offsets[0]),
        "first": blocks.first.astype("<u8").tobytes(),
        "sizes": blocks.sizes.astype("<u4").tobytes(),
        "raw_sizes": blocks.raw_sizes.astype("<u4").tobytes(),
        "cells": blocks.cells.astype("<u4").tobytes(),
        "checksums": blocks.checksums.astype("<u8").tobytes(),
        **({"first_keys": [*blocks.first_keys]} if blocks.first_keys else {}),
    }


def _section_from_plain(plain: Mapping[str, Any], tail: memoryview) -> Section:
    at, words = plain["filter"]
    sizes = np.frombuffer(plain["sizes"], "<u4").astype(np.int64)
    put, delete, append, clear = plain["counts"]
    assert len(Kind) == len(plain["counts"])
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
        filter=Filter(np.frombuffer(tail, "<u8", words, at)),
    )
