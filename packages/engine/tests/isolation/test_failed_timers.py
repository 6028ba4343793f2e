"""Timers of records that fail alone are as before, and a timer that fails is consumed."""

from __future__ import annotations

import pytest

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api.job.descriptors import MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_testing.backends.failing import UNLIMITED
from forebay_testing.backends.subject import ENGINES, SECOND
from forebay_testing.clock import ManualClock
from forebay_testing.late_reads import late_backend

from ..subjects import OnBoth

START = ManualClock().now


class TestFailedTimers(OnBoth):
    def test_timers_that_a_failed_record_set_or_deleted_are_put_back(self, new_job):
        job = new_job(settings=ENGINES["tight"], error_rows=UNLIMITED)
        function = _Alarms()
        sets, fails_after = [("set", 1), ("set", 2)], [("delete", 1), ("set", 3), ("fail",)]
        (failed,) = job.run(function, [("k", sets), ("k", fails_after)])
        assert failed.type == "ValueError"
        job.clock.advance(10 * SECOND)
        job.restart()
        assert job.run(function, []) == [("k", 1), ("k", 2)]

    @pytest.mark.parametrize("lists", ["the same record", "another record"])
    def test_a_first_listing_forgets_what_a_failed_record_changed(
        self, new_job, backend_class, lists
    ):
        job, function = new_job(error_rows=UNLIMITED), _ListingAlarms()
        if lists == "another record":  # meets one that waits
            job.backend_class = late_backend(backend_class, seed=1)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.restart()
        changes = [("delete", 1), ("set", 3), ("set", 2), ("delete", 4)]
        if lists == "the same record":
            rows = [("k", [*changes, ("list",), ("fail",)])]
        else:
            rows = [("k", [*changes, ("wait",), ("fail",)]), ("j", [("list",), ("wait",)])]
        *listed, failed = sorted(job.run(function, rows), key=_is_failure)
        assert (failed.type, listed) == ("ValueError", [] if len(rows) == 1 else [("j", [])])
        assert job.run(function, [("k", [("list",)])]) == [("k", [1, 2])]
        job.restart()
        assert job.run(function, [("k", [("list",), ("replace", 5)])]) == [("k", [1, 2])]
        job.clock.advance(10 * SECOND)
        assert job.run(function, []) == [("k", 5)]

    def test_a_timer_that_fails_is_consumed(self, new_job):
        job = new_job(settings=ENGINES["tight"], error_rows=UNLIMITED)
        function = _Alarms(bad=1)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.clock.advance(10 * SECOND)
        failed, fired = job.run(function, [])
        assert (failed.method, failed.row, fired) == ("on_timer", None, ("k", 2))
        assert failed.timer == function.at(1)
        job.restart()
        assert job.run(function, []) == []

    def test_a_timer_that_fails_leaves_the_rows_of_the_one_before(self, new_job):
        job = new_job(settings=ENGINES["tight"], error_rows=UNLIMITED)
        function = _ReadingAlarms(bad=2)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.clock.advance(10 * SECOND)
        job.restart()
        fired, failed = job.run(function, [])  # the first waits for the count
        assert (fired, failed.timer) == (("k", 1), function.at(2))


class _Alarms(KeyedProcessFunction):
    """Sets and deletes timers; ``on_timer`` fails at second ``bad``, after it deleted the rest."""

    def __init__(self, bad=None):
        self.bad = bad

    @staticmethod
    def at(second):
        return START + second * SECOND

    def process_element(self, row, ctx):
        for kind, *second in row[1]:
            if kind == "fail":
                raise ValueError
            timers = ctx.timers
            change = (
                timers.register_processing_time if kind == "set" else timers.delete_processing_time
            )
            change(self.at(*second))

    def on_timer(self, at, ctx):
        second = (at - START) // SECOND
        if second == self.bad:
            ctx.timers.delete_processing_time(self.at(2))
            ctx.timers.register_processing_time(self.at(100))
            raise ValueError
        yield ctx.current_key, second


class _ListingAlarms(_Alarms):
    """Lists and replaces timers as well, and waits for state between its changes."""

    def open(self, context):
        self.seen = context.get_map_state(MapStateDescriptor("seen", int, int))

    async def process_element(self, row, ctx):
        for step in row[1]:
            if step[0] == "wait":
                await self.seen.async_get(1)
            elif step[0] == "list":
                listed = await ctx.timers.async_list_processing_time()
                yield row[0], [(at - START) // SECOND for at in listed]
            elif step[0] == "replace":
                await ctx.timers.async_replace_processing_time(self.at(*step[1:]))
            else:
                super().process_element((row[0], [step]), ctx)


def _is_failure(row):
    return isinstance(row, FailedRecord)


class _ReadingAlarms(_Alarms):
    """Counts the timers of a key that do not fail."""

    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def on_timer(self, at, ctx):
        second = (at - START) // SECOND
        if second == self.bad:
            raise ValueError
        await self.count.async_update(await self.count.async_value() + 1)
        return [(ctx.current_key, second)]
