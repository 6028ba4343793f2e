"""The reference backend is the kit's second subject: its reads wait, on other threads.

By default it runs the parts whose reads may wait, on a third of the heap backend's examples. `slow`
has the whole kit.
"""

from __future__ import annotations

import pytest

from forebay_testing import StateBackendTests
from forebay_testing.backends import PropertyTests
from forebay_testing.backends.alike_names import AlikeNameTests
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.commit_results import ObjectTests, ReportTests, UnchangedTests
from forebay_testing.backends.damage import DamageTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.kinds import KindTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.processes import LeakTests
from forebay_testing.backends.readers import ReaderTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.representations import RepresentationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.stored_limits import StoredLimitTests
from forebay_testing.backends.timelines import TimelineTests
from forebay_testing.backends.ttl import TtlTests
from forebay_testing.backends.ttl_switch import TtlSwitchTests
from forebay_testing.backends.versions import VersionTests
from forebay_testing.reference import ReferenceBackend


class OfReference:
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend


OF_OTHERS = {
    AlikeNameTests,
    CleanupTests,
    ClearingTests,
    DamageTests,
    ForkTests,
    GenerationTests,
    KindTests,
    LeakTests,
    MigrationTests,
    NamespacedTimerTests,
    ObjectTests,
    ReaderTests,
    ReplayTests,
    ReportTests,
    RepresentationTests,
    RescaleTests,
    SortedMapTests,
    StoredLimitTests,
    TimelineTests,
    TtlSwitchTests,
    TtlTests,
    UnchangedTests,
    VersionTests,
}
"""Parts that look at files, of which other backends have more, or whose reads wait in lsm.

The heap backend runs all of them by default. The engine's tests run kinds of state and times to
live on this backend in other styles; the properties read sorted maps in every style.
"""


class TestReferenceBackend(
    OfReference, *(part for part in StateBackendTests.__bases__ if part not in OF_OTHERS)
):
    """The parts whose reads may wait."""

    # The heap backend has all of them.
    failure_examples = 6
    machine_examples = 6
    # The engine's tests have ten times as many on this backend.
    overlap_examples = 4


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestAll(OfReference, StateBackendTests):
    """The whole kit."""


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(OfReference, PropertyTests):
    """Examples that nobody has seen."""

    example_seed = fresh_seed()
    example_factor = 20


class TestSlowReferenceBackend(OfReference, OrderTests):
    @pytest.fixture
    def backend_options(self):
        return {"read-latency": 0.001}
