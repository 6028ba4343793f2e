"""Random histories of one operator, with every kind of state, TTL, timers and namespaces."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from forebay_engine.versions import RestoreFrom
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
from forebay_testing import ManualClock
from forebay_testing.scripts import Script, SynchronousScripts

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
    for _ in range(random.randint(3, 12)):
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


class History:
    """A random history of one operator."""

    def __init__(self, make_job, path, seed, options):
        self.random = random.Random(seed)
        self.key_type = key_type = self.random.choice([str, None])
        self.make_job = lambda **given: make_job(
            *STATES, options=options, key_type=key_type, **given
        )
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.job = self.make_job(clock=self.clock, parallelism=self.random.randint(1, 3))
        self.path = path

    def batch(self):
        keys = self.random.sample(KEYS, self.random.randint(0, 5))
        rows = [Script(key, n, [*accesses(self.random)]) for n, key in enumerate(keys)]
        self.job.run(Churn(STATES), rows)
        self.clock.advance(timedelta(minutes=self.random.choice([0, 2, 4])))

    def restart(self):
        self.job.restart(parallelism=self.random.randint(1, 3))

    def go_back(self):
        self.job.restart(batch_id=self.random.randint(1, self.job.batch_id))

    def step(self):
        self.random.choices([self.batch, self.restart, self.go_back], [6, 1, 1])[0]()

    def fork(self):
        """Go on with an operator that begins with the newest version."""
        restore = RestoreFrom("query", uid=self.job.uid)
        self.job = self.make_job(uid="fork", clock=self.clock, restore=restore)
        self.batch()
