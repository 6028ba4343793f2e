"""Histories of timers and TTL against a plain model: batches, crashes, restarts, any parallelism.

What a key sees, in its order, is what the model says, whatever style the function is written in.
Where records fail alone, those that fail change nothing in the model.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_engine.states.ttl_cleanup import needed_by
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
from forebay_testing.backends.failing import UNLIMITED
from forebay_testing.backends.machine import ENGINES, LATE
from forebay_testing.backends.search import fresh_seed
from forebay_testing.backends.subject import SECOND, memory_storage
from forebay_testing.backends.timers import DOMAINS, EVENT, PROCESSING, at, seconds_of
from forebay_testing.late_reads import late_backend

from ..subjects import OnBoth

KEYS = ["a", "b", "c", "d", "e", "f"]


TTL = 5


LATENESS = 2


NOTHING = -(10**9)


WINDOWS = ("w", ("v", 1))


Change = tuple[str, TimeDomain, int, Any]
"""An action; kind, time and namespace of the timer. A merge moves all into that namespace.

``fail`` does nothing unless records fail alone.
"""


Timer = tuple[TimeDomain, int, str, Any]
"""Kind, time, key, namespace."""


CHANGES = st.tuples(
    st.sampled_from([*["register"] * 4, "delete", "replace", "merge", "fail"]),
    st.sampled_from(DOMAINS),
    st.integers(0, 90),
    st.sampled_from([None, None, *WINDOWS]),
)


ROWS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 60), st.lists(CHANGES, max_size=4)), max_size=6
)


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 25),
        ROWS,
        st.sampled_from(["plain", "coroutine", "unawaited"]),
        ENGINES,
        st.sampled_from([None, None, None, 1, 2, 3, 5]),
        st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=8,
)


CLEANUPS = st.sampled_from(
    [
        (),
        (CleanupOnRead(),),
        (CleanupOnRead(), CleanupInBackground()),
        (CleanupIncrementally(1),),
        (CleanupIncrementally(3, every_record=True), CleanupFullSnapshot()),
    ]
)


def follow_up(domain, seconds, namespace):
    """The changes that a firing timer makes to other timers of its key and namespace."""
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
    if seconds % 17 == 0:
        found.append(("fail", domain, seconds))
    return [(*one, namespace) for one in found]


def others(namespace):
    """Return the other namespaces."""
    return [one for one in (None, *WINDOWS) if one != namespace]


class EventCounts(KeyedProcessFunction):
    """Counts a key's events, and its events within the TTL; emits both counts."""

    def __init__(self, ttl, *, fails):
        self.ttl = ttl
        self.fails = fails

    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", int))
        self.recent = context.get_state(ValueStateDescriptor("recent", int, ttl=self.ttl))

    def process_element(self, row, ctx):
        total, recent = (self.total.value() or 0) + 1, (self.recent.value() or 0) + 1
        found = self.counted(ctx, ("row", row[1]), total, recent)
        self.change(ctx, row[2])
        return found

    def on_timer(self, at, ctx):
        total, recent = (self.total.value() or 0) + 1, (self.recent.value() or 0) + 1
        domain, seconds = ctx.timers.domain, seconds_of(at)
        assert domain is not None
        found = self.counted(ctx, (domain.value, seconds), total, recent)
        self.change(ctx, follow_up(domain, seconds, ctx.current_namespace))
        return found

    def counted(self, ctx, what, total, recent):
        """Keep the counts, and return them as a row."""
        self.total.update(total)
        self.recent.update(recent)
        return [((ctx.current_key, ctx.current_namespace), *what, total, recent)]

    def change(self, ctx, changes):
        """Change timers."""
        for change, domain, when, namespace in changes:
            ctx.set_current_namespace(namespace)
            if change == "merge":
                ctx.timers.merge_namespaces(namespace, others(namespace))
            elif change == "fail":
                self.fail()
            else:
                getattr(ctx.timers, f"{change}_{domain.value}")(at(when))

    def fail(self):
        """Fail the record or timer if it may."""
        if self.fails:
            raise ValueError("on request")


class AwaitedEventCounts(EventCounts):
    """The same, with awaited state."""

    async def process_element(self, row, ctx):
        total = (await self.total.async_value() or 0) + 1
        recent = (await self.recent.async_value() or 0) + 1
        found = self.counted(ctx, ("row", row[1]), total, recent)
        await self.change_later(ctx, row[2])
        return found

    async def on_timer(self, at, ctx):
        domain, seconds = ctx.timers.domain, seconds_of(at)
        assert domain is not None
        total = (await self.total.async_value() or 0) + 1
        recent = (await self.recent.async_value() or 0) + 1
        found = self.counted(ctx, (domain.value, seconds), total, recent)
        await self.change_later(ctx, follow_up(domain, seconds, ctx.current_namespace))
        return found

    async def change_later(self, ctx, changes):
        """Change timers, awaiting what has to be read."""
        for one in changes:
            if (begun := self.begin(ctx, one)) is not None:
                await begun
            change, domain, when, _ = one
            if change == "replace":
                listed = await getattr(ctx.timers, f"async_list_{domain.value}")()
                assert listed == [at(when)]

    def begin(self, ctx, one):
        """Make one change; return its future if it has to be read for."""
        change, domain, when, namespace = one
        ctx.set_current_namespace(namespace)
        if change == "merge":
            return ctx.timers.async_merge_namespaces(namespace, others(namespace))
        if change == "replace":
            return getattr(ctx.timers, f"async_replace_{domain.value}")(at(when))
        return self.change(ctx, [one])


class UnawaitedEventCounts(AwaitedEventCounts):
    """The same; what a record changes last is not awaited, and ends with the record."""

    async def change_later(self, ctx, changes):
        every = list(changes)
        await super().change_later(ctx, every[:-1])
        for last in every[-1:]:
            self.begin(ctx, last)


STYLES = {
    "plain": EventCounts,
    "coroutine": AwaitedEventCounts,
    "unawaited": UnawaitedEventCounts,
}


class TimerModel:
    """The expected behaviour; ``run`` is one micro-batch."""

    def __init__(self, max_parallelism, *, fails):
        self.max_parallelism = max_parallelism
        self.fails = fails
        self.failed = 0
        """The number of records and timers that have failed in the micro-batch."""
        self.timers = set()
        self.totals = defaultdict(int)
        """(Key, namespace) → the count; `recents` likewise."""
        self.recents = {}
        self.watermark = NOTHING
        self.seen = [NOTHING] * max_parallelism
        """The latest event time that the subtask of each key group has ever seen."""
        self.seen_before = []
        """The same for the subtasks that had rows in the previous micro-batch."""
        self.now = 0
        self.out = []
        self.waiting = set()
        """Timers that wait for the next micro-batch."""
        self.deferred = set()
        """Timers that wait for the rows."""
        self.before_rows = False

    def run(self, now, rows, parallelism):
        """The expected output rows."""
        self.watermark = max(self.watermark, min(self.seen_before, default=NOTHING) - LATENESS)
        self.now, self.out, self.waiting, self.failed = now, [], set(), 0
        self.before_rows = True
        self.fire()
        self.before_rows, self.deferred = False, set()
        for key, seconds, changes in rows:
            self.happen((key, None), "row", seconds, changes)
        self.fire()
        self.seen_before = [self.see(rows, n, parallelism) for n in range(parallelism)]
        self.seen_before = [seconds for seconds in self.seen_before if seconds != NOTHING]
        return self.out

    def fire(self):
        """Fire every timer that is due and does not wait."""
        for domain in itertools.cycle(DOMAINS):
            if not any(self.due(one) for one in DOMAINS):
                return
            while due := self.due(domain):
                _, seconds, key, namespace = timer = min(due, key=lambda timer: timer[1])
                self.timers.discard(timer)
                changes = follow_up(domain, seconds, namespace)
                self.happen((key, namespace), domain.value, seconds, changes, (domain, seconds))

    def due(self, domain):
        """Return the timers of one domain that fire now."""
        until = self.watermark if domain is EVENT else self.now
        ready = self.timers - self.waiting - self.deferred
        return [timer for timer in ready if timer[0] is domain and timer[1] <= until]

    def happen(self, where, what, seconds, changes, own=(None, NOTHING)):
        """Handle one record or timer of a key and namespace."""
        if self.fails and any(change == "fail" for change, *_ in changes):
            self.failed += 1
            return
        self.totals[where] += 1
        time, recent = self.recents.get(where, (NOTHING, 0))
        recent = 1 if time + TTL <= self.now else recent + 1
        self.recents[where] = self.now, recent
        self.out.append((where, what, seconds, self.totals[where], recent))
        key = where[0]
        for change, domain, when, namespace in changes:
            timer = (domain, when, key, namespace)
            if change == "fail":
                continue
            if change == "delete":
                self.delete(timer)
            elif change == "merge":
                for moved in [t for t in self.timers if t[2] == key and t[3] != namespace]:
                    self.delete(moved)
                    self.register((*moved[:3], namespace), own)
            else:
                if change == "replace":
                    for other in [t for t in self.timers if (t[0], *t[2:]) == (domain, *timer[2:])]:
                        if other != timer:
                            self.delete(other)
                self.register(timer, own)

    def delete(self, timer):
        """Delete a timer."""
        self.timers.discard(timer)
        self.waiting.discard(timer)
        self.deferred.discard(timer)

    def register(self, timer, own):
        """Register a timer; ``own`` is the kind and time of the timer that does it."""
        domain, when, _, _ = timer
        if self.before_rows and domain is PROCESSING and timer not in self.timers - self.waiting:
            self.deferred.add(timer)
        if domain is not own[0] or when > own[1]:
            self.waiting.discard(timer)
        elif timer not in self.timers:
            self.waiting.add(timer)
        self.timers.add(timer)

    def see(self, rows, subtask, parallelism):
        """Record the event times of one subtask; return the latest one ever, if it had rows."""
        groups = key_group_range_of(subtask, parallelism, self.max_parallelism)
        own = [s for key, s, _ in rows if key_group_of(key, self.max_parallelism) in groups]
        latest = max([*own, *(self.seen[group] for group in groups)])
        for group in groups:
            self.seen[group] = latest
        return latest if own else NOTHING


class TestHistories(OnBoth):
    """Timers and TTL together, against a plain model."""

    examples = 9

    @pytest.mark.long
    def test_timers_and_ttl_do_what_a_model_does(self, new_job, forget, backend_class, search):
        @search.limits(self.examples)
        @search.seeded
        @given(batches=BATCHES, cleanup=CLEANUPS, fails=st.booleans(), late=LATE)
        def histories(batches, cleanup, fails, late):
            forget()
            claimed = [one for one in cleanup if needed_by(one) in backend_class.capabilities]
            ttl = StateTtlConfig(TTL * SECOND, cleanup=claimed)
            job = new_job(
                storage=memory_storage(),
                event_time=lambda row: at(row[1]),
                lateness=timedelta(seconds=LATENESS),
                error_rows=UNLIMITED if fails else None,
            )
            if late is not None:
                job.backend_class = late_backend(backend_class, late)
            model, now = TimerModel(job.max_parallelism, fails=fails), 0
            for seconds, rows, style, engine, parallelism, crashes in batches:
                now += seconds
                job.clock.advance(seconds * SECOND)
                job.settings = engine
                if parallelism is not None:
                    job.restart(parallelism=parallelism)
                function = STYLES[style](ttl, fails=fails)
                if crashes:
                    job.run(function, rows, crash=True)
                found = job.run(function, rows)
                lived = [row for row in found if not isinstance(row, FailedRecord)]
                assert _by_key(lived) == _by_key(model.run(now, rows, job.parallelism))
                assert len(found) - len(lived) == model.failed

        histories()


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSearch(TestHistories):
    """Search among new examples."""

    example_seed = fresh_seed()
    example_factor = 20


def _by_key(rows):
    """Return the events of each key, in order."""
    found = {}
    for key, *rest in rows:
        found.setdefault(key, []).append(rest)
    return found
