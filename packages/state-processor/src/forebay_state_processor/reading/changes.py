"""Changes: the rows that turn one version's content of a state into another one's.

A value that was written gives one ``put``; in a map each entry does. Elements that were added at
the end of a list give ``appended``, any other new content ``replaced``. Content that is gone gives
``removed``, for a list ``cleared``. Content has expired or not by the time of each version's
batch, whenever a backend drops it; a new time of last access is a change, too.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.changes import Shape

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_processor.reading.rows import StateRow

_EXACT: Final = frozenset(
    {"none", "bool", "int", "str", "bytes", "date", "time", "timedelta", "uuid", "enum", "codec"}
)
"""Types whose values are equal only if they are the same."""


class Operation(enum.StrEnum):
    """The kind of a `Change`."""

    PUT = "put"
    """A value, or an entry of a map, is new or has changed."""
    REMOVED = "removed"
    """A value, or an entry of a map, was removed."""
    APPENDED = "appended"
    """``value`` has the elements that were appended to a list."""
    REPLACED = "replaced"
    """``value`` has all elements of a list."""
    CLEARED = "cleared"
    """All elements of a list were removed."""


@attrs.frozen(kw_only=True)
class Change:
    """One row of the difference between two versions of a state."""

    operation: Operation
    key: Any
    """A value, or a tuple for several key columns."""
    namespace: Any
    """The namespace; ``None`` is the default one."""
    key_group: int
    user_key: Any = None
    """The key of a map's entry."""
    value: Any = None
    """The new value, or elements of a list; ``None`` if content was removed."""
    written: Any = None
    """With a TTL the time of last access of ``value``, for lists a list of them."""
    old: Any = None
    """The value, or all elements of a list, in the older version; ``None`` if there was none."""


class Comparison:
    """Finds the changes of one state under one key and namespace."""

    def __init__(self, shape: Shape, older: ValueCodec, newer: ValueCodec) -> None:
        """``older`` and ``newer`` are the codecs of the values in either version."""
        self.same: Final = _same(older, newer)
        """Whether a value of the older version and one of the newer are the same."""
        self._found: Final[Callable[[StateRow | None, StateRow | None], Iterator[Change]]] = {
            Shape.POINT: self._point,
            Shape.LIST: self._list,
            Shape.MAP: self._map,
        }[shape]

    def changes(self, older: StateRow | None, newer: StateRow | None) -> Iterator[Change]:
        """Yield the changes from one row to another, where ``None`` stands for absent content."""
        return self._found(older, newer)

    def _point(self, older: StateRow | None, newer: StateRow | None) -> Iterator[Change]:
        if newer is None:
            if older is not None:
                yield _change(older, Operation.REMOVED, old=older.value)
        elif older is None:
            yield _change(newer, Operation.PUT, value=newer.value, written=newer.written)
        elif older.written != newer.written or not self.same(older.value, newer.value):
            yield _change(
                newer, Operation.PUT, value=newer.value, written=newer.written, old=older.value
            )

    def _list(self, older: StateRow | None, newer: StateRow | None) -> Iterator[Change]:
        if newer is None:
            if older is not None:
                yield _change(older, Operation.CLEARED, old=older.value)
        elif older is None:
            yield _change(newer, Operation.APPENDED, value=newer.value, written=newer.written)
        elif self._begins_with(older, newer):
            kept = len(older.value)
            if len(newer.value) > kept:
                times = None if newer.written is None else newer.written[kept:]
                added = newer.value[kept:]
                yield _change(
                    newer, Operation.APPENDED, value=added, written=times, old=older.value
                )
        else:
            yield _change(
                newer, Operation.REPLACED, value=newer.value, written=newer.written, old=older.value
            )

    def _begins_with(self, older: StateRow, newer: StateRow) -> bool:
        """Return whether a list still has its older elements, in front."""
        kept = len(older.value)
        if len(newer.value) < kept:
            return False
        times = None if newer.written is None else newer.written[:kept]
        return older.written == times and all(map(self.same, older.value, newer.value))

    def _map(self, older: StateRow | None, newer: StateRow | None) -> Iterator[Change]:
        before = {} if older is None else older.value
        if newer is not None:
            for user_key, value in newer.value.items():
                old = before.get(user_key, _NOTHING)
                if old is _NOTHING or not self._same_entry(older, newer, user_key):
                    yield _change(
                        newer,
                        Operation.PUT,
                        user_key=user_key,
                        value=value,
                        written=None if newer.written is None else newer.written[user_key],
                        old=None if old is _NOTHING else old,
                    )
        if older is not None:
            after = {} if newer is None else newer.value
            for user_key, value in before.items():
                if user_key not in after:
                    yield _change(older, Operation.REMOVED, user_key=user_key, old=value)

    def _same_entry(self, older: StateRow | None, newer: StateRow, user_key: Any) -> bool:
        assert older is not None
        times = [None if row.written is None else row.written[user_key] for row in (older, newer)]
        return times[0] == times[1] and self.same(older.value[user_key], newer.value[user_key])


_NOTHING: Final = object()


def _change(row: StateRow, operation: Operation, **fields: Any) -> Change:
    return Change(
        operation=operation,
        key=row.key,
        namespace=row.namespace,
        key_group=row.key_group,
        **fields,
    )


def _same(older: ValueCodec, newer: ValueCodec) -> Callable[[Any, Any], bool]:
    """Return whether two values are stored as the same bytes: ``1`` and ``True`` are not."""
    if older.description == newer.description and newer.description["type"] in _EXACT:
        return operator.eq
    return lambda one, other: one is other or older.pack_one(one) == newer.pack_one(other)
