"""The lsm backend keeps the contract that every backend keeps."""

from __future__ import annotations

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api.testing import StateBackendTests


class TestLsmBackend(StateBackendTests):
    @pytest.fixture
    def backend_class(self):
        return LsmBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear
