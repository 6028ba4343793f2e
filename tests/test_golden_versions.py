"""Whole state directories that were written once by each format: they stay readable for ever.

A directory ``tests/golden/<backend>-<format>`` holds what a query left: epochs, records, manifests
and files. `write_golden` made them; a new format gets directories of its own beside the old ones.
Those whose names go on are of other tests.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from forebay_state_api import (
    AggregatingStateDescriptor,
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import open_storage
from forebay_state_api.testing import ManualClock
from forebay_state_api.testing.conformance.subject import Mean
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.versions import RestoreFrom

GOLDEN = Path(__file__).parent / "golden"
STARTED = datetime(2024, 5, 1, tzinfo=UTC)
KEYS = [f"key {number}" for number in range(12)]


@attrs.frozen
class Account:
    total: int
    owner: str | None = None
    history: list[float] = attrs.field(factory=list)


class Row(NamedTuple):
    key: str
    number: int


class Everything(KeyedProcessFunction, CheckpointedFunction):
    """One state of each kind, with and without a time to live, and operator state."""

    def initialize_state(self, context):
        store = context.operator_state_store
        self.rows = store.get_list_state(ListStateDescriptor("rows", int))
        self.names = store.get_union_list_state(ListStateDescriptor("names", str))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))
        self.streams = [stream.read() for stream in context.raw_inputs]
        self.keyed_streams = {g: s.read() for g, s in context.raw_keyed_inputs.items()}
        self.seen = 0

    def open(self, context):
        self.subtask = context.subtask_index
        self.groups = context.max_parallelism // context.parallelism
        for suffix, ttl in (("", None), (" ttl", StateTtlConfig(timedelta(days=1)))):
            self.declare(context, suffix, ttl)

    def declare(self, context, suffix, ttl):
        states = [
            context.get_state(ValueStateDescriptor(f"value{suffix}", Account, ttl=ttl)),
            context.get_list_state(
                ListStateDescriptor(f"list{suffix}", "n long, s string", ttl=ttl)
            ),
            context.get_map_state(MapStateDescriptor(f"map{suffix}", str, float, ttl=ttl)),
            context.get_reducing_state(
                ReducingStateDescriptor(f"sum{suffix}", lambda a, b: a + b, int, ttl=ttl)
            ),
            context.get_aggregating_state(
                AggregatingStateDescriptor(f"mean{suffix}", Mean(), ttl=ttl)
            ),
        ]
        setattr(self, f"states{suffix}".replace(" ", "_"), states)

    def process_element(self, row, ctx):
        self.seen += 1
        for namespace in (None, "late"):
            ctx.set_current_namespace(namespace)
            for states in (self.states, self.states_ttl):
                self.write(states, row)
        return []

    def write(self, states, row):
        value, elements, entries, total, mean = states
        value.update(Account(row.number, row.key, [row.number / 2]))
        elements.add((row.number, row.key))
        entries.put(f"entry {row.number}", row.number / 4)
        entries.put("none", None)
        entries.remove(f"entry {row.number - 1}")
        total.add(row.number)
        mean.add(float(row.number))

    def snapshot_state(self, context):
        self.rows.add(self.seen)
        self.names.update([f"subtask {self.subtask}"])
        self.rules.put("limit", 7)
        context.raw_output.write(b"stream %d" % self.subtask)
        for group in range(self.subtask * self.groups, (self.subtask + 1) * self.groups):
            context.raw_keyed_output(group).write(b"group %d" % group)


class Read(Everything):
    """Gives out all that a key has, and keeps all that the operator has."""

    operator: dict[int, Any] = {}  # noqa: RUF012 - one for all copies, to be looked at afterwards

    def process_element(self, row, ctx):
        for namespace in (None, "late"):
            ctx.set_current_namespace(namespace)
            for states in (self.states, self.states_ttl):
                value, elements, entries, total, mean = states
                yield (
                    row.key,
                    value.value(),
                    [tuple(one) for one in elements.get()],
                    sorted(entries.items()),
                    total.get(),
                    mean.get(),
                )

    def snapshot_state(self, context):
        Read.operator[self.subtask] = (
            list(self.rows.get()),
            list(self.names.get()),
            dict(self.rules.items()),
            self.streams,
            self.keyed_streams,
        )


def write_golden(backend: str, folder: Path) -> None:
    """Made the golden directories: three versions of two subtasks, the last of half of the keys."""
    job = golden_job(backend, folder, parallelism=2)
    for number in range(3):
        keys = KEYS if number < 2 else KEYS[::2]
        job.run(Everything(), [Row(key, number) for key in keys])
        job.clock.advance(timedelta(minutes=1))


def golden_job(backend: str, folder: Path, **more: Any) -> KeyedJob:
    return KeyedJob(
        plugins().backend(backend),
        open_storage(folder),
        query="golden",
        uid="everything",
        key_type=str,
        clock=ManualClock(STARTED),
        **more,
    )


def expected(key: str, rounds: int) -> tuple[Any, ...]:
    """What `Read` gives of a key that was written in so many rounds."""
    last = rounds - 1
    return (
        key,
        Account(last, key, [last / 2]),
        [(number, key) for number in range(rounds)],
        [(f"entry {last}", last / 4), ("none", None)],
        sum(range(rounds)),
        sum(range(rounds)) / rounds,
    )


def stored() -> list[str]:
    return sorted(path.name for path in GOLDEN.iterdir() if path.name.count("-") == 1)


@pytest.fixture
def copied(tmp_path):
    """Gives a copy of a golden directory, which may be written to."""

    def copy(name: str) -> Path:
        shutil.copytree(GOLDEN / name, tmp_path / name)
        return tmp_path / name

    return copy


def test_each_backend_has_directories():
    assert {name.rpartition("-")[0] for name in stored()} == {"heap", "lsm"}


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("name", stored())
def test_a_golden_version_is_opened(copied, name, parallelism):
    job = golden_job(name.rpartition("-")[0], copied(name), parallelism=parallelism)
    job.batch_id = 3
    rows = job.run(Read(), [Row(key, 0) for key in KEYS])
    found = {key: [row for row in rows if row[0] == key] for key in KEYS}
    assert found == {k: [expected(k, 3 - n % 2)] * 4 for n, k in enumerate(KEYS)}
    operator = [Read.operator[subtask] for subtask in range(parallelism)]
    assert sum(sum(own[0]) for own in operator) == 12 + 12 + 6
    assert all(own[1] == ["subtask 0", "subtask 1"] for own in operator)
    assert all(own[2] == {"limit": 7} for own in operator)
    assert sorted(s for own in operator for s in own[3]) == [b"stream 0", b"stream 1"]
    groups = {group: data for own in operator for group, data in own[4].items()}
    assert groups == {group: b"group %d" % group for group in range(8)}


@pytest.mark.parametrize("name", stored())
def test_a_golden_version_expires_and_goes_on(copied, name):
    job = golden_job(name.rpartition("-")[0], copied(name), parallelism=2)
    job.batch_id = 3
    job.clock.advance(timedelta(days=1, minutes=1, seconds=30))
    rows = job.run(Read(), [Row("key 0", 0), Row("key 1", 0)])
    kept = {row[0]: row for row in rows[0::2]}
    assert kept == {"key 0": expected("key 0", 3), "key 1": expected("key 1", 2)}
    assert {row[1:] == (None, [], [], None, None) for row in rows[1::2]} == {False, True}
    job.run(Everything(), [Row("key 1", 2)])
    rows = job.run(Read(), [Row("key 1", 0)])
    assert rows[0] == expected("key 1", 3)


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("name", stored())
def test_a_golden_version_is_restored_from(copied, name, backend):
    job = KeyedJob(
        plugins().backend(backend),
        open_storage(copied(name)),
        query="fork",
        uid="everything",
        key_type=str,
        clock=ManualClock(STARTED),
        restore=RestoreFrom("golden"),
    )
    rows = job.run(Read(), [Row(key, 0) for key in KEYS])
    assert rows == [expected(k, 3 - n % 2) for n, k in enumerate(KEYS) for _ in range(4)]
