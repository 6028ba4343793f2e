"""Rows of state: what one key and namespace holds, from a backend's exported cells."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, Shape

if TYPE_CHECKING:
    from forebay_state_processor.reading.stored_states import StateInfo


class _All(enum.Enum):
    ALL = "ALL"

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = _All.ALL
"""Stands for every namespace; ``None`` is the default namespace."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen(kw_only=True)
class StateRow:
    """The content of one state under one key and namespace."""

    key: Any
    """A value, or a tuple for several key columns."""
    namespace: Any
    """The namespace; ``None`` is the default one."""
    key_group: int
    value: Any
    """The value, the list of elements, or the dict of entries."""
    written: Any = None
    """With a TTL the time of last access, as an aware datetime: one, a list, or a dict by user key,
    as ``value`` is; otherwise ``None``."""


@attrs.frozen(kw_only=True)
class Timer:
    """One registered timer."""

    time: datetime
    domain: str
    """``event_time`` or ``processing_time``."""
    key: Any
    namespace: Any
    key_group: int


def time_of(us: int) -> datetime:
    """Return a time in µs since the epoch as an aware datetime."""
    return _EPOCH + timedelta(microseconds=us)


def us_of(at: datetime) -> int:
    """Return a time in µs since the epoch; one without a zone counts as UTC."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


@attrs.frozen
class Cell:
    """Exported content before its user keys and times are turned into what users see."""

    key: Any
    namespace: Any
    group: int
    content: Any
    """A value, a list of elements, or a dict by user key address; with TTL of ``(µs, value)``."""


def cells_of(changes: Changes) -> Iterator[Cell]:
    """Yield the cells of one item of `Table.export`."""
    for namespace, points in changes.points.items():
        for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
            yield Cell(key, namespace, group, value)
    for namespace, lists in changes.lists.items():
        for key, change in lists.items():
            yield Cell(key, namespace, change.group, change.elements)
    for namespace, maps in changes.maps.items():
        for key, entries in maps.items():
            yield Cell(key, namespace, entries.group, entries.entries)


class RowMaker:
    """Makes rows of one state from cells; what has expired is left out."""

    def __init__(self, state: StateInfo, expired_until: int | None) -> None:
        """``expired_until`` is the newest time in µs that has expired; ``None`` if nothing has."""
        self._until = expired_until if state.has_ttl else None
        self._shown: Final[Callable[[Any], tuple[Any, Any]]] = {
            Shape.POINT: self._point,
            Shape.LIST: self._list,
            Shape.MAP: self._map,
        }[state.shape]
        self._ttl: Final = state.has_ttl
        self._sorted: Final = state.spec.ordered
        self._original: Final = original_of(state.spec)

    def rows(self, changes: Changes) -> Iterator[StateRow]:
        """Yield the rows of one item of `Table.export`."""
        for cell in cells_of(changes):
            row = self.row(cell)
            if row is not None:
                yield row

    def row(self, cell: Cell) -> StateRow | None:
        """Return a cell's row; ``None`` if there is no content, or all of it has expired."""
        value, written = self._shown(cell.content)
        if value is ABSENT:
            return None
        return StateRow(
            key=cell.key,
            namespace=cell.namespace,
            key_group=cell.group,
            value=value,
            written=written,
        )

    def _lives(self, stored: Any) -> bool:
        return self._until is None or stored[0] > self._until

    def _point(self, stored: Any) -> tuple[Any, Any]:
        if stored is ABSENT or not self._ttl:
            return stored, None
        return (stored[1], time_of(stored[0])) if self._lives(stored) else (ABSENT, None)

    def _list(self, elements: Any) -> tuple[Any, Any]:
        if not self._ttl:
            return (list(elements) or ABSENT), None
        live = [one for one in elements if self._lives(one)]
        return ([value for _, value in live] or ABSENT), [time_of(us) for us, _ in live]

    def _map(self, entries: Any) -> tuple[Any, Any]:
        original = self._original
        if self._sorted:  # backends need not export entries in the order of their addresses
            entries = dict(sorted(entries.items()))
        if not self._ttl:
            return (
                {original(address): value for address, value in entries.items()} or ABSENT
            ), None
        live = {original(one): stored for one, stored in entries.items() if self._lives(stored)}
        times = {user_key: time_of(us) for user_key, (us, _) in live.items()}
        return ({user_key: value for user_key, (_, value) in live.items()} or ABSENT), times


def original_of(spec: TableSpec) -> Callable[[Any], Any]:
    """Return the function from the address of a user key to the user key."""
    if spec.user_key is None or spec.user_key.original is None:
        return lambda address: address
    return spec.user_key.original
