"""The conformance kit on a third party's backend, as its author would write it."""

from __future__ import annotations

import pytest
from shelf_backend import ShelfBackend

from forebay_testing import StateBackendTests


class TestShelfBackend(StateBackendTests):
    machine_examples = 10

    @pytest.fixture
    def backend_class(self):
        return ShelfBackend

    @pytest.fixture
    def backend_options(self):
        return {"level": 1}
