"""`ValueState` on a point table, and the reads that it shares with the merging states."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.request_futures import AnsweredRead
from forebay_engine.states.answers import put_cell_under
from forebay_engine.states.base import BoundTable, KeyedState
from forebay_state_api.contract.changes import ABSENT, Changes, PointChanges
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.states import ValueState

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost


class PointState(KeyedState):
    """One cell per key and namespace."""

    __slots__ = ()

    _put_under = staticmethod(put_cell_under)

    def changes(self) -> Changes:
        points = {}
        for namespace, space in self.spaces.items():
            if space.dirty:
                cells = space.cells
                points[namespace] = PointChanges(
                    keys=list(space.dirty),
                    groups=list(space.dirty.values()),
                    values=[*map(cells.get, space.dirty, repeat(ABSENT))],
                )
        return Changes(points=points)

    def clear(self) -> None:
        context = self._context
        key = context._key
        if self._complete:
            if self._cells.pop(key, ABSENT) is ABSENT and key not in self._dirty:
                return
        else:
            self._cells[key] = ABSENT
        self._dirty[key] = context._group

    def async_clear(self) -> StateFuture[None]:
        self.clear()
        return self._write()

    def _fetch(self) -> Any:
        """Read the current key's cell, which is not in memory; waits."""
        key = self._context._key
        if self._complete or key in self._cells:
            return ABSENT
        self._waits()
        _, get_many, namespace, cell = self._question()
        return put_cell_under(self._cells, self._dirty, key, get_many(namespace, [cell])[0])

    def _known_absent(self) -> bool:
        """Return, after a miss in ``_cells``, whether the cell is known not to exist."""
        return self._complete or self._context._key in self._cells

    def _request(self, arrive: Any) -> StateFuture[Any]:
        """Read the current key's cell; ``arrive`` gets its value at the time of the call."""
        cells, dirty, key = self._cells, self._dirty, self._context._key

        def keep(stored: Any) -> Any:
            put_cell_under(cells, dirty, key, stored)
            return arrive(stored)

        return self._request_of(*self._question(), keep)

    def _question(self) -> tuple[object, Any, Any, Any]:
        """Return whose read of the current key's cell it is, its function and its arguments."""
        context = self._context
        return self, self._table.get_many, self._namespace, (context._group, context._key)


class KeyedValueState(PointState, ValueState[Any]):
    """`ValueState` without TTL."""

    __slots__ = ("_default",)

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        default = getattr(bound.descriptor, "default", None)
        try:
            self._default = None if default is None else bound.codec.admit(default)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the default= of {error}") from error

    def value(self) -> Any:
        value = self._cells.get(self._context._key, ABSENT)
        if value is ABSENT:
            value = self._fetch()
            if value is ABSENT:
                value = self._default
                if value is None:
                    return None
        return value if self._hand_out is None else self._hand_out(value)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        context = self._context
        key = context._key
        self._cells[key] = self._admit(value)
        self._dirty[key] = context._group

    def async_value(self) -> StateFuture[Any]:
        value = self._cells.get(self._context._key, ABSENT)
        if value is ABSENT:
            if not self._known_absent():
                return self._request(self._seen)
            value = self._default
        hand_out = self._hand_out
        if hand_out is not None and value is not None:
            value = hand_out(value)
        scheduler = self._scheduler
        if scheduler.tail._done:
            # The same as `Scheduler.answer`, without the calls.
            future: AnsweredRead[Any] = AnsweredRead()
            scheduler.tail = future
            future._value = value
            future._done = False
            return future
        return scheduler.answer_in_order(value, AnsweredRead)

    def async_update(self, value: Any) -> StateFuture[None]:
        if value is None:
            self.clear()
        else:
            context = self._context
            key = context._key
            self._cells[key] = self._admit(value)
            self._dirty[key] = context._group
        scheduler = self._scheduler
        return scheduler.done if scheduler.tail._done else scheduler.write()

    def _seen(self, value: Any) -> Any:
        if value is ABSENT:
            value = self._default
        if value is None or self._hand_out is None:
            return value
        return self._hand_out(value)
