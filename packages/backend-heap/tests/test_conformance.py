"""The reference backend is the kit's second subject: its reads wait, on other threads."""

from __future__ import annotations

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_state_api.testing.conformance.aliasing import *
from forebay_state_api.testing.conformance.declaring import *
from forebay_state_api.testing.conformance.kinds import *
from forebay_state_api.testing.conformance.tables import *


from forebay_state_api.testing.conformance.futures import *
from forebay_state_api.testing.conformance.iterators import *
from forebay_state_api.testing.conformance.order import *

class TestHeapBackend(
    KindTests, KeysOfMapsTests, AliasingTests, DeclarationTests, TableTests, CommitTests
):
    @pytest.fixture
    def backend_class(self):
        return HeapBackend

    @pytest.fixture
    def forget(self):
        from forebay_backend_heap.cache import CACHE

        return CACHE.clear
