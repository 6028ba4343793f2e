"""Answers batches of reads of one table: checks the filters, then reads only the blocks needed.

Cells are looked up from the newest run to the oldest. A cell whose block is not in memory waits
while the others proceed; then all blocks that cells wait for, of all runs, are read at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from forebay_backend_lsm.addressing import I64, AddressedKeys, key_in
from forebay_backend_lsm.cache import CACHE, NewBlocks
from forebay_backend_lsm.file_reader import BlockRequest, RawBlock, fetch
from forebay_backend_lsm.files import Block, CellKind
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_backend_lsm.search import CandidateBlocks, Hits, search_pairs
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.errors import CorruptStateError

_RESOLVE_AT: Final = 256
"""Blocks that have been read are searched as soon as there are this many."""
_FEW: Final = 256
"""The fewest cells that are searched for in one file alone."""

Found = tuple[TableSpec, Hits]
"""Some of the requested cells, and the spec whose codecs unpack them."""


@attrs.frozen(eq=False)
class _Candidates:
    """Cells that one file may hold, and the block that would hold each."""

    level: int
    """Number of the run, from the newest."""
    run: FileRun
    which: I64
    blocks: I64

    def take(self, chosen: Any) -> _Candidates:
        """Return some of the cells."""
        return attrs.evolve(self, which=self.which[chosen], blocks=self.blocks[chosen])


class Reads:
    """Reads the runs of one table, newest first. Thread-safe."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs: Final = runs

    def newest(self, batch: AddressedKeys, floors: I64 | None = None) -> Iterator[Found]:
        """Yield the newest cell of each key, whatever its kind; omit keys without any.

        ``floors`` is the oldest run, counted from the newest, to search for each key.
        """
        entering: dict[int, list[I64]] = {0: [np.arange(len(batch))]}
        while entering:
            stalled: list[_Candidates] = []
            yield from self._descend(batch, floors, entering, stalled)
            entering = {}
            for one, hits, asked in self._read(batch, stalled):
                yield one.run.reader, hits
                if len(hits.which) < len(asked):
                    absent = np.setdiff1d(asked, hits.which)
                    entering.setdefault(one.level + 1, []).append(absent)

    def every(self, batch: AddressedKeys) -> list[Found]:
        """Return all cells of each key, newest first within a key.

        Reads the blocks of all runs at once, because a list needs most of them.
        """
        found: list[list[Found]] = [[] for _ in self.runs]
        stalled: list[_Candidates] = []
        everything = np.arange(len(batch))
        for level, run in enumerate(self.runs):
            if isinstance(run, MemoryRun):
                found[level].append((run.reader, run.find(batch, everything)))
            elif isinstance(run, FileRun) and (asked := _candidates(level, run, batch, everything)):
                hits, missing = _in_memory(batch, asked)
                found[level].append((run.reader, hits))
                stalled += missing
        for one, hits, _ in self._read(batch, stalled):
            found[one.level].append((one.run.reader, hits))
        return [each for parts in found for each in parts if len(each[1].which)]

    def holders(self, one: AddressedKeys) -> list[Run]:
        """Return the runs that have the batch's single cell, newest first."""
        return [
            run for run in self.runs if any(len(hits.which) for _, hits in Reads([run]).newest(one))
        ]

    def blocks(self, wanted: Sequence[tuple[FileRun, Sequence[int]]]) -> list[dict[int, Block]]:
        """Return whole blocks of each run, by number."""
        answers: list[dict[int, Block]] = [{} for _ in wanted]
        absent: list[tuple[int, BlockRequest]] = []
        for i, (run, numbers) in enumerate(wanted):
            missing = []
            for number in numbers:
                raw = CACHE.copy(run.residence, number, run.raw_size(number))
                if raw is None:
                    missing.append(number)
                else:
                    answers[i][number] = run.view(number, raw)
            if missing:
                absent.append((i, BlockRequest(run.source, run.table, missing)))
        for position, blocks in fetch([each for _, each in absent]):
            i = absent[position][0]
            run = wanted[i][0]
            CACHE.insert(NewBlocks.of([(run.residence, blocks)]))
            answers[i].update((number, run.view(number, raw)) for number, raw in blocks)
        return answers

    def _descend(
        self,
        batch: AddressedKeys,
        floors: I64 | None,
        entering: dict[int, list[I64]],
        stalled: list[_Candidates],
    ) -> Iterator[Found]:
        """Search from the newest run to the oldest, with the cells that enter at each.

        A search costs as much for few cells as for many. So if only few cells may be in a file,
        they are searched for at the end, in all files that may hold them together.
        """
        here = np.zeros(0, np.int64)
        together: list[_Candidates] = []
        late = np.zeros(len(batch), np.bool_)
        for level, run in enumerate(self.runs):
            if level in entering:
                here = _entered(here, entering.pop(level))
            if floors is not None and len(here):
                here = here[floors[here] >= level]
            if isinstance(run, MemoryRun):
                hits = run.find(batch, here)
                yield run.reader, hits
                here = _without(here, [hits.which], len(batch))
                continue
            assert isinstance(run, FileRun)
            asked = _candidates(level, run, batch, here) if len(here) else None
            if asked is None:
                continue
            waits = late[asked.which]
            now = len(asked.which) - int(np.count_nonzero(waits))
            if now < _FEW or 2 * now < len(here) - int(np.count_nonzero(late)):
                together.append(asked)
                late[asked.which] = True
                continue
            if now < len(asked.which):
                together.append(asked.take(waits))
                asked = asked.take(~waits)
            hits, missing = _in_memory(batch, asked)
            yield run.reader, hits
            stalled += missing
            away = [hits.which, *(one.which for one in missing)]
            here = _without(here, away, len(batch))
        if together:
            yield from _newest_of(batch, together, stalled)

    def _read(
        self, batch: AddressedKeys, stalled: Sequence[_Candidates]
    ) -> Iterator[tuple[_Candidates, Hits, I64]]:
        """Read the blocks that cells wait for; yield the hits, and the cells searched for."""
        wanted = [
            BlockRequest(one.run.source, one.run.table, _distinct(one.blocks)) for one in stalled
        ]
        arrived: dict[int, list[RawBlock]] = {}
        count = 0
        for position, blocks in fetch(wanted):
            arrived.setdefault(position, []).extend(blocks)
            count += len(blocks)
            if count >= _RESOLVE_AT:
                yield from _resolved(batch, stalled, arrived)
                arrived, count = {}, 0
        yield from _resolved(batch, stalled, arrived)


def _distinct(numbers: I64) -> I64:
    """Return what `numpy.unique` returns, which imports `numpy.ma` when it is first called."""
    ordered = np.sort(numbers)
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    return ordered[first[: len(ordered)]]


def _entered(here: I64, cells: Sequence[I64]) -> I64:
    if len(cells) == 1 and not len(here):
        return cells[0]
    return np.sort(np.concatenate([here, *cells]))


def _candidates(level: int, run: FileRun, batch: AddressedKeys, here: I64) -> _Candidates | None:
    """Return the cells that a file may hold; ``None`` if it can hold no cell."""
    which, blocks = run.candidates(batch, here)
    return _Candidates(level, run, which, blocks) if len(which) else None


def _in_memory(batch: AddressedKeys, asked: _Candidates) -> tuple[Hits, list[_Candidates]]:
    """Return the hits in blocks of one file that are in memory, and the cells that must wait."""
    hits, _, missing = CACHE.find([(asked.run.residence, asked.blocks, asked.which)], batch)
    return hits, [asked.take(missing)] if len(missing) else []


def _newest_of(
    batch: AddressedKeys, asked: Sequence[_Candidates], stalled: list[_Candidates]
) -> Iterator[Found]:
    """Yield the newest of cells that several files may hold; ``asked`` is newest first."""
    hits, at, missing = CACHE.find(
        [(one.run.residence, one.blocks, one.which) for one in asked], batch
    )
    ends = np.cumsum([len(one.which) for one in asked])
    if len(asked) > 1:
        # Of the files that hold a cell, or may hold it, only the newest one counts.
        which = np.concatenate([one.which for one in asked])
        known = np.sort(np.concatenate([at, missing]))
        decisive = np.zeros(len(which), np.bool_)
        decisive[known[np.unique(which[known], return_index=True)[1]]] = True
        hits, at, missing = hits.take(decisive[at]), at[decisive[at]], missing[decisive[missing]]
    for number, one in enumerate(asked):
        start = int(ends[number]) - len(one.which)
        own = missing[(missing >= start) & (missing < ends[number])]
        if len(own):
            stalled.append(one.take(own - start))
    readers = {id(one.run.reader): one.run.reader for one in asked}
    if len(readers) == 1:
        yield asked[0].run.reader, hits
        return
    numbers = np.searchsorted(ends, at, "right")
    for number, one in enumerate(asked):
        if (own := numbers == number).any():
            yield one.run.reader, hits.take(own)


def _resolved(
    batch: AddressedKeys, stalled: Sequence[_Candidates], arrived: dict[int, list[RawBlock]]
) -> Iterator[tuple[_Candidates, Hits, I64]]:
    """Search all blocks that have arrived at once, and cache them."""
    if not arrived:
        return
    waiting = [stalled[position] for position in arrived]
    found = NewBlocks.of(
        [(one.run.residence, arrived[p]) for p, one in zip(arrived, waiting, strict=True)]
    )
    asked: list[_Candidates] = []
    bases = []
    for one, new in zip(waiting, found, strict=True):
        at = np.minimum(np.searchsorted(new.blocks, one.blocks), len(new.blocks) - 1)
        here = new.blocks[at] == one.blocks
        asked.append(one.take(here))
        bases.append(new.bases[at[here]])
    counts = [one.run.residence.counts[one.blocks] for one in asked]
    places = CandidateBlocks(
        np.concatenate(bases), np.concatenate(counts), waiting[0].run.residence.has_times
    )
    which = np.concatenate([one.which for one in asked])
    hits, at = search_pairs(found[0].arena, places, batch, which)
    CACHE.insert(found)
    ends = np.cumsum([len(one.which) for one in asked])
    cuts = [0, *np.searchsorted(at, ends, "left").tolist()]
    for one, part in zip(asked, hits.cut(cuts), strict=True):
        yield one, part, one.which


def _without(here: I64, away: Sequence[I64], count: int) -> I64:
    """Return the cells that are neither found nor waiting."""
    stays = np.ones(count, np.bool_)
    for part in away:
        stays[part] = False
    return here[stays[here]]


def where(spec: TableSpec, one: AddressedKeys, holders: Sequence[Run]) -> str:
    """Name the cell that cannot be read and the files that hold it, for messages."""
    with contextlib.suppress(CorruptStateError):
        key = spec.key.unpack_one(key_in(one.keys[0]))
        return f"{', '.join(run.where for run in holders)}, state {spec.name!r}, key {key!r:.200}"
    return f"{', '.join(run.where for run in holders)}, state {spec.name!r}"


def contents(reader: TableSpec, hits: Hits) -> tuple[list[int], list[Any]]:
    """Return the positions of put cells in the batch, and their values."""
    hits = hits.only(CellKind.PUT)
    # The lengths are an array, which is a sequence in all but name.
    values = reader.value.unpack_each(hits.values, hits.lengths)  # type: ignore[arg-type]
    if hits.times is not None:
        values = [*zip(hits.times, values, strict=True)]
    return hits.which.tolist(), values
