"""Timers in namespaces (docs/reference/state.md): fired in theirs, listed, replaced and merged."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pytest

from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ListStateDescriptor, ReducingStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.timers import TimeDomain
from forebay_testing.backends.subject import ENGINES, SECOND, BackendSubject, Manner, NewJob
from forebay_testing.backends.timers import (
    DOMAINS,
    EVENT,
    PROCESSING,
    TimerFunction,
    at,
    row,
    seconds_of,
)
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend

WINDOWS: Final = (None, "w", 1, ("x", 2.5))

TOTAL: Final = ReducingStateDescriptor("total", lambda first, second: first + second, int)
SEEN: Final = ListStateDescriptor("seen", int)


def step(what: str, namespace: Any = None, domain: TimeDomain = PROCESSING, *times: int) -> Any:
    """Return an action of a row in a namespace."""
    return what, namespace, domain, times


class Windowed(KeyedProcessFunction[str, Any, Any]):
    """Carries out the actions of rows; emits key, namespace and time of each timer."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_reducing_state(TOTAL)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        for what, namespace, domain, times in row[2]:
            ctx.set_current_namespace(namespace)
            method = getattr(ctx.timers, f"{what}_{domain.value}", None)
            if what == "merge":
                ctx.timers.merge_namespaces(namespace, times)
            elif what == "list":
                yield [seconds_of(one) for one in method()]  # type: ignore[misc]
            for seconds in times if what in ("register", "delete", "replace") else ():
                self.total.add(seconds)
                method(at(seconds))  # type: ignore[misc]

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        return [(ctx.current_key, ctx.current_namespace, seconds_of(at), self.total.get())]


class AwaitedWindowed(Windowed):
    """The same with awaited state and timers."""

    async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        for what, namespace, domain, times in row[2]:
            ctx.set_current_namespace(namespace)
            twin = "async_" if what in ("list", "replace") else ""
            method = getattr(ctx.timers, f"{twin}{what}_{domain.value}", None)
            if what == "merge":
                await ctx.timers.async_merge_namespaces(namespace, times)
            elif what == "list":
                yield [seconds_of(one) for one in await method()]  # type: ignore[misc]
            for seconds in times if what in ("register", "delete", "replace") else ():
                await self.total.async_add(seconds)
                if (done := method(at(seconds))) is not None:  # type: ignore[misc]
                    await done

    async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        total = await self.total.async_get()
        return [(ctx.current_key, ctx.current_namespace, seconds_of(at), total)]


class ReplacesBehind(Windowed):
    """Replaces the timers of a namespace, and awaits what it asked for after that."""

    async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        if row[2]:
            for seconds in row[2]:
                ctx.timers.register_processing_time(at(seconds))
        else:
            replaced = ctx.timers.async_replace_processing_time(at(9))
            await ctx.timers.async_merge_namespaces("w", ["v"])
            yield [seconds_of(one) for one in await ctx.timers.async_list_processing_time()]
            await replaced


FUNCTIONS: Final = {"plain": Windowed, "coroutine": AwaitedWindowed}


def do(job: KeyedJob, function: Any, seconds: float, *steps: Any, key: str = "a") -> list[Any]:
    """Run a micro-batch of one row, or of none, ``seconds`` after the last one."""
    job.clock.advance(seconds * SECOND)
    return job.run(function, [(key, 0, steps)] if steps else [])


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
class NamespacedTimerTests(BackendSubject):
    """Timers of a key in several namespaces."""

    @pytest.fixture(params=sorted(FUNCTIONS))
    def function(self, request: pytest.FixtureRequest) -> Any:
        return FUNCTIONS[request.param]()

    def test_equal_times_in_two_namespaces_are_two_timers(
        self, new_job: NewJob, function: Any
    ) -> None:
        job = new_job()
        do(job, function, 0, *(step("register", window, PROCESSING, 5, 5) for window in WINDOWS))
        fired = do(job, function, 5)
        assert sorted(fired, key=repr) == sorted([("a", w, 5, 10) for w in WINDOWS], key=repr)
        assert do(job, function, 5) == []

    def test_deleting_leaves_the_timer_of_another_namespace(
        self, new_job: NewJob, function: Any
    ) -> None:
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

    def test_one_that_a_row_registers_and_is_due_fires_in_its_namespace(
        self, new_job: NewJob, function: Any
    ) -> None:
        steps = step("register", "w", PROCESSING, 3), step("register", None, PROCESSING, 4)
        assert do(new_job(), function, 9, *steps) == [("a", "w", 3, 3), ("a", None, 4, 4)]

    @pytest.mark.parametrize("engine", sorted(ENGINES))
    def test_a_replacement_of_many_takes_effect_before_what_comes_after_it(
        self, new_job: NewJob, engine: str
    ) -> None:
        job = new_job(settings=ENGINES[engine])
        job.run(ReplacesBehind(), [("a", 0, range(1, 8))])
        job.restart()
        assert job.run(ReplacesBehind(), [("a", 0, ())]) == [[9]]

    @pytest.mark.parametrize("parallelisms", [(2, 5), (8, 1)], ids=str)
    def test_a_restart_and_a_rescale_keep_namespaces(
        self, new_job: NewJob, function: Any, parallelisms: tuple[int, int]
    ) -> None:
        job = new_job(parallelism=parallelisms[0])
        keys = [f"k{n}" for n in range(20)]
        for window in ("v", "w"):
            job.run(
                function, [(key, 0, [step("register", window, PROCESSING, 70)]) for key in keys]
            )
        job.restart(parallelism=parallelisms[1])
        assert do(job, function, 60) == []
        job.restart()
        expected = [(key, window, 70, 70) for key in keys for window in ("v", "w")]
        assert sorted(do(job, function, 10)) == sorted(expected)

    @pytest.mark.parametrize(
        ("way", "lists", "parallelism"),
        [
            pytest.param("fork", False, 1, id="fork-unlisted-1"),
            pytest.param("fork", True, 5, id="fork-listed-5"),
            pytest.param("savepoint", False, 5, id="savepoint-unlisted-5"),
            pytest.param("savepoint", True, 1, id="savepoint-listed-1"),
            pytest.param("other backend", False, 1, id="other backend-unlisted-1"),
            pytest.param("other backend", True, 5, id="other backend-listed-5"),
        ],
    )
    def test_state_that_begins_as_anothers_has_its_timers(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        way: str,
        lists: bool,  # noqa: FBT001 - a parameter of the test
        parallelism: int,
    ) -> None:
        source, function, keys = new_job(parallelism=3, query="source"), Windowed(), "abcdef"
        steps = step("register", "w", PROCESSING, 5, 7), step("register", None, PROCESSING, 5)
        source.run(function, [(key, 0, [*steps, step("list", "w")][: 2 + lists]) for key in keys])
        savepoint = "kept" if way == "savepoint" else None
        if savepoint:
            create_savepoint(source.storage, savepoint, uid=source.uid)
        do(source, function, 0, step("delete", "w", PROCESSING, 5))
        found_by = {one.name: one for one in (backend_class, ReferenceBackend)}
        fork = new_job(
            parallelism=parallelism,
            query="fork",
            restore=RestoreFrom("source", savepoint=savepoint),
            clock=source.clock,
            find_backend=found_by.__getitem__,
        )
        if way == "other backend":
            fork.backend_class, fork.options = ReferenceBackend, {}
        everyone = {(key, window, 5) for key in keys for window in (None, "w")}
        left = everyone - {("a", "w", 5)}
        assert do(fork, function, 0, step("list", "w")) == [[5, 7] if savepoint else [7]]
        fired = {one[:3] for one in do(fork, function, 5)}
        assert fired == (everyone if savepoint else left)
        assert {one[:3] for one in do(source, function, 0)} == left
        fork.restart(parallelism=2)
        listed = fork.run(function, [(key, 0, [step("list", "w")]) for key in keys])
        assert listed == [[7]] * len(keys)

    def test_what_on_timer_registers_is_in_its_timers_namespace(
        self, new_job: NewJob, some_manner: Manner
    ) -> None:
        class Chained(Windowed):
            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                if seconds_of(at) < 30:
                    ctx.timers.register_processing_time(at + 10 * SECOND)
                return super().on_timer(at, ctx)

        job = new_job(settings=some_manner.settings)
        do(job, Chained(), 0, step("register", "w", PROCESSING, 10))
        assert do(job, Chained(), 10) == [("a", "w", 10, 10)]
        assert do(job, Chained(), 25) == [("a", "w", 20, 10), ("a", "w", 30, 10)]

    # -- listing ------------------------------------------------------------------------------

    @pytest.mark.parametrize("domain", DOMAINS, ids=str)
    def test_a_listing_has_the_timers_of_a_key_and_namespace(
        self, new_job: NewJob, function: Any, domain: TimeDomain
    ) -> None:
        job = new_job(event_time=lambda row: at(row[1]))
        do(job, function, 0, step("register", None, domain, 900, 7, 70, 7), key="b")
        steps = step("register", "w", domain, 9), step("register", None, domain, 80, 8)
        assert do(job, function, 0, *steps, step("list", None, domain)) == [[8, 80]]
        assert do(job, function, 0, step("list", "w", domain)) == [[9]]
        assert do(job, function, 0, step("list", "v", domain)) == [[]]
        other = PROCESSING if domain is EVENT else EVENT
        assert do(job, function, 0, step("list", None, other)) == [[]]
        assert do(job, function, 0, step("list", None, domain), key="b") == [[7, 70, 900]]

    def test_a_listing_follows_what_is_deleted_and_what_fires(
        self, new_job: NewJob, function: Any
    ) -> None:
        job = new_job()
        steps = step("register", "w", PROCESSING, 5, 6, 7), step("list", "w")
        assert do(job, function, 0, *steps) == [[5, 6, 7]]
        steps = step("delete", "w", PROCESSING, 6), step("list", "w")
        assert do(job, function, 0, *steps) == [[5, 7]]
        assert do(job, function, 5, step("list", "w")) == [("a", "w", 5, 18 + 6), [7]]
        assert do(job, function, 5) == [("a", "w", 7, 24)]
        assert do(job, function, 0, step("list", "w")) == [[]]

    def test_on_timer_does_not_list_the_timer_that_fires(self, new_job: NewJob) -> None:
        class Listing(TimerFunction):
            def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
                return [[seconds_of(one) for one in ctx.timers.list_processing_time()]]

        job = new_job()
        job.run(Listing(), [row("a", 5, 6, 7)])
        job.clock.advance(6 * SECOND)
        assert job.run(Listing(), []) == [[6, 7], [7]]

    @pytest.mark.parametrize("parallelisms", [(1, 2), (3, 1)], ids=str)
    def test_a_listing_is_right_after_a_rescale_of_which_one_part_had_listed(
        self, new_job: NewJob, function: Any, parallelisms: tuple[int, int]
    ) -> None:
        job = new_job(parallelism=parallelisms[0])
        keys = [f"k{n}" for n in range(20)]
        job.run(function, [(key, 0, [step("register", "w", PROCESSING, 70, 80)]) for key in keys])
        assert do(job, function, 0, step("list", "w"), key="k1") == [[70, 80]]
        job.restart(parallelism=parallelisms[1])
        assert len(do(job, function, 70)) == len(keys)
        listed = job.run(function, [(key, 0, [step("list", "w")]) for key in keys])
        assert listed == [[80]] * len(keys)

    def test_a_listing_outlives_a_function_without_timers(self, new_job: NewJob) -> None:
        class Timerless(KeyedProcessFunction[str, Any, Any]):
            def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
                return []

        job, function = new_job(), Windowed()
        do(job, function, 0, step("register", "w", PROCESSING, 5), step("list", "w"))
        do(job, Timerless(), 0, step("list"))
        do(job, function, 0, step("register", "w", PROCESSING, 6))
        assert do(job, function, 5, step("list", "w")) == [("a", "w", 5, 11), [6]]

    def test_replacing_leaves_one_timer_of_a_kind_and_namespace(
        self, new_job: NewJob, function: Any
    ) -> None:
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

    # -- merging ------------------------------------------------------------------------------

    def test_a_merge_moves_all_timers_of_the_sources(self, new_job: NewJob, function: Any) -> None:
        job = new_job(event_time=lambda row: at(row[1]))
        steps = [step("register", window, PROCESSING, 5, n) for n, window in enumerate("uvw", 6)]
        do(job, function, 0, *steps, step("register", "v", EVENT, 5))
        steps = [step("merge", "u", PROCESSING, "v", "w", "v", "nothing", "u")]  # type: ignore[arg-type]
        do(job, function, 0, *steps)
        listed = do(
            job, function, 0, step("list", "u"), step("list", "v"), step("list", "u", EVENT)
        )
        assert listed == [[5, 6, 7, 8], [], [5]]
        job.restart(parallelism=3)
        fired = do(job, function, 10)
        assert [(w, seconds) for _, w, seconds, _ in fired] == [("u", n) for n in (5, 6, 7, 8)]

    def test_a_merge_leaves_the_timers_of_other_keys(self, new_job: NewJob, function: Any) -> None:
        job = new_job()
        for key in "ab":
            do(job, function, 0, step("register", "w", PROCESSING, 5), key=key)
        do(job, function, 0, step("merge", None, PROCESSING, "w"))  # type: ignore[arg-type]
        assert {(key, w) for key, w, _, _ in do(job, function, 5)} == {("a", None), ("b", "w")}

    def test_states_merge_asynchronously_as_they_do_otherwise(
        self, new_job: NewJob, some_manner: Manner
    ) -> None:
        class Merging(KeyedProcessFunction[str, Any, Any]):
            def open(self, context: RuntimeContext) -> None:
                self.total = context.get_reducing_state(TOTAL)
                self.seen = context.get_list_state(SEEN)

            async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
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

        job = new_job(settings=some_manner.settings)
        job.run(Merging(), [("a", "u", ["v", "w"], 1), ("b", "u", ["v"], 5)])
        job.run(Merging(), [("a", "u", ["w"], 10)])
        merged = job.run(Merging(), [("a", "u", ["v", "w"], 0)])
        everything = ("u", 1 + 10 + 1 + 1 + 10, [1, 10, 1, 1, 10])
        assert merged == [("v", None, []), ("w", None, []), everything]
        job.restart(parallelism=2)
        assert job.run(Merging(), [("b", "v", ["u", "none"], 0)])[-1] == ("v", 10, [5, 5])
