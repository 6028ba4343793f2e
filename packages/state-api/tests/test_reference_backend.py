"""The reference backend is the kit's second subject: its reads wait, on other threads."""

from __future__ import annotations

import pytest

from forebay_state_api.testing import StateBackendTests
from forebay_state_api.testing.conformance.order import OrderTests
from forebay_state_api.testing.reference import ReferenceBackend


class TestReferenceBackend(StateBackendTests):
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend


class TestSlowReferenceBackend(OrderTests):
    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend

    @pytest.fixture
    def backend_options(self):
        return {"read-latency": 0.001}
