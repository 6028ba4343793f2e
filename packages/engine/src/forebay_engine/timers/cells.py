"""Store timers: a map for each minute or so of a key group, and a directory of these maps.

A *leaf* is a span of 2^26 µs (67 s). Its timers in one key group are one map in the table of
timers, from (time, key, packed namespace) to ``True``; registering and deleting read nothing. A
second table lists the existing leaves: under its root a key group has a list of *tops*, spans of
2^36 µs (19 h), and for each top a list of leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.timers.watermark import NEVER
from forebay_engine.versions.format.timer_tables import DIRECTORY, TIMERS
from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.wrapping_codecs import timer_codec
from forebay_state_api.contract.backend import Table, TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, MapChange, PointChanges, Shape

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from forebay_state_api.codecs import ValueCodec

LEAF_BITS: Final = 26
_TOP_BITS: Final = 10
"""The number of bits by which a leaf's number is longer than its top's."""
_ROOT: Final = 1 << 60
"""The number of the root, in place of a top's."""
_PAGE: Final = 1_000

LeafAddress = tuple[int, int, int]
"""Key group, number of the time domain, number of the leaf."""
Timer = tuple[int, Any, int, Any]
"""Time in µs, key, key group, address."""


def timer_specs(key_codec: ValueCodec) -> tuple[TableSpec, TableSpec]:
    """Return the specs of the tables of timers and of their directory."""
    cell = codec_for(tuple[int, int, int], what="a place of timers")
    timers = TableSpec(
        name=TIMERS,
        shape=Shape.MAP,
        kind="map",
        key=cell,
        value=codec_for(bool, what="a timer"),
        user_key=timer_codec(key_codec),
    )
    leaves = codec_for(list[int], what="numbers of leaves")
    return timers, TableSpec(
        name=DIRECTORY, shape=Shape.POINT, kind="value", key=cell, value=leaves
    )


class TimerCells:
    """The timers of one subtask, by leaf."""

    def __init__(self, table: Table, spec: TableSpec) -> None:
        assert spec.user_key is not None
        self._table = table
        self.address = spec.user_key.address
        """Function from (time, key, packed namespace) to its dictionary key."""
        self._original = spec.user_key.original
        space = table.space(None)
        self._complete = space.complete
        self._cells = space.cells
        self._dirty = space.dirty
        self.touched: set[LeafAddress] = set()
        """Leaves in which timers were registered in this micro-batch."""
        self._slots: dict[LeafAddress, tuple[dict[Any, Any], dict[Any, Any]]] = {}
        """Recently used leaves → the changes of the leaf, and its cell in memory."""
        self._before: dict[LeafAddress, int] = {}
        """Resident leaves that were registered in since the last hand-over → their timers then."""

    @property
    def held(self) -> int:
        """The number of changes that `hand_over` would release; 0 if the cells are resident."""
        if self._complete:
            return 0
        return sum(len(change.entries) for change in self._dirty.values())

    def put(self, cell: LeafAddress, entry: Any) -> None:
        """Store a timer, given by its address."""
        slot = self._slots.get(cell)
        if slot is None:
            slot = self._slots[cell] = self._slot(cell)
        slot[0][entry] = True
        slot[1][entry] = True

    def remove(self, cell: LeafAddress, entry: Any) -> None:
        """Remove a timer, if it exists."""
        if self._complete:
            entries = self._cells.get(cell)
            if entries is None or entries.pop(entry, None) is None:
                return
            if not entries:
                del self._cells[cell]
                self._slots.pop(cell, None)
        change = self._dirty.get(cell)
        if change is None:
            change = self._change(cell)
        change.entries[entry] = ABSENT

    def load(self, cells: Sequence[LeafAddress], executor: Callable[[], Executor]) -> list[Timer]:
        """Return all timers of some leaves in time order; ``executor`` provides threads."""
        if self._complete:
            found = [(cell, self._cells.get(cell, {})) for cell in cells]
        else:
            scans = [self._table.scan(None, cell[0], cell) for cell in cells]
            pages = executor().map(lambda scan: [*chain(*scan.pages(_PAGE))], scans)
            found = [(c, self._newest(c, stored)) for c, stored in zip(cells, pages, strict=True)]
        original = self._original
        timers: list[Timer] = []
        for (group, _, _), entries in found:
            if original is None:
                timers += [(entry[0], entry[1], group, entry) for entry in entries]
            else:
                timers += [(entry[0], original(entry)[1], group, entry) for entry in entries]
        timers.sort(key=itemgetter(0))
        return timers

    def clear(self, cell: LeafAddress) -> None:
        """Remove all timers of a leaf."""
        self._cells.pop(cell, None)
        self._slots.pop(cell, None)
        self._before.pop(cell, None)
        self._dirty[cell] = MapChange(cell[0], cleared=True)

    def take_touched(self, domain: int) -> list[LeafAddress]:
        """Return the touched leaves of a domain, and forget them."""
        found = [cell for cell in self.touched if cell[1] == domain]
        self.touched.difference_update(found)
        for cell in found:
            self._slots.pop(cell, None)
        return found

    def hand_over(self, open_keys: Collection[Any] = (), touched: int = 0) -> tuple[int, int]:
        """Pass the changes to the table, except those to timers of ``open_keys``.

        Return how many timers the changes add, and ``touched``, as `EngineTimers.hand_over` does.
        Unless the cells are resident, a timer that was stored already counts too: only a read would
        show that it is not new.
        """
        kept = self._taken_out(open_keys) if open_keys else ()
        added = self._growth() if self._complete else self._registered()
        if added > touched:
            touched = max(touched, self._keys())
        if self._dirty:
            self._table.apply(Changes(maps={None: dict(self._dirty)}))
            self._dirty.clear()
            self._slots.clear()
        for cell, entries in kept:
            self._change(cell).entries.update(entries)
        return added, touched

    def _growth(self) -> int:
        cells = self._cells
        grown = (len(cells.get(cell, ())) - before for cell, before in self._before.items())
        added = sum(number for number in grown if number > 0)
        self._before.clear()
        return added

    def _registered(self) -> int:
        return sum([*change.entries.values()].count(True) for change in self._dirty.values())

    def _keys(self) -> int:
        changes = self._dirty.values()
        # The second part of an address stands for the key.
        keys = {e[1] for change in changes for e, value in change.entries.items() if value is True}
        return len(keys)

    def _taken_out(self, keys: Collection[Any]) -> list[tuple[LeafAddress, dict[Any, Any]]]:
        """Remove the changes to timers of ``keys``; return them by leaf."""
        original = self._original
        kept = []
        for cell, change in self._dirty.items():
            entries = {
                entry: value
                for entry, value in change.entries.items()
                if (entry if original is None else original(entry))[1] in keys
            }
            for entry in entries:
                del change.entries[entry]
            if entries:
                kept.append((cell, entries))
        return kept

    def _newest(self, cell: LeafAddress, stored: Iterable[tuple[Any, Any]]) -> Iterable[Any]:
        change: MapChange | None = self._dirty.get(cell)
        if change is None:
            return [entry for entry, _ in stored]
        known = {} if change.cleared else dict(stored)
        return [e for e, value in (known | change.entries).items() if value is not ABSENT]

    def _slot(self, cell: LeafAddress) -> tuple[dict[Any, Any], dict[Any, Any]]:
        self.touched.add(cell)
        change = self._dirty.get(cell) or self._change(cell)
        if self._complete:
            entries = self._cells.setdefault(cell, {})
            self._before.setdefault(cell, len(entries))
            return change.entries, entries
        return change.entries, change.entries

    def _change(self, cell: LeafAddress) -> MapChange:
        change = self._dirty[cell] = MapChange(cell[0])
        return change


class Directory:
    """The leaves of one time domain that hold timers, in the key groups of one subtask."""

    def __init__(self, table: Table, domain: int, groups: Iterable[int]) -> None:
        self._table = table
        self._domain = domain
        self._groups = groups
        self._tops: dict[int, set[int]] = {}
        """Key group → its tops, as far as they were read."""
        self._leaves: dict[tuple[int, int], set[int]] = {}
        """(Key group, top) → its leaves, as far as they were read."""
        self._changed: set[tuple[int, int]] = set()

    def due(self, until_us: int) -> dict[int, list[int]]:
        """Return the leaves that begin at ``until_us`` or before, in order, with key groups."""
        self._load_tops(self._groups)
        last = until_us >> LEAF_BITS
        tops = [(g, top) for g in self._groups for top in self._tops[g] if top <= last >> _TOP_BITS]
        self._load_leaves(tops)
        found: dict[int, list[int]] = {}
        for group, top in tops:
            for leaf in self._leaves[group, top]:
                if leaf <= last:
                    found.setdefault(leaf, []).append(group)
        return dict(sorted(found.items()))

    def after(self, until_us: int) -> int:
        """Return a lower bound for the timers in leaves that `due` does not return."""
        last = until_us >> LEAF_BITS
        starts = [
            leaf
            for group, tops in self._tops.items()
            for top in tops
            for leaf in self._leaves.get((group, top), [top << _TOP_BITS])
            if leaf > last
        ]
        return min(starts) << LEAF_BITS if starts else NEVER

    def update(self, added: Iterable[tuple[int, int]], emptied: Iterable[tuple[int, int]]) -> None:
        """Add (key group, leaf) pairs that hold timers now, and remove others."""
        places = [*added]
        self._load_tops({group for group, _ in places})
        self._load_leaves({(group, leaf >> _TOP_BITS) for group, leaf in places})
        for group, leaf in emptied:
            self._change(group, leaf, there=False)
        for group, leaf in places:
            self._change(group, leaf, there=True)

    def changes(self) -> Iterator[tuple[LeafAddress, int, Any]]:
        """Yield the changed cells, with their groups and values."""
        for group, top in sorted(self._changed):
            members = self._tops[group] if top == _ROOT else self._leaves[group, top]
            yield (group, self._domain, top), group, sorted(members) or ABSENT
        self._changed.clear()

    def _change(self, group: int, leaf: int, *, there: bool) -> None:
        top = leaf >> _TOP_BITS
        leaves, tops = self._leaves.setdefault((group, top), set()), self._tops[group]
        if (leaf in leaves) == there:
            return
        self._changed.add((group, top))
        (leaves.add if there else leaves.discard)(leaf)
        if (top in tops) != bool(leaves):
            self._changed.add((group, _ROOT))
            (tops.add if leaves else tops.discard)(top)

    def _load_tops(self, groups: Iterable[int]) -> None:
        unknown = [group for group in groups if group not in self._tops]
        found = self._read([(group, _ROOT) for group in unknown])
        self._tops.update((group, tops) for (group, _), tops in found)

    def _load_leaves(self, places: Iterable[tuple[int, int]]) -> None:
        unknown = [place for place in places if place not in self._leaves]
        stored = [(group, top) for group, top in unknown if top in self._tops[group]]
        self._leaves.update((place, set()) for place in unknown)
        self._leaves.update(self._read(stored))

    def _read(
        self, places: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, int], set[int]]]:
        cells = [(group, (group, self._domain, top)) for group, top in places]
        answers = self._table.get_many(None, cells) if cells else []
        for place, answer in zip(places, answers, strict=True):
            yield place, set() if answer is ABSENT else set(answer)


def apply_directories(table: Table, directories: Iterable[Directory]) -> None:
    """Pass the changes to the table."""
    changes = [change for directory in directories for change in directory.changes()]
    if not changes:
        return
    space = table.space(None)
    if space.complete:
        for cell, _, value in changes:
            if value is ABSENT:
                space.cells.pop(cell, None)
            else:
                space.cells[cell] = value
    keys, groups, values = map(list, zip(*changes, strict=True))
    table.apply(Changes(points={None: PointChanges(keys, groups, values)}))
