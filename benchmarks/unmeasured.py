"""Takes out of a process what keyed operators measure, for the benchmark of what that costs.

Counts that a backend or the engine also needs for itself stay. Workers of Spark are switched by the
function that they run, when it is opened: `SwitchedSync` and `SwitchedCoroutine`. Figures may also
be measured and stored, but not sent to progress events; the driver alone decides that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from benchmarks.functions import CountCoroutine, CountSync
from forebay_engine.execution.declared_state import DeclaredState
from forebay_engine.execution.guarded_table import GuardedTable, guarded
from forebay_engine.execution.subtask import Subtask
from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_engine.versions.cleaning import janitor
from forebay_engine.versions.format.figures import NONE, Figures
from forebay_engine.versions.format.manifest import Manifest
from forebay_spark_runtime.keyed_operator import keyed_dataframe
from forebay_spark_runtime.keyed_operator.batch_input import BatchInput
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.metrics.phases import Phase, PhaseClock

_AT_ONCE: Final = nullcontext()


def _nothing(*_: Any, **__: Any) -> None:
    """Measure nothing."""


def _no_figures(*_: Any) -> dict[str, float]:
    return {}


def _same_phase(_clock: PhaseClock, phase: Phase) -> Phase:
    return phase


def _no_phase(_clock: PhaseClock, _phase: Phase) -> AbstractContextManager[None]:
    return _AT_ONCE


def _uncounted(_metrics: SubtaskMetrics, storage: ObjectStorage) -> ObjectStorage:
    return storage


def _none_touched(_state: DeclaredState) -> int:
    return 0


def _read_batch(state: DeclaredState, batch: Sequence[tuple[int, Any]]) -> Sequence[Any]:
    return state.table.get_many(None, batch)


def _untimed(
    table: GuardedTable,
    read: Callable[[Any, Sequence[Any]], list[Any]],
    namespace: Any,
    asked: Sequence[Any],
) -> list[Any]:
    with guarded(table._fail):  # noqa: SLF001 - as the replaced method has it
        return read(namespace, asked)


def _nameless(_manifest: Manifest) -> Figures:
    return NONE


_REPLACEMENTS: Final[Sequence[tuple[Any, str, Any]]] = (
    # The time of phases, and of reads by state.
    (PhaseClock, "switch", _same_phase),
    (PhaseClock, "count", _nothing),
    (PhaseClock, "during", _no_phase),
    (PhaseClock, "seconds", _no_figures),
    (SubtaskMetrics, "note_access", _nothing),
    (GuardedTable, "_timed", _untimed),
    (DeclaredState, "read_batch", _read_batch),
    # Counts.
    (DeclaredState, "_touched", _none_touched),
    (SubtaskMetrics, "counted", _uncounted),
    (BatchInput, "_count_groups", _nothing),
    # What becomes of them: the manifest and its name, the history.
    (Subtask, "_figures", _no_figures),
    (Manifest, "figures", property(_nameless)),
    (janitor, "remember", _nothing),
)
"""(Owner, attribute, what replaces it)."""

_UNSENT: Final[Sequence[tuple[Any, str, Any]]] = ((keyed_dataframe, "_sent_schema", _nothing),)
"""The same, for the row of figures and its observation."""


def _originals(replaced: Sequence[tuple[Any, str, Any]]) -> Sequence[tuple[Any, str, Any]]:
    return [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]


_MEASURED: Final = _originals(_REPLACEMENTS)
_SENT: Final = _originals(_UNSENT)


def switch(*, measures: bool, sends: bool = True) -> None:
    """Let this process's operators measure from now on, or not; and send what they measure."""
    measuring = _MEASURED if measures else _REPLACEMENTS
    sending = _SENT if measures and sends else _UNSENT
    for owner, name, value in (*measuring, *sending):
        setattr(owner, name, value)


class SwitchedSync(CountSync):
    """`CountSync` in a process that measures, or that does not."""

    def __init__(self, *, measures: bool) -> None:
        self.measures = measures

    def open(self, context: Any) -> None:
        """Switch the process; the micro-batch that has begun is measured in part."""
        switch(measures=self.measures)
        super().open(context)


class SwitchedCoroutine(CountCoroutine):
    """`CountCoroutine` in a process that measures, or that does not."""

    def __init__(self, *, measures: bool) -> None:
        self.measures = measures

    def open(self, context: Any) -> None:
        """Switch the process; the micro-batch that has begun is measured in part."""
        switch(measures=self.measures)
        super().open(context)
