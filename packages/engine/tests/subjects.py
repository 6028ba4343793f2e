"""Backends for tests with the fixtures of the kit: one whose reads wait, and one in memory."""

from __future__ import annotations

import pytest

from forebay_backend_heap import HeapBackend
from forebay_backend_heap.cache import CACHE
from forebay_testing.backends.subject import BackendSubject
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
