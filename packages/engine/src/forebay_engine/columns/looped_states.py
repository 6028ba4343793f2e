"""Lists and maps of a batch function: loops over keys or rows, by the code of functions of one row.

Each item costs a call of Python, as in a function of one row. The state objects keep the writes, so
a failed call is undone by the journal, and `Engine.hand_over` passes them to the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay_engine.columns.base import BatchState
from forebay_engine.columns.values import ARROW, OBJECT, read_only_objects
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.errors import ColumnValueError

if TYPE_CHECKING:
    from forebay_engine.columns.groups import Groups
    from forebay_engine.execution.declared_state import DeclaredState
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.codecs import ValueCodec


class LoopedState(BatchState):
    """A state whose every access is a loop."""

    def __init__(self, state: DeclaredState, host: StateHost, call: Callable[[], Any]) -> None:
        super().__init__(state, host, call)
        self._keyed: Any = state.state
        """The state object of functions of one row."""
        self._value_type = _type_of(state.spec.value)

    def bind(self, namespace: Any) -> None:
        self._keyed.bind(namespace)

    def clear_many(self, groups: Groups, *, where: Any = None) -> None:
        """Remove the content of keys.

        :param groups: ``ctx.groups``.
        :param where: a mask of keys or rows; default: all keys.
        """
        self._access.loop(groups, "clear_many", self._keyed.clear, where=where)

    def _array(self, values: list[Any], kind: pa.DataType | None) -> Any:
        """Return values as an array of Arrow, or of objects if ``kind`` is ``None``."""
        if kind is None:
            return read_only_objects(values)
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise ColumnValueError(
                f"{self._what} has a value that is no {kind}: {error}; a function of one row wrote "
                "it, and can read and replace it"
            ) from error


class BatchListState(LoopedState):
    """A list for each key, as `ListState` has it."""

    def get_many(self, groups: Groups) -> Any:
        """Return the list of each key, which is empty without any element.

        :param groups: ``ctx.groups``.

        Elements of scalar types make an Arrow array of lists, others an array of Python lists.
        """
        lists = self._access.loop(groups, "get_many", self._keyed.get)
        return self._array(lists, self._value_type and pa.list_(self._value_type))

    def contains_many(self, groups: Groups) -> pa.Array:
        """Return, for each key, whether its list has an element."""
        return pa.array(
            self._access.loop(groups, "contains_many", lambda: bool(self._keyed.get())), pa.bool_()
        )

    def add_many(self, groups: Groups, values: Any, *, where: Any = None) -> None:
        """Append a value of each row to the list of the row's key, in the order of the rows.

        :param groups: ``ctx.groups``.
        :param values: a value for each row or for each key, or one for all keys; null adds nothing.
        :param where: a mask of keys or rows; default: all.
        """
        add = self._keyed.add
        self._access.loop(
            groups,
            "add_many",
            lambda value: None if value is None else add(value),
            values,
            where=where,
        )

    def put_many(self, groups: Groups, lists: Any, *, where: Any = None) -> None:
        """Replace the list of each key.

        :param groups: ``ctx.groups``.
        :param lists: a list for each key, as `get_many` returns them; null is refused.
        :param where: a mask of keys or rows; default: all keys.
        """
        self._access.loop(groups, "put_many", self._keyed.update, lists, where=where)

    def merge_namespaces_many(
        self, groups: Groups, target: Any, sources: Iterable[Any], *, where: Any = None
    ) -> None:
        """Move the elements of namespaces to another one, for each key.

        :param groups: ``ctx.groups``.
        :param target: the namespace that gets the elements after its own.
        :param sources: the namespaces that are emptied.
        :param where: a mask of keys or rows; default: all keys.
        """
        merged = [*sources]
        self._access.loop(
            groups,
            "merge_namespaces_many",
            lambda: self._keyed.merge_namespaces(target, merged),
            where=where,
        )


class BatchMapState(LoopedState):
    """A map for each key, as `MapState` has it.

    User keys and values have one for each row, or one for each key, or are one for all keys;
    results are for rows or for keys accordingly.
    """

    def __init__(self, state: DeclaredState, host: StateHost, call: Callable[[], Any]) -> None:
        super().__init__(state, host, call)
        assert state.spec.user_key is not None  # a map's spec has one
        self._key_type = _type_of(state.spec.user_key)

    def get_many(self, groups: Groups, keys: Any) -> Any:
        """Return values of entries; null without an entry.

        :param groups: ``ctx.groups``.
        :param keys: the user keys.
        """
        found = self._access.loop(groups, "get_many", self._keyed.get, keys)
        return self._array(found, self._value_type)

    def contains_many(self, groups: Groups, keys: Any) -> pa.Array:
        """Return whether there are entries.

        :param groups: ``ctx.groups``.
        :param keys: the user keys.
        """
        found = self._access.loop(groups, "contains_many", self._keyed.contains, keys)
        return pa.array(found, pa.bool_())

    def put_many(self, groups: Groups, keys: Any, values: Any, *, where: Any = None) -> None:
        """Set entries, in the order of the rows.

        :param groups: ``ctx.groups``.
        :param keys: the user keys; null is refused.
        :param values: the values, which may be null.
        :param where: a mask of keys or rows; default: all.
        """
        self._access.loop(groups, "put_many", self._keyed.put, keys, values, where=where)

    def remove_many(self, groups: Groups, keys: Any, *, where: Any = None) -> None:
        """Remove entries, if they exist.

        :param groups: ``ctx.groups``.
        :param keys: the user keys.
        :param where: a mask of keys or rows; default: all.
        """
        self._access.loop(groups, "remove_many", self._keyed.remove, keys, where=where)

    def items_many(self, groups: Groups) -> Any:
        """Return the entries of each key: an Arrow array of maps, or an array of dicts.

        :param groups: ``ctx.groups``.
        """
        return self._maps(self._access.loop(groups, "items_many", self._keyed.items))

    def keys_many(self, groups: Groups) -> Any:
        """Return the user keys of each key, as lists.

        :param groups: ``ctx.groups``.
        """
        found = self._access.loop(groups, "keys_many", self._keyed.keys)
        return self._array(found, self._key_type and pa.list_(self._key_type))

    def values_many(self, groups: Groups) -> Any:
        """Return the values of each key, as lists.

        :param groups: ``ctx.groups``.
        """
        found = self._access.loop(groups, "values_many", self._keyed.values)
        return self._array(found, self._value_type and pa.list_(self._value_type))

    def is_empty_many(self, groups: Groups) -> pa.Array:
        """Return, for each key, whether it has no entry.

        :param groups: ``ctx.groups``.
        """
        found = self._access.loop(groups, "is_empty_many", self._keyed.is_empty)
        return pa.array(found, pa.bool_())

    def _maps(self, found: list[list[tuple[Any, Any]]]) -> Any:
        if self._key_type is None or self._value_type is None:
            return read_only_objects([*map(dict, found)])
        return self._array(found, pa.map_(self._key_type, self._value_type))


class BatchSortedMapState(BatchMapState):
    """A map in the order of its keys, for each key, as `SortedMapState` has it.

    The bounds of ranges are as for `SortedMapState.range`.
    """

    def range_many(self, groups: Groups, start: Any = None, stop: Any = None) -> Any:
        """Return entries from ``start`` to before ``stop``, as `items_many` does, in order.

        :param groups: ``ctx.groups``.
        :param start: the first user key; default: the first one that exists.
        :param stop: the user key after the last one; default: all that follow.
        """
        return self._maps(self._access.loop(groups, "range_many", self._keyed.range, start, stop))

    def first_many(self, groups: Groups, start: Any = None, stop: Any = None) -> tuple[Any, Any]:
        """Return user key and value of the first entry of a range, in two arrays.

        :param groups: ``ctx.groups``.
        :param start: as for `range_many`.
        :param stop: as for `range_many`.

        Without an entry both are null.
        """
        return self._pairs(self._access.loop(groups, "first_many", self._keyed.first, start, stop))

    def last_many(self, groups: Groups, start: Any = None, stop: Any = None) -> tuple[Any, Any]:
        """Return user key and value of the last entry of a range, as `first_many` does.

        :param groups: ``ctx.groups``.
        :param start: as for `range_many`.
        :param stop: as for `range_many`.
        """
        return self._pairs(self._access.loop(groups, "last_many", self._keyed.last, start, stop))

    def remove_range_many(
        self, groups: Groups, start: Any = None, stop: Any = None, *, where: Any = None
    ) -> None:
        """Remove the entries of a range.

        :param groups: ``ctx.groups``.
        :param start: as for `range_many`.
        :param stop: as for `range_many`.
        :param where: a mask of keys or rows; default: all.
        """
        remove = self._keyed.remove_range
        self._access.loop(groups, "remove_range_many", remove, start, stop, where=where)

    def _pairs(self, found: list[tuple[Any, Any] | None]) -> tuple[Any, Any]:
        pairs = [(None, None) if one is None else one for one in found]
        keys, values = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return self._array(keys, self._key_type), self._array(values, self._value_type)


def _type_of(codec: ValueCodec) -> pa.DataType | None:
    """Return the Arrow type of scalars of a codec; ``None`` for other types."""
    types = ColumnTypes.of(codec)
    return None if types.tuples or types.kinds == (OBJECT,) else ARROW[types.kinds[0]]
