"""The memory that a difference takes where most of the state is in one key group, or one key.

Untyped keys are slow tests here; `test_feed_property` compares them in many passes by default.
Timers on lsm are one, too: what is measured is the difference, which is the same on both backends.
"""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.keys import key_group_of
from forebay_state_processor.reading import START, difference, open_feed
from forebay_state_processor.reading.bounded_passes import held_in_passes
from forebay_testing import ManualClock

pytestmark = pytest.mark.long

CELLS = 50
HELD = 60_000
"""Bytes, a fifth of the content of all cells."""
CHANGED = 10
TIMERS = 1_500
HELD_OF_TIMERS = 120_000


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


@pytest.fixture
def held_bytes(monkeypatch):
    """The bytes of content of each pass, as it is held."""
    found = []

    def spied(*arguments):
        for chosen, held in held_in_passes(*arguments):
            found.append(len(pickle.dumps(held)))
            yield chosen, held

    monkeypatch.setattr(difference, "held_in_passes", spied)
    return found


def shown(compared):
    return sorted(map(repr, compared.rows("s")))


@pytest.mark.parametrize("hot", ["key group", "key"])
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
@pytest.mark.parametrize("key_type", [str, pytest.param(None, marks=pytest.mark.slow)])
def test_what_is_hot_is_compared_within_the_budget(
    make_job, feed, held_bytes, hot, descriptor, access, key_type
):
    job = make_job(descriptor, key_type=key_type)
    keys = keys_of_one_group(job, CELLS)
    cells = [(key, None) for key in keys] if hot == "key group" else [("a", key) for key in keys]
    for some, letter in ((cells, "a"), (cells[:CHANGED], "b")):
        texts = [(key, namespace, repr(namespace) + letter * 6_000) for key, namespace in some]
        job.scripts([(key, [("namespace", at), (*access, text)]) for key, at, text in texts])
    first, second = feed.after(START)
    with (
        feed.between(first, second) as at_once,
        feed.between(first, second, held_bytes=HELD) as in_passes,
    ):
        whole = shown(at_once)
        assert max(held_bytes) > 4 * HELD
        held_bytes.clear()
        assert shown(in_passes) == whole
        assert len(whole) == CHANGED
        assert max(held_bytes) <= HELD + 7_000


@pytest.mark.parametrize(
    "backend_class",
    [HeapBackend, pytest.param(LsmBackend, marks=pytest.mark.slow)],
    ids=["heap", "lsm"],
)
def test_timers_of_a_hot_key_group_are_compared_within_the_budget(make_job, feed):
    job = make_job(clock=ManualClock(datetime(2026, 1, 1, tzinfo=UTC)))
    (key,) = keys_of_one_group(job, 1)
    for seconds in ((0, TIMERS), (TIMERS, TIMERS + CHANGED)):
        job.run(Timers(), [(key, seconds)])
    first, second = feed.after(START)
    with feed.between(first, second, held_bytes=HELD_OF_TIMERS) as compared:

        def scan():
            for side in (compared._older, compared._newer):
                assert sum(1 for _ in side.timers()) >= TIMERS

        def compare():
            changes = list(compared.timers())
            assert len({change.timer for change in changes}) == len(changes) == CHANGED

        assert peak_of(compare) < peak_of(scan) + 3 * HELD_OF_TIMERS
