"""Writes sorted files: cuts cells into blocks and adds filters, index and footer."""

from __future__ import annotations

import io
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import xxhash

from forebay_backend_lsm.files.blocks import (
    COMPRESSIONS,
    MAX_RAW_BYTES,
    Cutter,
    cell_overhead,
)
from forebay_backend_lsm.files.cells import U64, CellKind, Cells, Positions
from forebay_backend_lsm.files.few_cells import MOST, MOST_BYTES, FewCells
from forebay_backend_lsm.files.filter import Filter
from forebay_backend_lsm.files.layout import (
    MAGIC,
    PackedIndex,
    StoredSection,
    Tail,
    WrittenSection,
    seal_of,
)
from forebay_backend_lsm.files.lists import Stamps, chunks_of
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.changes import Shape
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage

BLOCK_BYTES: Final = 32 * 1024
"""Approximate size of a block before compression."""
_BLOCKS_AT_ONCE: Final = 8
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_MAP_BITS: Final = np.uint64(0xFFFF_FFFF_FF00_0000)
"""The address bits that all entries of one map share."""


@attrs.frozen
class TableHeader:
    """The description of a section's table."""

    name: str
    description: Mapping[str, Any]
    """`TableSpec.description` of the spec that packed the cells."""
    ttl: bool = False

    @property
    def shape(self) -> Shape:
        """The table's shape."""
        return Shape.of(self.description)

    @property
    def ordered(self) -> bool:
        """Whether it is an ordered map table, whose entries are sorted by their keys."""
        return bool(self.description.get("ordered"))

    @property
    def has_times(self) -> bool:
        """Whether cells have a time column; the times of list elements are in their values."""
        return self.ttl and self.shape is not Shape.LIST

    @property
    def has_stamps(self) -> bool:
        """Whether the values are lists with TTL."""
        return self.ttl and not self.has_times


@attrs.frozen(eq=False)
class FileBytes:
    """A file to be put, and its metadata for a manifest."""

    data: bytes
    meta: Mapping[str, Any]
    tail: Tail
    """The end of ``data``."""
    few: Mapping[str, bytes]
    """The block of each table that came with few cells, before compression."""

    def put(self, storage: ObjectStorage, name: str, groups: KeyGroupRange) -> StateFile:
        """Write the file to storage; it is durable when this returns."""
        storage.put(name, self.data)
        return StateFile(name=name, size=len(self.data), range=groups, meta=self.meta)


def write_file(
    storage: ObjectStorage,
    name: str,
    tables: Iterable[tuple[TableHeader, Iterable[Cells]]],
    *,
    range: KeyGroupRange,  # noqa: A002 - the name used everywhere
    compression: str = "lz4",
    block_bytes: int = BLOCK_BYTES,
) -> StateFile:
    """Write one file: tables in order of name, each with cells sorted and distinct over all parts.

    Holds the compressed file and a few blocks of cells in memory. Omits tables without cells. The
    same cells give the same bytes, however they are divided into parts.
    """
    writer = FileWriter(range, compression=compression, block_bytes=block_bytes)
    for header, parts in tables:
        writer.begin(header)
        for cells in parts:
            writer.add(cells)
    return writer.finish().put(storage, name, range)


class FileWriter:
    """Takes cells, table after table, and returns the bytes of a file."""

    def __init__(
        self,
        groups: KeyGroupRange,
        *,
        compression: str = "lz4",
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Begin a file for ``groups``. Raises `ValueError` for an unknown compression."""
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression is one of {sorted(COMPRESSIONS)}, not {compression!r}")
        self._groups: Final = groups
        self._compression: Final = compression
        codec = COMPRESSIONS[compression]
        self._codec: Final = None if codec is None else pa.Codec(codec)
        self._block_bytes: Final = block_bytes
        self._body: Final = _Body()
        self._sections: Final = _Sections()
        self._few: Final[dict[str, bytes]] = {}
        self._header: TableHeader | None = None
        self._only: FewCells | None = None
        """All cells of the current table so far, if they came as few in one part."""
        self._open: _SectionWriter | None = None

    @property
    def size(self) -> int:
        """Bytes of the blocks written so far."""
        return self._body.size

    def begin(self, header: TableHeader) -> None:
        """Begin the next table; names must ascend."""
        last = self._header.name if self._header else None
        if last is not None and header.name <= last:
            raise ValueError(f"table {header.name!r} comes after {last!r}: names must ascend")
        self._end_section()
        self._header = header

    def add(self, cells: Cells | FewCells) -> None:
        """Add cells of the current table, all after earlier ones in (address, key bytes) order."""
        header = self._header
        if header is None:
            raise ValueError("cells belong to a table: call begin first")
        if not len(cells):
            return
        few = cells if isinstance(cells, FewCells) else None
        only, self._only = self._only, None
        if only is None and self._open is None and few is not None and self._is_one_block(few):
            self._only = few
            return
        if self._open is None:
            self._open = _SectionWriter(
                header, self._body, self._compression, self._codec, self._block_bytes
            )
        if only is not None:
            self._open.add(only.columns)
        self._open.add(cells.columns if isinstance(cells, FewCells) else cells)

    def finish(self) -> FileBytes:
        """Complete the file; the writer cannot be used afterwards."""
        self._end_section()
        tail = Tail(
            sections=self._sections.stored,
            range=self._groups,
            body_bytes=self._body.size,
            body_checksum=self._body.checksum,
        )
        end = tail.to_bytes()
        self._body.append(end)
        return FileBytes(self._body.whole(), self._sections.meta(end), tail, self._few)

    def _end_section(self) -> None:
        header, only, writer = self._header, self._only, self._open
        self._only = self._open = None
        if only is not None and header is not None:
            self._sections.add(self._section_of(header, only))
        elif writer is not None and (section := writer.finish()) is not None:
            self._sections.add(section)

    def _is_one_block(self, few: FewCells) -> bool:
        most = min(self._block_bytes, MOST_BYTES)
        return len(few) <= MOST and few.bytes_in_block <= most

    def _section_of(self, header: TableHeader, few: FewCells) -> WrittenSection:
        """Write a section of one block, without columns."""
        if few.has_times is not header.has_times:
            raise ValueError(f"table {header.name!r}: unexpected or missing times")
        cells, offset, raw = few.cells, self._body.size, few.raw
        self._few[header.name] = raw
        data = raw if self._codec is None else self._codec.compress(raw, asbytes=True)
        self._body.append(data)
        addresses = [cell.address for cell in cells]
        asked = addresses
        if header.shape is Shape.MAP:
            asked = addresses + sorted({address & int(_MAP_BITS) for address in addresses})
        kinds = [cell.kind for cell in cells]
        times = _times_of(header, few)
        return WrittenSection(
            description=header.description,
            has_times=header.has_times,
            counts=tuple(map(kinds.count, range(len(CellKind)))),
            times=(min(times), max(times)) if times else None,
            addresses=(addresses[0], addresses[-1]),
            keys=(cells[0].key, cells[-1].key),
            compression=self._compression,
            blocks=PackedIndex(
                offset=offset,
                first=_U64.pack(addresses[0]),
                sizes=_U32.pack(len(data)),
                raw_sizes=_U32.pack(len(raw)),
                cells=_U32.pack(len(cells)),
                checksums=xxhash.xxh3_64_digest(data)[::-1],
                first_keys=[cells[0].key] if header.ordered else [],
            ),
            filter_words=Filter.words_of(asked),
        )


class _Sections:
    """The sections written so far."""

    def __init__(self) -> None:
        self.stored: Final[list[StoredSection]] = []
        self._filter_at = 0
        self._deletes = 0
        self._addresses: Final[list[int]] = []

    def add(self, written: WrittenSection) -> None:
        self.stored.append(StoredSection.of(written, self._filter_at))
        self._filter_at += len(written.filter_words)
        self._deletes += written.counts[CellKind.DELETE] + written.counts[CellKind.CLEAR]
        self._addresses.extend(written.addresses)

    def meta(self, end: bytes) -> dict[str, Any]:
        """Return the metadata that readers, and the picking of compactions, need in advance."""
        return {
            "checksum": seal_of(end),
            "tail": len(end),
            "entries": sum(section.cells for section in self.stored),
            "deletes": self._deletes,
            "first": min(self._addresses, default=0),
            "last": max(self._addresses, default=0),
        }


class _Body:
    """Collects the bytes of a file and their checksum."""

    def __init__(self) -> None:
        self._bytes: Final = io.BytesIO()
        self._checksum: Final = xxhash.xxh3_64()
        self.append(MAGIC)

    @property
    def size(self) -> int:
        return self._bytes.tell()

    @property
    def checksum(self) -> int:
        return self._checksum.intdigest()

    def append(self, data: bytes) -> None:
        self._bytes.write(data)
        self._checksum.update(data)

    def whole(self) -> bytes:
        return self._bytes.getvalue()


class _SectionWriter:
    """Cuts the cells of one table into blocks."""

    def __init__(
        self,
        header: TableHeader,
        body: _Body,
        compression: str,
        codec: pa.Codec | None,
        block_bytes: int,
    ) -> None:
        self.header: Final = header
        self._body: Final = body
        self._compression: Final = compression
        self._codec: Final = codec
        self._block_bytes: Final = block_bytes
        self._overhead: Final = cell_overhead(has_times=header.has_times)
        self._waiting: list[Cells] = []
        self._waiting_bytes = 0
        self._last_address = 0
        self._addresses: Final[list[U64]] = []
        self._counts: Final = np.zeros(len(CellKind), np.int64)
        self._times: Final[list[int]] = []
        self._keys: tuple[bytes, bytes] | None = None
        self._offset: Final = body.size
        self._first_keys: Final[list[bytes]] = []
        self._blocks: Final[list[tuple[int, int, int, int, int]]] = []

    def add(self, cells: Cells) -> None:
        self._check(cells)
        self._note(cells)
        self._waiting.append(cells)
        self._waiting_bytes += cells.keys.nbytes + cells.values.nbytes
        self._waiting_bytes += len(cells) * self._overhead
        if self._waiting_bytes >= _BLOCKS_AT_ONCE * self._block_bytes:
            self._drain(final=False)

    def finish(self) -> WrittenSection | None:
        if self._keys is None:
            return None
        self._drain(final=True)
        return WrittenSection(
            description=self.header.description,
            has_times=self.header.has_times,
            counts=self._counts.tolist(),
            times=(min(self._times), max(self._times)) if self._times else None,
            addresses=(int(self._addresses[0][0]), self._last_address),
            keys=self._keys,
            compression=self._compression,
            blocks=self._index(),
            filter_words=Filter.build(self._addresses).words.astype("<u8").tobytes(),
        )

    def _check(self, cells: Cells) -> None:
        """Refuse cells that would make the file unsearchable."""
        if (cells.times is not None) is not self.header.has_times:
            raise ValueError(f"table {self.header.name!r}: unexpected or missing times")
        addresses = cells.addresses
        if addresses[0] < self._last_address or (addresses[1:] < addresses[:-1]).any():
            raise ValueError(f"table {self.header.name!r}: the cells are not sorted")

    def _note(self, cells: Cells) -> None:
        self._last_address = int(cells.addresses[-1])
        self._addresses.append(cells.addresses)
        if self.header.shape is Shape.MAP:
            # Lets the filter answer whether the file holds any entry of a map.
            self._addresses.append(np.unique(cells.addresses & _MAP_BITS))
        self._counts[:] += np.bincount(cells.kinds, minlength=len(CellKind))
        times = None
        if self.header.has_stamps:
            times = Stamps.of(cells.values).times
        elif cells.times is not None:
            times = cells.times[cells.kinds == CellKind.PUT]
        if times is not None and len(times):
            self._times[:] = [*self._times, int(times.min()), int(times.max())]
        first = self._keys[0] if self._keys else cells.keys[0].as_py()
        self._keys = (first, cells.keys[-1].as_py())

    def _drain(self, *, final: bool) -> None:
        cells = Cells.concat(self._waiting)
        cutter = Cutter(cells)
        ends = cutter.ends()
        done = 0
        for start, stop in self._cuts(cells, ends, final=final):
            if self.header.ordered:
                self._first_keys.append(cells.keys[start].as_py())
            self._write(cutter.raw(start, stop), int(cells.addresses[start]), stop - start)
            done = stop
        rest = cells.slice(done, len(cells))
        self._waiting = [rest] if len(rest) else []
        self._waiting_bytes = int(ends[-1] - ends[done])

    def _cuts(self, cells: Cells, ends: Positions, *, final: bool) -> Iterator[tuple[int, int]]:
        """Yield the bounds of full blocks.

        The cells of one address stay in one block, unless the table is ordered: then all entries of
        a map may have one address.
        """
        count = len(cells)
        start = 0
        # numpy's search would release the interpreter lock for the work of a microsecond.
        places = ends.data
        while start < count:
            stop = bisect_left(places, places[start] + self._block_bytes)
            whole = not self.header.ordered
            if whole and stop < count and cells.addresses[stop] == cells.addresses[stop - 1]:
                stop = int(np.searchsorted(cells.addresses, cells.addresses[stop - 1], "right"))
            if stop >= count and not final:
                return
            stop = min(stop, count)
            yield start, stop
            start = stop

    def _write(self, raw: bytes, first: int, count: int) -> None:
        if len(raw) > MAX_RAW_BYTES:
            raise ValueError(
                f"state {self.header.name!r}: a single cell of {len(raw):,} bytes; the format's "
                f"limit is {MAX_RAW_BYTES:,}"
            )
        data = raw if self._codec is None else self._codec.compress(raw, asbytes=True)
        checksum = xxhash.xxh3_64_intdigest(data)
        self._blocks.append((first, len(data), len(raw), count, checksum))
        self._body.append(data)

    def _index(self) -> PackedIndex:
        first, sizes, raw_sizes, cells, checksums = zip(*self._blocks, strict=True)
        return PackedIndex(
            offset=self._offset,
            first=np.array(first, "<u8").tobytes(),
            sizes=np.array(sizes, "<u4").tobytes(),
            raw_sizes=np.array(raw_sizes, "<u4").tobytes(),
            cells=np.array(cells, "<u4").tobytes(),
            checksums=np.array(checksums, "<u8").tobytes(),
            first_keys=self._first_keys,
        )


def _times_of(header: TableHeader, few: FewCells) -> list[int]:
    """Return the times of puts, or of the elements of lists."""
    if header.has_stamps:
        return [time for cell in few.cells for times, _ in chunks_of(cell.value) for time in times]
    return [c.time for c in few.cells if c.time is not None and c.kind == CellKind.PUT]
