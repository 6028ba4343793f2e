"""The number of pages that an iteration loads; the kit tests its elements on every backend."""

from __future__ import annotations

import pytest

from forebay_state_api import KeyedProcessFunction, ListStateDescriptor
from forebay_state_api.settings import EngineSettings
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend, ReferenceScan, ReferenceTable

loaded = []


class WatchedScan(ReferenceScan):
    def pages(self, page_size):
        for page in super().pages(page_size):
            loaded.append(page)
            yield page


class WatchedTable(ReferenceTable):
    def scan(self, namespace, group, key):
        scan = super().scan(namespace, group, key)
        scan.__class__ = WatchedScan
        return scan


class WatchedBackend(ReferenceBackend):
    def table(self, spec):
        table = super().table(spec)
        table.__class__ = WatchedTable
        return table


@pytest.fixture
def job():
    """The list under ``k`` holds 0 to 9, and pages have three elements."""
    settings = EngineSettings(page_size=3, drain_timeout_s=1)
    descriptor = ListStateDescriptor("l", int)
    job = KeyedJob(WatchedBackend, memory_storage(), descriptors=[descriptor], settings=settings)
    job.do("k", ("l.add_all", list(range(10))))
    loaded.clear()
    return job


def run(job, body):
    class Iterating(KeyedProcessFunction):
        def open(self, context):
            self.l = context.get_list_state(ListStateDescriptor("l", int))

        async def process_element(self, row, ctx):
            return await body(await self.l.async_get(), self)

    return job.run(Iterating(), [("k",)])


def test_pages_come_as_the_consumer_goes_on(job):
    async def body(iterator, function):
        before = len(loaded)
        return [before, *[len(loaded) async for element in iterator if element in (2, 3, 6)]]

    assert run(job, body) == [1, 1, 2, 3]


def test_a_consumer_that_stops_early_loads_no_more(job):
    async def body(iterator, function):
        async for element in iterator:
            if element == 4:
                break

    run(job, body)
    assert loaded == [[0, 1, 2], [3, 4, 5]]


def test_whether_it_is_empty_takes_one_page(job):
    async def body(iterator, function):
        return [iterator.is_empty()]

    assert run(job, body) == [False]
    assert len(loaded) == 1


def test_a_second_consumption_reads_again(job):
    async def body(iterator, function):
        first = [element async for element in iterator]
        return [first == [element async for element in iterator]]

    assert run(job, body) == [True]
    assert len(loaded) == 8


def test_a_third_consumption_while_another_is_under_way(job):
    async def body(iterator, function):
        return [
            [other async for other in iterator] async for element in iterator if element in (1, 5)
        ]

    assert run(job, body) == [list(range(10))] * 2
