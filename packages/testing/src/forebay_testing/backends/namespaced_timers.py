"""Timers in namespaces (docs/reference/state.md): restored, listed and merged."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import pytest

from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ReducingStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.timers import TimeDomain
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.backends.timers import (
    EVENT,
    PROCESSING,
    at,
    seconds_of,
)
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend

TOTAL: Final = ReducingStateDescriptor("total", lambda first, second: first + second, int)


def step(what: str, namespace: Any = None, domain: TimeDomain = PROCESSING, *times: Any) -> Any:
    """Return an action of a row in a namespace; a merge has namespaces instead of times."""
    return what, namespace, domain, times


class Windowed(KeyedProcessFunction[str, Any, Any]):
    """Carries out the actions of rows; emits key, namespace and time of each timer."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_reducing_state(TOTAL)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        for what, namespace, domain, times in row[2]:
            ctx.set_current_namespace(namespace)
            method: Any = getattr(ctx.timers, f"{what}_{domain.value}", None)
            if what == "merge":
                ctx.timers.merge_namespaces(namespace, times)
            elif what == "list":
                yield [seconds_of(one) for one in method()]
            for seconds in times if what in ("register", "delete", "replace") else ():
                self.total.add(seconds)
                method(at(seconds))

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        return [(ctx.current_key, ctx.current_namespace, seconds_of(at), self.total.get())]


class AwaitedWindowed(Windowed):
    """`Windowed`, with awaited state and timers."""

    async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        for what, namespace, domain, times in row[2]:
            ctx.set_current_namespace(namespace)
            twin = "async_" if what in ("list", "replace") else ""
            method: Any = getattr(ctx.timers, f"{twin}{what}_{domain.value}", None)
            if what == "merge":
                await ctx.timers.async_merge_namespaces(namespace, times)
            elif what == "list":
                yield [seconds_of(one) for one in await method()]
            for seconds in times if what in ("register", "delete", "replace") else ():
                await self.total.async_add(seconds)
                if (done := method(at(seconds))) is not None:
                    await done

    async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        total = await self.total.async_get()
        return [(ctx.current_key, ctx.current_namespace, seconds_of(at), total)]


FUNCTIONS: Final = {"plain": Windowed, "coroutine": AwaitedWindowed}


def do(job: KeyedJob, function: Any, seconds: float, *steps: Any, key: str = "a") -> list[Any]:
    """Run a micro-batch of one row, or of none, ``seconds`` after the last one."""
    job.clock.advance(seconds * SECOND)
    return job.run(function, [(key, 0, steps)] if steps else [])


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
class NamespacedTimerTests(BackendSubject):
    """Timers and their listings, after a restart, a rescale, a fork and a merge."""

    @pytest.fixture(params=sorted(FUNCTIONS))
    def function(self, request: pytest.FixtureRequest) -> Any:
        return FUNCTIONS[request.param]()

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

    def test_a_merge_moves_all_timers_of_the_sources(self, new_job: NewJob, function: Any) -> None:
        job = new_job(event_time=lambda row: at(row[1]))
        steps = [step("register", window, PROCESSING, 5, n) for n, window in enumerate("uvw", 6)]
        do(job, function, 0, *steps, step("register", "v", EVENT, 5))
        steps = [step("merge", "u", PROCESSING, "v", "w", "v", "nothing", "u")]
        do(job, function, 0, *steps)
        listed = do(
            job, function, 0, step("list", "u"), step("list", "v"), step("list", "u", EVENT)
        )
        assert listed == [[5, 6, 7, 8], [], [5]]
        job.restart(parallelism=3)
        fired = do(job, function, 10)
        assert [(w, seconds) for _, w, seconds, _ in fired] == [("u", n) for n in (5, 6, 7, 8)]
