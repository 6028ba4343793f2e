"""`slow_job`: a job whose reads of storage take two seconds of a `VirtualClock`.

For tests of what waits for state, and of who ends such waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ClassVar, Final

import attrs

from forebay_state_api.contract.backend import StateBackend, Table, TableSpec
from forebay_state_api.job.record_scope import current_scheduler
from forebay_state_api.settings import EngineSettings
from forebay_testing import KeyedJob, VirtualClock
from forebay_testing.backends.subject import memory_storage
from forebay_testing.late_reads import LateBackend, LateTable
from forebay_testing.reference import ReferenceBackend

READ_S: Final = 2.0


class _SlowReads(Executor):
    """Executes each read ``seconds`` after it was sent, by the loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        asyncio.get_running_loop().call_later(self._seconds, partial(fn, *args, **kwargs))
        return Future()


class _SlowBackend(LateBackend):
    """The tables of another backend, none of them resident."""

    read_s: ClassVar[float]

    def table(self, spec: TableSpec) -> Table:
        scheduler: Any = current_scheduler()
        if scheduler is not None:
            scheduler.reads.execute_in(_SlowReads(self.read_s), instead=True)
        return self._tables.setdefault(spec.name, LateTable(self._inner.table(spec)))


def slow(backend_class: type[StateBackend], seconds: float = READ_S) -> type[StateBackend]:
    """Return ``backend_class`` with reads that take ``seconds``."""

    class Slow(_SlowBackend):
        name = backend_class.name
        contract_version = backend_class.contract_version
        options = backend_class.options
        inner_class = backend_class
        inner_seed = 0
        read_s = seconds

    return Slow


def slow_job(
    backend_class: type[StateBackend] = ReferenceBackend,
    *,
    read_s: float = READ_S,
    **settings: Any,
) -> KeyedJob:
    """Return a job with reads that take ``read_s``; ``settings`` are the engine's."""
    given = attrs.evolve(EngineSettings(read_ahead=False, drain_timeout_s=1_000), **settings)
    backend = slow(backend_class, read_s)
    return KeyedJob(backend, memory_storage(), settings=given, clock=VirtualClock())
