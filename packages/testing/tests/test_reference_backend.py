"""The reference backend is the kit's second subject: its reads wait, on other threads.

By default it runs the parts whose reads may wait, on a third of the heap backend's examples. `slow`
has the whole kit.
"""

from __future__ import annotations

import pytest

from forebay_testing import StateBackendTests
from forebay_testing.backends import PropertyTests
from forebay_testing.backends.cleanup import CleanupTests
from forebay_testing.backends.damage import DamageTests
from forebay_testing.backends.forks import ForkTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.migration import MigrationTests
from forebay_testing.backends.namespaced_timers import NamespacedTimerTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.readers import ReaderTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.subject import MANNERS
from forebay_testing.backends.timelines import TimelineTests
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
    CleanupTests,
    ClearingTests,
    DamageTests,
    ForkTests,
    GenerationTests,
    MigrationTests,
    NamespacedTimerTests,
    ReaderTests,
    ReplayTests,
    RescaleTests,
    SortedMapTests,
    TimelineTests,
    TtlSwitchTests,
    VersionTests,
}
"""Parts that look at files, of which other backends have more, or whose reads wait in lsm.

The heap backend runs all of them by default. The properties read sorted maps and timers of
namespaces in every style.
"""


class TestReferenceBackend(
    OfReference, *(part for part in StateBackendTests.__bases__ if part not in OF_OTHERS)
):
    """The parts whose reads may wait."""

    # The heap backend has all of them.
    failure_examples = program_examples = 6
    machine_examples = 6
    history_examples = 4
    timer_examples = 4

    @pytest.fixture(params=["coroutine", "callback", "unchained"])
    def manner(self, request):
        """The manners that lsm, whose reads wait too, does not run."""
        return MANNERS[request.param]

    @pytest.fixture(params=["callback", "unchained"])
    def some_manner(self, request):
        """The styles that the heap backend does not run; it has coroutines."""
        return MANNERS[request.param]


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestAll(OfReference, StateBackendTests):
    """The whole kit, in every manner."""


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
