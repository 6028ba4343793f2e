"""Scans of one list or one map as of the time of the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from forebay_backend_lsm.addressing import ENTRY_BITS, AddressedKeys
from forebay_backend_lsm.batched_reads import Reads, where
from forebay_backend_lsm.encoding import unpack_elements
from forebay_backend_lsm.files import Block, CellKind
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import Scan, TableSpec

_FIRST_WINDOW: Final = 2
_LARGEST_WINDOW: Final = 32
"""Most blocks of the largest run that a map's scan reads at once: few at first, then more."""


class ListScan(Scan):
    """A scan of the elements of one list."""

    def __init__(self, spec: TableSpec, reads: Reads, batch: AddressedKeys) -> None:
        """``batch`` addresses the list's cell."""
        self._spec: Final = spec
        self._reads: Final = reads
        self._batch: Final = batch

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        parts: list[tuple[TableSpec, bytes]] = []
        for reader, hits in self._reads.every(self._batch):
            kind = int(hits.kinds[0])
            if kind != CellKind.DELETE:
                parts.append((reader, hits.values))
            if kind != CellKind.APPEND:
                break
        with decoding(lambda _: where(self._spec, self._batch, self._reads.holders(self._batch))):
            for reader, value in _joined(parts[::-1]):
                yield from unpack_elements(reader, value, page_size)


def _joined(parts: Sequence[tuple[TableSpec, bytes]]) -> Iterator[tuple[TableSpec, bytes]]:
    """Join neighbours that have the same reader into one value."""
    for i, (reader, value) in enumerate(parts):
        if i == 0 or reader is not parts[i - 1][0]:
            together = [value]
            for other, more in parts[i + 1 :]:
                if other is not reader:
                    break
                together.append(more)
            yield reader, b"".join(together)


FoundEntry = tuple[Run, int, Any, bytes]
"""A map entry's run, kind, time or ``None``, and value."""


class MapScan(Scan):
    """A scan of the entries of one map, in windows of ascending addresses."""

    def __init__(self, spec: TableSpec, reads: Reads, batch: AddressedKeys) -> None:
        """``batch`` addresses the map's prefix, at its lowest address."""
        self._spec: Final = spec
        self._reads: Final = reads
        self._batch: Final = batch
        self._prefix: Final = batch.keys[0]
        self._first: Final = int(batch.addresses[0])
        self._last: Final = self._first | (1 << ENTRY_BITS) - 1

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        runs = [run for run in self._reads.runs if self._may_hold(run)]
        held: dict[FileRun, dict[int, Block]] = {}
        seen: set[Any] = set()
        for first, last in self._windows(runs):
            cells, runs = self._window(runs, held, first, last)
            entries = self._decoded(cells)
            if self._converted(runs):
                # One user key may be stored in several encodings, newest first.
                newest = dict(reversed(entries))
                entries = [e for e in newest.items() if e[0] not in seen]
                seen.update(newest)
            shown = [(address, value) for address, value in entries if value is not _GONE]
            for start in range(0, len(shown), page_size):
                yield shown[start : start + page_size]

    def _may_hold(self, run: Run) -> bool:
        if isinstance(run, FileRun):
            may = bool(run.table.filter.passes(self._batch.probes)[0])
            return may and len(run.span(self._first, self._last)) > 0
        return True

    def _converted(self, runs: Sequence[Run]) -> bool:
        """Return whether some user keys are stored in another encoding than the current one."""
        return any(run.reader.user_key is not self._spec.user_key for run in runs)

    def _windows(self, runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
        """Yield ascending address ranges that together cover the map."""
        if self._converted(runs):
            yield self._first, self._last
            return
        spans = [
            (run, run.span(self._first, self._last)) for run in runs if isinstance(run, FileRun)
        ]
        if not spans:
            yield self._first, self._last
            return
        run, span = max(spans, key=lambda one: len(one[1]))
        cuts, step, at = [self._first], _FIRST_WINDOW, span.start + _FIRST_WINDOW
        while at < span.stop:
            cuts.append(int(run.table.first_addresses[at]))
            step = min(2 * step, _LARGEST_WINDOW)
            at += step
        yield from ((low, high - 1) for low, high in pairwise([*cuts, self._last + 1]))

    def _window(
        self,
        runs: list[Run],
        held: dict[FileRun, dict[int, Block]],
        first: int,
        last: int,
    ) -> tuple[dict[bytes, FoundEntry], list[Run]]:
        """Return the newest cell of each entry, and the runs left to read after a clear."""
        cells: dict[bytes, FoundEntry] = {}
        blocks = self._blocks(runs, held, first, last)
        for level, run in enumerate(runs):
            if self._collect(run, blocks[level], first, last, cells):
                # Entries of this run are newer than its clear; entries of older runs are gone.
                return cells, runs[: level + 1]
        return cells, runs

    def _blocks(
        self, runs: Sequence[Run], held: dict[FileRun, dict[int, Block]], first: int, last: int
    ) -> list[list[Block]]:
        """Return the blocks of each run that overlap a window; keeps the last window's blocks."""
        wanted = []
        for run in runs:
            if isinstance(run, FileRun):
                span = run.span(first, last)
                known = held.setdefault(run, {})
                held[run] = {n: block for n, block in known.items() if n in span}
                wanted.append((run, [n for n in span if n not in known]))
        for (run, _), found in zip(wanted, self._reads.blocks(wanted), strict=True):
            held[run].update(found)
        return [
            [run.block] if isinstance(run, MemoryRun) else [*_sorted(held, run)] for run in runs
        ]

    def _collect(
        self,
        run: Run,
        blocks: Sequence[Block],
        first: int,
        last: int,
        cells: dict[bytes, FoundEntry],
    ) -> bool:
        """Add the entries that no newer run has; return whether this run cleared the map."""
        cleared = False
        if isinstance(run, FileRun):
            first, last = run.clip(first, last)
        prefix = self._prefix
        for block in blocks:
            start, stop = block.slice_of(first, last)
            times = None if block.times is None else block.times[start:stop].tolist()
            for i, kind in enumerate(block.kinds[start:stop].tolist()):
                key = block.key(start + i)
                if not key.startswith(prefix):
                    continue
                if kind == CellKind.CLEAR:
                    cleared = cleared or key == prefix
                elif key not in cells:
                    time = None if times is None else times[i]
                    cells[key] = (run, kind, time, block.value(start + i))
        return cleared

    def _decoded(self, cells: dict[bytes, FoundEntry]) -> list[tuple[Any, Any]]:
        """Return (user key address, stored value) pairs; ``_GONE`` is a removed entry's value."""
        entries: list[tuple[Any, Any]] = []
        cut = len(self._prefix)
        by_reader: dict[int, list[tuple[bytes, FoundEntry]]] = {}
        for key, entry in cells.items():
            by_reader.setdefault(id(entry[0].reader), []).append((key[cut:], entry))
        for found in by_reader.values():
            entries += self._unpacked(found[0][1][0].reader, found)
        return entries

    def _unpacked(
        self, reader: TableSpec, found: Sequence[tuple[bytes, FoundEntry]]
    ) -> Iterator[tuple[Any, Any]]:
        puts = [entry for entry in found if entry[1][1] == CellKind.PUT]
        packed, values = [key for key, _ in found], [entry[3] for _, entry in puts]
        codec = reader.user_key
        assert codec is not None
        with decoding(lambda at: self._where(found, at)):
            user_keys = codec.unpack_each(b"".join(packed), [*map(len, packed)])
            addresses = user_keys if codec.address is None else [*map(codec.address, user_keys)]
        with decoding(lambda at: self._where(puts, at)):
            unpacked = iter(reader.value.unpack_each(b"".join(values), [*map(len, values)]))
        for address, (_, (_, kind, time, _)) in zip(addresses, found, strict=True):
            if kind != CellKind.PUT:
                yield address, _GONE
            else:
                value = next(unpacked)
                yield address, (time, value) if reader.ttl else value

    def _where(self, entries: Sequence[tuple[bytes, FoundEntry]], at: int | None) -> str:
        return where(self._spec, self._batch, [entries[at or 0][1][0]])


class _Gone:
    """Marks an entry that does not exist."""


_GONE: Final = _Gone()


def _sorted(held: dict[FileRun, dict[int, Block]], run: Run) -> Iterator[Block]:
    assert isinstance(run, FileRun)
    for _, block in sorted(held[run].items()):
        yield block
