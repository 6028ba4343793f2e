"""Run a batch function over the slices of one subtask and micro-batch.

It is an `Engine` without records: versions, operator state, clients, clocks and metrics are the
same. A slice's writes reach the tables when ``process_batch`` has returned, and so do its rows: of
a call that raises, nothing remains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forebay_engine.columns.call import BatchCall
from forebay_engine.columns.context import BatchContext
from forebay_engine.columns.merging_states import BatchAggregatingState, BatchReducingState
from forebay_engine.columns.states import BatchState, BatchValueState
from forebay_engine.execution.batch_functions import check_batch_function
from forebay_engine.execution.declared_attributes import check_attributes
from forebay_engine.execution.engine import Engine
from forebay_engine.isolation.failed_record import (
    SHOWN_FAILURES,
    FailedRecord,
    fails_alone,
    too_many_failures_error,
)
from forebay_engine.timers.watermark import ALWAYS
from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.errors import ConfigurationError, StateAccessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay_engine.columns.outputs import Output
    from forebay_engine.columns.rows import Rows
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_engine.execution.late_rows import LateRow
    from forebay_engine.execution.record_methods import RecordMethod
    from forebay_engine.isolation.failed_record import ErrorRows
    from forebay_state_api.job.descriptors import StateDescriptor

_KINDS: Mapping[str, type[BatchState]] = {
    "value": BatchValueState,
    "reducing": BatchReducingState,
    "aggregating": BatchAggregatingState,
}


class BatchEngine(Engine):
    """Runs one batch function on one opened backend. Used by one thread, the task thread."""

    by_columns = True

    def __init__(
        self, *arguments: Any, output: Output, error_rows: ErrorRows | None = None, **named: Any
    ) -> None:
        """``output`` makes batches of what the function returns.

        With ``error_rows`` the rows of a key fail alone.
        """
        self._batch_states: dict[str, BatchState] = {}
        self._call_now: BatchCall | None = None
        self._batches: list[Any] = []
        self._rows_before = 0
        super().__init__(*arguments, **named)
        self._output = output
        self._error_rows = error_rows
        self._first_failed: list[FailedRecord] = []
        self._batch_context = BatchContext(self.context, self)

    # -- running ------------------------------------------------------------------------------

    def process_slice(
        self, rows: Rows, keys: Sequence[Any], names: Sequence[str], key_groups: Any
    ) -> None:
        """Call ``process_batch`` for a slice; its output waits in `take_batches`.

        ``keys`` are the key columns of its rows, called ``names``, and ``key_groups`` their key
        groups, an array of NumPy.
        """
        first, count = self._rows_before, len(rows)
        self._rows_before += count
        self.counters.records += count
        call = BatchCall(rows, keys, names, key_groups)
        phase = f"process_batch, rows {first} to {first + count - 1} of the subtask's micro-batch"
        with self._user_code.running(phase):
            self._batches += self._processed(call)

    def emit_late(self, rows: Sequence[LateRow]) -> None:
        self._batches.append([*rows])

    def end_batch(self) -> None:
        """Call ``end_batch``, after the last slice."""
        with self._user_code.running("end_batch"):
            returned = self.function.end_batch(self._batch_context)
            self._batches += self._output.batches(returned, "end_batch")

    def _processed(self, call: BatchCall) -> list[Any]:
        """Return the output of a call, or of its keys if they fail alone."""
        if self._error_rows is None:
            return self._called(call)
        try:
            return self._called(call)
        except Exception as error:
            if not fails_alone(error) or self._user_code.failure is not None:
                raise
            if len(call.groups) == 1:
                return [self._failed(call, error)]
        half = np.arange(len(call.groups)) < len(call.groups) // 2
        return [*self._processed(call.of_keys(half)), *self._processed(call.of_keys(~half))]

    def _called(self, call: BatchCall) -> list[Any]:
        """Return the output of a call, after its writes have reached the tables."""
        self._call_now = call
        try:
            returned = self.function.process_batch(call.rows, self._batch_context)
            made = self._output.batches(returned, "process_batch")
        except BaseException:
            for state in self._batch_states.values():
                state.discard()
            raise
        finally:
            self._call_now = None
            self._bind_states(None)
        written = [state.flush(call) for state in self._batch_states.values()]
        self.counters.keys_touched += max(written, default=0)
        return made

    def _failed(self, call: BatchCall, error: Exception) -> list[FailedRecord]:
        """Return the rows that take the place of the rows of a key that failed."""
        assert self._error_rows is not None
        (key,) = call.groups.python_keys()
        made = [
            FailedRecord.of(error, method="process_batch", key=key, given=row)
            for row in call.rows.as_dicts()
        ]
        self.counters.failed += len(made)
        self._first_failed = [*self._first_failed, *made][:SHOWN_FAILURES]
        if self.counters.failed > self._error_rows.limit:
            raise too_many_failures_error(
                self._user_code.where(), self._error_rows.limit, self._first_failed
            ) from error
        return made

    def take_batches(self) -> list[Any]:
        """Return the output since the last call.

        It is batches of Arrow, and lists of `FailedRecord` and of `LateRow`.
        """
        made, self._batches = self._batches, []
        self.counters.rows_out += sum(map(len, made))
        return made

    def running_call(self) -> BatchCall | None:
        """Return the running call; ``None`` between calls."""
        return self._call_now

    def clean_up(self) -> None:
        for name, state in self._batch_states.items():
            counted = self.states[name].state
            if hasattr(counted, "accesses"):
                counted.accesses = state.accesses
        super().clean_up()

    @property
    def watermark_us(self) -> int | None:
        """The watermark in µs; ``None`` if there is none yet."""
        us = self._times.watermark_us
        return None if us == ALWAYS else us

    def _methods_of(self, function: Any) -> list[RecordMethod]:
        check_attributes(function)
        check_batch_function(function)
        return []

    # -- states -------------------------------------------------------------------------------

    def _declare(self, descriptor: StateDescriptor) -> Any:
        kind = _KINDS.get(descriptor.kind)
        if kind is None:
            raise ConfigurationError(
                f"operator {self.context.operator_uid!r}: {descriptor!r} is for functions of one "
                "row; a batch function has value, reducing and aggregating states"
            )
        super()._declare(descriptor)
        known = self._batch_states.get(descriptor.name)
        if known is None:
            host: StateHost = self._host
            state = self.states[descriptor.name]
            known = self._batch_states[descriptor.name] = kind(state, host, self.running_call)
        return known

    def set_namespace(self, namespace: Any) -> None:
        """Make a namespace current for the rest of the call."""
        if self._call_now is None:
            raise StateAccessError("ctx.set_current_namespace belongs to a call of process_batch")
        self._bind_states(canonical_namespace(namespace))

    def _bind_states(self, namespace: Any) -> None:
        for state in self._batch_states.values():
            state.namespace = namespace
