"""The life of a record (docs/decisions/0008-the-life-of-a-record.md): steps and their order."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor
from forebay_state_api.job.futures import combine_all, completed_future
from forebay_testing.backends.subject import ENGINES, Mean, Recorded
from forebay_testing.late_reads import late_backend

from ..subjects import OnBoth
from .program_rows import STATES, open_states

LATE = "late"
"""A backend that answers late and out of order, with the tight engine."""


class TestSteps(OnBoth):
    """Each test runs on the unchanged backend, and with answers that are late and out of order."""

    @pytest.fixture(params=[*ENGINES, LATE])
    def every_kind(self, request, new_job, backend_class):
        """A job with every state stored under ``k``, none of it in the engine's memory."""
        job = new_job(*STATES, settings=ENGINES.get(request.param, ENGINES["tight"]))
        if request.param == LATE:
            job.backend_class = late_backend(backend_class, seed=1)
        puts = [("m.put", number, number) for number in range(5)]
        job.do("k", ("v.update", 5), ("w.update", 6), ("r.add", 7), ("l.update", [1, 2, 3]), *puts)
        job.restart()
        return job

    @pytest.fixture
    def one_record(self, every_kind):
        """Return a function that runs another one over a record of ``k`` and returns its rows."""

        def run(process, rows=(("k",),)):
            return every_kind.run(Recorded(open_states, process), rows)

        return run

    # -- order --------------------------------------------------------------------------------

    def test_requests_complete_in_order_with_all_that_hangs_on_them(self, one_record):
        def process(f, row, ctx):
            seen = []
            first = f.m.async_get(1).then_apply(lambda _: seen.append("f"))
            second = first.then_accept(lambda _: seen.append("g"))
            third = f.m.async_get(2).then_accept(lambda _: seen.append("h"))
            written = f.v.async_update(1).then_accept(lambda _: seen.append("w"))
            ends = combine_all([second, third, written])
            ends.then_accept(lambda _: ctx.collect("".join(seen)))

        assert one_record(process) == ["fghw"]

    def test_futures_complete_in_the_order_of_their_requests_not_of_attachment(self, one_record):
        def process(f, row, ctx):
            value, entry = f.v.async_value(), f.m.async_get(1)
            total, done = f.r.async_add(1), completed_future(0)
            done.then_accept(lambda _: ctx.collect("done"))
            total.then_accept(lambda _: ctx.collect("total"))
            entry.then_accept(lambda _: ctx.collect("entry"))
            value.then_accept(lambda _: ctx.collect("value"))

        assert one_record(process) == ["value", "entry", "total", "done"]

    def test_no_callback_runs_between_two_requests_of_a_step(self, one_record):
        def process(f, row, ctx):
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(100))
            f.v.async_value().then_accept(ctx.collect)
            ctx.collect("end")

        assert one_record(process) == ["end", 5]

    def test_the_last_request_wins_whatever_answers_first(self, every_kind, one_record):
        def process(f, row, ctx):
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(1))
            f.l.async_get().then_accept(lambda _: f.v.async_update(2))

        one_record(process)
        assert every_kind.do("k", ("v.value",)) == [2]

    @pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
    def test_a_synchronous_access_runs_no_callback(self, one_record):
        def process(f, row, ctx):
            f.r.async_add(1).then_accept(lambda _: f.v.update(100))
            f.m.async_get(1).then_accept(lambda _: f.v.update(200))
            ctx.collect((f.r.get(), f.v.value(), f.w.value()))

        assert one_record(process) == [(8, 5, 6)]

    def test_a_callback_of_a_completed_future_runs_after_its_step(self, one_record):
        async def process(f, row, ctx):
            future = f.v.async_value()
            await future
            future.then_accept(lambda _: ctx.collect("callback"))
            ctx.collect("step")
            await f.v.async_value()
            return ["next step"]

        assert one_record(process) == ["step", "callback", "next step"]

    def test_an_await_goes_on_after_all_that_hangs_on_earlier_requests(self, one_record):
        async def process(f, row, ctx):
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(100))
            await f.w.async_update(1)
            f.m.async_get(2).then_accept(lambda _: ctx.collect("later"))
            value = f.v.async_value()
            value.then_accept(lambda _: ctx.collect("before"))
            ctx.collect(await value)
            return ["end"]

        assert one_record(process) == ["later", "before", 100, "end"]

    def test_calls_of_on_next_run_beside_each_other(self, one_record):
        def process(f, row, ctx):
            async def call(element):
                ctx.collect(element)
                await f.m.async_get(element)
                ctx.collect(10 * element)
                await f.v.async_value()
                ctx.collect(100 * element)

            f.l.async_get().then_compose(lambda it: it.on_next(call))

        rows = one_record(process)
        assert [row for row in rows if row < 10] == [1, 2, 3]
        assert sorted(rows) == [1, 2, 3, 10, 20, 30, 100, 200, 300]
        assert rows == one_record(process), "all is in memory now"

    # -- namespaces ---------------------------------------------------------------------------

    def test_a_callback_runs_in_the_namespace_in_which_it_was_attached(
        self, every_kind, one_record
    ):
        def process(f, row, ctx):
            ctx.set_current_namespace("a")
            f.v.async_value().then_compose(lambda _: f.v.async_update(1)).then_accept(
                lambda _: ctx.collect(ctx.current_namespace)
            )
            ctx.set_current_namespace("b")

        assert one_record(process) == ["a"]
        assert _values(every_kind, "a", "b") == [1, None]

    def test_what_a_callback_sets_holds_for_it_and_what_it_attaches(self, one_record):
        def process(f, row, ctx):
            def sets(_):
                ctx.set_current_namespace("a")
                f.w.async_value().then_accept(lambda _: ctx.collect(ctx.current_namespace))

            value = f.v.async_value()
            value.then_accept(sets)
            value.then_accept(lambda _: ctx.collect(ctx.current_namespace))
            f.m.async_get(1).then_accept(lambda _: ctx.collect(ctx.current_namespace))

        assert one_record(process) == [None, None, "a"]

    @pytest.mark.parametrize("drives", ["on_next", "then_compose"])
    def test_a_coroutine_keeps_its_namespace_over_its_awaits(self, every_kind, one_record, drives):
        async def process(f, row, ctx):
            async def one(number):
                ctx.set_current_namespace(f"w{number}")
                value = await f.v.async_value()
                await f.m.async_get(number)
                await f.v.async_update((value or 0) + number)

            if drives == "on_next":
                await (await f.l.async_get()).on_next(one)
            else:
                await combine_all([completed_future(n).then_compose(one) for n in (1, 2, 3)])
            assert ctx.current_namespace is None

        for _ in range(2):
            one_record(process)
        assert _values(every_kind, "w1", "w2", "w3", None) == [2, 4, 6, 5]

    def test_a_record_method_keeps_its_namespace_over_its_awaits(self, one_record):
        async def process(f, row, ctx):
            ctx.set_current_namespace("a")
            completed_future(0).then_accept(lambda _: ctx.set_current_namespace("b"))
            await f.v.async_value()
            return [ctx.current_namespace]

        assert one_record(process, [("k",), ("j",)]) == ["a", "a"]

    @pytest.mark.parametrize("form", ["combine_all", "then_combine"])
    def test_a_combination_runs_in_the_namespace_of_its_call(self, one_record, form):
        def process(f, row, ctx):
            ctx.set_current_namespace("a")
            first = f.v.async_value()
            ctx.set_current_namespace("b")
            second = f.m.async_get(1)
            ctx.set_current_namespace("c")
            if form == "then_combine":
                first.then_combine(second, lambda *_: ctx.collect(ctx.current_namespace))
            else:
                both = combine_all([first, second])
                both.then_accept(lambda _: ctx.collect(ctx.current_namespace))
            ctx.set_current_namespace("d")

        assert one_record(process) == ["c"]

    def test_each_call_of_on_next_begins_in_the_namespace_of_the_iteration(self, one_record):
        def process(f, row, ctx):
            def call(element):
                ctx.collect(ctx.current_namespace)
                ctx.set_current_namespace(f"w{element}")

            f.l.async_get().then_compose(lambda it: it.on_next(call))
            ctx.set_current_namespace("a")

        assert one_record(process) == [None, None, None]

    # -- failures -----------------------------------------------------------------------------

    @pytest.mark.parametrize("chain", ["then_apply", "then_accept", "then_compose", "on_next"])
    def test_a_failing_callback_cannot_be_caught(self, every_kind, one_record, chain):
        async def process(f, row, ctx):
            try:
                await f.v.async_update(100)
                if chain == "on_next":
                    await (await f.l.async_get()).on_next(lambda _: 1 / 0)
                else:
                    await getattr(f.m.async_get(1), chain)(lambda _: 1 / 0)
            except ZeroDivisionError:
                return ["caught"]
            return []

        with pytest.raises(FunctionError, match=r"key 'k'.*ZeroDivisionError") as failure:
            one_record(process)
        assert isinstance(failure.value.__cause__, ZeroDivisionError)
        assert every_kind.do("k", ("v.value",)) == [5]

    @pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
    @pytest.mark.parametrize("state", ["reducing", "aggregating"])
    @pytest.mark.parametrize("access", ["get", "async_get", "add", "async_add"])
    def test_a_failing_reducer_cannot_be_caught(self, new_job, backend_class, state, access):
        def reduce(first, second):
            raise ValueError("not today")

        class Refuses(Mean):
            add = staticmethod(reduce)

        descriptor = ReducingStateDescriptor("x", reduce, int)
        if state == "aggregating":
            descriptor = AggregatingStateDescriptor("x", Refuses(), tuple[int, float])

        def opened(f, context):
            reducing = state == "reducing"
            f.x = (context.get_reducing_state if reducing else context.get_aggregating_state)(
                descriptor
            )

        async def process(f, row, ctx):
            if row[1]:
                await f.x.async_add(1)
                return []
            try:
                if access.startswith("async_"):
                    added = f.x.async_add(2)
                    await (added if access == "async_add" else f.x.async_get())
                elif access == "add":
                    f.x.add(2)
                else:
                    f.x.async_add(2)
                    f.x.get()
            except ValueError:
                return ["caught"]
            return ["went on"]

        settings = ENGINES["tight"]
        job = new_job(descriptor, settings=settings)
        if state == "reducing":
            job.run(Recorded(opened, process), [("k", True)])
            job.restart()
        with pytest.raises(FunctionError, match=r"key 'k'.*ValueError: not today"):
            job.run(Recorded(opened, process), [("k", False)])

    # -- chains -------------------------------------------------------------------------------

    @pytest.mark.parametrize("chain", ["then_apply", "then_accept", "then_compose"])
    def test_a_callback_may_be_a_coroutine(self, one_record, chain):
        async def process(f, row, ctx):
            async def double(value):
                await f.v.async_update(2 * value)
                return 2 * value

            result = await getattr(f.v.async_value(), chain)(double)
            return [(result, await f.v.async_value())]

        assert one_record(process) == [(None if chain == "then_accept" else 10, 10)]

    def test_a_loop_of_callbacks_is_flat(self, one_record):
        def process(f, row, ctx):
            def go(number):
                if number == 3_000:
                    return completed_future(number)
                return f.v.async_value().then_compose(lambda _: go(number + 1))

            go(0).then_accept(ctx.collect)

        assert one_record(process) == [3_000]


def _values(job, *namespaces):
    """Return the value of ``v`` under ``k``."""
    return [job.do("k", ("namespace", one), ("v.value",))[1] for one in namespaces]
