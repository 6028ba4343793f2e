"""Histories of timers and TTL against a plain model: batches, crashes, restarts, any parallelism.

What a key sees, in its order, is what the model says, whatever style the function is written in.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.engine.states.ttl_cleanup import needed_by
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.timers import TimeDomain
from forebay_state_api.job.ttl import (
    CleanupFullSnapshot,
    CleanupInBackground,
    CleanupIncrementally,
    CleanupOnRead,
    StateTtlConfig,
)
from forebay_state_api.keys import key_group_of, key_group_range_of
from forebay_state_api.testing.conformance.machine import ENGINES
from forebay_state_api.testing.conformance.search import Search
from forebay_state_api.testing.conformance.subject import (
    SECOND,
    BackendSubject,
    NewJob,
    memory_storage,
)
from forebay_state_api.testing.conformance.timers import DOMAINS, EVENT, PROCESSING, at, seconds_of
from forebay_state_api.testing.job import KeyedJob

KEYS: Final = ["a", "b", "c", "d", "e", "f"]
TTL: Final = 5
LATENESS: Final = 2
NOTHING: Final = -(10**9)

CHANGES: Final = st.tuples(
    st.sampled_from(["register", "register", "delete"]),
    st.sampled_from(DOMAINS),
    st.integers(0, 90),
)
ROWS: Final = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 60), st.lists(CHANGES, max_size=4)), max_size=6
)
BATCHES: Final = st.lists(
    st.tuples(
        st.integers(0, 25),
        ROWS,
        st.sampled_from(["plain", "coroutine"]),
        ENGINES,
        st.sampled_from([None, None, 1, 2, 3, 5, 8]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
CLEANUPS: Final = st.sampled_from(
    [
        (),
        (CleanupOnRead(),),
        (CleanupOnRead(), CleanupInBackground()),
        (CleanupIncrementally(1),),
        (CleanupIncrementally(3, every_record=True), CleanupFullSnapshot()),
    ]
)


def follow_up(domain: TimeDomain, seconds: int) -> Sequence[tuple[str, TimeDomain, int]]:
    """The changes that a firing timer makes to other timers of its key."""
    found = []
    if seconds % 5 == 0:
        found.append(("register", domain, seconds + 7))
    if seconds % 7 == 0:
        found.append(("register", domain, seconds))
    if seconds % 3 == 0:
        found.append(("delete", domain, seconds + 1))
    if seconds % 11 == 0:
        found.append(("register", PROCESSING, seconds + 3))
    if seconds % 13 == 0:
        found.append(("register", EVENT, seconds + 2))
    return found


class EventCounts(KeyedProcessFunction[str, Any, Any]):
    """Counts a key's events, and its events within the TTL; emits both counts."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int))
        self.recent = context.get_state(ValueStateDescriptor("recent", int, ttl=self.ttl))

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        total, recent = (self.total.value() or 0) + 1, (self.recent.value() or 0) + 1
        return self.emitted(ctx, ("row", row[1]), row[2], total, recent)

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        total, recent = (self.total.value() or 0) + 1, (self.recent.value() or 0) + 1
        domain = ctx.timers.domain
        assert domain is not None
        what = domain.value, seconds_of(at)
        return self.emitted(ctx, what, follow_up(domain, what[1]), total, recent)

    def emitted(
        self, ctx: RuntimeContext, what: tuple[str, int], changes: Any, total: int, recent: int
    ) -> Any:
        """Keep and emit the counts, and change timers."""
        self.total.update(total)
        self.recent.update(recent)
        for change, domain, when in changes:
            getattr(ctx.timers, f"{change}_{domain.value}")(at(when))
        return [(ctx.current_key, *what, total, recent)]


class AwaitedEventCounts(EventCounts):
    """The same, with awaited state."""

    async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:
        total = (await self.total.async_value() or 0) + 1
        recent = (await self.recent.async_value() or 0) + 1
        return self.emitted(ctx, ("row", row[1]), row[2], total, recent)

    async def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        domain = ctx.timers.domain
        assert domain is not None
        total = (await self.total.async_value() or 0) + 1
        recent = (await self.recent.async_value() or 0) + 1
        what = domain.value, seconds_of(at)
        return self.emitted(ctx, what, follow_up(domain, what[1]), total, recent)


class TimerModel:
    """The expected behaviour; ``run`` is one micro-batch."""

    def __init__(self, max_parallelism: int) -> None:
        self.max_parallelism = max_parallelism
        self.timers: set[tuple[TimeDomain, int, str]] = set()
        self.totals: dict[str, int] = defaultdict(int)
        self.recents: dict[str, tuple[int, int]] = {}
        self.watermark = NOTHING
        self.seen = [NOTHING] * max_parallelism
        """The latest event time that the subtask of each key group has ever seen."""
        self.seen_before: list[int] = []
        """The same for the subtasks that had rows in the previous micro-batch."""
        self.now = 0
        self.out: list[Any] = []
        self.waiting: set[tuple[TimeDomain, int, str]] = set()
        """Timers that wait for the next micro-batch."""
        self.deferred: set[tuple[TimeDomain, int, str]] = set()
        """Timers that wait for the rows."""
        self.before_rows = False

    def run(self, now: int, rows: Sequence[Any], parallelism: int) -> list[Any]:
        """The expected output rows."""
        self.watermark = max(self.watermark, min(self.seen_before, default=NOTHING) - LATENESS)
        self.now, self.out, self.waiting = now, [], set()
        self.before_rows = True
        self.fire()
        self.before_rows, self.deferred = False, set()
        for key, seconds, changes in rows:
            self.happen(key, "row", seconds, changes)
        self.fire()
        self.seen_before = [self.see(rows, n, parallelism) for n in range(parallelism)]
        self.seen_before = [seconds for seconds in self.seen_before if seconds != NOTHING]
        return self.out

    def fire(self) -> None:
        """Fire every timer that is due and does not wait."""
        for domain in itertools.cycle(DOMAINS):
            if not any(self.due(one) for one in DOMAINS):
                return
            while due := self.due(domain):
                _, seconds, key = timer = min(due, key=lambda timer: timer[1])
                self.timers.discard(timer)
                changes = follow_up(domain, seconds)
                self.happen(key, domain.value, seconds, changes, (domain, seconds))

    def due(self, domain: TimeDomain) -> list[tuple[TimeDomain, int, str]]:
        """Return the timers of one domain that fire now."""
        until = self.watermark if domain is EVENT else self.now
        ready = self.timers - self.waiting - self.deferred
        return [timer for timer in ready if timer[0] is domain and timer[1] <= until]

    def happen(
        self, key: str, what: str, seconds: int, changes: Any, own: Any = (None, NOTHING)
    ) -> None:
        """Handle one record or timer."""
        self.totals[key] += 1
        time, recent = self.recents.get(key, (NOTHING, 0))
        recent = 1 if time + TTL <= self.now else recent + 1
        self.recents[key] = self.now, recent
        self.out.append((key, what, seconds, self.totals[key], recent))
        for change, domain, when in changes:
            timer = (domain, when, key)
            if change == "delete":
                self.timers.discard(timer)
                self.waiting.discard(timer)
                self.deferred.discard(timer)
                continue
            if (
                self.before_rows
                and domain is PROCESSING
                and timer not in self.timers - self.waiting
            ):
                self.deferred.add(timer)
            if domain is not own[0] or when > own[1]:
                self.waiting.discard(timer)
            elif timer not in self.timers:
                self.waiting.add(timer)
            self.timers.add(timer)

    def see(self, rows: Sequence[Any], subtask: int, parallelism: int) -> int:
        """Record the event times of one subtask; return the latest one ever, if it had rows."""
        groups = key_group_range_of(subtask, parallelism, self.max_parallelism)
        own = [s for key, s, _ in rows if key_group_of(key, self.max_parallelism) in groups]
        latest = max([*own, *(self.seen[group] for group in groups)])
        for group in groups:
            self.seen[group] = latest
        return latest if own else NOTHING


class TimerHistoryTests(BackendSubject):
    """Timers and TTL together, against a plain model."""

    timer_examples = 12

    def test_timers_and_ttl_do_what_a_model_does(
        self,
        new_job: NewJob,
        forget: Callable[[], None],
        backend_class: type[StateBackend],
        search: Search,
    ) -> None:
        @search.limits(self.timer_examples)
        @search.seeded
        @given(batches=BATCHES, cleanup=CLEANUPS)
        def histories(batches: Any, cleanup: Any) -> None:
            forget()
            claimed = [one for one in cleanup if needed_by(one) in backend_class.capabilities]
            ttl = StateTtlConfig(TTL * SECOND, cleanup=claimed)
            job = new_job(
                storage=memory_storage(),
                event_time=lambda row: at(row[1]),
                lateness=timedelta(seconds=LATENESS),
            )
            model, now = TimerModel(job.max_parallelism), 0
            for seconds, rows, style, engine, parallelism, crashes in batches:
                now += seconds
                job.clock.advance(seconds * SECOND)
                job.settings = engine
                if parallelism is not None:
                    job.restart(parallelism=parallelism)
                function = (EventCounts if style == "plain" else AwaitedEventCounts)(ttl)
                if crashes:
                    job.run(function, rows, crash=True)
                found = _run(job, function, rows)
                assert found == _by_key(model.run(now, rows, job.parallelism))

        histories()


def _run(job: KeyedJob, function: Any, rows: Sequence[Any]) -> Mapping[str, list[Any]]:
    return _by_key(job.run(function, rows))


def _by_key(rows: Sequence[Any]) -> Mapping[str, list[Any]]:
    """Return the events of each key, in order."""
    found: dict[str, list[Any]] = {}
    for key, *rest in rows:
        found.setdefault(key, []).append(rest)
    return found
