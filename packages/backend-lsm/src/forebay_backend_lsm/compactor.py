"""Compacts files of format ``lsm-1``: rewrites sorted files into fewer, streaming by address."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import numpy as np

from forebay_backend_lsm.files.cells import GROUP_SHIFT, CellKind, Cells
from forebay_backend_lsm.files.few_cells import Cell, FewCells
from forebay_backend_lsm.files.layout import StoredSection
from forebay_backend_lsm.files.reading import FileTable, SortedFile, check_present
from forebay_backend_lsm.files.writing import TableHeader
from forebay_backend_lsm.merging import Dropped, Merged, MergeInput, Rules, merge
from forebay_backend_lsm.merging_few import merge_few
from forebay_backend_lsm.outputs import Outputs
from forebay_state_api import KeyGroupRange
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.expiry import Clock, Deadline, Expiry, running_clock
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

FORMAT: Final = "lsm-1"
_READ_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Decompressed bytes that all inputs together hold in memory."""
_PART_BYTES: Final = (128 * 1024, 1024 * 1024)
"""Fewest and most bytes that one input reads at once."""

_READERS: Final = 2
"""Threads that read ahead and decode."""

Cancelled = Callable[[], bool]

_NO_CELLS: Final = Cells.of(np.zeros(0, np.uint64), CellKind.PUT, [], [])


class LsmCompactor:
    """Merges sorted files. Stateless."""

    format: ClassVar[str] = FORMAT
    contract_version: ClassVar[int] = 2

    def __init__(self, clock_from: Callable[[int], Clock] = running_clock) -> None:
        """``clock_from`` makes a clock from the job's time, for states that re-read the clock."""
        self._clock_from: Final = clock_from

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Cancelled
    ) -> CompactionResult | None:
        """Implement `forebay_state_api.contract.compactor.Compactor.compact`.

        Options of the job: ``bottom`` (required: no run is older than the inputs, so tombstones
        may be dropped), ``ttl`` (state name → `Expiry.plain`, for states whose expired cells are
        to be dropped), ``clock_every`` (state name → number of its cells after which the clock is
        read again; for other states the job's time decides throughout), ``compression``,
        ``block_bytes``. Memory is bounded by some tens of megabytes plus twice the target file
        size, the indexes of inputs and the filters of outputs. Outputs of one ``lane`` (in their
        meta) are disjoint by address within each table; outputs of a higher lane are newer.
        """
        try:
            return _Compaction(job, storage, cancelled, self._clock_from(job.now_us)).run()
        except _CancelledError:  # requested by the caller; ``None`` reports it
            return None

    def verify(self, file: StateFile, storage: ObjectStorage) -> None:
        """Implement `forebay_state_api.contract.compactor.VerifyingCompactor.verify`."""
        entries = sum(s.cells for s in SortedFile.open(storage, file).sections.values())
        if entries != file.meta["entries"]:
            raise CorruptStateError(
                f"file {file.name!r} holds {entries} cells, not {file.meta['entries']}"
            )


class _CancelledError(Exception):
    """Raised when the job is cancelled."""


@attrs.frozen(eq=False)
class _InputTable:
    """One table of one input."""

    input: SortedFile
    table: FileTable
    lane: int

    @property
    def header(self) -> TableHeader:
        return _header_of(self.table.description)


def _header_of(description: Mapping[str, Any]) -> TableHeader:
    return TableHeader(str(description["name"]), description, bool(description["ttl"]))


class _FewInput:
    """The tables with few cells of one input, which are read in the order of their names."""

    def __init__(self, file: SortedFile, read: Callable[[StateFile, int, int], bytes]) -> None:
        """``read`` returns the bytes of a file from an offset, of a length."""
        self.file: Final = file
        self._read: Final = read
        self._held: Mapping[str, bytes] = {}
        """The blocks that were read with the last one."""

    def cells(self, name: str) -> Sequence[Cell]:
        """Return a table's cells, clipped to the range for which the input is read."""
        if name not in self._held:
            self._held = self.file.read_few(name, partial(self._read, self.file.file))
        section, groups = self.file.sections[name], self.file.range
        with decoding(lambda _: f"file {self.file.file.name!r}, state {name!r}"):
            found = FewCells.of_block(
                self._held[name], section.cells, has_times=section.has_times
            ).cells
        low, high = groups.start << GROUP_SHIFT, groups.end + 1 << GROUP_SHIFT
        if found[0].address >= low and found[-1].address < high:
            return found
        return [cell for cell in found if low <= cell.address < high]


class _Compaction:
    """One run of a job."""

    def __init__(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Cancelled, clock: Clock
    ) -> None:
        self._job: Final = job
        self._storage: Final = storage
        self._cancelled: Final = cancelled
        self._clock: Final = clock
        self._bottom: Final[bool] = job.options["bottom"]
        self._ttl: Final[Mapping[str, Any]] = job.options.get("ttl", {})
        self._clock_every: Final[Mapping[str, int]] = job.options.get("clock_every", {})
        self._outputs: Final = Outputs(job, storage, self._check)
        self._deleted = self._expired = 0
        self._readers: Final = ThreadPoolExecutor(_READERS, "forebay-compaction-read")

    def run(self) -> CompactionResult:
        try:
            return self._run()
        finally:
            self._readers.shutdown(cancel_futures=True)
            self._outputs.close()

    def _run(self) -> CompactionResult:
        inputs = [opened for file in self._job.inputs if (opened := self._open(file)) is not None]
        few = [_FewInput(opened, self._bytes) for opened in inputs]
        names = sorted({name for opened in inputs for name in opened.sections})
        entries_in = sum(self._merge_table(name, inputs, few) for name in names)
        outputs = self._outputs.finish()
        entries_out = sum(file.meta["entries"] for file in outputs)
        return CompactionResult(
            outputs=outputs,
            entries_in=entries_in,
            entries_out=entries_out,
            entries_dropped=entries_in - entries_out,
            dropped={
                "overwritten": entries_in - entries_out - self._deleted - self._expired,
                "deleted": self._deleted,
                "expired": self._expired,
            },
        )

    def _open(self, file: StateFile) -> SortedFile | None:
        self._check()
        groups = file.range.intersection(self._job.range)
        if groups is None:
            return None
        return SortedFile.open(self._storage, file, groups, filters=False)

    def _check(self) -> None:
        if self._cancelled():
            raise _CancelledError

    def _merge_table(
        self, name: str, inputs: Sequence[SortedFile], few: Sequence[_FewInput]
    ) -> int:
        """Merge one table; return how many cells were read."""
        sections = [one for opened in inputs if (one := opened.sections.get(name)) is not None]
        alike = all(one.described == sections[0].described for one in sections)
        if alike and all(one.has_few for one in sections):
            return self._merge_few(sections[0], few)
        return self._merge_many(name, [opened for opened in inputs if name in opened.sections])

    def _merge_few(self, section: StoredSection, inputs: Sequence[_FewInput]) -> int:
        """Merge a table that has few cells, of one type, in each input."""
        header = _header_of(section.description)
        self._check()
        runs = [one.cells(section.name) for one in inputs if section.name in one.file.sections]
        merged = merge_few(
            runs, self._rules(header, bottom=self._bottom), has_times=header.has_times
        )
        self._count(header, merged.dropped)
        self._outputs.add(0, header, merged.cells)
        return merged.entries_in

    def _merge_many(self, name: str, found: Sequence[SortedFile]) -> int:
        lanes = _lanes([(opened.range, opened.tables[name].description) for opened in found])
        sources = [
            _InputTable(opened, opened.tables[name], lane)
            for opened, lane in zip(found, lanes, strict=True)
        ]
        newest = max(lanes)
        read = 0
        for age, epoch in enumerate(_by_key_type(sources)):
            headers = {source.lane: source.header for source in epoch}
            dropped = Dropped()
            for merged in self._merged(epoch, bottom=self._bottom and not age):
                read += merged.entries_in
                dropped = dropped.plus(merged.dropped)
                self._outputs.add(merged.lane - newest, headers[merged.lane], merged.cells)
            self._count(epoch[0].header, dropped)
        return read

    def _merged(self, sources: Sequence[_InputTable], *, bottom: bool) -> Iterator[Merged]:
        header = sources[0].header
        least, most = _PART_BYTES
        size = min(max(_READ_AHEAD_BYTES // len(sources), least), most)
        runs = [MergeInput(self._parts(source, size), source.lane) for source in sources]
        yield from merge(runs, self._rules(header, bottom=bottom))

    def _rules(self, header: TableHeader, *, bottom: bool) -> Rules:
        return Rules(
            bottom=bottom,
            deadline=self._deadline(header),
            stamped_lists=header.has_stamps,
        )

    def _count(self, header: TableHeader, dropped: Dropped) -> None:
        self._deleted += dropped.deleted
        self._expired += dropped.expired
        if dropped.aged:
            _log.debug(
                "ttl: compaction dropped expired parts of %d cells of state %r, operator %r",
                dropped.aged,
                header.name,
                self._job.operator,
            )

    def _deadline(self, header: TableHeader) -> Deadline | None:
        if not header.ttl or header.name not in self._ttl:
            return None
        every = self._clock_every.get(header.name)
        return Deadline(Expiry.of(self._ttl[header.name]), self._job.now_us, every, self._clock)

    def _parts(self, source: _InputTable, size: int) -> Iterator[tuple[int, Cells]]:
        """Yield the cells of an input, some blocks at a time, for `MergeInput`."""
        table = source.table
        spans = _spans(table, size)
        if not spans:
            return
        yield table.first, _NO_CELLS
        ahead = None
        for span, after in itertools.zip_longest(spans, spans[1:]):
            for _ in span:
                self._check()
            cells = (ahead or self._ask(source, span)).result()
            ahead = None if after is None else self._ask(source, after)
            low = table.last if after is None else int(table.first_addresses[after.start])
            yield low, cells

    def _ask(self, source: _InputTable, span: range) -> Future[Cells]:
        """Begin to read and decode the blocks of ``span``."""
        return self._readers.submit(self._read, source, span)

    def _read(self, source: _InputTable, span: range) -> Cells:
        """Read the cells of some blocks, clipped to the range for which the input is read."""
        places = [source.table.location(block) for block in span]
        begin, end = places[0][0], sum(places[-1])
        data = memoryview(self._bytes(source.input.file, begin, end - begin))
        stored = [data[offset - begin : offset - begin + length] for offset, length in places]
        return source.table.decode_many(span, stored)

    def _bytes(self, file: StateFile, start: int, length: int) -> bytes:
        try:
            return self._storage.get_ranges(file.name, [(start, length)])[0]
        except StorageError as fault:
            check_present(self._storage, file, f"file {file.name!r}", fault)
            raise


def _spans(table: FileTable, size: int) -> list[range]:
    """Split the blocks within the range read into spans of about ``size`` bytes."""
    spans: list[range] = []
    blocks = table.span(table.first, table.last)
    raw = size
    for block in blocks:
        raw += int(table.raw_sizes[block])
        if raw > size:
            raw = int(table.raw_sizes[block])
            spans.append(range(block, block))
        spans[-1] = range(spans[-1].start, block + 1)
    return spans


def _lanes(inputs: Sequence[tuple[KeyGroupRange, Mapping[str, Any]]]) -> list[int]:
    """Assign a lane to each input, oldest first; all inputs of a lane share a description.

    No input gets a lower lane than an older input of the same key groups.
    """
    lanes: list[int] = []
    described: list[Mapping[str, Any]] = []
    for groups, description in inputs:
        older = [
            lane
            for lane, (theirs, _) in zip(lanes, inputs, strict=False)
            if theirs.intersection(groups) is not None
        ]
        lane = max(older, default=0)
        while lane < len(described) and described[lane] != description:
            lane += 1
        if lane == len(described):
            described.append(description)
        lanes.append(lane)
    return lanes


def _by_key_type(sources: Sequence[_InputTable]) -> Iterator[list[_InputTable]]:
    """Group sources whose keys are packed alike, oldest lanes first.

    Keys that are packed differently cannot be compared.
    """

    def packed(source: _InputTable) -> tuple[Any, ...]:
        description = source.table.description
        return tuple(description.get(part) for part in ("kind", "key", "user_key", "ttl"))

    by_lane = sorted(sources, key=lambda source: source.lane)
    for _, group in itertools.groupby(by_lane, packed):
        together = list(group)
        yield [source for source in sources if source in together]
