"""The heap backend keeps the contract that every backend keeps."""

from __future__ import annotations

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.cache import CACHE
from forebay_state_api.testing import StateBackendTests, late_backend


class TestHeapBackend(StateBackendTests):
    @pytest.fixture
    def names_files(self):
        return True

    @pytest.fixture
    def backend_class(self):
        return HeapBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear


@pytest.mark.slow
class TestLateHeapBackend(TestHeapBackend):
    """With reads that are answered late, in another order than they were asked."""

    @pytest.fixture
    def backend_class(self):
        return late_backend(HeapBackend, seed=1)
