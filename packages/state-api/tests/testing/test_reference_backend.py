"""The reference backend is the kit's second subject: its reads wait, on other threads."""

from __future__ import annotations

import pytest

from forebay_state_api.testing import StateBackendTests
from forebay_state_api.testing.conformance import EngineTests, PropertyTests
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.conformance.search import fresh_seed
from forebay_state_api.testing.reference import ReferenceBackend


class OfReference:
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend


class TestReferenceBackend(OfReference, EngineTests, StateBackendTests):
    """With what the engine decides, which every backend gets from it."""


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
