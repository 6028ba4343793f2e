"""The memory that a difference takes where all keys are in one key group."""

from __future__ import annotations

import itertools
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_of
from forebay_state_api.reading import START, open_feed
from forebay_state_api.testing import ManualClock

HELD = 120_000
"""Bytes, a fifth of what all keys take."""
CHANGED = 10


class Timers(KeyedProcessFunction):
    """Registers a timer for each second of a row's range, counted from tomorrow."""

    def process_element(self, row, ctx):
        for second in range(*row[1]):
            at = ctx.timers.processing_time + timedelta(days=1, seconds=second)
            ctx.timers.register_processing_time(at)

    def on_timer(self, at, ctx):
        pass


@pytest.fixture
def feed(tmp_path):
    return open_feed(str(tmp_path), query="query", uid="operator", provisional=True)


def keys_of_one_group(job, count):
    names = map("k{}".format, itertools.count())
    of_group = (one for one in names if key_group_of(one, job.max_parallelism) == 3)
    return list(itertools.islice(of_group, count))


def peak_of(task):
    """Return the most memory that a task takes at a time, in bytes."""
    task()  # imports, and what is made once
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("descriptor", "access"),
    [
        (ValueStateDescriptor("s", str), ["s.update"]),
        (ValueStateDescriptor("s", str, ttl=StateTtlConfig(timedelta(days=1))), ["s.update"]),
        (ListStateDescriptor("s", str), ["s.add"]),
        (MapStateDescriptor("s", int, str), ["s.put", 1]),
    ],
    ids=["value", "value-with-ttl", "list", "map"],
)
def test_a_hot_key_group_is_compared_within_the_budget(make_job, feed, descriptor, access):
    job = make_job(descriptor)
    keys = keys_of_one_group(job, 100)
    for some, letter in ((keys, "a"), (keys[:CHANGED], "b")):
        job.scripts([(key, [(*access, key + letter * 6_000)]) for key in some])
    first, second = feed.after(START)
    with feed.between(first, second, held_bytes=HELD) as difference:

        def scan():
            for side in (difference._older, difference._newer):
                assert sum(1 for _ in side.scan("s")) == len(keys)

        def compare():
            assert sum(1 for _ in difference.rows("s")) == CHANGED

        assert peak_of(compare) < peak_of(scan) + 3 * HELD


def test_timers_of_a_hot_key_group_are_compared_within_the_budget(make_job, feed):
    job = make_job(clock=ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    (key,) = keys_of_one_group(job, 1)
    for seconds in ((0, 1_500), (1_500, 1_500 + CHANGED)):
        job.run(Timers(), [(key, seconds)])
    first, second = feed.after(START)
    with feed.between(first, second, held_bytes=HELD) as difference:

        def scan():
            for side in (difference._older, difference._newer):
                assert sum(1 for _ in side.timers()) >= 1_500

        def compare():
            assert sum(1 for _ in difference.timers()) == CHANGED

        assert peak_of(compare) < peak_of(scan) + 3 * HELD
