"""What authors of jobs test with, `FunctionHarness`, and authors of backends, the conformance kit.

A backend passes when this does::

    class TestMyBackend(StateBackendTests):
        @pytest.fixture
        def backend_class(self):
            return MyBackend

Further fixtures to override, where the defaults do not fit: ``backend_options`` (its settings),
``storage`` (the state directory, in memory unless overridden) and ``forget`` (a callable that
empties what the backend keeps between batches in this process, as a new process would find it).
What is drawn is the same in each run: ``example_seed`` and ``example_factor`` of a class that is
not run by default make it search further. `StateBackend.capabilities` decides what more is asked of
a backend. A failure says which promise was broken, and the history that shows it.

The kit needs pytest and hypothesis, `FunctionHarness` cloudpickle (``forebay-state-api[testing]``);
everything else here needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_state_api.testing.clock import ManualClock
from forebay_state_api.testing.compaction import ImmediateCompaction
from forebay_state_api.testing.harness import FunctionHarness
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.testing.late_backend import late_backend
from forebay_state_api.testing.scripts import Style
from forebay_state_api.testing.sequencer import ScheduleError, Sequencer
from forebay_state_api.testing.storage import (
    ClockedStorage,
    CountingStorage,
    Crash,
    Fault,
    FaultKind,
    FaultyStorage,
    WrappedStorage,
)

if TYPE_CHECKING:
    from forebay_state_api.testing.conformance import StateBackendTests

__all__ = [
    "ClockedStorage",
    "CountingStorage",
    "Crash",
    "Fault",
    "FaultKind",
    "FaultyStorage",
    "FunctionHarness",
    "ImmediateCompaction",
    "KeyedJob",
    "ManualClock",
    "ScheduleError",
    "Sequencer",
    "StateBackendTests",
    "Style",
    "WrappedStorage",
    "late_backend",
]


def __getattr__(name: str) -> Any:
    """Import the kit when it is asked for: harnesses of jobs come without pytest."""
    if name != "StateBackendTests":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forebay_state_api.testing.conformance import StateBackendTests

    return StateBackendTests
