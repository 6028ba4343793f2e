"""A job without Spark whose state is read from outside, on both backends."""

from __future__ import annotations

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import open_state
from forebay_testing import KeyedJob


@pytest.fixture(params=[HeapBackend, LsmBackend], ids=["heap", "lsm"])
def backend_class(request):
    return request.param


@pytest.fixture
def make_job(tmp_path, backend_class):
    """Make a job whose state directory is ``tmp_path``."""

    def make(*descriptors, **given):
        storage = open_storage(str(tmp_path))
        return KeyedJob(backend_class, storage, descriptors=descriptors, **given)

    return make


@pytest.fixture
def read(tmp_path):
    """Open the job's state; every snapshot is closed at the end."""
    opened = []

    def open_(**given):
        opened.append(open_state(str(tmp_path), query="query", uid="operator", **given))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
