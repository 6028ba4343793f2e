"""The life of a record (docs/decisions/0008-the-life-of-a-record.md): steps and their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.futures import combine_all, completed_future
from forebay_testing.backends.kinds import add
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import (
    ENGINES,
    BackendSubject,
    Mean,
    NewJob,
    Recorded,
    memory_storage,
)
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend
from forebay_testing.program_model import expected, no_cells
from forebay_testing.programs import Performer

STATES: Final = (
    ValueStateDescriptor("v", int),
    ValueStateDescriptor("w", int),
    MapStateDescriptor("m", int, int),
    ListStateDescriptor("l", int),
    ReducingStateDescriptor("r", add, int),
    SortedMapStateDescriptor("s", int, int),
)
NAMESPACES: Final = (None, "a", "b")
LATE: Final = "late"
"""A backend that answers late and out of order, with the tight engine."""

Try = Callable[..., list[Any]]


def _opened(f: Any, context: Any) -> None:
    v, w, m, elements, r, s = STATES
    f.v, f.w, f.m = context.get_state(v), context.get_state(w), context.get_map_state(m)
    f.l, f.r = context.get_list_state(elements), context.get_reducing_state(r)
    f.s = context.get_sorted_map_state(s)


class StepTests(BackendSubject):
    """Each test runs on the unchanged backend, and with answers that are late and out of order."""

    @pytest.fixture(params=[*ENGINES, LATE])
    def every_kind(
        self, request: pytest.FixtureRequest, new_job: NewJob, backend_class: type[StateBackend]
    ) -> KeyedJob:
        """A job with every state stored under ``k``, none of it in the engine's memory."""
        job = new_job(*STATES, settings=ENGINES.get(request.param, ENGINES["tight"]))
        if request.param == LATE:
            job.backend_class = late_backend(backend_class, seed=1)
        puts = [("m.put", number, number) for number in range(5)]
        job.do("k", ("v.update", 5), ("w.update", 6), ("r.add", 7), ("l.update", [1, 2, 3]), *puts)
        job.restart()
        return job

    @pytest.fixture
    def one_record(self, every_kind: KeyedJob) -> Try:
        """Return a function that runs another one over a record of ``k`` and returns its rows."""

        def run(process: Callable[..., Any], rows: Any = (("k",),)) -> list[Any]:
            return every_kind.run(Recorded(_opened, process), rows)

        return run

    # -- order --------------------------------------------------------------------------------

    def test_requests_complete_in_order_with_all_that_hangs_on_them(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            seen: list[str] = []
            first = f.m.async_get(1).then_apply(lambda _: seen.append("f"))
            second = first.then_accept(lambda _: seen.append("g"))
            third = f.m.async_get(2).then_accept(lambda _: seen.append("h"))
            written = f.v.async_update(1).then_accept(lambda _: seen.append("w"))
            ends = combine_all([second, third, written])
            ends.then_accept(lambda _: ctx.collect("".join(seen)))

        assert one_record(process) == ["fghw"]

    def test_futures_complete_in_the_order_of_their_requests_not_of_attachment(
        self, one_record: Try
    ) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            value, entry = f.v.async_value(), f.m.async_get(1)
            total, done = f.r.async_add(1), completed_future(0)
            done.then_accept(lambda _: ctx.collect("done"))
            total.then_accept(lambda _: ctx.collect("total"))
            entry.then_accept(lambda _: ctx.collect("entry"))
            value.then_accept(lambda _: ctx.collect("value"))

        assert one_record(process) == ["value", "entry", "total", "done"]

    def test_no_callback_runs_between_two_requests_of_a_step(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(100))
            f.v.async_value().then_accept(ctx.collect)
            ctx.collect("end")

        assert one_record(process) == ["end", 5]

    def test_the_last_request_wins_whatever_answers_first(
        self, every_kind: KeyedJob, one_record: Try
    ) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(1))
            f.l.async_get().then_accept(lambda _: f.v.async_update(2))

        one_record(process)
        assert every_kind.do("k", ("v.value",)) == [2]

    @pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
    def test_a_synchronous_access_runs_no_callback(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            f.r.async_add(1).then_accept(lambda _: f.v.update(100))
            f.m.async_get(1).then_accept(lambda _: f.v.update(200))
            ctx.collect((f.r.get(), f.v.value(), f.w.value()))

        assert one_record(process) == [(8, 5, 6)]

    def test_a_callback_of_a_completed_future_runs_after_its_step(self, one_record: Try) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            future = f.v.async_value()
            await future
            future.then_accept(lambda _: ctx.collect("callback"))
            ctx.collect("step")
            await f.v.async_value()
            return ["next step"]

        assert one_record(process) == ["step", "callback", "next step"]

    def test_an_await_goes_on_after_all_that_hangs_on_earlier_requests(
        self, one_record: Try
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            f.m.async_get(1).then_accept(lambda _: f.v.async_update(100))
            await f.w.async_update(1)
            f.m.async_get(2).then_accept(lambda _: ctx.collect("later"))
            value = f.v.async_value()
            value.then_accept(lambda _: ctx.collect("before"))
            ctx.collect(await value)
            return ["end"]

        assert one_record(process) == ["later", "before", 100, "end"]

    def test_calls_of_on_next_run_beside_each_other(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            async def call(element: int) -> None:
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
        self, every_kind: KeyedJob, one_record: Try
    ) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            ctx.set_current_namespace("a")
            f.v.async_value().then_compose(lambda _: f.v.async_update(1)).then_accept(
                lambda _: ctx.collect(ctx.current_namespace)
            )
            ctx.set_current_namespace("b")

        assert one_record(process) == ["a"]
        assert _values(every_kind, "a", "b") == [1, None]

    def test_what_a_callback_sets_holds_for_it_and_what_it_attaches(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            def sets(_: Any) -> None:
                ctx.set_current_namespace("a")
                f.w.async_value().then_accept(lambda _: ctx.collect(ctx.current_namespace))

            value = f.v.async_value()
            value.then_accept(sets)
            value.then_accept(lambda _: ctx.collect(ctx.current_namespace))
            f.m.async_get(1).then_accept(lambda _: ctx.collect(ctx.current_namespace))

        assert one_record(process) == [None, None, "a"]

    @pytest.mark.parametrize("drives", ["on_next", "then_compose"])
    def test_a_coroutine_keeps_its_namespace_over_its_awaits(
        self, every_kind: KeyedJob, one_record: Try, drives: str
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> None:
            async def one(number: int) -> None:
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

    def test_a_record_method_keeps_its_namespace_over_its_awaits(self, one_record: Try) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            ctx.set_current_namespace("a")
            completed_future(0).then_accept(lambda _: ctx.set_current_namespace("b"))
            await f.v.async_value()
            return [ctx.current_namespace]

        assert one_record(process, [("k",), ("j",)]) == ["a", "a"]

    @pytest.mark.parametrize("form", ["combine_all", "then_combine"])
    def test_a_combination_runs_in_the_namespace_of_its_call(
        self, one_record: Try, form: str
    ) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
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

    def test_each_call_of_on_next_begins_in_the_namespace_of_the_iteration(
        self, one_record: Try
    ) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            def call(element: int) -> None:
                ctx.collect(ctx.current_namespace)
                ctx.set_current_namespace(f"w{element}")

            f.l.async_get().then_compose(lambda it: it.on_next(call))
            ctx.set_current_namespace("a")

        assert one_record(process) == [None, None, None]

    # -- failures -----------------------------------------------------------------------------

    @pytest.mark.parametrize("chain", ["then_apply", "then_accept", "then_compose", "on_next"])
    def test_a_failing_callback_cannot_be_caught(
        self, every_kind: KeyedJob, one_record: Try, chain: str
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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
    def test_a_failing_reducer_cannot_be_caught(
        self, new_job: NewJob, backend_class: type[StateBackend], state: str, access: str
    ) -> None:
        def reduce(first: int, second: int) -> int:
            raise ValueError("not today")

        class Refuses(Mean):
            add = staticmethod(reduce)  # type: ignore[assignment]

        descriptor: Any = ReducingStateDescriptor("x", reduce, int)
        if state == "aggregating":
            descriptor = AggregatingStateDescriptor("x", Refuses(), tuple[int, float])

        def opened(f: Any, context: Any) -> None:
            reducing = state == "reducing"
            f.x = (context.get_reducing_state if reducing else context.get_aggregating_state)(
                descriptor
            )

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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
    def test_a_callback_may_be_a_coroutine(self, one_record: Try, chain: str) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            async def double(value: int) -> int:
                await f.v.async_update(2 * value)
                return 2 * value

            result = await getattr(f.v.async_value(), chain)(double)
            return [(result, await f.v.async_value())]

        assert one_record(process) == [(None if chain == "then_accept" else 10, 10)]

    def test_a_loop_of_callbacks_is_flat(self, one_record: Try) -> None:
        def process(f: Any, row: Any, ctx: Any) -> None:
            def go(number: int) -> Any:
                if number == 3_000:
                    return completed_future(number)
                return f.v.async_value().then_compose(lambda _: go(number + 1))

            go(0).then_accept(ctx.collect)

        assert one_record(process) == [3_000]


class ProgramTests(BackendSubject):
    """Programs of a model, on a backend that answers normally, or late and out of order."""

    program_examples = 20

    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_random_programs_do_what_the_model_does(
        self, backend_class: type[StateBackend], new_job: NewJob, search: Search
    ) -> None:
        @search.limits(self.program_examples)
        @search.seeded
        @given(data=st.data(), batches=BATCHES, engine=st.sampled_from(sorted(ENGINES)))
        def histories(data: Any, batches: Any, engine: str) -> None:
            # The model knows no pages.
            limits = attrs.evolve(ENGINES[engine], page_size=128)
            job = new_job(*STATES, settings=limits, storage=memory_storage())
            if data.draw(st.booleans(), label="late"):
                job.backend_class = late_backend(backend_class, data.draw(st.integers(0, 99)))
            cells: dict[str, dict[Any, Any]] = {key: no_cells() for key in KEYS}
            for programs, is_async in batches:
                rows = [(key, n, program) for n, (key, program) in enumerate(programs)]
                logs: dict[int, list[Any]] = {}
                job.run((_Async if is_async else ProgramFunction)(logs), rows)
                for key, number, program in rows:
                    wanted, _ = expected(cells[key], program)
                    assert logs[number] == wanted, (key, program)
                job.restart()
            assert read_all(job) == [all_contents(cells[key]) for key in KEYS]

        histories()


# -- programs ---------------------------------------------------------------------------------

KEYS: Final = ("x", "y")
CONTENTS: Final = (("v.value",), ("w.value",), ("r.get",), ("l.get",), ("s.range",))
"""Accesses that read all that programs write."""


def contents(cells: dict[Any, Any], namespace: Any) -> list[Any]:
    """Return what `CONTENTS` read in a namespace of a model's cells."""
    v, w, r, elements, entries = (cells[name, namespace] for name in "vwrls")
    return [v, w, r, elements or [], sorted((entries or {}).items())]


def read_all(job: KeyedJob) -> list[list[Any]]:
    """Return what all that programs write holds, for each key, read in one micro-batch."""
    reads = [one for namespace in NAMESPACES for one in (("namespace", namespace), *CONTENTS)]
    return job.scripts([(key, reads) for key in KEYS])


def all_contents(cells: dict[Any, Any]) -> list[Any]:
    """Return what `read_all` reads of a key, from a model's cells."""
    return [one for namespace in NAMESPACES for one in (None, *contents(cells, namespace))]


_POSITIONS: Final = st.integers(0, 20)
_STATES: Final = st.sampled_from(["v", "w"])
_PLACES: Final = st.none() | st.integers(0, 5)
_SOURCES: Final = st.lists(st.sampled_from(NAMESPACES), min_size=1, max_size=2)
_LEAVES: Final = st.one_of(
    st.tuples(st.just("read"), _STATES),
    st.tuples(st.just("write"), _STATES),
    st.tuples(st.sampled_from(["add", "sum", "append", "completed", "total"])),
    st.tuples(st.just("look"), _STATES),
    st.tuples(st.just("put"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["first", "last"]), _PLACES),
    st.tuples(st.sampled_from(["cut", "range"]), _PLACES, _PLACES),
    st.tuples(st.just("namespace"), st.sampled_from(NAMESPACES)),
    st.tuples(st.just("await"), _POSITIONS),
    st.tuples(st.sampled_from(["replace", "elements"])),
    st.tuples(st.just("clear"), st.sampled_from("vwrls")),
    st.tuples(
        st.sampled_from(["merge", "merge", "join"]),
        st.sampled_from("rl"),
        st.sampled_from(NAMESPACES),
        _SOURCES,
    ),
    st.tuples(st.just("combine"), st.lists(_POSITIONS, min_size=1, max_size=3)),
)


def _bodies(operations: Any) -> Any:
    plain = st.lists(operations, max_size=4)
    return plain | plain.map(lambda body: ["async", *body])


def batches_of(*more: Any) -> Any:
    """Draw micro-batches: (programs with their keys, whether the method is a coroutine) of each.

    ``more`` are operations that programs may have besides the usual ones.
    """
    operations = st.recursive(
        st.one_of(_LEAVES, *more),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["then", "compose"]), _POSITIONS, _bodies(inner)),
            st.tuples(st.just("each"), _bodies(inner)),
            st.tuples(st.just("walk"), _PLACES, _PLACES, _bodies(inner)),
        ),
        max_leaves=12,
    )
    programs = st.lists(operations, min_size=1, max_size=8)
    of_a_batch = st.lists(
        st.tuples(st.sampled_from(KEYS), programs | programs.map(lambda body: ["async", *body])),
        min_size=1,
        max_size=4,
    )
    return st.lists(st.tuples(of_a_batch, st.booleans()), min_size=1, max_size=3)


BATCHES: Final = batches_of()


class ProgramFunction(KeyedProcessFunction[Any, Any, Any]):
    """Carries out programs; returns a coroutine without awaiting it."""

    def __init__(self, logs: dict[int, list[Any]]) -> None:
        self.logs = logs
        self.completed = completed_future

    def open(self, context: Any) -> None:
        _opened(self, context)

    def start(self, row: Any, ctx: Any) -> Any:
        """Begin the program of a row."""
        _, number, program = row
        performer = Performer(self, combine_all, ctx)
        self.logs[number] = performer.log
        returned = performer.perform(program)
        return returned if program[0] == "async" else None

    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.start(row, ctx)


class _Async(ProgramFunction):
    """Carries out programs; awaits a coroutine."""

    async def process_element(self, row: Any, ctx: Any) -> Any:
        returned = self.start(row, ctx)
        if returned is not None:
            await returned


def _values(job: KeyedJob, *namespaces: Any) -> list[Any]:
    """Return the value of ``v`` under ``k``."""
    return [job.do("k", ("namespace", one), ("v.value",))[1] for one in namespaces]
