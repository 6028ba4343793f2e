"""Imports that end at any of their writes: readers and jobs see the old version or the new one."""

from __future__ import annotations

import itertools
import shutil
from datetime import timedelta
from functools import partial

import attrs
import pyarrow as pa
import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.main import main
from forebay_cli.options import state_directory
from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.finality import mark_final
from forebay_engine.versions.choosing.pins import FOREVER, list_pins
from forebay_engine.versions.choosing.savepoints import list_savepoints
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import AbandonedTimelineError, ConfigurationError, StorageError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing import import_state, replace_state
from forebay_state_processor.reading import FollowOptions, open_feed, open_state
from forebay_state_processor.reading import version_choice as choosing
from forebay_testing import KeyedJob
from forebay_testing.clock import ManualClock
from forebay_testing.storage import Crash, Fault, FaultKind, FaultyStorage

NAMES = {"query": "query", "uid": "operator"}
KEYS = ("a", "b", "c", "d")
NEVER = FollowOptions(poll=timedelta(days=1))
OLD, NEW = (2, dict.fromkeys(KEYS, 2)), (2, {"b": 2, "c": 2, "d": 2, "a": None})

WAYS = {
    "killed": partial(Fault, count=None, error=partial(Crash, "kill -9")),
    "refused": partial(Fault, error=partial(StorageError, "refused")),
    "an outage": partial(Fault, count=None, error=partial(StorageError, "refused")),
    "unanswered": partial(Fault, kind=FaultKind.AFTER, error=partial(StorageError, "no answer")),
}
"""How a write ends an import: with the process, without an effect, or without an answer."""
WRITES = "[pd]*"
"""Puts and deletes."""


class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    def process_element(self, row, ctx):
        self.count.update(self.count.value() + 1)
        yield row[0], self.count.value()


@attrs.frozen
class Stopped:
    """A stopped query: its state, its checkpoint on disk, and what the checkpoint says."""

    folder: str
    said: Checkpoint

    @property
    def state_dir(self):
        return f"{self.folder}/state"

    def job(self, **how):
        job = KeyedJob(
            HeapBackend, open_storage(self.state_dir), key_type=str, parallelism=2, **how
        )
        job.checkpoint = self.said
        return job

    def goes_on(self):
        """Return the counts that the query's next batch emits."""
        job = self.job()
        job.batch_id = 2
        return dict(job.run(Count(), [(key, 1) for key in KEYS]))

    def seen(self):
        """Return what the readers of the newest version see, which is one thing."""
        found = []
        for how in ({}, {"provisional": True}):
            with open_state(self.state_dir, **NAMES, **how) as snapshot:
                at = snapshot.version, snapshot.run
                counts = dict(zip(KEYS, snapshot.get_many("count", KEYS), strict=True))
            newest = open_feed(self.state_dir, **NAMES, **how).newest()
            assert (newest.version, newest.run) == at
            found.append((at[0], counts))
        assert found[0] == found[1]
        return found[0]

    def copied(self, name):
        shutil.copytree(self.folder, name)
        return attrs.evolve(self, folder=str(name))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder, clock = tmp_path_factory.mktemp("stopped"), ManualClock()
    times = {batch: (clock.now_us // 1_000) + 1_000 * batch for batch in range(3)}
    query = Stopped(str(folder), Checkpoint(location="file:/checkpoint", times_ms=times))
    for one in ("offsets", "commits"):
        (folder / "checkpoint" / one).mkdir(parents=True)
    (folder / "checkpoint" / "metadata").write_text('{"id":"query"}')
    job = query.job(clock=clock)
    for batch in range(2):
        job.run(Count(), [(key, 1) for key in KEYS])
        clock.advance(timedelta(seconds=1))
        offsets = f'v1\n{{"batchTimestampMs":{times[batch]}}}\n{{}}'
        (folder / "checkpoint" / "offsets" / str(batch)).write_text(offsets)
        (folder / "checkpoint" / "commits" / str(batch)).write_text("v1\n{}")
    mark_final(job.storage, 2, job.run_key)
    return query


def in_python(query):
    how = {"checkpoint": f"{query.folder}/checkpoint", "tables": {}, "without_keys": ["a"]}
    replace_state(query.state_dir, **NAMES, **how)


def as_command(query):
    asked = ["state", "import", "--remove-key", "a", "--state-dir", query.state_dir]
    asked += ["--replace", f"{query.folder}/checkpoint"]
    found = CliRunner().invoke(main, asked)
    if isinstance(found.exception, Crash):
        raise found.exception
    if found.exit_code:
        raise StorageError(found.output)


@pytest.fixture
def ends_at(monkeypatch):
    """Returns a function that works with a faulty storage, and returns whether that failed."""

    def ends_at(fault, work):
        with monkeypatch.context() as patched:
            for opener in (choosing, state_directory):
                patched.setattr(
                    opener, "open_storage", lambda *at: FaultyStorage(open_storage(*at), fault)
                )
            try:
                work()
            except (Crash, StorageError):
                return True
        return False

    return ends_at


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("replace", [in_python, pytest.param(as_command, marks=pytest.mark.slow)])
def test_a_replaced_version_is_the_old_one_or_the_new_one(stopped, tmp_path, ends_at, way, replace):
    outcomes = []
    for skip in itertools.count():
        query = stopped.copied(tmp_path / str(skip))
        with open_state(query.state_dir, **NAMES, follow=NEVER) as follower:
            fault = WAYS[way](operation=WRITES, skip=skip)
            failed = ends_at(fault, lambda query=query: replace(query))
            seen = query.seen()
            assert seen == (OLD if failed else NEW) or (way == "killed" and seen in (OLD, NEW))
            if seen == OLD:
                follower.refresh()
            else:
                with pytest.raises(AbandonedTimelineError):
                    follower.refresh()
        if skip % 2 and (seen == OLD or replace is in_python):  # the command wants the key stored
            replace(query)
            seen = query.seen()
            assert seen == NEW
        assert query.goes_on() == {key: (count or 0) + 1 for key, count in seen[1].items()}
        outcomes.append(failed)
        if fault.skip:
            break
    assert outcomes.count(True) >= 8


ROWS = pa.table({"key": ["a", "b"], "value": [7, 8]})


def first_import(state_dir):
    how = {"function": Count(), "key": "string", "savepoint": "first", "max_parallelism": 8}
    return import_state(state_dir, **NAMES, tables={"count": ROWS}, **how)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_first_import_with_a_savepoint_can_be_repeated(tmp_path, ends_at, way):
    for skip in itertools.count():
        state_dir = str(tmp_path / str(skip))
        fault = WAYS[way](operation=WRITES, skip=skip)
        if ends_at(fault, lambda at=state_dir: first_import(at)):
            with pytest.raises(ConfigurationError, match="no state of operator"):
                open_state(state_dir, **NAMES)
            first_import(state_dir)
        with open_state(state_dir, **NAMES, version="first") as snapshot:
            assert snapshot.get_many("count", ["a", "b"]) == [7, 8]
        job = KeyedJob(HeapBackend, open_storage(state_dir), key_type=str, query="new")
        job.restore = RestoreFrom("query", savepoint="first")
        assert job.run(Count(), [("a", 1)]) == [("a", 8)]
        operator = open_storage(state_dir).child("query/operator")
        (savepoint,) = list_savepoints(operator)
        held = {one.name for one in list_pins(operator) if one.lease == FOREVER}
        assert savepoint.pin in held
        assert len(held) == 2  # the savepoint's, and the fork's
        if fault.skip:
            return
