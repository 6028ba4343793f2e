"""Readers of timelines against a model: restarts, going back, skipped batches, janitors, pins.

A program is a list of steps of a job and of those who look after it. The model knows which versions
the query's timeline has; which of them are stored, it sees in the names of the manifests. What is
listed can be opened, and shows what that batch made.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta

import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.main import main
from forebay_engine.versions import OperatorStorage
from forebay_engine.versions.choosing.finality import mark_final
from forebay_engine.versions.choosing.savepoints import (
    create_savepoint,
    delete_savepoint,
    list_savepoints,
)
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_state_api import ValueStateDescriptor
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ConfigurationError,
    VersionGoneError,
)
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing.listing import list_operator
from forebay_state_processor.reading import START, FollowOptions, Position, open_feed, open_state
from forebay_testing import KeyedJob
from forebay_testing.storage import Crash, Fault, FaultyStorage

NUMBER = ValueStateDescriptor("number", int)
NAMES = {"query": "query", "uid": "operator"}
AT_ONCE = timedelta(seconds=-100)
NEVER = FollowOptions(poll=timedelta(days=1))


class Program:
    """A job, what happens to it, and the model of its timeline."""

    def __init__(self, job, seed, *, streams):
        self.job, self.random, self.streams = job, random.Random(seed), streams
        self.times, self.count, self.names = {}, 0, itertools.count()
        self.numbers: dict[Position, int] = {}
        """The content of each version that was ever made."""
        self.made: list[Position] = []
        """The timeline that the job is on."""
        self.seen: list[Position] = []
        """The timeline that readers are on: a run counts from its first task on."""
        self.final = 0
        """The newest version that no replay replaces."""

    def enter(self):
        """Plan a batch; a stream's checkpoint says when the batches were."""
        self.job.clock.advance(timedelta(seconds=1))
        self.times[self.job.batch_id] = self.job.clock.now_us // 1_000
        if self.streams:
            self.job.checkpoint = Checkpoint(location="here", times_ms=dict(self.times))

    def step(self):
        steps = [self.batch] * 6 + [self.crash, self.restart, self.clean, self.clean, self.keep]
        steps += [self.drop, self.mark, self.go_back if self.streams else self.skip]
        self.random.choice(steps)()

    def batch(self, *, crash=False):
        self.count += 1
        self.enter()
        self.job.do("a", ("number.update", self.count), crash=crash)
        self.seen = self.made
        self.final = max((one.version for one in self.seen), default=0)
        if not crash:
            position = Position(self.job.batch_id, self.job.run_key)
            self.numbers[position] = self.count
            self.seen = self.made = [*self.made, position]

    def crash(self):
        self.batch(crash=True)

    def restart(self, batch_id=None):
        self.job.restart(parallelism=self.random.randint(1, 2), batch_id=batch_id)

    def go_back(self):
        stored = self.stored(self.made)[-4:]
        if stored:
            self.restart(batch_id := self.random.choice(stored).version)
            self.made = [one for one in self.made if one.version <= batch_id]
            self.times = {batch: at for batch, at in self.times.items() if batch < batch_id}

    def skip(self):
        begun = self.job.storage.list_folders("versions")
        if self.made and max((1 << 48) - 1 - int(one, 16) for one in begun) <= self.job.batch_id:
            self.job.batch_id += 1

    def clean(self):
        if self.seen is self.made and self.made and self.made[-1].run == self.job.run_key:
            self.janitor(self.random.randint(1, 4)).sweep(self.made[-1].version)

    def janitor(self, retention):
        run = self.job.run_key
        return Janitor(self.job.storage, run_key=run, retention=retention, min_age=AT_ONCE)

    def keep(self):
        stored = self.stored(self.seen)
        if stored:
            version = self.random.choice(stored).version
            name = f"s{next(self.names)}"
            create_savepoint(self.job.storage, name, uid="operator", version=version)

    def drop(self):
        for one in list_savepoints(self.job.storage)[:1]:
            delete_savepoint(self.job.storage, one.name, uid="operator")

    def mark(self):
        if self.seen and self.seen is self.made:
            mark_final(self.job.storage, self.seen[-1].version, self.seen[-1].run)
            self.final = self.seen[-1].version

    def stored(self, timeline):
        """Return the positions whose manifests are all there, by their names."""
        found = defaultdict(set)
        for info in self.job.storage.list("versions"):
            kind, _, parallelism, subtask, *_, run, _ = info.name.split("/")[3].split("-")[:9]
            if kind == "manifest":
                version = (1 << 48) - 1 - int(info.name.split("/")[1], 16)
                found[Position(version, run)].add((int(subtask), int(parallelism)))
        return [
            one
            for one in timeline
            if {at for at, _ in found[one]}
            >= set(range(max((p for _, p in found[one]), default=1)))
        ]


class Readers:
    """Every reader of timelines, checked against the model."""

    def __init__(self, program, directory):
        self.program, self.directory = program, str(directory)
        self.feed = open_feed(self.directory, **NAMES, provisional=True)
        self.final_feed = open_feed(self.directory, **NAMES)
        self.follower = None

    def check(self):
        program = self.program
        stored = program.stored(program.seen)
        assert self.feed.after(START) == stored
        assert stored[-1:] == program.seen[-1:]
        final = [one for one in stored if one.version <= program.final]
        assert self.final_feed.after(START) == final
        for start, end in [*zip([START, *stored], stored, strict=False)][-3:]:
            with self.feed.between(start, end) as difference:
                (row,) = difference.rows("number")
                assert row.value == program.numbers[end]
        self.versions(stored)
        if final:
            self.follow(final[-1])
        if stored and program.seen[-1].run == program.job.run_key:
            console = list_operator(program.job.storage).timeline.versions
            assert [one.version for one in console] == [one.version for one in stored][::-1]

    def versions(self, stored):
        """Open each version that the timeline ever had, by its number.

        A version that was skipped equals the one below it, if the next one that is stored shows it.
        """
        before = dict(zip(self.program.seen[1:], self.program.seen, strict=False))
        for version in range(1, max((one.version for one in stored), default=0) + 1):
            above = next(one for one in stored if one.version >= version)
            expected = above if above.version == version else before.get(above, START)
            how = {"version": version, "provisional": True}
            if expected.version > version or expected not in stored:
                with pytest.raises(ConfigurationError, match=f"has no version {version}"):
                    open_state(self.directory, **NAMES, **how)
                continue
            with open_state(self.directory, **NAMES, **how) as snapshot:
                assert Position(snapshot.version, snapshot.run) == expected
                assert snapshot.get("number", "a") == self.program.numbers[expected]

    def follow(self, newest):
        if self.follower is None:
            self.follower = open_state(self.directory, **NAMES, follow=NEVER)
        try:
            self.follower.refresh()
        except AbandonedTimelineError:
            assert self.follower.position not in self.program.seen
            self.close()
            self.follower = open_state(self.directory, **NAMES, follow=NEVER)
        assert self.follower.position == newest
        assert self.follower.get("number", "a") == self.program.numbers[newest]

    def history(self):
        asked = ["state", "history", "a", "--all", "--provisional", "--state-dir", self.directory]
        found = CliRunner().invoke(main, asked)
        stored = self.program.stored(self.program.seen)
        rows = [line.split() for line in found.stdout.splitlines()[1:]]
        assert found.exit_code == (0 if stored else 2), found.output
        assert [Position(int(row[0]), row[3]) for row in rows] == stored

    def close(self):
        if self.follower is not None:
            self.follower.close()
            self.follower = None


@pytest.fixture
def readers(make_job, tmp_path):
    opened = []

    def start(seed, *, streams):
        program = Program(make_job(NUMBER, key_type=str), seed, streams=streams)
        opened.append(Readers(program, tmp_path))
        return program, opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.long
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "each batch"])
@pytest.mark.parametrize(
    "seed", [7, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 7))]
)
def test_what_is_listed_can_be_opened(readers, seed, streams):
    program, reading = readers(seed, streams=streams)
    for _ in range(30):
        program.step()
        reading.check()
    reading.history()


class Sweeps:
    """Runs a janitor at a request of a reader; it may be killed at one of its deletes."""

    def __init__(self, storage, run_key, request, kill):
        self.storage = OperatorStorage(storage, "query/operator")
        self.run_key, self.left, self.kill = run_key, request, kill
        self.done = False

    def __call__(self, operation, name):
        self.left -= 1
        if self.left or self.done:
            return
        self.done = True
        dies = Fault(operation="delete", name="versions/*", skip=self.kill, error=Crash)
        killed = FaultyStorage(self.storage, dies)
        with suppress(Crash):
            Janitor(killed, run_key=self.run_key, retention=1, min_age=AT_ONCE).sweep(6)


def first_difference(storage):
    feed = open_feed(storage, **NAMES, provisional=True)
    first = feed.after(START)[0]
    with feed.between(START, first) as difference:
        return [(row.key, row.value) for row in difference.rows("number")]


def second_version(storage):
    with open_state(storage, **NAMES, version=2) as snapshot:
        return [(snapshot.version, snapshot.get("number", "a"))]


def newest_version(storage):
    with open_state(storage, **NAMES) as snapshot:
        return [(snapshot.version, snapshot.get("number", "a"))]


def followed(storage):
    with open_state(storage, **NAMES, follow=NEVER) as follower:
        follower.refresh()
        return [(follower.version, follower.get("number", "a"))]


@pytest.mark.long
@pytest.mark.parametrize(
    "kill", [pytest.param(99, id="never"), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("reader", "shows", "refused"),
    [
        (first_difference, [("a", number) for number in range(1, 6)], (VersionGoneError,)),
        (second_version, [(2, 2)], (VersionGoneError, ConfigurationError)),
        (newest_version, [(5, 5)], ()),
        (followed, [(5, 5)], ()),
    ],
)
def test_the_race_with_the_janitor(tmp_path, reader, shows, refused, kill):
    job = KeyedJob(HeapBackend, open_storage(str(tmp_path)), descriptors=[NUMBER], key_type=str)
    for number in range(1, 7):
        if number == 4:
            job.restart()
        job.do("a", ("number.update", number))
    for request in range(1, 40):
        copy = tmp_path / "copies" / str(request)
        shutil.copytree(tmp_path / "query", copy / "query")
        storage = open_storage(str(copy))
        sweeps = Sweeps(storage, job.run_key, request, kill)
        try:
            (found,) = reader(FaultyStorage(storage, latency=sweeps))
            assert found in shows
        except refused:
            pass
        if not sweeps.done:
            return
    raise AssertionError("a reader makes fewer requests")
