"""A TTL that is switched on or off: beyond what the kit asks of each backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_engine.stored.schema_check import COMPATIBLE, check_function
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api import (
    ConfigurationError,
    FunctionError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob, ManualClock
from forebay_testing.reference import ReferenceBackend

HOUR = StateTtlConfig(timedelta(hours=1))
READ = ("n.value",)


class Timeless(ManualClock):
    """The clock of a subtask without rows."""

    @property
    def now_us(self):
        return NO_TIME


@pytest.fixture
def job(tmp_path):
    started = KeyedJob(
        ReferenceBackend, open_storage(tmp_path), descriptors=[ValueStateDescriptor("n", int)]
    )
    started.do("k", ("n.update", 1))
    started.descriptors = [ValueStateDescriptor("n", int, ttl=HOUR, switch_ttl=True)]
    started.restart()
    return started


def test_a_subtask_without_rows_does_not_lose_what_it_stored(job):
    job.clock, before = Timeless(), job.clock
    job.scripts([("another", [READ])])
    job.clock = before
    job.clock.set(datetime.now(UTC))
    assert job.do("k", READ) == [1]
    job.clock.advance(timedelta(hours=2))
    assert job.do("k", READ) == [None]


class Timed(KeyedProcessFunction):
    """Emits its value five minutes after each row."""

    def __init__(self, **declared):
        self.descriptor = ValueStateDescriptor("n", int, **declared)

    def open(self, context):
        self.state = context.get_state(self.descriptor)

    def process_element(self, row, ctx):
        self.state.update(1)
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(minutes=5))
        return []

    def on_timer(self, at, ctx):
        yield ctx.current_key, self.state.value()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_timers_fire_after_a_switch(tmp_path, parallelism):
    job = KeyedJob(ReferenceBackend, open_storage(tmp_path))
    job.run(Timed(), [("a",), ("b",)])
    job.restart(parallelism=parallelism)
    assert job.run(Timed(ttl=HOUR, switch_ttl=True), []) == []
    job.clock.advance(timedelta(minutes=5))
    assert sorted(job.run(Timed(ttl=HOUR), [])) == [("a", 1), ("b", 1)]


def test_a_failure_before_the_commit_changes_nothing(job):
    with pytest.raises(FunctionError):
        job.run(Failing(), [("k",)])
    assert job.do("k", READ) == [1]


class Failing(KeyedProcessFunction):
    opened = 0

    def open(self, context):
        self.opened += 1
        descriptor = ValueStateDescriptor("n", int, ttl=HOUR, switch_ttl=True)
        self.state = context.get_state(descriptor)

    def process_element(self, row, ctx):
        assert self.opened == 1, "each function object is opened once"
        assert self.state.value() == 1
        raise RuntimeError


def test_the_schema_check_knows_that_it_fits(job):
    with open_version(job.storage, uid=job.uid) as reader:
        found = check_function(Failing(), reader, ReferenceBackend, {})
    assert (found.verdicts, found.changes) == ({"n": COMPATIBLE}, {})


def test_the_word_is_true_or_false():
    with pytest.raises(ConfigurationError, match="switch_ttl takes True or False, not 'on'"):
        ValueStateDescriptor("n", int, switch_ttl="on")
