"""Opens sorted files by reading only filters, index and footer, and verifies blocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files.blocks import COMPRESSIONS, Block, cells_of_blocks
from forebay_backend_lsm.files.cells import GROUP_SHIFT, U64, Cells, Place, Positions
from forebay_backend_lsm.files.filter import Filter, Probes
from forebay_backend_lsm.files.layout import (
    FOOTER_BYTES,
    Footer,
    Section,
    StoredSection,
    Tail,
    seal_of,
)
from forebay_backend_lsm.files.made_once import MadeOnce
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError

_GUESS: Final = 64 * 1024
"""Bytes first read from the end of a file whose tail has an unknown length."""
_GAP_BYTES: Final = 4 * 1024
"""Tables with few cells that are no further apart than this are read together."""
_SPAN_BYTES: Final = 128 * 1024
"""The largest size of blocks that are read together."""


class SortedFile:
    """An opened file: its metadata, known without reading a block."""

    def __init__(self, file: StateFile, tail: Tail, groups: KeyGroupRange) -> None:
        """``groups`` are the key groups for which the file is read."""
        self.file: Final = file
        self.tail: Final = tail
        self.range: Final = groups
        with decoding(partial(_blame, file.name)):
            self.sections: Final = {section.name: section for section in tail.sections}
            self.memory_bytes: Final = sum(s.memory_bytes for s in tail.sections)
            """Bytes of filters and index."""
        self.tables: Final[Mapping[str, FileTable]] = MadeOnce(
            self.sections, partial(_table, file.name, self.sections, groups)
        )
        """Each table is made when it is asked for; raises `CorruptStateError` for a wrong index."""

    @classmethod
    def open(
        cls,
        storage: ObjectStorage,
        file: StateFile,
        range: KeyGroupRange | None = None,  # noqa: A002 - the name used everywhere
        *,
        filters: bool = True,
    ) -> SortedFile:
        """Read a file's tail; ``range`` narrows the key groups for which ``file`` is read.

        Without ``filters``, which take most of an opened file's memory, blocks can still be read,
        but `FileTable.candidates` finds nothing. Needs one ranged read if ``file.meta`` comes from
        the file's writer, else up to two. Raises `CorruptStateError` for a file that is missing,
        truncated or altered.
        """
        where = f"file {file.name!r}"
        tail = _read_tail(storage, file, where)
        if "checksum" in file.meta and seal_of(tail) != file.meta["checksum"]:
            raise CorruptStateError(f"{where}: it is not the file that the manifest names")
        parsed = Tail.parse(tail, where)
        return cls(file, parsed if filters else parsed.without_filters(), range or file.range)

    def read_few(
        self, name: str, read: Callable[[int, int], bytes | memoryview]
    ) -> dict[str, bytes]:
        """Read the block of a table with few cells, and the blocks of neighbours with few cells.

        Returns them decompressed, by name. ``read`` returns the bytes at an offset, of a length. A
        damaged block of another table is left out.
        """
        together = next(part for part in self._parts_of_few() if name in part)
        sections = [*together.values()]
        begin = sections[0].offset
        data = memoryview(read(begin, sections[-1].end - begin))
        found = {}
        for section in sections:
            try:
                part = data[section.offset - begin : section.end - begin]
                found[section.name] = self.raw_of(section, part)
            except CorruptStateError:
                if section.name == name:
                    raise
        return found

    def raw_of(self, section: StoredSection, data: bytes | memoryview) -> bytes:
        """Verify and decompress the block of a table with few cells."""
        if len(data) != section.size or xxh3_64_intdigest(data) != section.checksum:
            raise _altered(self.file.name, section.name, 0, section.offset)
        with decoding(partial(_blame, self.file.name)):
            codec = _codec(section.compression)
            if codec is None:
                return bytes(data)
            raw: bytes = codec.decompress(data, section.raw_size, asbytes=True)
            return raw

    def _parts_of_few(self) -> Iterator[dict[str, StoredSection]]:
        """Yield the tables with few cells in parts that are read at once."""
        part: dict[str, StoredSection] = {}
        begin = end = 0
        for name, section in self.sections.items():
            if not section.has_few:
                continue
            if part and (section.offset - end > _GAP_BYTES or section.end - begin > _SPAN_BYTES):
                yield part
                part = {}
            if not part:
                begin = section.offset
            part[name] = section
            end = section.end
        yield part


def _table(
    file: str, sections: Mapping[str, StoredSection], groups: KeyGroupRange, name: str
) -> FileTable:
    with decoding(partial(_blame, file)):
        return FileTable(file, sections[name].parsed(), groups)


def _blame(file: str, _: int | None) -> str:
    return f"file {file!r}"


class FileTable:
    """The cells of one table in an opened file."""

    def __init__(self, name: str, section: Section, groups: KeyGroupRange) -> None:
        """``name`` is the file's name, for messages."""
        blocks = section.blocks
        self._file: Final = name
        self._codec: Final = _codec(section.compression)
        self.section: Final = section
        self.name: Final = section.name
        """The state's name."""
        self.description: Final = section.description
        """`TableSpec.description` of the writer."""
        self.counts: Final = section.counts
        """Number of cells of each `Kind`."""
        self.times: Final = section.times
        """The least and the greatest time of puts, or ``None``."""
        self.has_times: Final = section.has_times
        """Whether blocks have a time column."""
        self.filter: Final[Filter] = section.filter
        self.first_addresses: Final[U64] = blocks.first
        """Address of the first cell of each block."""
        self.first_keys: Final = blocks.first_keys
        """Key of the first cell of each block, in an ordered table."""
        self.offsets: Final = blocks.offsets
        """Offset of each block in the file."""
        self.sizes: Final = blocks.sizes
        """Bytes of each block in the file."""
        self.cells: Final = blocks.cells
        """Number of cells of each block."""
        self.raw_sizes: Final = blocks.raw_sizes
        """Bytes of each block when decompressed."""
        self.first: Final = max(section.addresses[0], groups.start << GROUP_SHIFT)
        """No cell within the range read has a lower address."""
        self.last: Final = min(section.addresses[1], (groups.end + 1 << GROUP_SHIFT) - 1)
        """No cell within the range read has a higher address."""

    def candidates(self, addresses: U64, probes: Probes | None = None) -> Positions:
        """Return the block that may hold each address, -1 if the file certainly does not hold it.

        All cells of one address are in one block. A caller that asks several files may pass the
        ``probes`` of ``addresses``.
        """
        answer = np.full(len(addresses), -1, np.int64)
        may = np.flatnonzero(self.filter.passes(probes or Probes.of(addresses)))
        if len(may) and self.first <= self.last:
            asked = addresses[may]
            inside = (asked >= np.uint64(self.first)) & (asked <= np.uint64(self.last))
            blocks = np.searchsorted(self.first_addresses, asked, "right") - 1
            answer[may] = np.where(inside, blocks, -1)
        return answer

    def span(self, first: int, last: int) -> range:
        """Return the blocks that may hold addresses ``first`` to ``last``, both inclusive."""
        low, high = max(first, self.first), min(last, self.last)
        if low > high:
            return range(0)
        bounds = np.array([low, high], np.uint64)
        # In an ordered table, cells of one address may be in several blocks.
        side: Literal["left", "right"] = "left" if self.first_keys else "right"
        start = int(np.searchsorted(self.first_addresses, bounds[0], side)) - 1
        stop = int(np.searchsorted(self.first_addresses, bounds[1], "right"))
        return range(max(start, 0), stop)

    def bytes_of(self, groups: KeyGroupRange) -> int:
        """Return the bytes of the blocks that may hold cells of some key groups."""
        blocks = self.span(groups.start << GROUP_SHIFT, (groups.end + 1 << GROUP_SHIFT) - 1)
        return int(self.sizes[blocks.start : blocks.stop].sum())

    def between(self, low: Place, high: Place) -> range:
        """Return the blocks of an ordered table that may hold cells between two places, inclusive.

        The places are within the range read.
        """
        start, stop = self._first_after(low), self._first_after(high)
        return range(max(start - 1, 0), stop)

    def _first_after(self, place: Place) -> int:
        """Return the first block that begins after a place."""
        address, key = place
        bound = np.array([address], np.uint64)[0]
        stop = int(np.searchsorted(self.first_addresses, bound, "right"))
        if key is None:
            return stop
        start = int(np.searchsorted(self.first_addresses, bound, "left"))
        return bisect_right(self.first_keys, key, start, stop)

    def location(self, block: int) -> tuple[int, int]:
        """Return a block's offset and length in the file."""
        return int(self.offsets[block]), int(self.sizes[block])

    def decode(self, block: int, data: bytes | memoryview) -> Block:
        """Verify and decompress a block that was read from its `location`.

        Raises `CorruptStateError`, naming file, state, block and offset.
        """
        (raw,) = self.raws([block], [data])
        return Block(pa.py_buffer(raw), int(self.cells[block]), has_times=self.has_times)

    def decode_many(self, blocks: range, data: Sequence[memoryview]) -> Cells:
        """Verify and decompress one or more neighbouring blocks into columns.

        Omits cells outside the range read.
        """
        raws = self.raws(blocks, data)
        counts = self.cells[blocks.start : blocks.stop].tolist()
        cells = cells_of_blocks(raws, counts, has_times=self.has_times)
        bounds = np.array([self.first, self.last], np.uint64)
        start = int(np.searchsorted(cells.addresses, bounds[0], "left"))
        return cells.slice(start, int(np.searchsorted(cells.addresses, bounds[1], "right")))

    def raws(
        self, blocks: Sequence[int], data: Sequence[bytes | memoryview]
    ) -> list[bytes | memoryview]:
        """Return the columns of some blocks, verified and decompressed as in `decode`."""
        found, at = self.section.blocks, np.asarray(blocks)
        sizes, checksums = found.sizes[at].tolist(), found.checksums[at].tolist()
        for block, part, size, checksum in zip(blocks, data, sizes, checksums, strict=True):
            if len(part) != size or xxh3_64_intdigest(part) != checksum:
                raise _altered(self._file, self.name, block, int(self.offsets[block]))
        if self._codec is None:
            return [*data]
        decompress = self._codec.decompress
        raw_sizes = found.raw_sizes[at].tolist()
        return [
            decompress(part, size, asbytes=True) for part, size in zip(data, raw_sizes, strict=True)
        ]


@cache
def _codec(compression: str) -> pa.Codec | None:
    """Return the decompressor of blocks, which several threads may use.

    Returns ``None`` for uncompressed files.
    """
    name = COMPRESSIONS[compression]
    return None if name is None else pa.Codec(name)


def _altered(file: str, state: str, block: int, offset: int) -> CorruptStateError:
    return CorruptStateError(
        f"file {file!r}, state {state!r}: block {block} at offset {offset} is truncated or altered"
    )


def _read_tail(storage: ObjectStorage, file: StateFile, where: str) -> bytes:
    size: int = file.meta.get("tail", 0)
    if not size:
        length = min(file.size, _GUESS)
        guessed = _read_end(storage, file, length, where)
        size = Footer.parse(guessed[-FOOTER_BYTES:], where).tail_bytes
        if size <= length:
            return guessed[length - size :]
    if size > file.size:
        raise CorruptStateError(f"{where}: {file.size} bytes, of which {size} are its index")
    return _read_end(storage, file, size, where)


def _read_end(storage: ObjectStorage, file: StateFile, length: int, where: str) -> bytes:
    try:
        return storage.get_ranges(file.name, [(file.size - length, length)])[0]
    except StorageError as fault:
        check_present(storage, file, where, fault)
        raise


def check_present(
    storage: ObjectStorage, file: StateFile, where: str, fault: StorageError | None = None
) -> None:
    """Raise `CorruptStateError` if a file that cannot be read is missing or truncated."""
    if isinstance(fault, ObjectNotFoundError):
        raise CorruptStateError(f"{where}: it is missing") from fault
    folder = file.name.rpartition("/")[0]
    sizes = {info.name: info.size for info in storage.list(folder)}
    if file.name not in sizes:
        raise CorruptStateError(f"{where}: it is missing") from fault
    if sizes[file.name] < file.size:
        raise CorruptStateError(
            f"{where}: it has {sizes[file.name]} bytes, its manifest records {file.size}"
        ) from fault
