"""The conformance kit, one module per part of the contract.

`StateBackendTests` has all of them: what a backend decides, and a restart and a rescale of what the
engine stores in its tables and versions. What the engine decides before it asks a backend is tested
with the engine.

pytest rewrites the kit's assertions, as in any test; this must be requested before the modules are
imported.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "alike_names",
    "cleanup",
    "columns",
    "commit_results",
    "damage",
    "failing",
    "forks",
    "generations",
    "iterators",
    "janitor_pass",
    "kinds",
    "machine",
    "migration",
    "namespaced_timers",
    "operator_state",
    "order",
    "overlapping",
    "processes",
    "readers",
    "replay",
    "reporting",
    "representations",
    "rescale",
    "search",
    "sorted_maps",
    "stored_cells",
    "stored_limits",
    "subject",
    "table_contents",
    "table_versions",
    "tables",
    "timelines",
    "timers",
    "ttl",
    "ttl_switch",
    "versions",
    "visits",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from forebay_testing.backends.alike_names import AlikeNameTests
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.columns import ColumnTests, UnheldValueTests
from forebay_testing.backends.commit_results import ObjectTests, ReportTests, UnchangedTests
from forebay_testing.backends.damage import DamageTests
from forebay_testing.backends.failing import FailureTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.iterators import IteratorTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.kinds import KeysOfMapsTests, KindTests
from forebay_testing.backends.machine import StateMachineTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.operator_state import OperatorStateTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.overlapping import OverlapTests
from forebay_testing.backends.processes import AnotherProcessTests, LeakTests, WaitingTests
from forebay_testing.backends.readers import ReaderTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.representations import RepresentationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.stored_limits import StoredLimitTests
from forebay_testing.backends.subject import BackendSubject
from forebay_testing.backends.tables import CommitTests, TableTests
from forebay_testing.backends.timelines import TimelineTests
from forebay_testing.backends.timers import TimerTests
from forebay_testing.backends.ttl import TtlTests
from forebay_testing.backends.ttl_switch import TtlSwitchTests
from forebay_testing.backends.versions import VerificationTests, VersionTests
from forebay_testing.backends.visits import VisitTests


class PropertyTests(StateMachineTests, OverlapTests):
    """Properties: drawn examples, compared with models and with each other.

    To search among new examples, set ``example_seed`` and ``example_factor`` in a class that is not
    run by default.
    """


class StateBackendTests(
    TableTests,
    ColumnTests,
    UnheldValueTests,
    CommitTests,
    ReportTests,
    UnchangedTests,
    ObjectTests,
    StoredLimitTests,
    AlikeNameTests,
    RepresentationTests,
    WaitingTests,
    LeakTests,
    AnotherProcessTests,
    IteratorTests,
    KindTests,
    KeysOfMapsTests,
    SortedMapTests,
    OrderTests,
    FailureTests,
    TtlTests,
    TtlSwitchTests,
    CleanupTests,
    ReplayTests,
    RescaleTests,
    VisitTests,
    ReaderTests,
    OperatorStateTests,
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
    """Everything that a state backend has to do; see `forebay_testing`."""


__all__ = ["BackendSubject", "PropertyTests", "StateBackendTests", "StoredCells", "fresh_seed"]
