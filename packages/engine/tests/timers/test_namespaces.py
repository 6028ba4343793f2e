"""Timers in namespaces (docs/reference/state.md): fired in theirs, listed, replaced and merged."""

from __future__ import annotations

import pytest

from forebay_state_api.job.descriptors import ListStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_testing.backends.namespaced_timers import FUNCTIONS, TOTAL, Windowed, do, step
from forebay_testing.backends.subject import ENGINES, SECOND
from forebay_testing.backends.timers import (
    DOMAINS,
    EVENT,
    PROCESSING,
    TimerFunction,
    at,
    row,
    seconds_of,
)

from ..subjects import OnHeap, OnReference

WINDOWS = (None, "w", 1, ("x", 2.5))


SEEN = ListStateDescriptor("seen", int)


class ReplacesBehind(Windowed):
    """Replaces the timers of a namespace, and awaits what it asked for after that."""

    async def process_element(self, row, ctx):
        if row[2]:
            for seconds in row[2]:
                ctx.timers.register_processing_time(at(seconds))
        else:
            replaced = ctx.timers.async_replace_processing_time(at(9))
            await ctx.timers.async_merge_namespaces("w", ["v"])
            yield [seconds_of(one) for one in await ctx.timers.async_list_processing_time()]
            await replaced


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
class NamespacedTimers:
    @pytest.fixture(params=sorted(FUNCTIONS))
    def function(self, request):
        return FUNCTIONS[request.param]()

    def test_equal_times_in_two_namespaces_are_two_timers(self, new_job, function):
        job = new_job()
        do(job, function, 0, *(step("register", window, PROCESSING, 5, 5) for window in WINDOWS))
        fired = do(job, function, 5)
        assert sorted(fired, key=repr) == sorted([("a", w, 5, 10) for w in WINDOWS], key=repr)
        assert do(job, function, 5) == []

    def test_deleting_leaves_the_timer_of_another_namespace(self, new_job, function):
        job = new_job()
        do(job, function, 0, *(step("register", window, PROCESSING, 5) for window in ("v", "w")))
        do(
            job,
            function,
            0,
            step("delete", "v", PROCESSING, 5),
            step("delete", None, PROCESSING, 5),
        )
        assert do(job, function, 5) == [("a", "w", 5, 5)]

    def test_one_that_a_row_registers_and_is_due_fires_in_its_namespace(self, new_job, function):
        steps = step("register", "w", PROCESSING, 3), step("register", None, PROCESSING, 4)
        assert do(new_job(), function, 9, *steps) == [("a", "w", 3, 3), ("a", None, 4, 4)]

    @pytest.mark.parametrize("engine", sorted(ENGINES))
    def test_a_replacement_of_many_takes_effect_before_what_comes_after_it(self, new_job, engine):
        job = new_job(settings=ENGINES[engine])
        job.run(ReplacesBehind(), [("a", 0, range(1, 8))])
        job.restart()
        assert job.run(ReplacesBehind(), [("a", 0, ())]) == [[9]]

    def test_what_on_timer_registers_is_in_its_timers_namespace(self, new_job, manner):
        class Chained(Windowed):
            def on_timer(self, at, ctx):
                if seconds_of(at) < 30:
                    ctx.timers.register_processing_time(at + 10 * SECOND)
                return super().on_timer(at, ctx)

        job = new_job(settings=manner.settings)
        do(job, Chained(), 0, step("register", "w", PROCESSING, 10))
        assert do(job, Chained(), 10) == [("a", "w", 10, 10)]
        assert do(job, Chained(), 25) == [("a", "w", 20, 10), ("a", "w", 30, 10)]

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    def test_a_listing_has_the_timers_of_a_key_and_namespace(self, new_job, function, domain):
        job = new_job(event_time=lambda row: at(row[1]))
        do(job, function, 0, step("register", None, domain, 900, 7, 70, 7), key="b")
        steps = step("register", "w", domain, 9), step("register", None, domain, 80, 8)
        assert do(job, function, 0, *steps, step("list", None, domain)) == [[8, 80]]
        assert do(job, function, 0, step("list", "w", domain)) == [[9]]
        assert do(job, function, 0, step("list", "v", domain)) == [[]]
        other = PROCESSING if domain is EVENT else EVENT
        assert do(job, function, 0, step("list", None, other)) == [[]]
        assert do(job, function, 0, step("list", None, domain), key="b") == [[7, 70, 900]]

    def test_a_listing_follows_what_is_deleted_and_what_fires(self, new_job, function):
        job = new_job()
        steps = step("register", "w", PROCESSING, 5, 6, 7), step("list", "w")
        assert do(job, function, 0, *steps) == [[5, 6, 7]]
        steps = step("delete", "w", PROCESSING, 6), step("list", "w")
        assert do(job, function, 0, *steps) == [[5, 7]]
        assert do(job, function, 5, step("list", "w")) == [("a", "w", 5, 18 + 6), [7]]
        assert do(job, function, 5) == [("a", "w", 7, 24)]
        assert do(job, function, 0, step("list", "w")) == [[]]

    def test_on_timer_does_not_list_the_timer_that_fires(self, new_job):
        class Listing(TimerFunction):
            def on_timer(self, at, ctx):
                return [[seconds_of(one) for one in ctx.timers.list_processing_time()]]

        job = new_job()
        job.run(Listing(), [row("a", 5, 6, 7)])
        job.clock.advance(6 * SECOND)
        assert job.run(Listing(), []) == [[6, 7], [7]]

    @pytest.mark.parametrize("parallelisms", [(1, 2), (3, 1)], ids=str)
    def test_a_listing_is_right_after_a_rescale_of_which_one_part_had_listed(
        self, new_job, function, parallelisms
    ):
        job = new_job(parallelism=parallelisms[0])
        keys = [f"k{n}" for n in range(20)]
        job.run(function, [(key, 0, [step("register", "w", PROCESSING, 70, 80)]) for key in keys])
        assert do(job, function, 0, step("list", "w"), key="k1") == [[70, 80]]
        job.restart(parallelism=parallelisms[1])
        assert len(do(job, function, 70)) == len(keys)
        listed = job.run(function, [(key, 0, [step("list", "w")]) for key in keys])
        assert listed == [[80]] * len(keys)

    def test_a_listing_outlives_a_function_without_timers(self, new_job):
        class Timerless(KeyedProcessFunction):
            def process_element(self, row, ctx):
                return []

        job, function = new_job(), Windowed()
        do(job, function, 0, step("register", "w", PROCESSING, 5), step("list", "w"))
        do(job, Timerless(), 0, step("list"))
        do(job, function, 0, step("register", "w", PROCESSING, 6))
        assert do(job, function, 5, step("list", "w")) == [("a", "w", 5, 11), [6]]

    def test_replacing_leaves_one_timer_of_a_kind_and_namespace(self, new_job, function):
        job = new_job(event_time=lambda row: at(row[1]))
        steps = [step("register", window, PROCESSING, 5, 6) for window in ("v", "w")]
        do(job, function, 0, *steps, step("register", "w", EVENT, 50))
        do(
            job,
            function,
            0,
            step("replace", "w", PROCESSING, 8),
            step("replace", "w", PROCESSING, 9),
        )
        assert do(job, function, 0, step("list", "w"), step("list", "w", EVENT)) == [[9], [50]]
        fired = do(job, function, 10)
        assert [(window, seconds) for _, window, seconds, _ in fired] == [
            ("v", 5),
            ("v", 6),
            ("w", 9),
        ]

    def test_a_merge_leaves_the_timers_of_other_keys(self, new_job, function):
        job = new_job()
        for key in "ab":
            do(job, function, 0, step("register", "w", PROCESSING, 5), key=key)
        do(job, function, 0, step("merge", None, PROCESSING, "w"))
        assert {(key, w) for key, w, _, _ in do(job, function, 5)} == {("a", None), ("b", "w")}

    def test_states_merge_asynchronously_as_they_do_otherwise(self, new_job, manner):
        class Merging(KeyedProcessFunction):
            def open(self, context):
                self.total = context.get_reducing_state(TOTAL)
                self.seen = context.get_list_state(SEEN)

            async def process_element(self, row, ctx):
                _, target, sources, number = row
                ctx.set_current_namespace("v")
                if number:
                    for namespace in (*sources, target):
                        ctx.set_current_namespace(namespace)
                        self.total.async_add(number)
                        self.seen.async_add(number)
                    return
                # The namespace of the record does not matter.
                self.total.async_merge_namespaces(target, sources)
                await self.seen.async_merge_namespaces(target, sources)
                for namespace in (*sources, target):
                    ctx.set_current_namespace(namespace)
                    seen = [one async for one in await self.seen.async_get()]
                    yield namespace, await self.total.async_get(), seen

        job = new_job(settings=manner.settings)
        job.run(Merging(), [("a", "u", ["v", "w"], 1), ("b", "u", ["v"], 5)])
        job.run(Merging(), [("a", "u", ["w"], 10)])
        merged = job.run(Merging(), [("a", "u", ["v", "w"], 0)])
        everything = ("u", 1 + 10 + 1 + 1 + 10, [1, 10, 1, 1, 10])
        assert merged == [("v", None, []), ("w", None, []), everything]
        job.restart(parallelism=2)
        assert job.run(Merging(), [("b", "v", ["u", "none"], 0)])[-1] == ("v", 10, [5, 5])


class TestOnHeap(OnHeap, NamespacedTimers):
    """Everything is in memory."""


class TestOnReference(OnReference, NamespacedTimers):
    """Reads wait."""

    @pytest.fixture
    def function(self):
        return FUNCTIONS["coroutine"]()
