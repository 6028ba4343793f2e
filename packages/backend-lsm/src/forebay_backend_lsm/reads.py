"""Answers reads of one table from its runs: filters first, then only the blocks that are needed.

A cell is looked for from the newest run to the oldest. Where the block that should hold it is not
in memory the cell waits, while the others go on; then all blocks that cells wait for are read at
once, whatever run they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np

from forebay_backend_lsm.addressing import I64, Batch
from forebay_backend_lsm.cache import CACHE
from forebay_backend_lsm.files import Block, Kind
from forebay_backend_lsm.runs import FileRun, MemoryRun, Run
from forebay_backend_lsm.search import Arena, Hits, search
from forebay_backend_lsm.sources import RawBlock, Wanted, fetch

_RESOLVE_AT: Final = 256
"""Blocks that were read are looked into when there are so many."""

Found = tuple[Run, Hits]
"""Some of the cells asked for, all from one run."""


@attrs.frozen(eq=False)
class _Stalled:
    """Cells that wait for blocks of one run."""

    level: int
    run: FileRun
    which: I64
    blocks: I64
    """That each of them waits for."""


class Reads:
    """Reads the runs of one table, newest first. Thread-safe."""

    def __init__(self, runs: Sequence[Run], requests: int) -> None:
        """``requests`` is how many the process may have under way."""
        self.runs: Final = runs
        self._requests: Final = requests

    def newest(self, batch: Batch, floors: I64 | None = None) -> Iterator[Found]:
        """The newest cell of each key, whatever its kind; keys without any are left out.

        ``floors`` is the oldest run, counted from the newest, that each key is looked for in.
        """
        entering: dict[int, list[I64]] = {0: [np.arange(len(batch))]}
        while entering:
            stalled: list[_Stalled] = []
            yield from self._descend(batch, floors, entering, stalled)
            entering = {}
            for one, hits, asked in self._read(batch, stalled):
                yield one.run, hits
                if len(hits.which) < len(asked):
                    absent = np.setdiff1d(asked, hits.which, assume_unique=True)
                    entering.setdefault(one.level + 1, []).append(absent)

    def every(self, batch: Batch) -> list[Found]:
        """All cells of each key, newest first within a key, down to the first that replaces.

        Reads the blocks of all runs at once: of a list, most of them are needed.
        """
        found: list[list[Found]] = [[] for _ in self.runs]
        stalled: list[_Stalled] = []
        everything = np.arange(len(batch))
        for level, run in enumerate(self.runs):
            if isinstance(run, MemoryRun):
                found[level].append((run, run.find(batch, everything)))
            elif isinstance(run, FileRun):
                found[level] += self._look(level, run, batch, everything, stalled)[0]
        for one, hits, _ in self._read(batch, stalled):
            found[one.level].append((one.run, hits))
        return [each for parts in found for each in parts if len(each[1].which)]

    def blocks(self, wanted: Sequence[tuple[FileRun, Sequence[int]]]) -> list[dict[int, Block]]:
        """Whole blocks, by number, of each run."""
        answers: list[dict[int, Block]] = [{} for _ in wanted]
        absent: list[tuple[int, Wanted]] = []
        for i, (run, numbers) in enumerate(wanted):
            missing = []
            for number in numbers:
                raw = CACHE.copy(run.residence, number, run.raw_size(number))
                if raw is None:
                    missing.append(number)
                else:
                    answers[i][number] = run.view(number, raw)
            if missing:
                absent.append((i, Wanted(run.source, run.table, missing)))
        for position, blocks in fetch([each for _, each in absent], self._requests):
            i = absent[position][0]
            run = wanted[i][0]
            CACHE.insert((run.residence, number, raw) for number, raw in blocks)
            answers[i].update((number, run.view(number, raw)) for number, raw in blocks)
        return answers

    def _descend(
        self,
        batch: Batch,
        floors: I64 | None,
        entering: dict[int, list[I64]],
        stalled: list[_Stalled],
    ) -> Iterator[Found]:
        """Go from the newest run to the oldest with the cells that enter at each."""
        here = np.zeros(0, np.int64)
        for level, run in enumerate(self.runs):
            if level in entering:
                here = np.sort(np.concatenate([here, *entering.pop(level)]))
            if floors is not None and len(here):
                here = here[floors[here] >= level]
            if not len(here):
                if not entering:
                    return
                continue
            found: list[Found]
            if isinstance(run, MemoryRun):
                found, gone = [(run, run.find(batch, here))], np.zeros(0, np.int64)
            else:
                assert isinstance(run, FileRun)
                found, gone = self._look(level, run, batch, here, stalled)
            yield from found
            away = [gone, *(hits.which for _, hits in found)]
            if any(map(len, away)):
                here = _without(here, away, len(batch))

    def _look(
        self, level: int, run: FileRun, batch: Batch, here: I64, stalled: list[_Stalled]
    ) -> tuple[list[Found], I64]:
        """What memory has of one file, and which cells have to wait for it."""
        blocks = run.candidates(batch, here)
        may = blocks >= 0
        asked, blocks = here[may], blocks[may]
        if not len(asked):
            return [], asked
        hits, missing = CACHE.find(run.residence, blocks, batch, asked)
        waiting = asked[missing]
        if len(waiting):
            stalled.append(_Stalled(level, run, waiting, blocks[missing]))
        return [(run, hits)], waiting

    def _read(
        self, batch: Batch, stalled: Sequence[_Stalled]
    ) -> Iterator[tuple[_Stalled, Hits, I64]]:
        """Read what cells wait for; gives what was found, and which cells were looked for."""
        wanted = [
            Wanted(one.run.source, one.run.table, np.unique(one.blocks).tolist()) for one in stalled
        ]
        arrived: dict[int, list[RawBlock]] = {}
        count = 0
        for position, blocks in fetch(wanted, self._requests):
            arrived.setdefault(position, []).extend(blocks)
            count += len(blocks)
            if count >= _RESOLVE_AT:
                yield from _resolved(batch, stalled, arrived)
                arrived, count = {}, 0
        yield from _resolved(batch, stalled, arrived)


def _resolved(
    batch: Batch, stalled: Sequence[_Stalled], arrived: dict[int, list[RawBlock]]
) -> Iterator[tuple[_Stalled, Hits, I64]]:
    """Look into blocks that have arrived, and keep them."""
    for position, blocks in arrived.items():
        one = stalled[position]
        arena, bases = Arena.of([raw for _, raw in blocks])
        numbers = np.array([number for number, _ in blocks])
        at = np.minimum(np.searchsorted(numbers, one.blocks), len(numbers) - 1)
        here = numbers[at] == one.blocks
        asked = one.which[here]
        places = one.run.residence.places(one.blocks[here], bases[at[here]])
        yield one, search(arena, places, batch, asked), asked
        CACHE.insert((one.run.residence, number, raw) for number, raw in blocks)


def _without(here: I64, away: Sequence[I64], count: int) -> I64:
    """Cells that are neither found nor waiting."""
    stays = np.ones(count, np.bool_)
    for part in away:
        stays[part] = False
    return here[stays[here]]


def contents(run: Run, hits: Hits) -> tuple[list[int], list[Any]]:
    """The values of put cells, and their positions in the batch."""
    hits = hits.only(Kind.PUT)
    codec = run.reader.value
    values = codec.unpack_each(hits.values, hits.lengths)  # type: ignore[arg-type]
    if hits.times is not None:
        values = [*zip(hits.times, values, strict=True)]
    return hits.which.tolist(), values
