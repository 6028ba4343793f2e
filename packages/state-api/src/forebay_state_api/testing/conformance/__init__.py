"""The conformance kit, one module per part of the contract.

`StateBackendTests` has all tests that involve a backend. `EngineTests` has the decisions that the
engine makes before it calls a backend; it needs to run on one backend only.

pytest rewrites the kit's assertions, as in any test; this must be requested before the modules are
imported.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "aliasing",
    "cleanup",
    "damage",
    "declaring",
    "failing",
    "foreign",
    "forks",
    "futures",
    "generations",
    "histories",
    "iterators",
    "janitor_pass",
    "kinds",
    "machine",
    "migration",
    "namespaced_timers",
    "operator_state",
    "order",
    "overlapping",
    "readers",
    "replay",
    "reporting",
    "rescale",
    "search",
    "sorted_maps",
    "steps",
    "stored_cells",
    "subject",
    "tables",
    "timelines",
    "timer_histories",
    "timers",
    "ttl",
    "ttl_switch",
    "versions",
    "visits",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from forebay_state_api.testing.conformance.aliasing import AliasingTests
from forebay_state_api.testing.conformance.cleanup import CleanupTests
from forebay_state_api.testing.conformance.damage import DamageTests
from forebay_state_api.testing.conformance.declaring import DeclarationTests
from forebay_state_api.testing.conformance.failing import FailureTests
from forebay_state_api.testing.conformance.foreign import ForeignTests
from forebay_state_api.testing.conformance.forks import ForkTests
from forebay_state_api.testing.conformance.futures import FutureTests
from forebay_state_api.testing.conformance.generations import GenerationTests
from forebay_state_api.testing.conformance.histories import HistoryTests
from forebay_state_api.testing.conformance.iterators import IteratorTests
from forebay_state_api.testing.conformance.janitor_pass import ClearingTests
from forebay_state_api.testing.conformance.kinds import (
    KeysOfMapsTests,
    KindRefusalTests,
    KindTests,
)
from forebay_state_api.testing.conformance.machine import StateMachineTests
from forebay_state_api.testing.conformance.migration import MigrationRefusalTests, MigrationTests
from forebay_state_api.testing.conformance.namespaced_timers import NamespacedTimerTests
from forebay_state_api.testing.conformance.operator_state import (
    CheckpointListenerTests,
    OperatorStateTests,
)
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.overlapping import OverlapTests
from forebay_state_api.testing.conformance.readers import ReaderTests
from forebay_state_api.testing.conformance.replay import ReplayTests
from forebay_state_api.testing.conformance.rescale import RescaleTests
from forebay_state_api.testing.conformance.sorted_maps import SortedMapTests
from forebay_state_api.testing.conformance.steps import ProgramTests, StepTests
from forebay_state_api.testing.conformance.subject import MANNERS, Manner
from forebay_state_api.testing.conformance.tables import CommitTests, TableTests
from forebay_state_api.testing.conformance.timelines import TimelineTests
from forebay_state_api.testing.conformance.timer_histories import (
    TimerHistoryTests,
)
from forebay_state_api.testing.conformance.timers import TimerRefusalTests, TimerTests
from forebay_state_api.testing.conformance.ttl import TtlDeclarationTests, TtlTests
from forebay_state_api.testing.conformance.ttl_switch import TtlSwitchTests
from forebay_state_api.testing.conformance.versions import VerificationTests, VersionTests
from forebay_state_api.testing.conformance.visits import VisitTests


class PropertyTests(ProgramTests, StateMachineTests, HistoryTests, TimerHistoryTests, OverlapTests):
    """Properties: drawn examples, compared with models and with each other.

    To search among new examples, set ``example_seed`` and ``example_factor`` in a class that is not
    run by default.
    """


class StateBackendTests(
    TableTests,
    CommitTests,
    FutureTests,
    IteratorTests,
    KindTests,
    KeysOfMapsTests,
    SortedMapTests,
    AliasingTests,
    OrderTests,
    StepTests,
    FailureTests,
    ForeignTests,
    TtlTests,
    TtlSwitchTests,
    CleanupTests,
    ReplayTests,
    RescaleTests,
    VisitTests,
    ReaderTests,
    TimerTests,
    NamespacedTimerTests,
    VersionTests,
    VerificationTests,
    DamageTests,
    ClearingTests,
    MigrationTests,
    GenerationTests,
    ForkTests,
    TimelineTests,
    PropertyTests,
):
    """Everything that a state backend has to do; see `forebay_state_api.testing`."""


class EngineTests(
    DeclarationTests,
    KindRefusalTests,
    TtlDeclarationTests,
    TimerRefusalTests,
    MigrationRefusalTests,
    OperatorStateTests,
    CheckpointListenerTests,
):
    """Decisions of the engine, on any backend; list it before `StateBackendTests`."""

    @pytest.fixture(params=list(MANNERS))
    def some_manner(self, request: pytest.FixtureRequest) -> Manner:
        """Every manner, since styles are the engine's business."""
        return MANNERS[request.param]


__all__ = ["EngineTests", "PropertyTests", "StateBackendTests"]
