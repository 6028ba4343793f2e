"""`ReducingState` and `AggregatingState` of a batch function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay_engine.columns.aggregates import added_rows, aggregated, reduced, results
from forebay_engine.columns.arrays import of_length
from forebay_engine.columns.states import BatchPointState, Cells
from forebay_engine.columns.values import read_only_objects
from forebay_engine.versions.format.namespaces import merged_namespaces

if TYPE_CHECKING:
    from forebay_engine.columns.call import BatchCall
    from forebay_engine.columns.groups import Groups


class BatchMergingState(BatchPointState):
    """A state into which values of rows are added, key by key."""

    def add_many(self, groups: Groups, values: Any, *, where: Any = None) -> None:
        """Add a value of each row to the state of the row's key, in the order of the rows.

        :param groups: ``ctx.groups``.
        :param values: a value for each row; null adds nothing.
        :param where: a mask of keys or rows; default: all rows.

        Vectorised for sums (`operator.add`), `min` and `max` in a `ReducingState`, and for `Count`
        and `Mean` in an `AggregatingState`; other functions are called for each row. A sum of
        whole numbers beyond 64 bits raises `OverflowError` that names the state and the key.
        """
        call = self._running(groups, "add_many")
        what = f"add_many of {self._what}"
        given = of_length(values, groups.rows, what, of="rows")
        added = added_rows(groups, given, where, what)
        mask = groups.count(where=added).to_numpy() > 0
        if not mask.any():
            return
        cells = self._current(groups, "add_many")
        try:
            arrays = self._vectorised(groups, given, cells, added)
        except OverflowError as error:
            raise OverflowError(f"{self._what}: {error}") from error
        if arrays is None:
            arrays = self._looped(groups, given, cells, added)
        self._values.check_text(arrays, mask, self._row_of(call))
        self._written(call, arrays, None if mask.all() else mask)

    def get_many(self, groups: Groups) -> Any:
        """Return, for each key, what the values that were added make; null without any.

        :param groups: ``ctx.groups``.
        """
        cells = self._current(groups, "get_many")
        return self._results(cells)

    def merge_namespaces_many(
        self, groups: Groups, target: Any, sources: Iterable[Any], *, where: Any = None
    ) -> None:
        """Merge the values of namespaces into that of another one, by a loop over keys.

        :param groups: ``ctx.groups``.
        :param target: the namespace that gets the values after its own.
        :param sources: the namespaces that lose them.
        :param where: a mask of keys or rows; default: all keys.
        """
        call = self._running(groups, "merge_namespaces_many")
        target, others = merged_namespaces(target, sources)
        mask = groups.keys_where(where, f"merge_namespaces_many of {self._what}")
        keys = range(len(groups)) if mask is None else np.flatnonzero(mask).tolist()
        before = self._namespace
        try:
            taken = [self._taken(call, one, keys) for one in others]
            self._namespace = target
            self._add_taken(call, taken, keys)
        finally:
            self._namespace = before

    def _taken(self, call: BatchCall, namespace: Any, keys: Sequence[int]) -> list[Any]:
        """Remove and return the live values of some keys in a namespace; ``None`` without one."""
        self._namespace = namespace
        cells, values = self._live(call)
        gone = np.zeros(len(values), bool)
        gone[keys] = cells.present[keys]
        if gone.any():
            nothing = self._values.missing(len(values))
            self._stage().write(Cells(nothing, np.zeros(len(values), bool), cells.times), gone)
        return values

    def _add_taken(self, call: BatchCall, taken: list[list[Any]], keys: Sequence[int]) -> None:
        """Join the values of other namespaces to those of the current one."""
        _, merged = self._live(call)
        changed = np.zeros(len(merged), bool)
        admit = self._state.spec.value.admit
        for values in taken:
            for key in keys:
                if values[key] is not None:
                    own = merged[key]
                    joined = values[key] if own is None else self._joined(own, values[key])
                    merged[key], changed[key] = admit(joined), True
        if changed.any():
            self._written(call, self._values.of_python_values(merged), changed)

    def _live(self, call: BatchCall) -> tuple[Cells, list[Any]]:
        """Return the cells of the current namespace, and the values that have not expired."""
        staged = self._stage()
        cells = staged.read or self._stored(call)
        if staged.written is not None:
            cells = (
                staged.written if staged.mask is None else cells.merged(staged.mask, staged.written)
            )
        present = cells.present
        if self._policy is not None:
            present = present & (cells.times > self._policy.until)
        return cells, self._values.python_values(cells.arrays, present)

    # The differences between the two kinds.

    def _vectorised(self, groups: Groups, values: Any, cells: Cells, added: Any) -> Any:
        """Return the new columns; ``None`` if it takes a loop."""
        raise NotImplementedError

    def _merged(self, stored: Any, value: Any) -> Any:
        """Return a stored value, or ``None``, with another one added."""
        raise NotImplementedError

    def _joined(self, first: Any, second: Any) -> Any:
        """Combine two stored values."""
        raise NotImplementedError

    def _results(self, cells: Cells) -> Any:
        """Return the results of reading cells."""
        raise NotImplementedError

    def _looped(self, groups: Groups, values: Any, cells: Cells, added: Any) -> list[Any]:
        """Return the new columns, by a call of the function for each row."""
        stored = self._values.python_values(cells.arrays, cells.present)
        index, given = groups.index_of_rows, values.to_pylist()
        for row in np.flatnonzero(added):
            key = index[row]
            stored[key] = self._state.spec.value.admit(self._merged(stored[key], given[row]))
        return self._values.of_python_values(stored)


class BatchReducingState(BatchMergingState):
    """A reduced value for each key, as `ReducingState` has it."""

    def _vectorised(self, groups: Groups, values: Any, cells: Cells, added: Any) -> Any:
        if self._values.is_record or self._values.is_object:
            return None
        kind = self._values.kinds[0]
        given = self._values.in_kind(values, f"add_many of {self._what}")
        reduce = getattr(self._state.descriptor, "reduce", None)
        found = reduced(reduce, kind, groups, given, before=cells.arrays[0], where=added)
        return None if found is None else [found]

    def _merged(self, stored: Any, value: Any) -> Any:
        if stored is None:
            return value
        return self._state.descriptor.reduce(self._values.copied(stored), value)  # type: ignore[attr-defined]  # the kind's

    def _joined(self, first: Any, second: Any) -> Any:
        return self._merged(first, second)

    def _results(self, cells: Cells) -> Any:
        return self._values.handed_out(cells.arrays)


class BatchAggregatingState(BatchMergingState):
    """An aggregate for each key, as `AggregatingState` has it."""

    @property
    def _function(self) -> Any:
        return self._state.descriptor.aggregate_function  # type: ignore[attr-defined]  # the kind's

    def _vectorised(self, groups: Groups, values: Any, cells: Cells, added: Any) -> Any:
        kinds = self._values.kinds
        return aggregated(self._function, kinds, groups, values, before=cells.arrays, where=added)

    def _merged(self, stored: Any, value: Any) -> Any:
        function = self._function
        if stored is None:
            return function.add(value, function.create_accumulator())
        return function.add(value, self._values.copied(stored))

    def _joined(self, first: Any, second: Any) -> Any:
        copied = self._values.copied
        return self._function.merge(copied(first), copied(second))

    def _results(self, cells: Cells) -> Any:
        if not self._values.is_object:
            found = results(self._function, cells.arrays)
            if found is not None:
                return found
        stored = self._values.python_values(cells.arrays, cells.present)
        get = self._function.get_result
        return _array([None if one is None else get(self._values.copied(one)) for one in stored])


def _array(values: list[Any]) -> Any:
    """Return an array of Arrow of Python values, or of objects if Arrow has no type for them."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError):
        return read_only_objects(values)
