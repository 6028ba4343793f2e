"""`slow_job`: a job whose reads of storage take two seconds of a `VirtualClock`.

For tests of what waits for state, and of who ends such waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

import attrs

from forebay_state_api.contract.backend import StateBackend, Table, TableSpec
from forebay_state_api.job.futures import current_scheduler
from forebay_state_api.settings import EngineSettings
from forebay_state_api.testing import KeyedJob, VirtualClock
from forebay_state_api.testing.conformance.subject import memory_storage
from forebay_state_api.testing.late_backend import LateBackend, LateTable
from forebay_state_api.testing.reference import ReferenceBackend

READ_S: Final = 2.0


class _SlowReads(Executor):
    """Executes each read `READ_S` after it was sent, by the loop's clock."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        asyncio.get_running_loop().call_later(READ_S, partial(fn, *args, **kwargs))
        return Future()


class _SlowBackend(LateBackend):
    """The tables of another backend, none of them resident."""

    def table(self, spec: TableSpec) -> Table:
        scheduler: Any = current_scheduler()
        if scheduler is not None:
            scheduler.reads.execute_in(_SlowReads(), instead=True)
        return self._tables.setdefault(spec.name, LateTable(self._inner.table(spec)))


def slow(backend_class: type[StateBackend]) -> type[StateBackend]:
    """Return ``backend_class`` with slow reads."""

    class Slow(_SlowBackend):
        name = backend_class.name
        contract_version = backend_class.contract_version
        options = backend_class.options
        inner_class = backend_class
        inner_seed = 0

    return Slow


def slow_job(
    backend_class: type[StateBackend] = ReferenceBackend, *, job: Any = None, **settings: Any
) -> KeyedJob:
    """Return a job with slow reads; ``settings`` are the engine's, ``job`` the job's arguments."""
    given = attrs.evolve(EngineSettings(read_ahead=False, drain_timeout_s=1_000), **settings)
    return KeyedJob(
        slow(backend_class), memory_storage(), settings=given, clock=VirtualClock(), **(job or {})
    )
