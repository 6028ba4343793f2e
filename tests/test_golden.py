"""State directories that each format has written once: they stay readable for ever.

A directory ``tests/golden/<backend>-<format>`` holds what a query left: epochs, records, manifests
and files. The operator ``everything`` has state of every kind, timers, event times, a sweep that
stopped halfway, and operator state; ``ordered`` has maps in the order of their keys, and timers in
namespaces. `write_golden` made them; a new format gets its own directories, and the old ones stay.
By default each is opened by twice as many subtasks as wrote it; other numbers are slow tests.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.format.blobs import INLINE_BYTES
from forebay_state_api import (
    AggregatingStateDescriptor,
    CheckpointedFunction,
    CleanupIncrementally,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    key_group_of,
)
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.keys import key_group_range_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ManualClock
from forebay_testing.backends.subject import Mean
from forebay_testing.job import MICROSECOND, KeyedJob

GOLDEN = Path(__file__).parent / "golden"
STORED = sorted(path.name for path in GOLDEN.iterdir())
STARTED = datetime(2024, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LATENESS = 5 * SECOND
KEYS = [f"key {number}" for number in range(12)]
DELETED = "key 4"
"""The key whose timers were deleted; the timers of other keys wait or have fired."""
REGISTERED = 100_000
"""Seconds from a timer of the first minute to the timer that it registers when it fires."""
WATERMARK = 115
"""The watermark of the last written micro-batch: 120 of the second input, less the lateness."""
NEXT_WATERMARK = 155
"""The next watermark: 160 of the first subtask, less the lateness."""
SEEN = ValueStateDescriptor(
    "seen", int, ttl=StateTtlConfig(90 * SECOND, cleanup=(CleanupIncrementally(2),))
)
EXPIRED = ["key 7", "key 8"]
"""The keys whose `SEEN` had expired when the sweep stopped, before it reached any of them."""
MIXED = MapStateDescriptor("mixed", tuple[date, int], tuple[Decimal, bytes | None])
"""Types with different encodings, as keys and as values."""
MIXED_CONTENT = {
    (date(2024, 2, 29), 1 << 70): (Decimal("1.50"), b"\x00"),
    (date(1, 1, 1), -1): (Decimal(-3), None),
}
PARALLELISMS = [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4)), 3]
"""Those of a restart; by default the second of three merges half of each stored subtask."""
ORDERED_KEYS = ["a", "b", "c", "d"]
NAMESPACES = [None, "late", ("window", 7)]
NUMBERS = [-(1 << 62), -1, 0, 255, 256, 1 << 40]
SHARES = [float("-inf"), -1.5, -0.0, 1e-300, 2.0, float("inf")]
TEXTS = ["", "a", "a\0", "ab", "b", "ä", "\U0001f600"]
PAIRS = [("a", -1), ("a", 1), ("a\0", -5), ("b", 0)]
"""The keys of each map of `Ordered`, in order."""


@attrs.frozen
class Account:
    total: int
    owner: str | None = None
    history: list[float] = attrs.field(factory=list)


class Row(NamedTuple):
    key: str
    second: int
    """The row's event time."""
    what: str
    number: int = 0


def at(seconds: int) -> datetime:
    return STARTED + seconds * SECOND


def event_timer(number: int) -> int:
    return 100 + 10 * number


def processing_timers(number: int) -> list[int]:
    return [30 + 60 * number, 2_600_000 + number]


def stream(subtask: int) -> bytes:
    """Return a value that is too large for a manifest."""
    return b"stream %d" % subtask + bytes(INLINE_BYTES)


class Golden(KeyedCoProcessFunction, CheckpointedFunction):
    """Follows the instructions of rows; emits key, kind and second of each timer that fires."""

    def initialize_state(self, context):
        store = context.operator_state_store
        self.rows = store.get_list_state(ListStateDescriptor("rows", int))
        self.names = store.get_union_list_state(ListStateDescriptor("names", str))
        self.rules = store.get_broadcast_state(MapStateDescriptor("rules", str, int))
        self.streams = [stream.read() for stream in context.raw_inputs]
        self.keyed_streams = {g: s.read() for g, s in context.raw_keyed_inputs.items()}
        self.written = 0

    def open(self, context):
        self.subtask = context.subtask_index
        self.groups = key_group_range_of(
            context.subtask_index, context.parallelism, context.max_parallelism
        )
        self.seen = context.get_state(SEEN)
        self.mixed = context.get_map_state(MIXED)
        ttls = {"": None, " ttl": StateTtlConfig(timedelta(days=1))}
        self.states = [self.declared(context, *each) for each in ttls.items()]

    def declared(self, context, suffix, ttl):
        return [
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

    def process_element1(self, row, ctx):
        return getattr(self, row.what)(row, ctx)

    process_element2 = process_element1

    def write(self, row, ctx):
        """Change every state of a key, in two namespaces."""
        self.written += 1
        self.mixed.put_all(MIXED_CONTENT)
        for namespace in (None, "late"):
            ctx.set_current_namespace(namespace)
            for value, elements, entries, total, mean in self.states:
                value.update(Account(row.number, row.key, [row.number / 2]))
                elements.add((row.number, row.key))
                entries.put(f"entry {row.number}", row.number / 4)
                entries.put("none", None)
                entries.remove(f"entry {row.number - 1}")
                total.add(row.number)
                mean.add(float(row.number))

    def register(self, row, ctx):
        number = KEYS.index(row.key)
        self.seen.update(number)
        ctx.timers.register_event_time(at(event_timer(number)))
        for second in processing_timers(number):
            ctx.timers.register_processing_time(at(second))

    def refresh(self, row, ctx):
        self.seen.update(row.number)

    def delete(self, row, ctx):
        number = KEYS.index(row.key)
        ctx.timers.delete_event_time(at(event_timer(number)))
        for second in processing_timers(number):
            ctx.timers.delete_processing_time(at(second))

    def look(self, row, ctx):
        """Access a state, which allows two checks of the sweep."""
        self.seen.value()
        return [ctx.timers.watermark]

    def nothing(self, row, ctx):
        pass

    def on_timer(self, at, ctx):
        second = (at - STARTED) // SECOND
        if second < 60:
            ctx.timers.register_processing_time(at + REGISTERED * SECOND)
        return [(ctx.current_key, ctx.timers.domain.value, second)]

    def snapshot_state(self, context):
        self.rows.add(self.written)
        self.names.update([f"subtask {self.subtask}"])
        self.rules.put("limit", 7)
        context.raw_output.write(stream(self.subtask))
        for group in self.groups:
            context.raw_keyed_output(group).write(b"group %d" % group)


class Reading(Golden):
    """Emits the whole state of a key, and records the whole operator state."""

    operator: dict[int, Any] = {}  # noqa: RUF012 - shared by all copies, and examined afterwards

    def look(self, row, ctx):
        for namespace in (None, "late"):
            ctx.set_current_namespace(namespace)
            for value, elements, entries, total, mean in self.states:
                yield (
                    row.key,
                    value.value(),
                    [tuple(one) for one in elements.get()],
                    sorted(entries.items()),
                    total.get(),
                    mean.get(),
                )

    def on_timer(self, at, ctx):
        return []

    def snapshot_state(self, context):
        Reading.operator[self.subtask] = (
            list(self.rows.get()),
            list(self.names.get()),
            dict(self.rules.items()),
            self.streams,
            self.keyed_streams,
        )


def write_golden(backend: str, folder: Path) -> None:
    """Write a golden directory: two operators, each with two subtasks."""
    write_everything(backend, folder)
    write_ordered(backend, folder)


def write_everything(backend: str, folder: Path) -> None:
    """Write three versions, the last one of half the keys."""
    job = golden_job(backend, folder, parallelism=2)
    for rows, second_input in (
        ([Row(key, 100, "register") for key in KEYS], [Row(key, 50, "nothing") for key in KEYS]),
        (
            [Row(key, 150, "nothing" if key in EXPIRED else "refresh") for key in KEYS],
            [Row(DELETED, 120, "delete")],
        ),
        ([Row(key, 160 + 10 * n, "look") for n, key in enumerate(readers(job))], []),
    ):
        number = job.batch_id
        written = KEYS if second_input else KEYS[::2]
        job.run(Golden(), [*rows, *(Row(k, 100, "write", number) for k in written)], second_input)
        job.clock.advance(60 * SECOND)


def golden_job(backend: str, folder: Path, **more: Any) -> KeyedJob:
    return KeyedJob(
        plugins().backend(backend),
        open_storage(folder),
        uid="everything",
        key_type=str,
        clock=ManualClock(STARTED),
        event_time=lambda row: at(row.second),
        **{"query": "golden", "lateness": LATENESS, **more},
    )


def reopened(name: str, folder: Path, **more: Any) -> KeyedJob:
    """Return a job that continues where the golden job ended, at its last time."""
    job = golden_job(name.partition("-")[0], folder, **more)
    job.clock.advance(120 * SECOND)
    job.batch_id = 3
    return job


def readers(job: KeyedJob) -> list[str]:
    """Return a key without state for each subtask of the job."""
    names = [f"reader {number}" for number in range(100)]
    owners = [owner(name, job) for name in names]
    return [names[owners.index(subtask)] for subtask in range(job.parallelism)]


def owner(key: str, job: KeyedJob) -> int:
    group = key_group_of(key, job.max_parallelism)
    return subtask_of(group, job.parallelism, job.max_parallelism)


def looks(keys: Sequence[str], second: int = 0) -> list[Row]:
    return [Row(key, second, "look") for key in keys]


def expected(key: str, rounds: int) -> tuple[Any, ...]:
    """Return the output of `Reading` for a key that was written in ``rounds`` rounds."""
    last = rounds - 1
    return (
        key,
        Account(last, key, [last / 2]),
        [(number, key) for number in range(rounds)],
        [(f"entry {last}", last / 4), ("none", None)],
        sum(range(rounds)),
        sum(range(rounds)) / rounds,
    )


def waiting() -> set[tuple[str, str, int]]:
    """Return the timers of the golden version, which did not fire in its three micro-batches."""
    kept = [(key, number) for number, key in enumerate(KEYS) if key != DELETED]
    by_event = {(key, "event_time", event_timer(n)) for key, n in kept}
    by_clock = {(key, "processing_time", s) for key, n in kept for s in processing_timers(n)}
    by_clock.add((KEYS[0], "processing_time", processing_timers(0)[0] + REGISTERED))
    return {t for t in by_event if t[2] > WATERMARK} | {t for t in by_clock if t[2] > 120}


@pytest.fixture
def copied(tmp_path):
    """Return a function that makes writable copies of golden directories."""

    def copy(name: str) -> Path:
        copies = len(list(tmp_path.iterdir()))
        return Path(shutil.copytree(GOLDEN / name, tmp_path / str(copies)))

    return copy


def test_each_backend_has_directories():
    assert {name.partition("-")[0] for name in STORED} == {"heap", "lsm"}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_this_release_writes_what_the_golden_directories_hold(tmp_path, backend):
    write_golden(backend, tmp_path)
    holds_everything(reopened(backend, tmp_path))
    holds_what_is_ordered(ordered_job(backend, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize("name", STORED)
def test_a_golden_version_is_opened(copied, name, parallelism):
    holds_everything(reopened(name, copied(name), parallelism=parallelism))


def holds_everything(job: KeyedJob) -> None:
    rows = job.run(Reading(), looks(KEYS))
    found = {key: [row for row in rows if row[0] == key] for key in KEYS}
    assert found == {k: [expected(k, 3 - n % 2)] * 4 for n, k in enumerate(KEYS)}
    assert contents(job, MIXED) == [MIXED_CONTENT] * 12
    operator = [Reading.operator[subtask] for subtask in range(job.parallelism)]
    assert sum(sum(own[0]) for own in operator) == 12 + 12 + 6
    assert all(own[1] == ["subtask 0", "subtask 1"] for own in operator)
    assert all(own[2] == {"limit": 7} for own in operator)
    assert sorted(s for own in operator for s in own[3]) == [stream(0), stream(1)]
    groups = {group: data for own in operator for group, data in own[4].items()}
    assert groups == {group: b"group %d" % group for group in range(8)}


@pytest.mark.long
@pytest.mark.parametrize("name", STORED)
def test_a_golden_version_expires_and_goes_on(copied, name):
    job = reopened(name, copied(name), parallelism=2)
    job.clock.advance(timedelta(days=1) - 30 * SECOND)
    rows = job.run(Reading(), looks(KEYS[:2]))
    kept = {row[0]: row for row in rows[0::2]}
    assert kept == {"key 0": expected("key 0", 3), "key 1": expected("key 1", 2)}
    assert {row[1:] == (None, [], [], None, None) for row in rows[1::2]} == {False, True}
    job.run(Golden(), [Row("key 1", 0, "write", 2)])
    assert job.run(Reading(), looks(["key 1"]))[0] == expected("key 1", 3)


RESTORES = [
    pytest.param(
        name,
        backend,
        marks=[pytest.mark.slow] if name.startswith(f"{backend}-") else [],
        id=f"{name}-{backend}",
    )
    for name in STORED
    for backend in ("heap", "lsm")
]
"""Each directory is restored into each backend; into its own one, which also opens it, if slow."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "backend"), RESTORES)
def test_a_golden_version_is_restored_from(copied, name, backend):
    def fork() -> KeyedJob:
        restore = RestoreFrom("golden")
        job = golden_job(backend, copied(name), query="fork", restore=restore)
        job.clock.advance(120 * SECOND)
        return job

    rows = fork().run(Reading(), looks(KEYS))
    assert rows == [expected(k, 3 - n % 2) for n, k in enumerate(KEYS) for _ in range(4)]
    fires_what_waits(fork())


@pytest.mark.long
@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize("name", STORED)
def test_the_timers_and_the_watermark_of_a_golden_version_go_on(copied, name, parallelism):
    fires_what_waits(reopened(name, copied(name), parallelism=parallelism))


def fires_what_waits(job: KeyedJob) -> None:
    """The next micro-batches fire every stored timer once, at its time and in order."""
    rows = job.run(Golden(), looks(["reader"], 9_000_000))
    assert at(NEXT_WATERMARK) in rows
    fired = [[row for row in rows if row != at(NEXT_WATERMARK)]]
    assert {second for _, _, second in fired[0]} == {120, 130, 150}
    for seconds in (30, 2_592_000, 10_000):
        job.clock.advance(seconds * SECOND)
        fired.append(job.run(Golden(), []))
    assert {domain for _, domain, _ in fired[1]} == {"event_time", "processing_time"}
    everything = [timer for batch in fired for timer in batch]
    assert sorted(everything) == sorted(waiting())
    for batch in fired:
        for subtask in range(job.parallelism):
            own = [timer[1:] for timer in batch if owner(timer[0], job) == subtask]
            assert own == sorted(own), "by domain, then by time"
    job.clock.advance(timedelta(days=365))
    assert job.run(Golden(), []) == []


@pytest.mark.parametrize("name", STORED)
def test_the_event_times_of_a_golden_version_are_kept(copied, name):
    job = reopened(name, copied(name), parallelism=2, lateness=100 * SECOND)
    assert at(WATERMARK) in job.run(Golden(), looks(readers(job), 10)), "it never goes back"
    job.lateness_us = [LATENESS // MICROSECOND] * 2
    rows = job.run(Golden(), looks(readers(job), 10))
    assert at(NEXT_WATERMARK) in rows, "the latest times ever seen count"


@pytest.mark.long
@pytest.mark.parametrize("name", STORED)
def test_a_sweep_goes_on_where_the_golden_one_stopped(copied, name):
    passed = dropped_next(reopened(name, copied(name), parallelism=2), batch_id=2)
    dropped = dropped_next(reopened(name, copied(name), parallelism=2), batch_id=3)
    assert len(passed) == len(dropped) == 4, "two of each subtask"
    assert not passed & dropped


def dropped_next(job: KeyedJob, batch_id: int) -> set[str]:
    """Return the keys that a batch drops if its sweeps make two checks in each subtask."""
    job.batch_id = batch_id
    assert ABSENT not in contents(job, SEEN)
    job.clock.advance(timedelta(days=2))
    job.run(Golden(), looks(readers(job)))
    return {key for key, seen in zip(KEYS, contents(job, SEEN), strict=True) if seen is ABSENT}


def contents(job: KeyedJob, descriptor: Any) -> list[Any]:
    """Return what is stored of a state for each of `KEYS`."""
    job.descriptors = [descriptor]
    return [content for (content,) in job.peek_all(KEYS)]


class Ordered(KeyedProcessFunction):
    """Follows the instructions of rows ``(key, what, number)``; emits timers that fire."""

    def open(self, context):
        self.maps = [
            context.get_sorted_map_state(SortedMapStateDescriptor(name, kind, int))
            for name, kind in (
                ("numbers", int),
                ("shares", float),
                ("texts", str),
                ("pairs", tuple[str, int]),
            )
        ]

    def process_element(self, row, ctx):
        for namespace in NAMESPACES:
            ctx.set_current_namespace(namespace)
            yield from getattr(self, row[1])(row[2], ctx) or ()

    def write(self, number, ctx):
        for entries, keys in zip(self.maps, (NUMBERS, SHARES, TEXTS, PAIRS), strict=True):
            for place, key in enumerate(reversed(keys)):
                entries.put(key, number + place)
        ctx.timers.register_processing_time(at(100 + number))

    def change(self, number, ctx):
        """Remove the first key of each map; from now on timers are stored under their keys, too."""
        for entries, keys in zip(self.maps, (NUMBERS, SHARES, TEXTS, PAIRS), strict=True):
            entries.remove(keys[0])
        ctx.timers.list_processing_time()
        ctx.timers.register_processing_time(at(200 + number))

    def look(self, _, ctx):
        timers = [(time - STARTED) // SECOND for time in ctx.timers.list_processing_time()]
        yield ctx.current_key, [list(entries.items()) for entries in self.maps], timers

    def on_timer(self, at, ctx):
        return [(ctx.current_key, ctx.current_namespace, (at - STARTED) // SECOND)]


def ordered_job(name: str, folder: Path, parallelism: int = 2) -> KeyedJob:
    return KeyedJob(
        plugins().backend(name.partition("-")[0]),
        open_storage(folder),
        uid="ordered",
        query="golden",
        key_type=str,
        clock=ManualClock(STARTED),
        parallelism=parallelism,
    )


def write_ordered(name: str, folder: Path) -> None:
    """Write two versions."""
    job = ordered_job(name, folder)
    job.run(Ordered(), [(key, "write", number) for number, key in enumerate(ORDERED_KEYS)])
    job.run(Ordered(), [(key, "change", number) for number, key in enumerate(ORDERED_KEYS)])


def looked_at(job: KeyedJob) -> list[Any]:
    return sorted(job.run(Ordered(), [(key, "look", 0) for key in ORDERED_KEYS]))


def in_each_namespace(skipped: int, base: int, timers: Callable[[int], list[int]]) -> list[Any]:
    """Return what `look` yields after ``write`` with numbers from ``base`` on.

    The first ``skipped`` keys of each map have been removed since.
    """
    return [
        (
            key,
            [
                [(one, base + n + len(keys) - 1 - place) for place, one in enumerate(keys)][
                    skipped:
                ]
                for keys in (NUMBERS, SHARES, TEXTS, PAIRS)
            ],
            timers(n),
        )
        for n, key in enumerate(ORDERED_KEYS)
        for _ in NAMESPACES
    ]


def holds_what_is_ordered(job: KeyedJob) -> None:
    job.batch_id = 2
    stored = in_each_namespace(1, 0, lambda n: [100 + n, 200 + n])
    assert looked_at(job) == stored
    job.run(Ordered(), [(key, "change", number) for number, key in enumerate(ORDERED_KEYS)])
    assert looked_at(job) == stored, "a timer that is registered again is the stored one"
    job.clock.advance(1_000 * SECOND)
    fired: list[Any] = job.run(Ordered(), [])
    times = [(key, base + n) for n, key in enumerate(ORDERED_KEYS) for base in (100, 200)]
    assert len(fired) == len(times) * len(NAMESPACES)
    assert {(key, namespace, second) for key, namespace, second in fired} == {
        (key, namespace, second) for key, second in times for namespace in NAMESPACES
    }
    job.run(Ordered(), [(key, "write", 2_000 + number) for number, key in enumerate(ORDERED_KEYS)])
    written = in_each_namespace(0, 2_000, lambda n: [2_100 + n])
    assert looked_at(job) == written, "a key that is written again is the stored one"


@pytest.mark.long
@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize("name", STORED)
def test_maps_in_order_and_timers_in_namespaces_are_read(copied, name, parallelism):
    holds_what_is_ordered(ordered_job(name, copied(name), parallelism))
