"""Finds expired content in memory, and leaves it out of deltas that are folded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final, TypeVar

from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Shape,
)
from forebay_state_api.contract.expiry import Deadline

_log = logging.getLogger(__name__)

T = TypeVar("T")

NEVER: Final = 1 << 62
"""Later than any time."""

GroupedKeys = Collection[tuple[Any, int]]
"""Keys with their key groups."""


def expired_in(
    shape: Shape, namespace: Any, cells: dict[Any, Any], keys: GroupedKeys, until_us: int
) -> tuple[Changes, int, int]:
    """Remove content whose time is ``until_us`` or older from the cells of some keys.

    Returns the changes made, the number of values, elements and entries that are gone, and the
    oldest time that remains; `NEVER` if nothing remains.
    """
    if shape is Shape.LIST:
        return _in_lists(namespace, cells, keys, until_us)
    if shape is Shape.MAP:
        return _in_maps(namespace, cells, keys, until_us)
    get, oldest_us = cells.get, NEVER
    gone: dict[Any, int] = {}
    for key, group in keys:
        if (cell := get(key)) is None:
            continue
        time_us = cell[0]
        if time_us <= until_us:
            gone[key] = group
        elif time_us < oldest_us:
            oldest_us = time_us
    if not gone:
        return Changes(), 0, oldest_us
    for key in gone:
        del cells[key]
    points = PointChanges([*gone], [*gone.values()], [ABSENT] * len(gone))
    return Changes(points={namespace: points}), len(gone), oldest_us


def _in_lists(
    namespace: Any, cells: dict[Any, Any], keys: GroupedKeys, until_us: int
) -> tuple[Changes, int, int]:
    changes: dict[Any, ListChange] = {}
    removed, oldest_us = 0, NEVER
    for key, group in keys:
        elements = cells.get(key, ())
        live = [element for element in elements if element[0] > until_us]
        oldest_us = min([oldest_us, *(element[0] for element in live)])
        if len(live) == len(elements):
            continue
        removed += len(elements) - len(live)
        changes[key] = ListChange(group, replaced=True, elements=list(live))
        if live:
            cells[key] = live
        else:
            del cells[key]
    return Changes(lists={namespace: changes} if changes else {}), removed, oldest_us


def _in_maps(
    namespace: Any, cells: dict[Any, Any], keys: GroupedKeys, until_us: int
) -> tuple[Changes, int, int]:
    changes: dict[Any, MapChange] = {}
    removed, oldest_us = 0, NEVER
    for key, group in keys:
        entries = cells.get(key)
        if entries is None:
            continue
        gone = [a for a, entry in entries.items() if entry[0] <= until_us]
        for address in gone:
            del entries[address]
        oldest_us = min([oldest_us, *(entry[0] for entry in entries.values())])
        if gone:
            removed += len(gone)
            changes[key] = MapChange(group, entries=dict.fromkeys(gone, ABSENT))
        if not entries:
            del cells[key]
    return Changes(maps={namespace: changes} if changes else {}), removed, oldest_us


def log_dropped(cells: int, spec: TableSpec, groups: KeyGroupRange) -> None:
    """Log that a fold or a snapshot has dropped expired content of some cells."""
    _log.debug(
        "ttl: a fold or snapshot dropped expired parts of %d cells of state %r, groups %s",
        cells,
        spec.name,
        groups,
    )


class Walk:
    """Lets sweeps of one table skip it while nothing in it can have expired.

    Learns times as cells are read from files or written to them. These times can only be too old,
    because cells are renewed and removed. A walk over all cells finds the true oldest time.
    """

    def __init__(self) -> None:
        """Begin with an empty table."""
        self._oldest_us = NEVER
        """Lower bound of the times of all cells."""
        self._seen_us = NEVER
        """Lower bound of the times that this walk has seen, or that were written during it."""

    def is_clean(self, until_us: int) -> bool:
        """Return whether nothing can have a time of ``until_us`` or older."""
        return until_us < self._oldest_us

    def wrote(self, oldest_us: int) -> None:
        """Record that contents were written, none older than ``oldest_us``."""
        self._oldest_us = min(self._oldest_us, oldest_us)
        self.saw(oldest_us)

    def wrote_all(self, oldest_us: int) -> None:
        """Record that no content of the whole table is older than ``oldest_us``."""
        self._oldest_us = oldest_us
        self.saw(oldest_us)

    def saw(self, oldest_us: int) -> None:
        """Record that the walk passed some cells, none older than ``oldest_us``."""
        self._seen_us = min(self._seen_us, oldest_us)

    def rewind(self) -> None:
        """End this walk and begin the next one."""
        self._oldest_us, self._seen_us = self._seen_us, NEVER


def without_expired(changes: Changes, deadline: Deadline) -> tuple[Changes, dict[Any, int]]:
    """Return a delta's ``changes`` without expired content, which older files may hold too.

    Also returns the keys, with their key groups, of the cells that had expired content.
    """
    found: dict[Any, int] = {}
    points = {n: _live_points(one, deadline, found) for n, one in changes.points.items()}
    lists = {n: dict(_live_lists(of, deadline, found)) for n, of in changes.lists.items()}
    maps = {n: dict(_live_maps(of, deadline, found)) for n, of in changes.maps.items()}
    return Changes(points=points, lists=lists, maps=maps), found


def _with_deadline(cells: Collection[T], deadline: Deadline) -> Iterable[tuple[T, int]]:
    """Pair each cell with the time up to which content is expired."""
    untils = (repeat(until_us, count) for count, until_us in deadline.steps(len(cells)))
    return zip(cells, chain.from_iterable(untils), strict=True)


def _live_points(points: PointChanges, deadline: Deadline, found: dict[Any, int]) -> PointChanges:
    values = [
        ABSENT if value is ABSENT or value[0] <= until_us else value
        for value, until_us in _with_deadline(points.values, deadline)
    ]
    rows = zip(points.keys, points.groups, points.values, values, strict=True)
    found.update((key, group) for key, group, value, live in rows if value is not live)
    return PointChanges(points.keys, points.groups, values)


def _live_lists(
    lists: Mapping[Any, ListChange], deadline: Deadline, found: dict[Any, int]
) -> Iterator[tuple[Any, ListChange]]:
    for (key, change), until_us in _with_deadline(lists.items(), deadline):
        live = [element for element in change.elements if element[0] > until_us]
        if len(live) < len(change.elements):
            found[key] = change.group
        yield key, ListChange(change.group, change.replaced, live)


def _live_maps(
    maps: Mapping[Any, MapChange], deadline: Deadline, found: dict[Any, int]
) -> Iterator[tuple[Any, MapChange]]:
    for (key, change), until_us in _with_deadline(maps.items(), deadline):
        entries = change.entries.items()
        gone = [a for a, entry in entries if entry is not ABSENT and entry[0] <= until_us]
        if gone:
            found[key] = change.group
        live = {**change.entries, **dict.fromkeys(gone, ABSENT)}
        yield key, MapChange(change.group, change.cleared, live)
