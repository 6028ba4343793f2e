"""`BatchContext`: the ``ctx`` of a batch function's calls."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from forebay_engine.columns.timers import BatchTimers
from forebay_engine.timers.instants import instant
from forebay_state_api.errors import StateAccessError

if TYPE_CHECKING:
    from forebay_engine.columns.call import BatchCall
    from forebay_engine.columns.groups import Groups
    from forebay_state_api.job.context import RuntimeContext


class CallingEngine(Protocol):
    """The engine, as the context uses it."""

    @property
    def watermark_us(self) -> int | None:
        """The watermark in µs; ``None`` if there is none yet."""

    def running_call(self) -> BatchCall | None:
        """Return the running call; ``None`` between calls."""

    def set_namespace(self, namespace: Any) -> None:
        """Make a namespace current for the rest of the call."""


class BatchContext:
    """A batch function's access to the groups of its rows, the clocks and its subtask."""

    def __init__(self, context: RuntimeContext, engine: CallingEngine) -> None:
        """Take the context of ``open``, and the engine."""
        self._context = context
        self._engine = engine
        self.timers = BatchTimers(context, engine.running_call)
        """The clocks, and the timers of the keys of the call."""

    @property
    def groups(self) -> Groups:
        """The rows of the call by key; the keys of all accesses to state and timers."""
        call = self._engine.running_call()
        if call is None:
            raise StateAccessError(
                "ctx.groups belongs to a call of process_batch, on_timers or end_batch, and none "
                "runs"
            )
        return call.groups

    @property
    def current_namespace(self) -> Any:
        """The namespace of later accesses of this call; ``None`` unless one was set."""
        return self._context.current_namespace

    @property
    def processing_time(self) -> datetime:
        """The micro-batch's time, in UTC."""
        return self._context.timers.processing_time

    @property
    def watermark(self) -> datetime | None:
        """The watermark at the beginning of the micro-batch; ``None`` before the first one."""
        us = self._engine.watermark_us
        return None if us is None else instant(us)

    def set_current_namespace(self, namespace: Any) -> None:
        """Set the namespace of all later accesses of this call; the next call begins without one.

        ``namespace`` is one for all keys, as in functions of one row.
        """
        self._engine.set_namespace(namespace)

    @property
    def operator_uid(self) -> str:
        """The operator's ``uid``."""
        return self._context.operator_uid

    @property
    def batch_id(self) -> int:
        """The id of the micro-batch."""
        return self._context.batch_id

    @property
    def subtask_index(self) -> int:
        """The number of this subtask, from 0."""
        return self._context.subtask_index

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return self._context.parallelism

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._context.max_parallelism

    @property
    def attempt_number(self) -> int:
        """The number of earlier attempts of this task."""
        return self._context.attempt_number

    @property
    def clients(self) -> Any:
        """The open clients of the function's `Clients`, as attributes."""
        return self._context.clients

    def __getattr__(self, name: str) -> NoReturn:
        """Explain what only functions of one row have."""
        if name in _OF_RECORDS:
            raise AttributeError(
                f"ctx.{name} is for functions of one row: {_OF_RECORDS[name]}", name=name, obj=self
            )
        raise AttributeError(f"ctx has no {name!r}", name=name, obj=self)


_OF_RECORDS = {
    "current_key": "a batch function has ctx.groups.keys, the keys of all rows",
    "collect": "a batch function returns its rows",
    "call": "a batch function is a plain method",
    "idempotency_key": "a batch function runs for many records",
}
