"""Merges runs of one table: the newest cell of a key wins, appends fold, dead cells are dropped.

Walks the runs by address, window by window, and holds no more than a part of each run. Within a
window it processes whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay_backend_lsm.files.arrow import (
    binary_array,
    binary_from,
    compute,
    flag_array,
    flags_of,
    taken,
)
from forebay_backend_lsm.files.blocks import Blobs
from forebay_backend_lsm.files.cells import (
    I64,
    U8,
    U64,
    CellKind,
    Cells,
    Mask,
    Positions,
    joined,
    order_of,
)
from forebay_backend_lsm.files.lists import Stamps, without_expired
from forebay_state_api.contract.expiry import Deadline

_MAP_PREFIX_SHIFT: Final = np.uint64(24)
"""The cells of one map share the address bits from this one up."""


@attrs.frozen(kw_only=True)
class Rules:
    """Rules for dropping cells."""

    bottom: bool
    """There is no older run, so cells that only hide older ones may be dropped."""
    deadline: Deadline | None = None
    """Decides which content has expired; ``None`` in a table without TTL or without clean-up."""
    stamped_lists: bool = False
    """Values are lists whose elements have times."""


@attrs.frozen(kw_only=True)
class Dropped:
    """Counts dropped cells that no newer cell replaces."""

    deleted: int = 0
    """Cells that hid older ones where no older run exists, and empty appends."""
    expired: int = 0
    aged: int = 0
    """Cells with expired content, including cells that were not dropped."""

    def plus(self, other: Dropped) -> Dropped:
        """Return the sums."""
        return Dropped(
            deleted=self.deleted + other.deleted,
            expired=self.expired + other.expired,
            aged=self.aged + other.aged,
        )


@attrs.frozen(eq=False)
class Merged:
    """A part of the merged cells."""

    lane: int
    cells: Cells
    entries_in: int
    """Cells read for it; of parts that were merged together, the first counts all."""
    dropped: Dropped
    """Dropped cells that no newer cell of their key or map replaces; counted in the same way."""


class MergeInput:
    """A run to be merged: yields its cells from lower to higher addresses, part by part."""

    def __init__(self, parts: Iterator[tuple[int, Cells]], lane: int = 0) -> None:
        """``parts`` yields, with each part, the lowest address that a later part may hold.

        All cells of one address are in one part. A part may be empty; an empty first part gives
        the run's lowest address without reading the run. The address that comes with the last part
        does not matter. Runs of different lanes hold values of different types, which are never
        joined.
        """
        self.lane: Final = lane
        self._parts: Final = parts
        self._held: list[Cells] = []
        self.next: int | None = 0
        """Lowest address that cells not yet held may have; ``None`` when all are held."""

    def advance(self) -> None:
        """Read one more part."""
        found = next(self._parts, None)
        if found is None:
            self.next = None
            return
        self.next, cells = found
        if len(cells):
            self._held.append(cells)

    def before(self, bound: int | None) -> list[Cells]:
        """Remove and return the held cells whose address is below ``bound``."""
        if bound is None:
            taken, self._held = self._held, []
            return taken
        taken, kept = [], []
        for cells in self._held:
            stop = int(np.searchsorted(cells.addresses, np.array([bound], np.uint64)[0], "left"))
            taken.append(cells.slice(0, stop))
            kept.append(cells.slice(stop, len(cells)))
        self._held = [cells for cells in kept if len(cells)]
        return [cells for cells in taken if len(cells)]


def merge(runs: Sequence[MergeInput], rules: Rules) -> Iterator[Merged]:
    """Merge runs, oldest first, into cells sorted by (address, key bytes).

    Yields every key at most once in each lane. Only a list may be in several lanes: its parts in
    higher lanes are appended to those in lower lanes.
    """
    clears = _Clears()
    while _bound(runs) is not None:
        # Read as many parts as there are runs, so that a window is worth its fixed cost. The run
        # that is furthest behind reads first each time, so none gets far ahead.
        for _ in runs:
            if (behind := _bound(runs)) is not None:
                next(run for run in runs if run.next == behind).advance()
        yield from _merge_window(runs, _bound(runs), rules, clears)


def _bound(runs: Sequence[MergeInput]) -> int | None:
    """Return the lowest address whose cells some run does not hold completely."""
    return min((run.next for run in runs if run.next is not None), default=None)


def _merge_window(
    runs: Sequence[MergeInput], bound: int | None, rules: Rules, clears: _Clears
) -> Iterator[Merged]:
    of_runs = [run.before(bound) for run in runs]
    parts = [cells for of_run in of_runs for cells in of_run]
    if not parts:
        return
    counts = [sum(map(len, of_run)) for of_run in of_runs]
    window = _Window(Cells.concat(parts), np.repeat(np.arange(len(runs)), counts))
    lanes = np.array([run.lane for run in runs])
    entries_in = sum(counts)
    window.keep(clears.alive(window, bound))
    cells, lane, dropped = window.folded(lanes[window.ranks], rules)
    for one in sorted(set(lanes.tolist())):
        chosen = cells if (lane == one).all() else cells.take(np.flatnonzero(lane == one))
        yield Merged(one, chosen, entries_in, dropped)
        entries_in, dropped = 0, Dropped()
    if entries_in:
        yield Merged(runs[0].lane, cells, entries_in, dropped)


class _Window:
    """All cells of some addresses, in order, and the selection that is kept."""

    def __init__(self, cells: Cells, ranks: Positions) -> None:
        self._cells: Final = cells
        order, same = order_of(cells.addresses, cells.keys)
        firsts = np.concatenate(([True], ~same))
        lasts = np.concatenate((~same, [True]))
        kinds = cells.kinds[order]
        stays = _down_to_base(kinds, firsts, lasts) if (kinds == CellKind.APPEND).any() else lasts
        self._order = order[stays]
        self.kinds: U8 = kinds[stays]
        self.ranks: Positions = ranks[self._order]
        self.starts: Mask = _first_kept(firsts, stays)
        """Marks the kept cells that are the first of their key."""

    @property
    def addresses(self) -> U64:
        found: U64 = self._cells.addresses[self._order]
        return found

    def keys_at(self, positions: npt.NDArray[np.int64]) -> pa.Array:
        return taken(self._cells.keys, self._order[positions])

    def keep(self, stays: Mask | None) -> None:
        """Keep only the marked cells; for maps, whose keys have one cell each."""
        if stays is not None:
            self._order, self.kinds = self._order[stays], self.kinds[stays]
            self.ranks, self.starts = self.ranks[stays], self.starts[stays]

    def folded(self, lanes: Positions, rules: Rules) -> tuple[Cells, Positions, Dropped]:
        """Return the resulting cells, the lane of each, and counts of dropped ones by cause."""
        heads = self.starts.copy()
        heads[1:] |= lanes[1:] != lanes[:-1]
        cells = self._cells.take(self._order)
        if not heads.all():
            cells, lanes = _folded(cells, heads), lanes[heads]
        kinds = cells.kinds.copy()
        if rules.bottom:
            kinds[(kinds == CellKind.APPEND) & self.starts[heads]] = CellKind.PUT
        cells = attrs.evolve(cells, kinds=kinds)
        stays = _needed(cells, rules)
        deleted = gone = len(cells) - int(stays.sum())
        aged = 0
        if rules.deadline is not None:
            until = _untils(rules.deadline, len(cells))
            old = expired(cells, until, stamped_lists=rules.stamped_lists)
            if aged := int(old.sum()):
                cells = _without(cells, old, until, stamped_lists=rules.stamped_lists)
                stays = _needed(cells, rules)
                gone = len(cells) - int(stays.sum())
        dropped = Dropped(deleted=deleted, expired=gone - deleted, aged=aged)
        if stays.all():
            return cells, lanes, dropped
        return cells.take(np.flatnonzero(stays)), lanes[stays], dropped


def _needed(cells: Cells, rules: Rules) -> Mask:
    """Mark the cells that have an effect for readers of the result."""
    answer: Mask = ~((cells.kinds == CellKind.APPEND) & _empty(cells.values))
    if rules.bottom:
        answer &= (cells.kinds != CellKind.DELETE) & (cells.kinds != CellKind.CLEAR)
    return answer


def _down_to_base(kinds: U8, firsts: Mask, lasts: Mask) -> Mask:
    """Mark, for each key, its newest cell that is not an append and all after it, or else all."""
    positions = np.arange(len(kinds))
    bases = np.maximum.accumulate(np.where(kinds == CellKind.APPEND, -1, positions))
    begin = np.maximum(bases[lasts], np.flatnonzero(firsts))
    answer: Mask = positions >= begin[np.cumsum(firsts) - 1]
    return answer


def _first_kept(firsts: Mask, stays: Mask) -> Mask:
    """Mark the positions, among those kept, that are the first of their key."""
    keys = (np.cumsum(firsts))[stays]
    return np.concatenate(([True], keys[1:] != keys[:-1])) if len(keys) else keys.astype(np.bool_)


def _folded(cells: Cells, heads: Mask) -> Cells:
    """Join each head's value with the values of the cells that follow it, oldest first."""
    at = np.flatnonzero(heads)
    ends = np.append(at[1:], len(cells))
    blobs = Blobs.of(cells.values)
    offsets = blobs.offsets[np.append(at, len(cells))]
    values = binary_from(offsets, cells.values.buffers()[2] or pa.py_buffer(b""))
    kinds = cells.kinds[at]
    kinds[(ends - at > 1) & (kinds == CellKind.DELETE)] = CellKind.PUT
    times = None if cells.times is None else np.maximum.reduceat(cells.times, at)
    return Cells(cells.addresses[at], kinds, times, taken(cells.keys, at), values)


def expired(cells: Cells, until: I64, *, stamped_lists: bool) -> Mask:
    """Mark the cells with content as old as their item in ``until``, or older."""
    if stamped_lists:
        return Stamps.of(cells.values).expired(until)
    assert cells.times is not None
    answer: Mask = (cells.kinds == CellKind.PUT) & (cells.times <= until)
    return answer


def _untils(deadline: Deadline, count: int) -> I64:
    """Return, for each of the next ``count`` cells, the time up to which content has expired."""
    steps = np.array([*deadline.steps(count)], np.int64).reshape(-1, 2)
    return np.repeat(steps[:, 1], steps[:, 0])


def _without(cells: Cells, old: Mask, until: I64, *, stamped_lists: bool) -> Cells:
    """Turn expired cells into tombstones, and remove expired elements from lists."""
    kept, gone = [b""] * int(old.sum()), old & (cells.kinds == CellKind.PUT)
    if stamped_lists:
        found = taken(cells.values, np.flatnonzero(old)).to_pylist()
        kept = [without_expired(*one) for one in zip(found, until[old].tolist(), strict=True)]
    values = _replaced(cells.values, old, kept)
    if stamped_lists:
        gone &= _empty(values)
    kinds = np.where(gone, np.uint8(CellKind.DELETE), cells.kinds)
    return attrs.evolve(cells, kinds=kinds, values=values)


def _replaced(values: pa.Array, which: Mask, by: Sequence[bytes]) -> pa.Array:
    return compute().replace_with_mask(joined([values]), flag_array(which), binary_array(by))


def _empty(values: pa.Array) -> Mask:
    offsets = Blobs.of(values).offsets
    answer: Mask = offsets[1:] == offsets[:-1]
    return answer


class _Clears:
    """The cleared maps at the addresses that are being merged."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[int, int]] = {}
        """Prefix → address bits of the map and rank of the newest run that clears it."""

    def alive(self, window: _Window, bound: int | None) -> Mask | None:
        """Mark the cells that no newer clear has removed; return ``None`` for all.

        A clear is sorted before the entries of its map, so it is known when they arrive.
        """
        clears = np.flatnonzero(window.kinds == CellKind.CLEAR)
        if not len(clears) and not self._found:
            return None
        maps = window.addresses >> _MAP_PREFIX_SHIFT
        for at, prefix in zip(clears.tolist(), window.keys_at(clears).to_pylist(), strict=True):
            self._found[prefix] = int(maps[at]), int(window.ranks[at])
        answer = np.ones(len(maps), np.bool_)
        for prefix, (bits, rank) in self._found.items():
            start, stop = np.searchsorted(maps, np.array([bits, bits + 1], np.uint64)).tolist()
            older = start + np.flatnonzero(window.ranks[start:stop] < rank)
            theirs = compute().starts_with(window.keys_at(older), pattern=prefix)
            answer[older[flags_of(theirs)]] = False
        last = None if bound is None else bound >> int(_MAP_PREFIX_SHIFT)
        self._found = {p: f for p, f in self._found.items() if last is not None and f[0] >= last}
        return answer
