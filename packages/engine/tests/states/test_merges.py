"""Namespaces are merged while additions to them are pending."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    ValueStateDescriptor,
)


class MergesWhatIsUnderWay(KeyedProcessFunction):
    """The addition waits for its cell, in another namespace than the record is in by then."""

    def open(self, context):
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", lambda a, b: a + b, int)
        )

    def process_element(self, row, ctx):
        self.total.async_add(row[1])
        ctx.set_current_namespace("elsewhere")
        self.total.merge_namespaces("merged", [None])
        in_elsewhere = self.total.get()
        ctx.set_current_namespace("merged")
        in_merged = self.total.get()
        ctx.set_current_namespace(None)
        yield in_elsewhere, in_merged, self.total.get()


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
def test_an_addition_under_way_is_merged(new_job):
    job = new_job(read_ahead=False)
    assert job.run(MergesWhatIsUnderWay(), [("k", 3)]) == [(None, 3, None)]
    assert job.run(MergesWhatIsUnderWay(), [("k", 4)]) == [(None, 7, None)]


class AddsToWhatIsMerged(KeyedProcessFunction):
    """Makes no synchronous access, and does not wait for the merge."""

    def open(self, context):
        self.seen = context.get_list_state(ListStateDescriptor("seen", int))

    async def process_element(self, row, ctx):
        self.seen.async_merge_namespaces(None, ["other"])
        await self.seen.async_add(row[1])


class ReadsWhatMayHaveExpired(KeyedProcessFunction):
    """The same, for a read that takes away what it shows."""

    def open(self, context):
        ttl = StateTtlConfig(
            timedelta(days=1), visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        )
        self.seen = context.get_state(ValueStateDescriptor("seen", int, ttl=ttl))

    async def process_element(self, row, ctx):
        first = self.seen.async_value()
        await self.seen.async_update(row[1])
        await first


@pytest.mark.parametrize("function", [AddsToWhatIsMerged(), ReadsWhatMayHaveExpired()])
def test_an_access_that_ends_another_one_says_so_where_it_waits(new_job, function):
    says = "namespaces, or whose read that may show expired data, is not awaited"
    job = new_job(uid=f"ends-another-one-{type(function).__name__}", read_ahead=False)
    with pytest.warns(RuntimeWarning, match=says):
        job.run(function, [("k", 3)])
