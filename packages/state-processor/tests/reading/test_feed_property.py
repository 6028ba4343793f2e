"""Applying the feed of versions 1 … n to nothing gives the snapshot at n, for random histories.

By default one history runs on both backends; going back, which the other has, runs on lsm alone.
"""

from __future__ import annotations

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api.errors import AbandonedTimelineError
from forebay_state_processor.reading import START, Operation, open_feed, open_state
from forebay_state_processor.reading.history_positions import is_before
from forebay_state_processor.reading.rows import time_of

from .histories import STATES, TTL, History

pytestmark = pytest.mark.long

OF_LISTS = ("appended", "replaced", "cleared")
EVERYTHING = {
    *(
        f"{one.name} {change}"
        for one in STATES
        for change in (OF_LISTS if one.kind == "list" else ("put", "removed"))
    ),
    *(f"{one.name} expired" for one in STATES if one.ttl),
    *("timer put", "timer removed", "typed key", "untyped key", "namespace"),
    *("rescale", "compaction", "going back", "fork"),
}
"""The things that the feed has to show right, as the consumers of a history note it."""

REST = {"going back", "typed key", "map removed", "sorted removed", "sum removed"}
DRAWN = {64: EVERYTHING - REST, 67: REST}
"""Seed → what its history has at least; none of `EVERYTHING` is missing."""


class Applied:
    """The content that a consumer of the feed has."""

    def __init__(self):
        self.states = {one.name: {} for one in STATES}
        self.timers = set()
        self.seen = set()
        self.ended = []

    def apply(self, difference):
        self.ended = []
        for name in difference.states:
            for change in difference.rows(name):
                self.note(name, change)
                self.apply_row(self.states[name], change)
        for change in difference.timers():
            done = self.timers.add if change.operation is Operation.PUT else self.timers.remove
            done(change.timer)
            self.seen.add(f"timer {change.operation}")

    def note(self, name, change):
        """Note what a row is, and the time of last access of what it ends."""
        self.seen.add(f"{name} {change.operation}")
        if change.namespace is not None:
            self.seen.add("namespace")
        if name.endswith("_ttl") and change.operation in {Operation.REMOVED, Operation.CLEARED}:
            written = self.states[name][change.key, change.namespace][1]
            if change.user_key is not None:
                written = written[change.user_key]
            self.ended.append((name, max(written) if isinstance(written, list) else written))

    def note_expired(self, now_us):
        """Note the states of which something was not live any more at a time."""
        live = time_of(now_us) - TTL.ttl
        self.seen |= {f"{name} expired" for name, written in self.ended if written <= live}

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
            state[at] = (value + change.value, (written or []) + (change.written or []))
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


def feed_of(history):
    return open_feed(history.path, query="query", uid=history.job.uid, provisional=True)


def snapshot_at(history, at):
    where = {"query": "query", "uid": history.job.uid}
    return open_state(history.path, version=at.version, run=at.run, **where)


class Consumer:
    """Applies the feed, and compares with a snapshot at each position."""

    def __init__(self, history):
        self.history, self.applied, self.position = history, Applied(), START
        self.seen = self.applied.seen
        self.parts, self.files = 0, set()

    def catch_up(self):
        feed = feed_of(self.history)
        for following in feed.after(self.position, undo=True):
            goes_on = is_before(feed.source.storage, self.position, following)
            if not goes_on:
                with pytest.raises(AbandonedTimelineError):
                    feed.after(self.position)
                self.seen.add("going back")
            held = {"held_bytes": 0} if following.version % 2 else {}
            with feed.between(self.position, following, undo=True, **held) as difference:
                self.applied.apply(difference)
            self.position = following
            if following != START:
                with snapshot_at(self.history, following) as snapshot:
                    self.applied.check(snapshot)
                    self.applied.note_expired(snapshot.now_us)
                    self.note_files(snapshot.manifests, goes_on=goes_on)

    def note_files(self, manifests, *, goes_on):
        """Note how a version is stored, compared with the one before it."""
        parts, files = len(manifests), {file.name for one in manifests for file in one.files}
        if goes_on and self.parts == parts and self.files - files:
            self.seen.add("compaction")
        if goes_on and self.parts not in {0, parts}:
            self.seen.add("rescale")
        self.parts, self.files = parts, files


def from_nothing(history, position):
    """Compare the difference from the start with a snapshot."""
    applied = Applied()
    with feed_of(history).between(START, position) as difference:
        applied.apply(difference)
    with snapshot_at(history, position) as snapshot:
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
    of_fork = Consumer(history)
    of_fork.catch_up()
    seen = consumer.seen | {"typed key" if history.key_type else "untyped key"}
    return seen | ({"fork"} if any(of_fork.applied.states.values()) else set())


@pytest.mark.parametrize(
    ("backend_class", "seed"),
    [
        pytest.param(HeapBackend, 64, id="heap-64"),
        pytest.param(HeapBackend, 67, id="heap-67", marks=pytest.mark.slow),
        *(pytest.param(LsmBackend, seed, id=f"lsm-{seed}") for seed in DRAWN),
    ],
)
def test_the_feed_gives_what_snapshots_show(make_job, tmp_path, backend_class, seed):
    seen = run_history(make_job, str(tmp_path), seed, backend_class, steps=6)
    assert seen <= EVERYTHING
    assert DRAWN[seed] - seen == set()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_the_feed_of_more_histories(make_job, tmp_path, backend_class, seed):
    run_history(make_job, str(tmp_path), seed, backend_class)
