"""Applying the feed of versions 1 … n to nothing gives the snapshot at n, for random histories."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import AbandonedTimelineError
from forebay_state_api.reading import START, Operation, open_feed, open_state
from forebay_state_api.reading.positions import is_before
from forebay_state_api.testing import ManualClock
from forebay_state_api.testing.scripts import Script, SynchronousScripts
from forebay_state_api.versions import RestoreFrom

SEED = 3
"""A history with typed keys, in which the query goes back behind the consumer."""
KEYS = ["a", "b", "c", "d", "e", "f"]
TTL = StateTtlConfig(timedelta(minutes=5))


class Sum(ReduceFunction):
    def reduce(self, one, other):
        return one + other


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, one, other):
        return one + other


def states(suffix, **ttl):
    return [
        ValueStateDescriptor(f"value{suffix}", str, **ttl),
        ListStateDescriptor(f"list{suffix}", int, **ttl),
        MapStateDescriptor(f"map{suffix}", str, float, **ttl),
        SortedMapStateDescriptor(f"sorted{suffix}", int, str, **ttl),
        ReducingStateDescriptor(f"sum{suffix}", Sum(), int, **ttl),
        AggregatingStateDescriptor(f"count{suffix}", Count(), int, **ttl),
    ]


STATES = [*states(""), *states("_ttl", ttl=TTL)]


class Churn(SynchronousScripts):
    """Runs scripts, in which ``("timer", minutes)`` registers a timer."""

    def call(self, ctx, access, prefix):
        if access[0] != "timer":
            return super().call(ctx, access, prefix)
        at = ctx.timers.processing_time + timedelta(minutes=access[1])
        return ctx.timers.register_processing_time(at)

    def on_timer(self, at, ctx):
        self.states["value"].update(f"timer at {at:%M}")


def accesses(random):
    """Yield random writes to one key."""
    if random.random() < 0.3:
        yield ("namespace", random.choice(["w1", "w2"]))
    for _ in range(random.randint(1, 4)):
        name = random.choice(["value", "list", "map", "sorted", "sum", "count"])
        state, n = name + random.choice(["", "_ttl"]), random.randint(0, 3)
        yield random.choice(
            {
                "value": [(f"{state}.update", f"v{n}"), (f"{state}.clear",)],
                "list": [
                    (f"{state}.add", n),
                    (f"{state}.add", n),
                    (f"{state}.update", [n, 1]),
                    (f"{state}.clear",),
                ],
                "map": [
                    (f"{state}.put", f"m{n}", n / 2),
                    (f"{state}.put", f"m{n}", None),
                    (f"{state}.remove", f"m{n}"),
                    (f"{state}.clear",),
                ],
                "sorted": [
                    (f"{state}.put", n, f"s{n}"),
                    (f"{state}.remove", n),
                    (f"{state}.remove_range", 1, 3),
                ],
                "sum": [(f"{state}.add", n), (f"{state}.clear",)],
                "count": [(f"{state}.add", n), (f"{state}.clear",)],
            }[name]
        )
    if random.random() < 0.3:
        yield ("timer", random.randint(1, 9))


class Applied:
    """The content that a consumer of the feed has."""

    def __init__(self):
        self.states = {one.name: {} for one in STATES}
        self.timers = set()

    def apply(self, difference):
        for name in difference.states:
            for change in difference.rows(name):
                self.apply_row(self.states[name], change)
        for change in difference.timers():
            done = self.timers.add if change.operation is Operation.PUT else self.timers.remove
            done(change.timer)

    def apply_row(self, state, change):
        at = (change.key, change.namespace)
        if change.user_key is not None:
            value, written = state.setdefault(at, ({}, {}))
            if change.operation is Operation.PUT:
                value[change.user_key], written[change.user_key] = change.value, change.written
            else:
                assert value.pop(change.user_key) == change.old
                del written[change.user_key]
                if not value:
                    del state[at]
        elif change.operation in {Operation.REMOVED, Operation.CLEARED}:
            assert state.pop(at)[0] == change.old
        elif change.operation is Operation.APPENDED:
            value, written = state.get(at, ([], []))
            state[at] = (value + change.value, written + (change.written or []))
        else:
            state[at] = (change.value, change.written)

    def check(self, snapshot):
        for name, state in self.states.items():
            found = {}
            if name in snapshot.states:
                for row in snapshot.scan(name):
                    found[row.key, row.namespace] = (row.value, row.written)
            assert {at: plain(*one) for at, one in state.items()} == {
                at: plain(*one) for at, one in found.items()
            }, (name, snapshot)
        assert self.timers == {*snapshot.timers()}


def plain(value, written):
    """Return content with its times, or ``None`` where the state has no TTL."""
    if isinstance(written, dict):
        written = {key: at for key, at in written.items() if at is not None}
    return value, written or None


class History:
    """A random history of one operator."""

    def __init__(self, make_job, path, seed, options):
        self.random = random.Random(seed)
        self.key_type = key_type = self.random.choice([str, None])
        self.make_job = lambda **given: make_job(
            *STATES, options=options, key_type=key_type, **given
        )
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.job = self.make_job(clock=self.clock, parallelism=self.random.randint(1, 4))
        self.path = path

    def feed(self):
        return open_feed(self.path, query="query", uid=self.job.uid, provisional=True)

    def snapshot(self, at):
        where = {"query": "query", "uid": self.job.uid}
        return open_state(self.path, version=at.version, run=at.run, **where)

    def batch(self):
        keys = self.random.sample(KEYS, self.random.randint(0, 4))
        rows = [Script(key, n, [*accesses(self.random)]) for n, key in enumerate(keys)]
        self.job.run(Churn(STATES), rows)
        self.clock.advance(timedelta(minutes=self.random.choice([0, 1, 3])))

    def restart(self):
        self.job.restart(parallelism=self.random.randint(1, 4))

    def go_back(self):
        self.job.restart(batch_id=self.random.randint(1, self.job.batch_id))

    def step(self):
        self.random.choices([self.batch, self.restart, self.go_back], [8, 1, 1])[0]()

    def fork(self):
        """Go on with an operator that begins with the newest version."""
        restore = RestoreFrom("query", uid=self.job.uid)
        self.job = self.make_job(uid="fork", clock=self.clock, restore=restore)
        self.batch()


class Consumer:
    """Applies the feed, and compares with a snapshot at each position."""

    def __init__(self, history):
        self.history, self.applied, self.position = history, Applied(), START
        self.undone = 0

    def catch_up(self):
        feed = self.history.feed()
        for following in feed.after(self.position, undo=True):
            if not is_before(feed.source.storage, self.position, following):
                with pytest.raises(AbandonedTimelineError):
                    feed.after(self.position)
                self.undone += 1
            with feed.between(self.position, following, undo=True) as difference:
                self.applied.apply(difference)
            self.position = following
            if following != START:
                with self.history.snapshot(following) as snapshot:
                    self.applied.check(snapshot)


def from_nothing(history, position):
    """Compare the difference from the start with a snapshot."""
    applied = Applied()
    with history.feed().between(START, position) as difference:
        applied.apply(difference)
    with history.snapshot(position) as snapshot:
        applied.check(snapshot)


def run_history(make_job, path, seed, backend_class, steps=12):
    options = {"max-runs": 3} if backend_class is LsmBackend else {}
    history = History(make_job, path, seed, options)
    consumer = Consumer(history)
    history.batch()
    for _ in range(steps):
        history.step()
        if history.random.random() < 0.5:
            consumer.catch_up()
    consumer.catch_up()
    from_nothing(history, consumer.position)
    history.fork()
    Consumer(history).catch_up()
    return consumer


def test_the_feed_gives_what_snapshots_show(make_job, tmp_path, backend_class):
    consumer = run_history(make_job, str(tmp_path), SEED, backend_class, steps=8)
    assert consumer.undone
    assert consumer.history.key_type is str


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_the_feed_of_more_histories(make_job, tmp_path, backend_class, seed):
    run_history(make_job, str(tmp_path), seed, backend_class)
