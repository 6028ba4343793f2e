"""The states of a batch function: reads and writes for many keys at once.

A call's writes are staged. The table gets them when ``process_batch`` has returned, and reads of
the same call see them before. Of each namespace that a call uses, a table is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa

from forebay_engine.columns.ahead import CellsAhead
from forebay_engine.columns.base import BatchState
from forebay_engine.columns.values import ValueColumns, chosen, filled
from forebay_engine.states.ttl import TtlPolicy
from forebay_state_api.contract.columns import CellColumns
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from forebay_engine.columns.call import BatchCall
    from forebay_engine.columns.groups import Groups
    from forebay_engine.execution.declared_state import DeclaredState
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.contract.columns import EncodedKeys


@attrs.define(eq=False)
class Cells:
    """Values of all keys of a call: their columns, which keys have one, and when it was used."""

    arrays: list[Any]
    present: Any
    times: Any = None

    def merged(self, mask: Any, new: Cells) -> Cells:
        """Return the cells with those of ``new`` where a mask is true."""
        times = None if new.times is None else np.where(mask, new.times, self.times)
        pairs = zip(new.arrays, self.arrays, strict=True)
        arrays = [chosen(mask, *pair) for pair in pairs]
        return Cells(arrays, np.where(mask, new.present, self.present), times)


class Staged:
    """The reads and writes of one call in one namespace of a state."""

    def __init__(self) -> None:
        self.read: Cells | None = None
        self.written: Cells | None = None
        self.mask: Any = None
        """A mask of the keys for which `written` counts; ``None`` if it counts for all."""

    def write(self, cells: Cells, mask: Any) -> None:
        """Stage cells where a mask is true, or all of them."""
        if mask is None or self.written is None:
            self.written, self.mask = cells, mask
            return
        self.written = self.written.merged(mask, cells)
        self.mask = None if self.mask is None else self.mask | mask


class BatchPointState(BatchState):
    """The part of all point states: reads, writes and their checks."""

    def __init__(self, state: DeclaredState, host: StateHost, call: Callable[[], Any]) -> None:
        super().__init__(state, host, call)
        descriptor = state.descriptor
        self._spec: Final = state.spec
        self._values: Final = ValueColumns(state.spec.value, descriptor.name)
        self._staged: dict[Any, Staged] = {}
        self._namespace: Any = None
        self._accesses = 0
        ttl = descriptor.ttl
        self._policy = None if ttl is None else TtlPolicy(ttl, host.now_us, host.scheduler.counters)

    # -- the function's ---------------------------------------------------------------------------

    def contains_many(self, groups: Groups) -> pa.Array:
        """Return, for each key, whether it has a value."""
        return pa.array(self._current(groups, "contains_many").present)

    def clear_many(self, groups: Groups, *, where: Any = None) -> None:
        """Remove the values of keys.

        :param groups: ``ctx.groups``.
        :param where: a mask of keys or rows; default: all keys.
        """
        self._running(groups, "clear_many")
        mask = groups.keys_where(where, f"clear_many of {self._what}")
        count = len(groups)
        nothing = self._values.missing(count)
        times = None if self._policy is None else np.zeros(count, np.int64)
        self._stage().write(Cells(nothing, np.zeros(count, bool), times), mask)

    # -- the engine's -----------------------------------------------------------------------------

    def bind(self, namespace: Any) -> None:
        self._namespace = namespace

    def discard(self) -> None:
        self._staged.clear()

    def count_accesses(self) -> None:
        counted = self._state.state
        if hasattr(counted, "accesses"):
            counted.accesses = self._accesses

    def ahead(self, call: BatchCall, executor: Executor) -> CellsAhead:
        """Begin to read the cells of a later call's keys, in the default namespace."""
        keys = call.encoded(self._host.key_codec)
        read = executor.submit(self._state.guarded.get_columns, self._spec, None, keys)
        return CellsAhead(keys, read)

    def flush(self, call: BatchCall, following: BatchCall | None) -> int:
        written = 0
        ahead = None if following is None else following.ahead.get(self)
        for namespace, staged in self._staged.items():
            if staged.written is None:
                continue
            cells, mask = staged.written, staged.mask
            keys = call.encoded(self._host.key_codec)
            columns = self._values.stored(cells.arrays)
            made = CellColumns(columns, cells.present, cells.times)
            if mask is not None and not mask.all():
                index = np.flatnonzero(mask)
                keys, made = keys.take(index), made.take(index)
            if len(keys):
                self._state.guarded.apply_columns(self._spec, namespace, keys, made)
                if ahead is not None and namespace is None:
                    ahead.note_written(keys)
            written = max(written, len(keys))
        self._staged.clear()
        return written

    # -- parts ------------------------------------------------------------------------------------

    def _running(self, groups: Any, method: str) -> BatchCall:
        """Return the running call, as `Access.running` does; count an access."""
        call = self._access.running(groups, method)
        self._accesses += 1
        return call

    def _stage(self) -> Staged:
        return self._staged.setdefault(self._namespace, Staged())

    def _row_of(self, call: BatchCall) -> Callable[[int], int]:
        rows = call.groups.first_rows().to_numpy()
        return lambda key: int(rows[key])

    def _current(self, groups: Any, method: str) -> Cells:
        """Return the cells of all keys, as they are now; expired ones are not present."""
        call = self._running(groups, method)
        staged = self._stage()
        if staged.written is not None and staged.mask is None:
            return staged.written
        written, mask = staged.written, staged.mask
        if staged.read is None:
            # What this read drops, it may show; the next one does not.
            staged.read = self._loaded(call, staged)
        return staged.read if written is None else staged.read.merged(mask, written)

    def _loaded(self, call: BatchCall, staged: Staged) -> Cells:
        cells = self._stored(call)
        return cells if self._policy is None else self._after_ttl(cells, staged)

    def _stored(self, call: BatchCall) -> Cells:
        """Return the cells of a call's keys as they are stored."""
        found = self._found(call)
        present = found.present
        if present is None:
            present = np.ones(len(call.groups), bool)
        arrays = self._values.arrays(found.columns, found.present)
        return Cells(arrays, present, found.times)

    def _found(self, call: BatchCall) -> CellColumns:
        """Return the stored cells of a call's keys."""
        ahead = call.ahead.get(self) if self._namespace is None else None
        return (
            self._read(call.encoded(self._host.key_codec))
            if ahead is None
            else (ahead.current(self._read))
        )

    def _read(self, keys: EncodedKeys) -> CellColumns:
        return self._state.guarded.get_columns(self._spec, self._namespace, keys)

    def _after_ttl(self, cells: Cells, staged: Staged) -> Cells:
        """Return what a read sees; stage the times that it renews and the cells that it drops."""
        policy, times = self._policy, cells.times
        assert policy is not None
        old = cells.present & (times <= policy.plain_after)
        if staged.mask is not None:
            old &= ~staged.mask  # a write of this call is newer
        if not old.any():
            return cells
        expired = old & (times <= policy.until)
        renewed = old & ~expired
        count = int(expired.sum())
        self._host.scheduler.counters.values_expired += count
        if renewed.any():
            now = np.full(len(times), policy.now, np.int64)
            staged.write(Cells(cells.arrays, cells.present, now), renewed)
        if count and policy.drops:
            nothing = Cells(self._values.missing(len(times)), np.zeros(len(times), bool), times)
            staged.write(nothing, expired)
        if policy.shows:
            return cells
        seen = cells.present & ~expired
        nothing = Cells(self._values.missing(len(times)), seen, times)
        return cells.merged(expired, nothing)

    def _written(self, call: BatchCall, arrays: list[Any], mask: Any) -> None:
        """Stage values for the keys of a mask, or for all."""
        count = len(call.groups)
        times = None
        if self._policy is not None:
            times = np.full(count, self._policy.now, np.int64)
        self._stage().write(Cells(arrays, np.ones(count, bool), times), mask)


class BatchValueState(BatchPointState):
    """A value for each key, as `ValueState` has it."""

    def __init__(self, state: DeclaredState, host: StateHost, call: Callable[[], Any]) -> None:
        super().__init__(state, host, call)
        default = getattr(state.descriptor, "default", None)
        try:
            admitted = None if default is None else state.spec.value.admit(default)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the default= of {error}") from error
        self._defaults = None if admitted is None else self._values.defaults(admitted)

    def get_many(self, groups: Groups) -> Any:
        """Return the value of each key.

        :param groups: ``ctx.groups``.

        A scalar state gives an array, a record or tuple `Fields`: an array of each field. Without a
        value a key reads as the descriptor's default; without one it is null, in every field.
        Values that are not scalars, or records or tuples of them, are an array of Python objects.
        """
        cells = self._current(groups, "get_many")
        arrays = cells.arrays
        if self._defaults is not None:
            missing = ~cells.present
            pairs = zip(arrays, self._defaults, strict=True)
            arrays = [filled(array, missing, default) for array, default in pairs]
        return self._values.handed_out(arrays)

    def put_many(
        self, groups: Groups, values: Any = None, *, where: Any = None, **fields: Any
    ) -> None:
        """Set the value of each key.

        :param groups: ``ctx.groups``.
        :param values: a value for each key, or one value for all; of a record or tuple its fields
            in order, a dict of them, or what `get_many` returned.
        :param where: a mask of keys or rows; default: all keys.
        :param fields: the fields of a record by name, instead of ``values``.

        Null is refused; `clear_many` removes values.
        """
        call = self._running(groups, "put_many")
        mask = groups.keys_where(where, f"put_many of {self._what}")
        arrays = self._values.given(values, fields, len(groups), "put_many")
        row_of = self._row_of(call)
        self._values.check_no_nulls(arrays, mask, "put_many", row_of)
        self._values.check_text(arrays, mask, row_of)
        self._written(call, arrays, mask)
