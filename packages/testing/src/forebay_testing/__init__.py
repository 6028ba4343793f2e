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

`StorageTests` and `CompactionServiceTests` are the kits for authors of storages and of compaction
services. Only the kits need pytest and hypothesis: ``pip install 'forebay-testing[kit]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_engine.execution.late_rows import LateRow as LateRow
    from forebay_engine.execution.record_calls import CallTry as CallTry
    from forebay_engine.isolation.failed_record import FailedRecord as FailedRecord
    from forebay_testing.backends import StateBackendTests as StateBackendTests
    from forebay_testing.chain import HarnessChain as HarnessChain
    from forebay_testing.clock import ManualClock as ManualClock
    from forebay_testing.compaction import ImmediateCompaction as ImmediateCompaction
    from forebay_testing.harness import FunctionHarness as FunctionHarness
    from forebay_testing.job import KeyedJob as KeyedJob
    from forebay_testing.late_reads import late_backend as late_backend
    from forebay_testing.scripts import Style as Style
    from forebay_testing.sequencer import ScheduleError as ScheduleError, Sequencer as Sequencer
    from forebay_testing.services import CompactionServiceTests as CompactionServiceTests
    from forebay_testing.storage import (
        ClockedStorage as ClockedStorage,
        CountingStorage as CountingStorage,
        Crash as Crash,
        Fault as Fault,
        FaultKind as FaultKind,
        FaultyStorage as FaultyStorage,
        WrappedStorage as WrappedStorage,
    )
    from forebay_testing.storages import StorageTests as StorageTests
    from forebay_testing.virtual_clock import VirtualClock as VirtualClock
