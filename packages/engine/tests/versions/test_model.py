"""The protocol against a model of Spark: batches, retries, crashes, restarts, late commits.

The model knows which batches, with which data, Spark has committed. Whatever happens, a batch must
open exactly their result, and the janitor must not change any retained version.
"""

import contextlib
import itertools
import uuid
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay_engine.versions.choosing.heads import list_heads, recovery_for
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.recovery import put_recovery
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.cleaning.object_cache import ObjectCache
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import Made
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError, CorruptStateError, FencedError
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.storage import ClockedStorage, Crash, Fault, FaultKind, FaultyStorage

pytestmark = pytest.mark.long

RETENTION = 3
PARALLELISM = st.integers(1, 4)
FORBIDDEN = (FencedError, CorruptStateError, ObjectNotFoundError)
"""How a task of an older run ends, at the latest at its commit."""
EXAMPLES = settings().max_examples
"""A third of them are tried by default, all in a search."""


class SparkModel(RuleBasedStateMachine):
    """One query over its life. `Query` and `read_state` are set by the test."""

    make_query: staticmethod
    read_state: staticmethod
    held = Bundle("held")

    @initialize(parallelism=PARALLELISM, each_batch=st.booleans(), asked=st.booleans())
    def begin(self, parallelism, each_batch, asked):
        """With ``asked``, the checkpoint's batch times are known, so nothing is ambiguous."""
        self.asked = asked
        self.copies = 0
        self.times = {}
        self.now = itertools.count(1)
        self.clock = ManualClock()
        memory = MemoryStorage(f"memory://{uuid.uuid4()}")
        self.query = self.make_query(ClockedStorage(memory, self.clock), self.clock)
        self.remembered = ObjectCache()
        self.tokens = []
        """The token of each committed batch; ``None`` for a skipped batch."""
        self.most = 0
        """The highest version that any run may have begun."""
        self.floor = 0
        """The oldest version that the janitors must have kept."""
        self.restarts = 0
        self.older = []
        self.start(parallelism, each_batch)

    @property
    def next(self):
        return len(self.tokens)

    def history(self, version):
        made = tuple(token for token in self.tokens[:version] if token is not None)
        return dict.fromkeys(range(8), made) if made else {}

    def start(self, parallelism, each_batch):
        self.restarts += 1
        self.parallelism, self.each_batch = parallelism, each_batch
        self.spark_run = str(uuid.uuid4())
        self.data = f"/{self.restarts}"
        self.committed_by_run = False
        self.run = self.query.run(parallelism, self.data, spark_run=self.spark_run)
        self.said = Checkpoint(location="here", times_ms=dict(self.times))
        self.fresh = True

    def enter_batch(self):
        """In foreachBatch each batch has its own ``keyed()``."""
        if self.each_batch and not self.fresh:
            self.older.append((self.run, self.next - 1))
            self.run = self.query.run(self.parallelism, self.data, spark_run=self.spark_run)
        self.fresh = False

    def restart(self, parallelism, each_batch):
        self.older.append((self.run, self.next))
        self.start(parallelism, each_batch)

    def plan(self):
        """Return the batch's time, which stays the same when the batch is repeated."""
        return self.times.setdefault(self.next, next(self.now))

    def attempt(self, subtask, **how):
        if self.asked:
            how |= {"checkpoint": self.said, "batch_ms": self.plan()}
        task = self.run.begin(self.next, subtask, new_state=self.next > 0 and self.empty, **how)
        expected = self.history(self.next)
        assert task.state == {g: h for g, h in expected.items() if g in task.range}
        return task

    @property
    def empty(self):
        return all(token is None for token in self.tokens)

    @property
    def ambiguous(self):
        """Return whether an abandoned timeline has versions where this one skipped batches."""
        return not self.asked and self.made < min(self.most, self.next)

    @property
    def made(self):
        """The newest version of the timeline."""
        return max((n + 1 for n, token in enumerate(self.tokens) if token is not None), default=0)

    @rule(repeats=st.lists(st.integers(0, 3), max_size=3), restart_with=PARALLELISM)
    def batch(self, repeats, restart_with):
        """Run a batch that Spark commits; all subtasks complete, and some run more than once."""
        self.enter_batch()
        order = [*range(self.parallelism), *(r for r in repeats if r < self.parallelism)]
        try:
            for subtask in order:
                self.attempt(subtask).commit()
        except ConfigurationError:
            assert self.ambiguous
            self.put_newer_timeline_right(restart_with)
            return
        self.tokens.append(f"{self.next}{self.data}")
        self.committed_by_run = True
        self.most = max(self.most, self.next)

    @rule(count=st.integers(2, 5))
    def quiet_batches(self, count):
        for _ in range(count):
            self.batch(repeats=[], restart_with=1)

    def put_newer_timeline_right(self, restart_with):
        """Follow the error's advice, and start again."""
        epochs = list_epochs(self.query.storage)
        heads = list_heads(self.query.storage, epochs)
        ours = next(head for head in heads if head.version == self.made)
        recovery = recovery_for(ours, self.query.storage, epochs)
        put_recovery(self.query.storage, epochs, recovery)
        self.most = self.made
        self.restart(restart_with, each_batch=self.each_batch)

    @rule(
        subtask=st.integers(0, 3),
        at=st.integers(0, 16),
        kind=st.sampled_from([FaultKind.BEFORE, FaultKind.AFTER]),
        parallelism=PARALLELISM,
        each_batch=st.booleans(),
    )
    def crash(self, subtask, at, kind, parallelism, each_batch):
        """Kill the driver and its tasks at some request of some subtask; then start a new run."""
        self.enter_batch()
        broken = FaultyStorage(self.query.storage, Fault(skip=at, kind=kind, error=Crash))
        try:
            for number in range(min(subtask + 1, self.parallelism)):
                self.attempt(number, storage=broken).commit()
        except Crash:
            pass  # at the chosen request, if there was one; the new run finds its remains
        except ConfigurationError:
            assert self.ambiguous
        self.most = max(self.most, self.next + 1)
        self.restart(parallelism, each_batch)

    @rule(subtask=st.integers(0, 3), at=st.integers(0, 16))
    def retried(self, subtask, at):
        """Fail a task at some request and retry it; the query continues."""
        if self.ambiguous or subtask >= self.parallelism:
            return
        self.enter_batch()
        broken = FaultyStorage(self.query.storage, Fault(skip=at, error=Crash))
        with contextlib.suppress(Crash):  # if there was such a request
            self.attempt(subtask, storage=broken).commit()
        self.attempt(subtask).commit()
        self.fresh = True

    @rule(target=held, subtask=st.integers(0, 3), looked=st.booleans())
    def hold(self, subtask, looked):
        """Run a task that finishes its work, loses contact, and may commit at any time.

        If it has already ``looked`` for newer runs, it only has to put its manifest.
        """
        if self.ambiguous or subtask >= self.parallelism:
            return multiple()
        self.enter_batch()
        self.fresh = True
        self.most = max(self.most, self.next + 1)
        task = self.attempt(subtask)
        return (task.pass_the_fence() if looked else task), task.write()

    @rule(task=consumes(held))
    def late_commit(self, task):
        attempt, written = task
        with contextlib.suppress(FencedError):  # a newer run has begun
            attempt.commit(written)

    @precondition(lambda self: self.older)
    @rule(data=st.data(), same_worker=st.booleans())
    def older_run_goes_on(self, data, same_worker):
        """An older driver runs a task; it must not commit. What it opens may be deleted."""
        run, batch = data.draw(st.sampled_from(self.older))
        if run.key in {key for key in self.minted() if key != self.run.key}:
            newest = max(self.minted().items(), key=lambda item: item[1])[0]
            if newest != run.key:
                if not same_worker:
                    run.memory.forget()
                with pytest.raises(FORBIDDEN if same_worker else FencedError):
                    run.begin(batch).commit()
                self.most = max(self.most, batch + 1)

    @rule()
    def worker_dies(self):
        """The next task runs in a process that remembers nothing."""
        self.run.memory.forget()

    def minted(self):
        return {one.run_key: one.rank for one in list_epochs(self.query.storage).entries}

    @precondition(lambda self: not self.fresh)
    @rule()
    def skip(self):
        """Skip a batch, as foreachBatch does when it does not use the operator."""
        if self.each_batch:
            self.plan()
            self.tokens.append(None)

    @rule(
        back=st.integers(0, RETENTION),
        planned=st.booleans(),
        parallelism=PARALLELISM,
        each_batch=st.booleans(),
    )
    def go_back(self, back, planned, parallelism, each_batch):
        """Delete the newest commits and offsets; the source returns other data from there on.

        The next batch may still be ``planned``; it is then repeated with its time.
        """
        self.tokens = self.tokens[: max(self.floor, self.next - back)]
        kept = self.next + planned
        self.times = {batch: at for batch, at in self.times.items() if batch < kept}
        self.restart(parallelism, each_batch)

    @precondition(lambda self: self.asked)
    @rule(
        count=st.integers(1, 3),
        planned=st.booleans(),
        parallelism=PARALLELISM,
        each_batch=st.booleans(),
    )
    def copy_runs(self, count, planned, parallelism, each_batch):
        """Run a copy of the checkpoint for some batches, and then the original again.

        The copy may be made while a batch is open, which is then ``planned`` in both.
        """
        self.copies += 1
        times = {b: at for b, at in self.times.items() if b < self.next + planned}
        said = Checkpoint(location=f"copy {self.copies}", times_ms=dict(times))
        run = self.query.run(parallelism, f"/copy{self.copies}")
        for batch in range(self.next, self.next + count):
            batch_ms = times.setdefault(batch, next(self.now))
            new_state = batch > 0 and self.empty
            try:
                run.batch(batch, checkpoint=said, batch_ms=batch_ms, new_state=new_state)
            except ConfigurationError:  # another copy has the same time and another location
                assert self.copies > 1
                break
        self.most = max(self.most, self.next + count)
        self.restart(parallelism, each_batch)

    @precondition(lambda self: self.committed_by_run and not self.fresh and self.made == self.next)
    @rule(wait_h=st.sampled_from([0, 2]), dies_at=st.none() | st.integers(0, 12))
    def janitor(self, wait_h, dies_at):
        """Sweep, and perhaps die before a delete; no file goes that a stored manifest names."""
        self.clock.advance(timedelta(hours=wait_h))
        dies = [] if dies_at is None else [Fault(operation="delete", skip=dies_at, error=Crash)]
        sweeper = Janitor(
            FaultyStorage(self.query.storage, *dies),
            run_key=self.run.key,
            retention=RETENTION,
            min_age=timedelta(hours=1),
            remembered=self.remembered,
        )
        named, before = self.named_files(), self.files()
        try:
            sweep = sweeper.sweep(self.next)
        except Crash:
            self.floor = max(self.floor, self.next - RETENTION)
            self.remembered = ObjectCache()
        else:
            assert not sweep.overtaken
            assert sweep.base <= max(0, self.next - RETENTION)
            self.floor = max(self.floor, sweep.base)
            event("swept something", bool(sweep.names))
        gone = before - self.files()
        assert not gone & named
        event("swept files", bool(gone))

    def files(self):
        return {info.name for info in self.query.storage.list("data")}

    def named_files(self):
        """Return every file that any stored manifest names, by reading all of them."""
        storage = self.query.storage
        made = filter(None, map(Made.parse, storage.list("versions")))
        return set().union(*(read_manifest(storage, m.name).names for m in made if m.manifest))

    @invariant()
    def what_is_retained_can_be_read(self):
        oldest = max(1, self.floor, self.next - RETENTION)
        if self.copies:  # readers from outside do not know the checkpoint
            return
        for version in range(oldest, self.next + 1):
            if self.tokens[version - 1] is None:
                continue
            with open_version(self.query.storage, uid="op", version=version) as reader:
                state = self.read_state(self.query.storage, reader.parents)
                assert state == self.history(version)


@pytest.mark.hypothesis
def test_what_is_opened_is_what_spark_committed(make_query, toy_state):
    class Model(SparkModel):
        pass

    Model.make_query = staticmethod(make_query)
    Model.read_state = staticmethod(toy_state)
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=EXAMPLES if EXAMPLES > 100 else EXAMPLES // 3,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
