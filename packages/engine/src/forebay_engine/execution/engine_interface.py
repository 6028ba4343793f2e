"""The parts of the engine that state objects, timers and record methods use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from forebay_engine.execution.scheduler import Scheduler
    from forebay_engine.execution.subtask_metrics import SubtaskMetrics
    from forebay_engine.isolation.journal import Journal
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.migration import Lineage
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.settings import EngineSettings


@attrs.frozen(kw_only=True)
class StateHost:
    """One subtask's engine, as its states and timers see it."""

    context: RuntimeContext
    scheduler: Scheduler
    settings: EngineSettings
    backend: StateBackend
    key_codec: ValueCodec
    lineages: Mapping[str, Lineage]
    """The declarations of the states that the backend has opened, by name."""
    rewrites: bool
    """Whether the stored cells are copied into an empty backend after all states are declared."""
    now_us: int
    """The micro-batch's time, µs since the epoch."""
    subtask_metrics: SubtaskMetrics
    waits: Callable[[str], None]
    """Counts a synchronous access to a state, by name, that waits for storage."""
    fail: Callable[[Exception], None]
    """Fails the running record, or the micro-batch, even where the user's code catches the error.
    """
    journal: Journal | None = None
    """The journal of changes; ``None`` if records do not fail alone."""
    by_columns: bool = False
    """Whether point states are read and written for many keys at once."""


class RecordHost(Protocol):
    """The engine, as record methods see it."""

    scheduler: Scheduler
    context: RuntimeContext
    rows_out: list[Any]
    """Rows that user code emitted and that were not taken yet."""


RecordFunction: TypeAlias = Callable[..., Any]
"""Called with the row and the context."""
Entries: TypeAlias = Iterator[tuple[Any, Any, int]]
"""(row, key, key group) of each record."""
