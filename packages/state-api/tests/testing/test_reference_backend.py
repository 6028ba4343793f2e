"""The reference backend is the kit's second subject: its reads wait, on other threads."""

from __future__ import annotations

import pytest

from forebay_state_api.testing import StateBackendTests
from forebay_state_api.testing.conformance import EngineTests, PropertyTests
from forebay_state_api.testing.conformance.damage import DamageTests
from forebay_state_api.testing.conformance.forks import ForkTests
from forebay_state_api.testing.conformance.generations import GenerationTests
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.rescale import RescaleTests
from forebay_state_api.testing.conformance.search import fresh_seed
from forebay_state_api.testing.reference import ReferenceBackend


class OfReference:
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend


OF_FILES = (RescaleTests, DamageTests, GenerationTests, ForkTests)
"""Parts that look at files, of which other backends have more, and at no read that waits."""


class TestReferenceBackend(
    OfReference,
    EngineTests,
    *(part for part in StateBackendTests.__bases__ if part not in OF_FILES),
):
    """With what the engine decides, which every backend gets from it."""


@pytest.mark.slow
class TestFilesOfReferenceBackend(OfReference, *OF_FILES):
    """The rest of the kit."""


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
