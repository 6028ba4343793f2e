"""Records that fail alone (``on_error="column"``) leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.execution import engine as engine_module
from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.ttl import CleanupOnRead, StateTtlConfig, UpdateType
from forebay_testing.backends.kinds import add
from forebay_testing.backends.machine import LATE, overlapping
from forebay_testing.backends.search import Search
from forebay_testing.backends.steps import (
    KEYS,
    NAMESPACES,
    STATES,
    ProgramFunction,
    all_contents,
    batches_of,
    read_all,
)
from forebay_testing.backends.subject import (
    ENGINES,
    SECOND,
    BackendSubject,
    Manner,
    Mean,
    NewJob,
    Recorded,
    memory_storage,
)
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend
from forebay_testing.program_model import fails, no_cells
from forebay_testing.scripts import Script, Style, script_function

START: Final = ManualClock().now
UNLIMITED: Final = ErrorRows(limit=1_000_000)
RENEWED: Final = StateTtlConfig(
    timedelta(seconds=10),
    update_type=UpdateType.ON_READ_AND_WRITE,
    cleanup=(CleanupOnRead(),),
)


def _every_kind(ttl: StateTtlConfig | None, suffix: str) -> tuple[StateDescriptor, ...]:
    return (
        ValueStateDescriptor(f"v{suffix}", int, ttl=ttl),
        ListStateDescriptor(f"l{suffix}", int, ttl=ttl),
        MapStateDescriptor(f"m{suffix}", int, int, ttl=ttl),
        SortedMapStateDescriptor(f"s{suffix}", int, int, ttl=ttl),
        ReducingStateDescriptor(f"r{suffix}", add, int, ttl=ttl),
        AggregatingStateDescriptor(f"a{suffix}", Mean(), tuple[int, float], ttl=ttl),
    )


DESCRIPTORS: Final = (*_every_kind(None, ""), *_every_kind(RENEWED, "t"))

_NUMBERS: Final = st.integers(0, 3)


def _of(names: Sequence[str], *arguments: Any) -> Any:
    return st.tuples(st.sampled_from(names), *arguments)


_OF_STATES: Final = st.one_of(
    *(
        strategy
        for suffix in ("", "t")
        for strategy in (
            _of([f"v{suffix}.update", f"l{suffix}.add", f"r{suffix}.add"], _NUMBERS),
            _of([f"m{suffix}.put", f"s{suffix}.put"], _NUMBERS, _NUMBERS),
            _of(
                [f"{kind}{suffix}.{call}" for kind in "ms" for call in ("remove", "get")], _NUMBERS
            ),
            _of(
                [f"s{suffix}.range", f"s{suffix}.last", f"s{suffix}.remove_range"],
                _NUMBERS,
                _NUMBERS,
            ),
            _of([f"a{suffix}.add"], _NUMBERS.map(float)),
            _of([f"l{suffix}.update"], st.lists(_NUMBERS, max_size=3)),
            _of([f"v{suffix}.value", f"m{suffix}.items"]),
            _of([f"{kind}{suffix}.get" for kind in "lra"]),
            _of([f"{kind}{suffix}.clear" for kind in "vlmsra"]),
            _of(
                [f"{kind}{suffix}.merge_namespaces" for kind in "lra"],
                st.sampled_from(NAMESPACES),
                st.lists(st.sampled_from(NAMESPACES), max_size=2),
            ),
        )
    )
)
_ACCESSES: Final = overlapping(_OF_STATES) | _of(["namespace"], st.sampled_from(NAMESPACES))
_SCRIPTS: Final = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS),
            st.lists(_ACCESSES, min_size=1, max_size=6),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=3,
)


class FailureTests(BackendSubject):
    """Each compares with what happens, or is stored, without the failed records."""

    failure_examples = 20

    @pytest.fixture(params=["in memory", "late"])
    def isolating(
        self, request: pytest.FixtureRequest, new_job: NewJob, backend_class: type[StateBackend]
    ) -> KeyedJob:
        """A job whose records fail alone, with state of every kind under ``k``."""
        job = new_job(*STATES, settings=ENGINES["tight"], error_rows=UNLIMITED)
        if request.param == "late":
            job.backend_class = late_backend(backend_class, seed=1)
        job.do("k", ("v.update", 5), ("l.update", [1, 2]), ("m.put", 1, 1), ("r.add", 7))
        job.restart()
        return job

    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_programs_that_fail_leave_nothing_behind(
        self,
        backend_class: type[StateBackend],
        new_job: NewJob,
        search: Search,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # Writes are handed over after every chunk, also in the middle of records.
        monkeypatch.setattr(engine_module, "SPILL_CELLS", -1)

        @search.limits(self.failure_examples)
        @search.seeded
        @given(batches=FAILING_BATCHES, engine=st.sampled_from(sorted(ENGINES)), late=LATE)
        def histories(batches: Any, engine: str, late: int | None) -> None:
            limits = attrs.evolve(ENGINES[engine], page_size=128)
            job = new_job(*STATES, settings=limits, storage=memory_storage(), error_rows=UNLIMITED)
            if late is not None:
                job.backend_class = late_backend(backend_class, late)
            cells: dict[str, dict[Any, Any]] = {key: no_cells() for key in KEYS}
            for programs, is_async in batches:
                rows = [(key, n, program) for n, (key, program) in enumerate(programs)]
                emitted = job.run(_Emitting.of(is_async=is_async), rows)
                failed = {number for key, number, one in rows if fails(cells[key], one)}
                found = {number for number in emitted if isinstance(number, int)}
                assert found == {number for _, number, _ in rows} - failed
                assert len(emitted) == len(rows)
                job.restart()
            assert read_all(job) == [all_contents(cells[key]) for key in KEYS]

        histories()

    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_scripts_that_fail_change_no_kind_of_state(
        self,
        backend_class: type[StateBackend],
        new_job: NewJob,
        search: Search,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(engine_module, "SPILL_CELLS", -1)

        @search.limits(self.failure_examples)
        @search.seeded
        @given(
            batches=_SCRIPTS,
            style=st.sampled_from(Style),
            engine=st.sampled_from(sorted(ENGINES)),
            late=LATE,
        )
        def histories(batches: Any, style: Style, engine: str, late: int | None) -> None:
            limits = ENGINES[engine]
            kinds = {"settings": limits, "style": style}
            failing, sound = (
                new_job(*DESCRIPTORS, storage=memory_storage(), **kinds, error_rows=rows)
                for rows in (UNLIMITED, None)
            )
            if late is not None:
                failing.backend_class = late_backend(backend_class, late)
            for batch in batches:
                calls = [
                    Script(key, number, [*accesses, ("fail",)] if bad else accesses)
                    for number, (key, accesses, bad) in enumerate(batch)
                ]
                good = [call for call in calls if ("fail",) not in call.accesses]
                function = script_function(style, DESCRIPTORS)
                out = failing.run(function, calls)
                results = [row for row in out if not isinstance(row, FailedRecord)]
                assert sorted(results, key=repr) == sorted(sound.run(function, good), key=repr)
                assert len(out) == len(calls)
                for job in (failing, sound):
                    job.clock.advance(4 * SECOND)
                    job.restart()
            for namespace in NAMESPACES:
                found, wanted = (job.peek_all(KEYS, namespace) for job in (failing, sound))
                assert found == wanted

        histories()

    def test_a_failed_record_takes_back_what_it_wrote(
        self, new_job: NewJob, manner: Manner
    ) -> None:
        style, settings = manner
        job = new_job(*DESCRIPTORS, style=style, settings=settings, error_rows=UNLIMITED)
        puts = [("v.update", 1), ("l.add", 1), ("m.put", 1, 1), ("r.add", 1), ("a.add", 1.0)]
        later = [("v.update", 2), ("l.add", 2), ("m.remove", 1), ("r.add", 2), ("a.clear",)]
        rows = [
            Script("k", 0, puts),
            Script("k", 1, [*later, ("fail",)]),
            Script("k", 2, [("l.add", 3)]),
        ]
        first, failed, last = job.run(script_function(style, DESCRIPTORS), rows)
        assert (first[0], last[0]) == (0, 2)
        assert (failed.type, failed.key, failed.method) == ("ScriptFailed", "k", "process_element")
        reads = (("v.value",), ("l.get",), ("m.items",), ("r.get",), ("a.get",))
        assert job.do("k", *reads) == [1, [1, 3], [(1, 1)], 1, 1.0]

    def test_what_a_failed_record_has_under_way_is_dropped(self, isolating: KeyedJob) -> None:
        ended = []

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            try:
                ctx.collect("early")
                await f.v.async_update(100)
                f.m.async_get(1).then_accept(lambda _: f.v.async_update(200))
                if row[1]:
                    f.r.async_add(1)
                    f.l.async_get().then_accept(lambda _: 1 / 0)
                await f.m.async_get(2)
                return ["late"]
            finally:
                ended.append(f.v.value())
                f.v.update(300)

        def opened(f: Any, context: Any) -> None:
            v, _, m, elements, r, _ = STATES
            f.v, f.m = context.get_state(v), context.get_map_state(m)
            f.l, f.r = context.get_list_state(elements), context.get_reducing_state(r)

        function = Recorded(opened, process)
        (failed,) = isolating.run(function, [("k", True)])
        assert failed.type == "ZeroDivisionError"
        assert isolating.do("k", ("v.value",), ("r.get",)) == [5, 7]
        assert isolating.run(function, [("k", False), ("j", False)]) == ["early", "late"] * 2

    def test_an_error_of_a_reduce_function_fails_its_record_even_if_caught(
        self, new_job: NewJob
    ) -> None:
        def refuse(first: int, second: int) -> int:
            raise ValueError("not today")

        descriptor = ReducingStateDescriptor("x", refuse, int)

        def opened(f: Any, context: Any) -> None:
            f.x = context.get_reducing_state(descriptor)

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            try:
                await f.x.async_add(row[1])
            except ValueError:
                return ["caught"]
            return ["added"]

        job = new_job(descriptor, settings=ENGINES["tight"], error_rows=UNLIMITED)
        rows = [("k", 1), ("k", 2), ("j", 3)]
        added, failed, other = job.run(Recorded(opened, process), rows)
        assert (added, failed.message, other) == ("added", "not today", "added")
        job.restart()
        assert job.peek(descriptor, "k") == 1

    def test_timers_that_a_failed_record_set_or_deleted_are_put_back(self, new_job: NewJob) -> None:
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
        self, new_job: NewJob, backend_class: type[StateBackend], lists: str
    ) -> None:
        job, function = new_job(error_rows=UNLIMITED), _ListingAlarms()
        if lists == "another record":  # meets one that waits
            job.backend_class = late_backend(backend_class, seed=1)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.restart()
        changes = [("delete", 1), ("set", 3), ("set", 2), ("delete", 4)]
        if lists == "the same record":
            rows: list[Any] = [("k", [*changes, ("list",), ("fail",)])]
        else:
            rows = [("k", [*changes, ("wait",), ("fail",)]), ("j", [("list",), ("wait",)])]
        *listed, failed = sorted(job.run(function, rows), key=_is_failure)
        assert (failed.type, listed) == ("ValueError", [] if len(rows) == 1 else [("j", [])])
        assert job.run(function, [("k", [("list",)])]) == [("k", [1, 2])]
        job.restart()
        assert job.run(function, [("k", [("list",), ("replace", 5)])]) == [("k", [1, 2])]
        job.clock.advance(10 * SECOND)
        assert job.run(function, []) == [("k", 5)]

    def test_a_timer_that_fails_is_consumed(self, new_job: NewJob) -> None:
        job = new_job(settings=ENGINES["tight"], error_rows=UNLIMITED)
        function = _Alarms(bad=1)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.clock.advance(10 * SECOND)
        failed, fired = job.run(function, [])
        assert (failed.method, failed.row, fired) == ("on_timer", None, ("k", 2))
        assert failed.timer == function.at(1)
        job.restart()
        assert job.run(function, []) == []

    def test_a_timer_that_fails_leaves_the_rows_of_the_one_before(self, new_job: NewJob) -> None:
        job = new_job(settings=ENGINES["tight"], error_rows=UNLIMITED)
        function = _ReadingAlarms(bad=2)
        job.run(function, [("k", [("set", 1), ("set", 2)])])
        job.clock.advance(10 * SECOND)
        job.restart()
        fired, failed = job.run(function, [])  # the first waits for the count
        assert (fired, failed.timer) == (("k", 1), function.at(2))


class _Alarms(KeyedProcessFunction[Any, Any, Any]):
    """Sets and deletes timers; ``on_timer`` fails at second ``bad``, after it deleted the rest."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    @staticmethod
    def at(second: int) -> Any:
        return START + second * SECOND

    def process_element(self, row: Any, ctx: Any) -> None:
        for kind, *second in row[1]:
            if kind == "fail":
                raise ValueError
            timers = ctx.timers
            change = (
                timers.register_processing_time if kind == "set" else timers.delete_processing_time
            )
            change(self.at(*second))

    def on_timer(self, at: Any, ctx: Any) -> Any:
        second = (at - START) // SECOND
        if second == self.bad:
            ctx.timers.delete_processing_time(self.at(2))
            ctx.timers.register_processing_time(self.at(100))
            raise ValueError
        yield ctx.current_key, second


class _ListingAlarms(_Alarms):
    """Lists and replaces timers as well, and waits for state between its changes."""

    def open(self, context: Any) -> None:
        self.seen = context.get_map_state(MapStateDescriptor("seen", int, int))

    async def process_element(self, row: Any, ctx: Any) -> Any:
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


def _is_failure(row: Any) -> bool:
    return isinstance(row, FailedRecord)


class _ReadingAlarms(_Alarms):
    """Counts the timers of a key that do not fail."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def on_timer(self, at: Any, ctx: Any) -> Any:
        second = (at - START) // SECOND
        if second == self.bad:
            raise ValueError
        await self.count.async_update(await self.count.async_value() + 1)
        return [(ctx.current_key, second)]


class _Emitting(ProgramFunction):
    """Carries out programs; emits their numbers."""

    @staticmethod
    def of(*, is_async: bool) -> Any:
        return (_EmittingAsync if is_async else _Emitting)({})

    def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.collect(row[1])
        return self.start(row, ctx)


class _EmittingAsync(_Emitting):
    async def process_element(self, row: Any, ctx: Any) -> Any:
        ctx.collect(row[1])
        returned = self.start(row, ctx)
        if returned is not None:
            await returned


FAILING_BATCHES: Final = batches_of(st.tuples(st.just("fail")))
