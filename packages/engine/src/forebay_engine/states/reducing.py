"""`ReducingState` and `AggregatingState`: read and write in one request.

If the cell has to be read first, the request is deferred (`mergeable`).
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.request_futures import ReadPromise
from forebay_engine.states.base import BoundTable
from forebay_engine.states.mergeable import MergeableState
from forebay_engine.states.value import PointState
from forebay_state_api.contract.changes import ABSENT, Space
from forebay_state_api.job.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.states import AggregatingState, ReducingState

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost


_IMMUTABLE: Final = (type(None), bool, int, float, str, bytes)


class MergingState(PointState, MergeableState):
    """A point state whose additions read the stored value."""

    __slots__ = ()

    # The differences between the two kinds.

    def _merged(self, cell: Any, value: Any) -> Any:
        """Return the cell with ``value`` added; ``cell`` may be ``ABSENT``."""
        raise NotImplementedError

    def _result(self, cell: Any) -> Any:
        """Return the result of reading ``cell``."""
        raise NotImplementedError

    def _joined(self, first: Any, second: Any) -> Any:
        """Combine two live cells, for `merge_namespaces`."""
        raise NotImplementedError

    def _live(self, cell: Any) -> Any:
        """Return the value or accumulator in a cell; ``ABSENT`` if there is none."""
        return cell

    # Synchronous.

    def get(self) -> Any:
        return self._result(self._cell())

    def add(self, value: Any) -> None:
        context = self._context
        self._store(self._space(), context._key, context._group, self._merged(self._cell(), value))

    def clear(self) -> None:
        if self._pending:
            self._settle()
        super().clear()

    def _merge(self, target: Any, sources: list[Any]) -> None:
        found = [value for source in sources if (value := self._taken(source)) is not ABSENT]
        if not found:
            return
        self.bind(target)
        own = self._live(self._cell())
        merged = functools.reduce(self._joined, found if own is ABSENT else [own, *found])
        self._store(self._space(), self._context._key, self._context._group, merged)

    def _taken(self, namespace: Any) -> Any:
        """Remove and return the live cell of a namespace."""
        self.bind(namespace)
        cell = self._cell()
        if cell is not ABSENT:
            self.clear()
        return self._live(cell)

    # Asynchronous.

    def async_get(self) -> StateFuture[Any]:
        if self._merges:
            self._end_merge()
        cell = self._cells.get(self._context._key, ABSENT)
        if (cell is ABSENT or self._pending) and self._must_defer():
            space, key = self._space(), self._context._key
            return self._defer(lambda: self._result(space.cells.get(key, ABSENT)), ReadPromise)
        return self._answer(self._result(cell))

    def async_add(self, value: Any) -> StateFuture[None]:
        if self._merges:
            self._end_merge()
        context = self._context
        space, key, group = self._space(), context._key, context._group
        cell = self._cells.get(key, ABSENT)
        if (cell is ABSENT or self._pending) and self._must_defer():
            value = self._admitted(value)
            return self._defer(
                lambda: self._store(
                    space, key, group, self._merged(space.cells.get(key, ABSENT), value)
                )
            )
        self._store(space, key, group, self._merged(cell, value))
        return self._scheduler.answer(None)

    def async_clear(self) -> StateFuture[None]:
        if self._merges:
            self._end_merge()
        space, key, group = self._space(), self._context._key, self._context._group
        if (self._namespace, key) in self._pending:

            def clear() -> None:
                space.cells[key] = ABSENT
                space.dirty[key] = group

            return self._defer(clear)
        self.clear()
        return self._write()

    # Cells.

    def _admitted(self, value: Any) -> Any:
        """Return a form of ``value`` to keep until the cell arrives: callers may change theirs."""
        return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)

    def _space(self) -> Space:
        return self.spaces[self._namespace]

    def _cell(self) -> Any:
        """Return the cell of the current key; waits if it must."""
        if self._pending:
            self._settle()
        cell = self._cells.get(self._context._key, ABSENT)
        return self._fetch() if cell is ABSENT else cell

    def _store(self, space: Space, key: Any, group: int, cell: Any) -> None:
        space.cells[key] = self._admit(cell)
        space.dirty[key] = group


class KeyedReducingState(MergingState, ReducingState[Any]):
    """`ReducingState` without TTL."""

    __slots__ = ("_reduce",)

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        assert isinstance(bound.descriptor, ReducingStateDescriptor)
        self._reduce = bound.descriptor.reduce

    def _admitted(self, value: Any) -> Any:
        return self._admit(value)

    def _merged(self, cell: Any, value: Any) -> Any:
        if cell is ABSENT:
            return value
        try:
            return self._reduce(cell if self._hand_out is None else self._hand_out(cell), value)
        except Exception as error:
            self._host.fail(error)
            raise

    def _joined(self, first: Any, second: Any) -> Any:
        return KeyedReducingState._merged(self, first, second)

    def _result(self, cell: Any) -> Any:
        if cell is ABSENT:
            return None
        return cell if self._hand_out is None else self._hand_out(cell)


class KeyedAggregatingState(MergingState, AggregatingState[Any, Any]):
    """`AggregatingState` without TTL."""

    __slots__ = ("_function",)

    def __init__(self, host: StateHost, bound: BoundTable) -> None:
        super().__init__(host, bound)
        assert isinstance(bound.descriptor, AggregatingStateDescriptor)
        self._function = bound.descriptor.aggregate_function

    def _copy(self, cell: Any) -> Any:
        return cell if self._hand_out is None else self._hand_out(cell)

    def _merged(self, cell: Any, value: Any) -> Any:
        function = self._function
        try:
            accumulator = function.create_accumulator() if cell is ABSENT else self._copy(cell)
            return function.add(value, accumulator)
        except Exception as error:
            self._host.fail(error)
            raise

    def _joined(self, first: Any, second: Any) -> Any:
        try:
            return self._function.merge(self._copy(first), self._copy(second))
        except Exception as error:
            self._host.fail(error)
            raise

    def _result(self, cell: Any) -> Any:
        if cell is ABSENT:
            return None
        try:
            return self._function.get_result(self._copy(cell))
        except Exception as error:
            self._host.fail(error)
            raise
