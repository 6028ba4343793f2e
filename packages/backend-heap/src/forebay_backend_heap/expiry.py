"""What has expired: found among cells in memory, and left out of deltas that are folded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from forebay_state_api.backend import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)
from forebay_state_api.compaction import running_clock

NEVER: Final = 1 << 62
"""Later than every time."""

Places = Collection[tuple[Any, int]]
"""Keys with their key groups."""


def expired_in(
    shape: Shape, namespace: Any, cells: dict[Any, Any], places: Places, until_us: int
) -> tuple[Changes, int]:
    """Remove what is of ``until_us`` or older; what that changed, and the oldest time that stays.

    `NEVER` stays if nothing does.
    """
    if shape is Shape.LIST:
        return _in_lists(namespace, cells, places, until_us)
    if shape is Shape.MAP:
        return _in_maps(namespace, cells, places, until_us)
    get, oldest_us = cells.get, NEVER
    gone: dict[Any, int] = {}
    for key, group in places:
        if (cell := get(key)) is None:
            continue
        time_us = cell[0]
        if time_us <= until_us:
            gone[key] = group
        elif time_us < oldest_us:
            oldest_us = time_us
    if not gone:
        return Changes(), oldest_us
    for key in gone:
        del cells[key]
    points = PointChanges([*gone], [*gone.values()], [ABSENT] * len(gone))
    return Changes(points={namespace: points}), oldest_us


def _in_lists(
    namespace: Any, cells: dict[Any, Any], places: Places, until_us: int
) -> tuple[Changes, int]:
    changes: dict[Any, ListChange] = {}
    oldest_us = NEVER
    for key, group in places:
        elements = cells.get(key, ())
        live = [element for element in elements if element[0] > until_us]
        oldest_us = min([oldest_us, *(element[0] for element in live)])
        if len(live) == len(elements):
            continue
        changes[key] = ListChange(group, replaced=True, elements=list(live))
        if live:
            cells[key] = live
        else:
            del cells[key]
    return Changes(lists={namespace: changes} if changes else {}), oldest_us


def _in_maps(
    namespace: Any, cells: dict[Any, Any], places: Places, until_us: int
) -> tuple[Changes, int]:
    changes: dict[Any, MapChange] = {}
    oldest_us = NEVER
    for key, group in places:
        entries = cells.get(key)
        if entries is None:
            continue
        gone = [a for a, entry in entries.items() if entry[0] <= until_us]
        for address in gone:
            del entries[address]
        oldest_us = min([oldest_us, *(entry[0] for entry in entries.values())])
        if gone:
            changes[key] = MapChange(group, entries=dict.fromkeys(gone, ABSENT))
        if not entries:
            del cells[key]
    return Changes(maps={namespace: changes} if changes else {}), oldest_us


class Walk:
    """What the sweeps of one table know: whether anything can have expired at all.

    Times are told as cells are read from files, or written to them. They can only be too old, for
    cells are renewed and removed; a walk along all cells finds how old the oldest really is.
    """

    def __init__(self) -> None:
        """There are no cells yet."""
        self._oldest_us = NEVER
        """No cell is older."""
        self._seen_us = NEVER
        """No cell is older that this walk has seen, or that was written during it."""

    def is_clean(self, until_us: int) -> bool:
        """Whether nothing is of ``until_us`` or older."""
        return until_us < self._oldest_us

    def wrote(self, oldest_us: int) -> None:
        """There are new contents, and none is older."""
        self._oldest_us = min(self._oldest_us, oldest_us)
        self.saw(oldest_us)

    def wrote_all(self, oldest_us: int) -> None:
        """No content of the whole table is older."""
        self._oldest_us = oldest_us
        self.saw(oldest_us)

    def saw(self, oldest_us: int) -> None:
        """The walk went along some cells, none of which is older."""
        self._seen_us = min(self._seen_us, oldest_us)

    def rewind(self) -> None:
        """The walk has ended, and the next one begins."""
        self._oldest_us, self._seen_us = self._seen_us, NEVER


class Deadline:
    """Tells until when what comes would have expired; of a fold that may read the clock again."""

    def __init__(
        self,
        ttl_us: int,
        now_us: int,
        every: int | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """``now_us`` counts for the first ``every`` cells; then ``clock`` is read, and so on.

        If not given, it goes on from ``now_us``.
        """
        self._ttl_us: Final = ttl_us
        self._now_us = now_us
        self._every: Final = every
        self._clock: Final = clock or running_clock(now_us)
        self._left = every or 0

    def __next__(self) -> int:
        """For one more cell."""
        if self._every is not None:
            if not self._left:
                self._now_us = max(self._now_us, self._clock())
                self._left = self._every
            self._left -= 1
        return self.until_us

    @property
    def until_us(self) -> int:
        """What is of this time, or older, has expired."""
        return self._now_us - self._ttl_us


def without_expired(changes: Changes, deadline: Deadline) -> tuple[Changes, dict[Any, int]]:
    """``changes`` of a delta without what has expired, which older files may hold too.

    Also the keys, with their key groups, of the cells that had something of it.
    """
    found: dict[Any, int] = {}
    points = {n: _live_points(one, deadline, found) for n, one in changes.points.items()}
    lists = {n: dict(_live_lists(of, deadline, found)) for n, of in changes.lists.items()}
    maps = {n: dict(_live_maps(of, deadline, found)) for n, of in changes.maps.items()}
    return Changes(points=points, lists=lists, maps=maps), found


def _live_points(points: PointChanges, deadline: Deadline, found: dict[Any, int]) -> PointChanges:
    values: list[Any] = []
    for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
        if value is not ABSENT and value[0] <= next(deadline):
            found[key] = group
            values.append(ABSENT)
        else:
            values.append(value)
    return PointChanges(points.keys, points.groups, values)


def _live_lists(
    lists: Mapping[Any, ListChange], deadline: Deadline, found: dict[Any, int]
) -> Iterator[tuple[Any, ListChange]]:
    for key, change in lists.items():
        until_us = next(deadline)
        live = [element for element in change.elements if element[0] > until_us]
        if len(live) < len(change.elements):
            found[key] = change.group
        yield key, ListChange(change.group, change.replaced, live)


def _live_maps(
    maps: Mapping[Any, MapChange], deadline: Deadline, found: dict[Any, int]
) -> Iterator[tuple[Any, MapChange]]:
    for key, change in maps.items():
        until_us = next(deadline)
        entries = {
            address: ABSENT if entry is ABSENT or entry[0] <= until_us else entry
            for address, entry in change.entries.items()
        }
        if entries != change.entries:
            found[key] = change.group
        yield key, MapChange(change.group, change.cleared, entries)
