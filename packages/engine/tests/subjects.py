"""Backends, and a clock, for tests with the fixtures of the kit."""

from __future__ import annotations

import pytest

from forebay_backend_heap import HeapBackend
from forebay_backend_heap.cache import CACHE
from forebay_state_api.contract.backend import NO_TIME
from forebay_testing.backends.subject import BackendSubject
from forebay_testing.clock import ManualClock
from forebay_testing.reference import ReferenceBackend


class OnReference(BackendSubject):
    """The reference backend: reads wait, and are answered by other threads."""

    @pytest.fixture
    def backend_class(self):
        return ReferenceBackend


class OnHeap(BackendSubject):
    """The heap backend: everything is in memory, and nothing waits."""

    @pytest.fixture
    def backend_class(self):
        return HeapBackend

    @pytest.fixture
    def forget(self):
        return CACHE.clear


class OnBoth(OnHeap):
    """Each of them."""

    @pytest.fixture(params=[ReferenceBackend, HeapBackend], ids=lambda backend: backend.name)
    def backend_class(self, request):
        return request.param


class Timeless(ManualClock):
    """The clock of a subtask without rows, which gets no time from Spark."""

    @property
    def now_us(self):
        return NO_TIME
