"""The heap backend passes the conformance kit."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pytest

from forebay_backend_heap import backend, snapshot
from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.background_snapshots import SnapshotThread
from forebay_backend_heap.cache import CACHE
from forebay_state_api.contract.backend import Capability
from forebay_state_api.contract.changes import Shape
from forebay_testing import StateBackendTests, late_backend
from forebay_testing.backends import PropertyTests
from forebay_testing.backends.columns import ColumnTests, UnheldValueTests
from forebay_testing.backends.generations import GenerationTests
from forebay_testing.backends.janitor_pass import ClearingTests
from forebay_testing.backends.replay import ReplayTests
from forebay_testing.backends.representations import RepresentationTests
from forebay_testing.backends.rescale import RescaleTests
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.tables import TableTests
from forebay_testing.backends.timelines import TimelineTests
from forebay_testing.backends.ttl import TtlTests
from forebay_testing.backends.versions import VersionTests


class OfHeap:
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return HeapBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear


class TestHeapBackend(
    OfHeap, *(part for part in StateBackendTests.__bases__ if part is not GenerationTests)
):
    """Run the kit with default options, except where it looks at files."""

    @pytest.fixture
    def backend_options(self, request):
        """With the default, the manifests hold the small files of these tests."""
        looks = ("DamageTests", "VerificationTests", "CommitTests")
        of = request.function.__qualname__.partition(".")[0]
        return {"held-bytes": 0} if of in looks else {}


class TestGenerations(OfHeap, GenerationTests):
    """Run changes of types with snapshots after five commits, not after fifteen."""

    @pytest.fixture
    def backend_options(self):
        return {"snapshot-factor": 1.0}


class ByColumns(HeapBackend):
    """Holds the point tables of every run by columns."""

    contract_version = HeapBackend.contract_version
    capabilities = HeapBackend.capabilities & ~Capability.RESIDENT

    def table(self, spec):
        return super().table(attrs.evolve(spec, columns=spec.shape is Shape.POINT))


class OfColumns(OfHeap):
    @pytest.fixture
    def backend_class(self):
        return ByColumns


class TestByColumns(OfColumns, TableTests, ColumnTests, TtlTests, ReplayTests, RescaleTests):
    """Run what is about tables with point tables that are held by columns."""


@pytest.mark.slow
class TestAllByColumns(
    OfColumns, *(part for part in StateBackendTests.__bases__ if part is not UnheldValueTests)
):
    """Run the kit with point tables that are held by columns; no run is by cells."""

    unclaimed: ClassVar = {
        f"{RepresentationTests.test_values_come_back_as_they_were.__name__}[{kind}-{ttl}]": (
            "columns hold ints of 64 bits and text in UTF-8"
        )
        for kind in ("long int", "half a character")
        for ttl in ("plain", "ttl")
    }
    backend_options = TestHeapBackend.backend_options


class AtOnce:
    """Runs work when it is queued, before the next commit."""

    def do_if_possible(self, work):
        work()
        return True


class Never:
    """Leaves work out, as a process that ends before it begins."""

    def do_if_possible(self, work):
        return False


class TestBackgroundSnapshots(OfHeap, VersionTests, ClearingTests, ReplayTests, TimelineTests):
    """Run what is about versions with every snapshot planned, and written or lost."""

    @pytest.fixture
    def backend_options(self):
        return {"snapshot-factor": 0.5}

    @pytest.fixture(autouse=True, params=[AtOnce, Never])
    def _planned(self, request, monkeypatch):
        thread = SnapshotThread(request.param())
        monkeypatch.setattr(snapshot, "PLANNED_FROM", 0)
        monkeypatch.setattr(backend, "THREAD", lambda: thread)


@pytest.mark.slow
class TestGenerationsWithDefaults(OfHeap, GenerationTests):
    """Run changes of types with default options."""


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(OfHeap, PropertyTests):
    """Search with fresh examples."""

    example_seed = fresh_seed()
    example_factor = 20


@pytest.mark.slow
class TestLateHeapBackend(OfHeap, StateBackendTests):
    """Run the kit with reads that are answered late and out of order, and with all damages."""

    thorough = True

    @pytest.fixture
    def backend_class(self):
        return late_backend(HeapBackend, seed=1)
