"""Synchronous accesses that wait are counted; a warning is given if they stop asynchronous ones."""

from __future__ import annotations

import warnings

import pytest

from forebay_state_api import KeyedProcessFunction, ReducingStateDescriptor, ValueStateDescriptor


class States(KeyedProcessFunction):
    def open(self, context):
        self.a = context.get_state(ValueStateDescriptor("a", int))
        self.b = context.get_state(ValueStateDescriptor("b", int))
        self.r = context.get_reducing_state(ReducingStateDescriptor("r", max, int))


class MixedCoroutine(States):
    async def process_element(self, row, ctx):
        await self.a.async_value()
        self.b.value()


class MixedCallbacks(States):
    def process_element(self, row, ctx):
        self.b.value()
        self.a.async_value().then_accept(lambda _: None)


class Synchronous(States):
    def process_element(self, row, ctx):
        self.a.value()
        self.b.value()


class Merging(States):
    async def process_element(self, row, ctx):
        await self.a.async_value()
        self.r.merge_namespaces("w", ["x"])


class AwaitedMerging(States):
    async def process_element(self, row, ctx):
        await self.a.async_value()
        await self.r.async_merge_namespaces("w", ["x", "y"])


ROWS = [(f"k{n}",) for n in range(5)]


@pytest.mark.parametrize(
    ("function", "state"), [(MixedCoroutine, "b"), (MixedCallbacks, "b"), (Merging, "r")]
)
def test_mixing_warns_once_per_operator(new_job, function, state):
    job = new_job(uid=f"warned of {function.__name__}")
    with pytest.warns(RuntimeWarning, match=f"{job.uid}.*'{state}'") as caught:
        job.run(function(), ROWS)
    assert len(caught) == 1
    job.run(function(), ROWS)
    assert job.reports[0].metrics.sync_waits == 5


@pytest.mark.parametrize(("function", "waits"), [(Synchronous, 10), (AwaitedMerging, 0)])
def test_what_does_not_mix_does_not_warn(new_job, function, waits):
    job = new_job(uid=f"not warned of {function.__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.run(function(), ROWS)
    assert job.reports[0].metrics.sync_waits == waits


def test_what_was_read_ahead_does_not_wait(new_job):
    job = new_job(uid="read ahead", read_ahead=True)
    job.run(MixedCoroutine(), ROWS)
    metrics = job.reports[0].metrics
    assert (metrics.sync_waits, metrics.requests, metrics.read_ahead_cells) == (0, 0, 15)
