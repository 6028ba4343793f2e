"""`late_backend` fulfils the contract like the wrapped backend, and exposes hidden faults."""

from __future__ import annotations

import pytest

from forebay_state_api import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.settings import EngineSettings
from forebay_testing import KeyedJob, late_backend
from forebay_testing.backends.iterators import PAGES, IteratorTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

ONE_BY_ONE = EngineSettings(read_ahead=False, batch_size=1)


class TestLateReferenceBackend(IteratorTests, OrderTests):
    @pytest.fixture
    def backend_class(self):
        return late_backend(ReferenceBackend, seed=1)

    @pytest.fixture(params=PAGES[:2], ids=["pages of 1", "pages of 3"])
    def pages(self, request):
        """Several pages, each of which is answered late."""
        return request.param


class Meanwhile(KeyedProcessFunction):
    """Keeps a record's value in a field while it waits: another record may change it."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", int))
        self.marks = context.get_map_state(MapStateDescriptor("marks", int, int))

    async def process_element(self, row, ctx):
        self.field = row[0]
        await self.last.async_value()
        await self.marks.async_get(row[1])
        yield row[0], self.field


def run(seed):
    job = KeyedJob(late_backend(ReferenceBackend, seed), memory_storage(), settings=ONE_BY_ONE)
    rows = job.run(Meanwhile(), [(key, 1) for key in range(20)])
    return rows, job.reports[0].metrics


def test_records_overlap_and_end_in_an_order_that_the_seed_decides():
    rows, metrics = run(seed=3)
    assert sorted(key for key, _ in rows) == list(range(20))
    assert [key for key, _ in rows] != list(range(20))
    assert any(key != field for key, field in rows), "a fault that memory would hide"
    assert metrics.largest_in_flight > 1
    assert metrics.requests == metrics.request_batches == 40
    assert run(seed=3) == (rows, metrics)
    assert run(seed=4)[0] != rows


def test_the_seed_decides_again_in_each_micro_batch():
    job = KeyedJob(late_backend(ReferenceBackend), memory_storage(), settings=ONE_BY_ONE)
    orders = {tuple(job.run(Meanwhile(), [(key, 1) for key in range(20)])) for _ in range(3)}
    assert len(orders) == 3
