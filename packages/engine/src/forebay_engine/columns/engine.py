"""Run a batch function over the slices of one subtask and micro-batch.

It is an `Engine` without records: versions, operator state, clients, clocks and metrics are the
same. A slice's writes reach the tables when ``process_batch`` has returned, and so do its rows: of
a call that raises, nothing remains. Lists, maps and timers are those of functions of one row; where
a call may fail alone, a journal puts back what it has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay_engine.columns.call import BatchCall, SeenKeys
from forebay_engine.columns.context import BatchContext
from forebay_engine.columns.looped_states import BatchListState, BatchMapState, BatchSortedMapState
from forebay_engine.columns.merging_states import BatchAggregatingState, BatchReducingState
from forebay_engine.columns.rows import Rows
from forebay_engine.columns.states import BatchPointState, BatchValueState
from forebay_engine.columns.timers import INSTANTS, TimerWaves
from forebay_engine.execution.batch_functions import (
    check_batch_function,
    has_timers,
    uses_end_of_batch,
)
from forebay_engine.execution.declared_attributes import check_attributes
from forebay_engine.execution.engine import Engine
from forebay_engine.execution.record_loops import PLAIN
from forebay_engine.execution.record_methods import RecordMethod
from forebay_engine.isolation.failed_record import (
    SHOWN_FAILURES,
    FailedRecord,
    fails_alone,
    too_many_failures_error,
)
from forebay_engine.isolation.journal import Journal
from forebay_engine.timers.watermark import ALWAYS
from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.contract.backend import Capability
from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.current_key import NO_KEY
from forebay_state_api.metrics.phases import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forebay_engine.columns.base import BatchState
    from forebay_engine.columns.outputs import Output
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_engine.execution.late_rows import LateRow
    from forebay_engine.execution.scheduler import Scheduler
    from forebay_engine.isolation.failed_record import ErrorRows
    from forebay_state_api.job.descriptors import StateDescriptor
    from forebay_state_api.job.timers import TimeDomain

_KINDS: Mapping[str, type[BatchState]] = {
    "value": BatchValueState,
    "list": BatchListState,
    "map": BatchMapState,
    "sorted_map": BatchSortedMapState,
    "reducing": BatchReducingState,
    "aggregating": BatchAggregatingState,
}


class BatchEngine(Engine):
    """Runs one batch function on one opened backend. Used by one thread, the task thread."""

    by_columns = True

    def __init__(
        self,
        *arguments: Any,
        output: Output,
        key_names: Sequence[str] = (),
        error_rows: ErrorRows | None = None,
        **named: Any,
    ) -> None:
        """``output`` makes batches of what the function returns.

        ``key_names`` are the names of the key columns; without them they are ``key0`` and so on.
        With ``error_rows`` the rows of a key fail alone.
        """
        self._batch_states: dict[str, BatchState] = {}
        self._call_now: BatchCall | None = None
        self._next: BatchCall | None = None
        """The next slice, whose state is being read."""
        self._batches: list[Any] = []
        self._rows_before = 0
        self._error_rows = error_rows
        super().__init__(*arguments, **named)
        self._output = output
        self._key_names = key_names
        self._first_failed: list[FailedRecord] = []
        self._batch_context = BatchContext(self.context, self)
        self._seen = SeenKeys() if uses_end_of_batch(self.function) else None
        if has_timers(self.function, by_columns=True):
            waves = TimerWaves(self.scheduler, self.context, self._fire)
            self.scheduler.admission.loops[self._timer_side] = waves.run

    def _make_scheduler(self, error_rows: ErrorRows | None) -> tuple[Scheduler, Journal | None]:
        scheduler, _ = super()._make_scheduler(error_rows)
        return scheduler, None if self._error_rows is None else Journal()

    # -- running ------------------------------------------------------------------------------

    def process_slice(self, rows: Rows, keys: Sequence[Any], key_groups: Any) -> None:
        """Call ``process_batch`` for a slice; its output waits in `take_rows`.

        Timers that were due when the micro-batch began have fired before the first one. ``keys``
        are the key columns of its rows, and ``key_groups`` their key groups, an array of NumPy.
        """
        self._before_rows()
        first, count = self._rows_before, len(rows)
        self._rows_before += count
        self.counters.records += count
        call = self._ready_call(rows) or self._call_of(rows, keys, key_groups)
        phase = f"process_batch, rows {first} to {first + count - 1} of the subtask's micro-batch"
        with self._user_code.running(phase):
            self._batches += self._processed(call)
        self._spill()

    def process_broadcast(self, rows: Iterable[Any]) -> None:
        super().process_broadcast(rows)
        emitted = self.scheduler.take_rows()
        if emitted:
            self._batches.append([*emitted])
        self.hand_over()  # columns are read from the tables

    def emit_late(self, rows: Sequence[LateRow]) -> None:
        self._batches.append([*rows])

    def end_batch(self) -> None:
        """Call ``end_batch``, after the last slice."""
        if self._seen is None:
            return
        self._before_rows()
        call = self._seen.call(self._key_names)
        with self._user_code.running("end_batch"):
            self._batches += self._called(call)
        self._spill()

    def _call_of(self, rows: Rows, keys: Sequence[Any], key_groups: Any, **named: Any) -> BatchCall:
        names = self._key_names or [f"key{at}" for at in range(len(keys))]
        return BatchCall(rows, keys, names, key_groups, **named)

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
        journal = self._host.journal
        if journal is not None:
            journal.last = None
        self._call_now = call
        self._bind(call.namespace)
        try:
            made = self._output.batches(self._returned(call), call.method)
        except BaseException:
            for state in self._batch_states.values():
                state.discard()
            if journal is not None:
                journal.undo()
            raise
        finally:
            self._call_now = None
            self._bind(None)
            self.context._key = NO_KEY
        self._await_reads()
        written = [state.flush(call, self._next) for state in self._batch_states.values()]
        self.counters.keys_touched += max(written, default=0)
        if self._seen is not None and call.method == "process_batch":
            self._seen.add(call)
        return made

    def _returned(self, call: BatchCall) -> Any:
        """Return what the function returns for a call."""
        if call.method == "on_timers":
            return self.function.on_timers(call.rows["at"], self._batch_context)
        if call.method == "end_batch":
            return self.function.end_batch(self._batch_context)
        return self.function.process_batch(call.rows, self._batch_context)

    def _failed(self, call: BatchCall, error: Exception) -> list[FailedRecord]:
        """Return the rows that take the place of the rows or the timer of a key that failed."""
        assert self._error_rows is not None
        (key,) = call.groups.python_keys()
        given = call.rows.as_dicts()
        if call.method == "on_timers":
            given = [row["at"] for row in given]
        made = [FailedRecord.of(error, method=call.method, key=key, given=row) for row in given]
        self.counters.failed += len(made)
        self._first_failed = [*self._first_failed, *made][:SHOWN_FAILURES]
        if self.counters.failed > self._error_rows.limit:
            raise too_many_failures_error(
                self._user_code.where(), self._error_rows.limit, self._first_failed
            ) from error
        return made

    @property
    def rows_ready(self) -> int:
        return sum(map(len, self._batches))

    def take_rows(self) -> Sequence[Any]:
        """Return the output since the last call.

        It is batches of Arrow, lists of `FailedRecord` and of `LateRow`, and lists of rows that a
        broadcast input has emitted.
        """
        self.counters.rows_out += self.rows_ready
        made, self._batches = self._batches, []
        return made

    def running_call(self) -> BatchCall | None:
        """Return the running call; ``None`` between calls."""
        return self._call_now

    def clean_up(self) -> None:
        for state in self._batch_states.values():
            state.count_accesses()
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

    # -- timers -------------------------------------------------------------------------------

    def _timer_method_of(self, function: Any) -> RecordMethod | None:
        if not has_timers(function, by_columns=True):
            return None
        return RecordMethod("on_timers", function.on_timers, PLAIN)

    def _fire(
        self, wave: Sequence[tuple[Any, Any, int]], namespace: Any, domain: TimeDomain | None
    ) -> None:
        """Call ``on_timers`` for timers of distinct keys: time, key and key group of each."""
        times, keys, groups = zip(*wave, strict=True)
        parts = zip(*[key if isinstance(key, tuple) else (key,) for key in keys], strict=True)
        call = self._call_of(
            Rows({"at": pa.array(times, INSTANTS)}, len(wave)),
            [pa.array(part) for part in parts],
            np.array(groups),
            method="on_timers",
            namespace=namespace,
            domain=domain,
        )
        with self._user_code.running("on_timers"):
            self._batches += self._processed(call)

    # -- the next slice -----------------------------------------------------------------------

    @property
    def reads_ahead(self) -> bool:
        """Whether reads of state may wait, so that those of the next slice are made ahead."""
        resident = Capability.RESIDENT in self.backend.capabilities
        return self.settings.read_ahead and not resident and bool(self._point_states())

    def read_ahead(self, rows: Rows, keys: Sequence[Any], key_groups: Any) -> None:
        """Begin to read the state of the slice that comes after the next call of `process_slice`.

        Its reads end before anything is written; keys that are written meanwhile are read again.
        """
        self._next = call = self._call_of(rows, keys, key_groups)
        executor = self.scheduler.reads.executor()
        for state in self._point_states():
            call.ahead[state] = state.ahead(call, executor)
            self.counters.read_ahead_cells += len(call.groups)

    def _point_states(self) -> list[BatchPointState]:
        return [one for one in self._batch_states.values() if isinstance(one, BatchPointState)]

    def _ready_call(self, rows: Rows) -> BatchCall | None:
        """Return the call that was made to read ahead, if it is for ``rows``."""
        ready = self._next
        if ready is None or ready.rows is not rows:
            return None
        self._await_reads()
        self._next = None
        return ready

    def _await_reads(self) -> None:
        """Wait for the reads of the next slice: nothing is written during a read."""
        if self._next is not None:
            with self.subtask_metrics.clock.during(Phase.READ_AHEAD):
                for cells in self._next.ahead.values():
                    cells.wait()

    def hand_over(self) -> None:
        self._await_reads()
        super().hand_over()

    # -- states -------------------------------------------------------------------------------

    def _declare(self, descriptor: StateDescriptor) -> Any:
        super()._declare(descriptor)
        known = self._batch_states.get(descriptor.name)
        if known is None:
            host: StateHost = self._host
            state, kind = self.states[descriptor.name], _KINDS[descriptor.kind]
            known = self._batch_states[descriptor.name] = kind(state, host, self.running_call)
        return known

    def set_namespace(self, namespace: Any) -> None:
        """Make a namespace current for the rest of the call."""
        if self._call_now is None:
            raise StateAccessError("ctx.set_current_namespace belongs to a call of process_batch")
        self._bind(canonical_namespace(namespace))

    def _bind(self, namespace: Any) -> None:
        self.context._namespace = namespace
        for state in self._batch_states.values():
            state.bind(namespace)
