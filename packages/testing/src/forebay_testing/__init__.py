"""Test tools: `FunctionHarness` for authors of jobs, the conformance kit for authors of backends.

A backend conforms when this class passes::

    class TestMyBackend(StateBackendTests):
        @pytest.fixture
        def backend_class(self):
            return MyBackend

Other fixtures to override, if the defaults do not fit: ``backend_options`` (its settings),
``storage`` (the state directory, in memory unless overridden) and ``forget`` (a callable that
empties what the backend keeps between batches in this process, as a new process would find it).
Each run draws the same examples; set ``example_seed`` and ``example_factor`` in a class that is not
run by default to search further. `StateBackend.capabilities` decides which optional tests run. A
failure names the broken promise, and prints the history that shows it.

The kit alone needs pytest and hypothesis: ``pip install 'forebay-testing[kit]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_engine.execution.record_calls import CallTry
from forebay_engine.isolation.failed_record import FailedRecord
from forebay_testing.chain import HarnessChain
from forebay_testing.clock import ManualClock
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.harness import FunctionHarness
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend
from forebay_testing.scripts import Style
from forebay_testing.sequencer import ScheduleError, Sequencer
from forebay_testing.storage import (
    ClockedStorage,
    CountingStorage,
    Crash,
    Fault,
    FaultKind,
    FaultyStorage,
    WrappedStorage,
)
from forebay_testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from forebay_testing.backends import StateBackendTests

__all__ = [
    "CallTry",
    "ClockedStorage",
    "CountingStorage",
    "Crash",
    "FailedRecord",
    "Fault",
    "FaultKind",
    "FaultyStorage",
    "FunctionHarness",
    "HarnessChain",
    "ImmediateCompaction",
    "KeyedJob",
    "ManualClock",
    "ScheduleError",
    "Sequencer",
    "StateBackendTests",
    "Style",
    "VirtualClock",
    "WrappedStorage",
    "late_backend",
]


def __getattr__(name: str) -> Any:
    """Import the kit on demand, because harnesses of jobs do not need pytest."""
    if name != "StateBackendTests":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forebay_testing.backends import StateBackendTests

    return StateBackendTests
