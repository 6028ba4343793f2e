"""The harness runs functions on a backend that compacts, as Spark's workers would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from pyspark import sql

from forebay_engine.execution.record_methods import map_callable
from forebay_engine.versions.choosing.reader import open_version
from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api import (
    CheckpointedFunction,
    CleanupInCompaction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    ConfigurationError,
    FunctionError,
    StateAccessError,
    StateMigrationError,
    UnknownPluginError,
)

COUNT = ValueStateDescriptor("n", int, default=0)


class Row(NamedTuple):
    user: str


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(COUNT)

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield row.user, self.n.value()


@pytest.mark.long
def test_compactions_are_submitted_found_and_installed(tmp_path):
    options = {"max-runs": 3}
    with FunctionHarness(
        Count(), "user", backend="lsm", backend_options=options, state_dir=tmp_path
    ) as harness:
        for number in range(1, 13):
            assert harness.process([Row("a"), Row("b")]) == [("a", number), ("b", number)]
        harness.restart(parallelism=2)
        assert sorted(harness.process([Row("a"), Row("b")])) == [("a", 13), ("b", 13)]
        assert harness.state(COUNT, "a") == 13
        with open_version(harness._storage, uid="test", version=12) as reader:
            files = [file for parent in reader.parents for file in parent.files]
        assert any("/compaction-" in file.name for file in files)
    with pytest.raises(StateAccessError, match="closed"):
        harness.process([])


AS_NOBODY = """
import os, sys
from typing import NamedTuple
from forebay_spark_runtime.testing import FunctionHarness
from forebay_state_api.errors import StorageError

class Row(NamedTuple):
    user: str

def process(state_dir):
    with FunctionHarness(lambda row, ctx: [(row.user, 1)], "user", state_dir=state_dir) as harness:
        harness.process([Row("a")])

process(sys.argv[1])  # imports what the other user may not read
os.setuid(65534)
try:
    process(sys.argv[2])
except StorageError as error:
    print(error)
"""


@pytest.fixture
def open_folder():
    """A folder that everybody may read, because pytest restricts its own folders at each start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.slow  # by default: the storage alone, storage/test_faults.py
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_another_user_may_not_write_to(open_folder):
    rows = [Row("a")]
    folder = open_folder / "state"
    with FunctionHarness(Count(), "user", state_dir=folder) as harness:
        harness.process(rows)
    command = [sys.executable, "-c", AS_NOBODY, open_folder / "another", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "could not write" in said
    assert str(folder) in said
    assert "let the user that the executors run as read and write there" in said
    with FunctionHarness(Count(), "user", state_dir=folder) as harness:
        assert harness.process(rows) == [("a", 2)]


def test_a_service_that_is_not_installed():
    with pytest.raises(UnknownPluginError, match="locla"):
        FunctionHarness(Count(), "user", compaction="locla")


SEEN = ListStateDescriptor("seen", str)
EVERYONE = ListStateDescriptor("everyone", str)
RULES = MapStateDescriptor("rules", str, int)


class Remember(KeyedProcessFunction, CheckpointedFunction):
    def initialize_state(self, context):
        store = context.operator_state_store
        self.seen = store.get_list_state(SEEN)
        self.everyone = store.get_union_list_state(EVERYONE)
        self.rules = store.get_broadcast_state(RULES)

    def process_element(self, row, ctx):
        self.seen.add(row.user)
        self.everyone.add(row.user)

    def snapshot_state(self, context):
        self.rules.put("version", context.version)


class RememberPlainly(KeyedProcessFunction, ListCheckpointed):
    def open(self, context):
        self.seen = []

    def restore_state(self, state):
        self.restored = state

    def process_element(self, row, ctx):
        self.seen.append(row.user)

    def snapshot_state(self, version):
        return self.seen


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_operator_state_of_each_subtask(backend):
    users = [Row(f"u{n}") for n in range(9)]
    with FunctionHarness(Remember(), "user", backend=backend, parallelism=3) as harness:
        assert harness.operator_state(SEEN) == []
        harness.process(users)
        seen = harness.operator_state(SEEN)
        assert len(seen) == 3
        everyone = [user for part in seen for user in part]
        assert sorted(everyone) == sorted(row.user for row in users)
        assert harness.operator_state(EVERYONE) == seen
        assert harness.operator_state(RULES) == [{"version": 1}] * 3
        harness.restart(parallelism=2)
        harness.process([])
        assert harness.operator_state(SEEN) == [everyone[:5], everyone[5:]]
        assert harness.operator_state(RULES) == [{"version": 2}] * 2
        harness.restart(version=1)
        assert harness.operator_state(SEEN) == seen


def test_operator_state_that_is_not_there_or_of_another_kind():
    with FunctionHarness(Remember(), "user") as harness:
        harness.process([Row("a")])
        with pytest.raises(ConfigurationError, match=r"no operator state 'other'.*everyone, rules"):
            harness.operator_state(ListStateDescriptor("other", str))
        with pytest.raises(StateMigrationError, match="seen"):
            harness.operator_state(ListStateDescriptor("seen", int))
        with pytest.raises(TypeError, match="takes a ListStateDescriptor"):
            harness.operator_state(MapStateDescriptor("seen", str, str))


def test_operator_state_of_the_short_form():
    with FunctionHarness(RememberPlainly(), "user") as harness:
        harness.process([Row("a"), Row("b")])
        assert harness.operator_state() == [["a", "b"]]


class Visit(NamedTuple):
    user: str
    at: datetime | None


class Quiet(Count):
    """Emits users that were quiet for a minute of event time, and for an hour of the clock."""

    def process_element(self, row, ctx):
        if row.at is not None:
            ctx.timers.register_event_time(row.at + timedelta(minutes=1))
        now = ctx.timers.processing_time
        ctx.timers.register_processing_time(now + timedelta(hours=1))

    def on_timer(self, at, ctx):
        yield ctx.current_key, ctx.timers.domain.value, at


def test_timers_of_both_kinds():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    lateness = timedelta(minutes=2)
    with FunctionHarness(
        Quiet(), "user", event_time="at", allowed_lateness=lateness, parallelism=2
    ) as harness:
        visits = [Visit("a", start), Visit("b", start + timedelta(seconds=5)), Visit("c", None)]
        assert harness.process(visits) == []
        harness.process([Visit("a", start + timedelta(minutes=4))])
        assert sorted(harness.process([])) == [
            ("a", "event_time", start + timedelta(seconds=60)),
            ("b", "event_time", start + timedelta(seconds=65)),
        ]
        harness.clock.advance(timedelta(hours=1))
        fired = harness.restart(parallelism=3).process([])
        assert sorted((user, kind) for user, kind, _ in fired) == [
            (user, "processing_time") for user in "abc"
        ]
        assert harness.metrics.timers_fired == 3


@pytest.mark.parametrize("of", ["heap", "lsm"])
@pytest.mark.parametrize("into", ["heap", "lsm"])
def test_timers_of_a_fork_fire_as_they_would_have(of, into, tmp_path):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    visits = [Visit("a", start), Visit("b", start + timedelta(minutes=30))]
    common = {"key_by": "user", "event_time": "at", "state_dir": tmp_path}
    with FunctionHarness(Quiet(), query="first", backend=of, **common) as first:
        first.process(visits)
        clock = first.clock
    with FunctionHarness(
        Quiet(), query="second", restore_from="first", backend=into, clock=clock, **common
    ) as second:
        assert second.process([]) == [("a", "event_time", start + timedelta(minutes=1))]
        clock.advance(timedelta(hours=1))
        fired = second.process([])
        assert sorted((user, kind) for user, kind, _ in fired) == [
            (user, "processing_time") for user in "ab"
        ]
        second.restart(parallelism=2)
        assert second.process([]) == []


def test_a_fork_without_on_timer_is_refused_where_timers_are_stored(tmp_path):
    with FunctionHarness(Quiet(), "user", query="first", event_time="at", state_dir=tmp_path) as h:
        h.process([Visit("a", datetime(2024, 1, 1, tzinfo=UTC))])
    with (
        FunctionHarness(
            Count(), "user", query="second", restore_from="first", state_dir=tmp_path
        ) as fork,
        pytest.raises(StateMigrationError, match=r"as timers \(which on_timer declares"),
    ):
        fork.process([])


def test_event_time_needs_a_context():
    with pytest.raises(ConfigurationError, match="gets rows only"):
        FunctionHarness(map_callable(lambda row: row), "user", event_time="at")


class KeepsTime(KeyedProcessFunction):
    """Has no timers; drops rows that are late."""

    def process_element(self, row, ctx):
        timers = ctx.timers
        if timers.drop_late(row.at):
            return
        yield timers.is_late(row.at - timedelta(hours=1)), timers.watermark


def test_clocks_and_counts_of_late_rows_need_no_timers():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    late, on_time = start - timedelta(minutes=1), start + timedelta(minutes=1)
    with FunctionHarness(KeepsTime(), "user", event_time="at", parallelism=2) as h:
        assert h.process([Visit("a", start)]) == [(False, None)]
        rows = [Visit("a", late), Visit("a", start), Visit("a", on_time)]
        assert h.process(rows) == [(True, start)]
        assert (h.metrics.late_rows, h.metrics.late_rows_dropped) == (2, 2)
        h.restart(parallelism=3)
        assert h.process([Visit("b", late)]) == []
        with pytest.raises(ConfigurationError, match="or KeyedBroadcastProcessFunction"):
            h.restart(lambda row, ctx: ctx.timers.list_event_time()).process([Visit("a", start)])


class ReplacesAndFails(KeyedProcessFunction):
    """Replaces the timer of a window; fails for odd hours, also when they fire."""

    def process_element(self, row, ctx):
        ctx.set_current_namespace("w")
        ctx.timers.replace_event_time(row.at)
        ctx.timers.merge_namespaces("merged", ["w"])
        if row.at.hour % 2:
            raise ValueError("odd")

    def on_timer(self, at, ctx):
        listed = len(ctx.timers.list_event_time())
        if at.minute:
            raise ValueError("fired")
        yield ctx.current_key, ctx.current_namespace, at.hour, listed


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_the_timers_of_a_failed_record_are_put_back_in_their_namespaces(backend):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    hours = [start + timedelta(hours=n) for n in range(6)]
    with FunctionHarness(
        ReplacesAndFails(), "user", event_time="at", on_error="column", backend=backend
    ) as h:
        failed = h.process([Visit("a", hours[n]) for n in (1, 2, 3, 4)])
        assert [one.message for one in failed] == ["odd", "odd"]
        fired = h.process([Visit("b", hours[4] + timedelta(minutes=1))])
        assert fired == [("a", "merged", 2, 1), ("a", "merged", 4, 0)]
        [of_timer] = h.process([], end=True)
        assert (of_timer.method, of_timer.timer) == ("on_timer", hours[4] + timedelta(minutes=1))


class Ending(KeyedProcessFunction):
    """Registers a timer an hour after each row, and each timer one for a day later, once."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(hours=1))
        ctx.timers.register_processing_time(ctx.timers.processing_time + timedelta(hours=1))

    def on_timer(self, at, ctx):
        if ctx.timers.domain is TimeDomain.EVENT_TIME and (at.hour, at.day) == (1, 1):
            ctx.timers.register_event_time(at + timedelta(days=1))
        yield ctx.current_key, at.day, at.hour, ctx.timers.domain, ctx.timers.is_late(at)


def test_the_end_of_a_bounded_input_fires_all_event_time_timers():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    event = TimeDomain.EVENT_TIME
    with FunctionHarness(Ending(), "user", event_time="at", parallelism=2) as h:
        assert h.process([Visit("a", start), Visit("c", start + timedelta(hours=4))]) == []
        fired = h.process([Visit("b", start)], end=True)
        expected = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("b", 2, 1), ("c", 1, 5)]
        assert sorted(one[:3] for one in fired) == expected
        assert {one[3:] for one in fired} == {(event, True)}
        # The watermark is that of the rows again.
        assert h.process([Visit("a", start + timedelta(days=9))]) == []
        h.clock.advance(timedelta(hours=1))
        assert {one[3] for one in h.process([])} == {TimeDomain.PROCESSING_TIME}


class Repeating(KeyedProcessFunction):
    """Registers a timer for each row; a timer that fires registers itself again."""

    def process_element(self, row, ctx):
        ctx.timers.register_event_time(row.at)

    def on_timer(self, at, ctx):
        ctx.timers.register_event_time(at)
        yield ctx.current_key, at


def test_what_a_timer_registers_for_its_own_time_at_the_end_waits_for_a_later_batch():
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    with FunctionHarness(Repeating(), "user", event_time="at") as h:
        assert h.process([Visit("a", noon)], end=True) == [("a", noon)]
        assert h.process([]) == [("a", noon)]


def test_the_end_fires_the_timers_of_both_inputs():
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    event = Event("ann", noon, [{"at": noon}])
    later = event._replace(at=noon + timedelta(hours=1))
    with FunctionHarness(CoGaps(), "user", event_time="at") as h:
        assert h.process([event], [later], end=True)[2:] == [
            (noon + timedelta(minutes=10),),
            (noon + timedelta(minutes=70),),
        ]
        assert h.process([]) == []


def failing(row, ctx):
    raise RuntimeError("no")


def failing_for_some(row, ctx):
    if row.user == "u3":
        raise RuntimeError("no")


@pytest.mark.parametrize("fn", [failing, failing_for_some])
def test_a_directory_whose_first_micro_batch_failed_is_opened_again(tmp_path, fn):
    rows = [Row(f"u{n}") for n in range(4)]
    with (
        FunctionHarness(fn, "user", state_dir=tmp_path, parallelism=4) as harness,
        pytest.raises(FunctionError),
    ):
        harness.process(rows)
    for version in (0, 1):
        with FunctionHarness(Count(), "user", state_dir=tmp_path, parallelism=4) as harness:
            assert harness.version == version
            assert sorted(harness.process(rows)) == [(row.user, version + 1) for row in rows]
    with (
        FunctionHarness(fn, "user", state_dir=tmp_path) as harness,
        pytest.raises(FunctionError),
    ):
        harness.process(rows)
    with FunctionHarness(Count(), "user", state_dir=tmp_path) as harness:
        assert harness.version == 2


class Pair(NamedTuple):
    user: object
    day: object = 1


@pytest.mark.parametrize(
    ("key", "wrong"),
    [(None, "is null"), (float("nan"), "NaN"), ([1], "got list"), (2**64, "fit 64 bits")],
)
def test_an_invalid_key_is_reported_with_its_record(key, wrong):
    message = rf"operator 'test'.*{wrong}.*in record 2 of the micro-batch: Pair\(user="
    with FunctionHarness(Count(), "user") as harness:
        with pytest.raises(ConfigurationError, match=message):
            harness.process([Pair("a"), Pair("b"), Pair(key)])
        assert harness.process([Pair("a")]) == [("a", 1)]


def test_a_part_of_a_key_that_is_null():
    with (
        FunctionHarness(Count(), ["user", "day"]) as harness,
        pytest.raises(ConfigurationError, match=r"null, in record 1 of .*day=None"),
    ):
        harness.process([Pair("a"), Pair("a", None)])


class Both(KeyedCoProcessFunction):
    def process_element1(self, row, ctx):
        yield row

    def process_element2(self, row, ctx):
        yield row


def test_what_cannot_be_a_key_in_the_second_input():
    with (
        FunctionHarness(Both(), "user") as harness,
        pytest.raises(ConfigurationError, match="in record 1 of the second input"),
    ):
        harness.process([Pair("a")], [Pair("a"), Pair(None)])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"parallelism": None}, "parallelism is a positive number, not None"),
        ({"in_flight_limit": 0}, "in-flight-limit = 0: expected a whole number, at least 1"),
        ({"batch_size": 0}, "batch-size = 0: expected a whole number, at least 1"),
        ({"read_ahead": "maybe"}, "read-ahead = 'maybe': expected true or false"),
        ({"max_parallelism": 40_000}, "max_parallelism is 1 … 32768, not 40000"),
        ({"max_parallelism": 0}, "max_parallelism is 1 … 32768, not 0"),
        ({"parallelism": 0}, "parallelism is a positive number, not 0"),
        ({"parallelism": 200}, "parallelism 200 is above max_parallelism 128"),
        ({"uid": None}, "needs uid=: a name .* not None"),
    ],
    ids=str,
)
def test_settings_are_checked_as_keyed_does(setting, message):
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(Count(), "user", **setting)


def test_a_function_that_cannot_be_pickled():
    lock = threading.Lock()

    def locking(row, ctx):
        with lock:
            return [row]

    message = r"operator 'test': .*locking cannot be sent to the workers: .*lock.*in open\(\)"
    with pytest.raises(ConfigurationError, match=message):
        FunctionHarness(locking, "user")
    with FunctionHarness(Count(), "user") as harness:
        with pytest.raises(ConfigurationError, match=message):
            harness.restart(locking)
        assert harness.process([Row("a")]) == [("a", 1)]


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_what_is_not_set_reads_as_in_the_function_from_the_beginning(backend):
    with FunctionHarness(Count(), "user", backend=backend) as harness:
        assert harness.state(COUNT, "a") == 0
        harness.process([Row("a")])
        assert (harness.state(COUNT, "a"), harness.state(COUNT, "b")) == (1, 0)
        harness.restart(version=0)
        assert harness.state(COUNT, "a") == 0


class Meanwhile(KeyedProcessFunction):
    """Keeps the record's user in a field while it waits, in which another record may change it."""

    def open(self, context):
        self.n = context.get_state(COUNT)

    async def process_element(self, row, ctx):
        self.user = row.user
        count = await self.n.async_value() + 1
        await self.n.async_update(count)
        yield row.user, self.user, count


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_late_answers_show_what_memory_hides(backend, tmp_path):
    rows = [Row(user) for user in "abcdefgh" * 2]
    with FunctionHarness(Meanwhile(), "user", backend=backend, state_dir=tmp_path) as harness:
        assert all(user == field for user, field, _ in harness.process(rows))
    orders = set()
    for seed in range(3):
        with FunctionHarness(
            Meanwhile(), "user", backend=backend, state_dir=tmp_path, late_answers=seed
        ) as harness:
            out = harness.process(rows)
            assert harness.metrics.largest_in_flight > 1
            assert harness.state(COUNT, "a") == 2 * harness.version
        assert any(user != field for user, field, _ in out)
        counts = [(user, count) for user, _, count in out]
        assert sorted(counts) == sorted(
            (user, count) for user in "abcdefgh" for count in (2 * seed + 3, 2 * seed + 4)
        )
        orders.add(tuple(counts))
    assert len(orders) == 3


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_compaction_goes_by_the_clock_of_the_harness(backend):
    cleanup = (CleanupInCompaction(clock_every=1),)
    ttl = StateTtlConfig(timedelta(hours=1), cleanup=cleanup)
    state = ValueStateDescriptor("v", int, ttl=ttl)
    options = {"max-runs": 3, "memtable-bytes": 1} if backend == "lsm" else {}

    class Once(KeyedProcessFunction):
        def open(self, context):
            self.v = context.get_state(state)

        def process_element(self, row, ctx):
            self.v.update(1)

    with FunctionHarness(Once(), "user", backend=backend, backend_options=options) as harness:
        users = [f"user {number}" for number in range(15)]
        for user in users:
            harness.process([Row(user)])
        assert [harness.state(state, user) for user in users] == [1] * 15


BERLIN = ZoneInfo("Europe/Berlin")
SWITCHES = {
    "spring": (datetime(2024, 3, 31, 0, 59, 50, tzinfo=UTC), timedelta(seconds=20)),
    "autumn": (datetime(2024, 10, 27, 0, 45, tzinfo=UTC), timedelta(minutes=30)),
}


class Event(NamedTuple):
    user: str
    at: datetime
    seen: list[dict[str, datetime]]


class Gaps(KeyedProcessFunction):
    """Emits the seconds since a key's last row; registers a timer ten minutes after each row."""

    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", datetime))

    def process_element(self, row, ctx):
        assert row.seen[0]["at"].tzinfo is row.at.tzinfo is UTC
        last = self.last.value()
        self.last.update(row.at)
        ctx.timers.register_event_time(row.at + timedelta(minutes=10))
        yield (None if last is None else (row.at - last).total_seconds(),)

    def on_timer(self, at, ctx):
        yield (at,)


class CoGaps(KeyedCoProcessFunction):
    open = Gaps.open
    process_element1 = process_element2 = Gaps.process_element
    on_timer = Gaps.on_timer


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("fn", [Gaps(), CoGaps()], ids=["one input", "two inputs"])
def test_rows_of_a_dst_switch_are_instants(fn, backend, switch):
    first, gap = SWITCHES[switch]

    def event(at):
        here = at.astimezone(BERLIN)
        return Event("ann", here, [{"at": here}])

    with FunctionHarness(fn, "user", backend=backend, event_time="at") as harness:
        assert harness.process([event(first)]) == [(None,)]
        second = [event(first + gap)]
        given = (second, None) if isinstance(fn, Gaps) else ([], second)
        assert harness.process(*given) == [(gap.total_seconds(),)]
        due = first + timedelta(minutes=10)
        out = [*harness.process([event(max(due, first + gap))]), *harness.process([])]
        assert [(at, at.tzinfo) for (at,) in out if isinstance(at, datetime)] == [(due, UTC)]


@pytest.mark.parametrize("make", [Event, sql.Row, dict], ids=["named", "Row", "dict"])
def test_rows_of_any_kind_and_keys_are_instants(make):
    first, gap = SWITCHES["autumn"]
    times = [first, first + gap]

    def seen(row, ctx):
        return [(row.user, ctx.current_key, row.at, row.seen[0][1])]

    rows = [
        make(user="ann", at=at.astimezone(BERLIN), seen=[(1, at.astimezone(BERLIN))])
        for at in times
    ]
    with FunctionHarness(seen, "at") as harness:
        out = harness.process(rows)
    assert out == [("ann", at, at, at) for at in times]
    assert all(at.tzinfo is UTC for row in out for at in row[1:])


TEST_OF_A_USER = """
import pytest
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor


class Last(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last", int))

    async def process_element(self, row, ctx):
        self.user = row.user
        await self.last.async_value()
        yield row.user, self.user


def test_users(harness):
    run = harness(Last(), "user")
    out = run.process([{"user": user} for user in "abcdefgh"])
    assert [field for user, field in out if user != field] == []
"""


def test_the_fixture_answers_at_once(harness):
    """As the test of a user below, in this process."""
    of_user = {}
    exec(TEST_OF_A_USER, of_user)
    of_user["test_users"](harness)


@pytest.mark.long
def test_the_fixture_answers_late_if_asked_to(tmp_path):
    (tmp_path / "test_user.py").write_text(TEST_OF_A_USER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*run, "--forebay-backend=heap", "--forebay-late=1", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert "1 failed" in done.stdout, done.stdout


def test_a_row_before_the_year_1_of_utc_is_refused():
    early = datetime(1, 1, 1, tzinfo=BERLIN)
    with (
        FunctionHarness(lambda row, ctx: [], "user") as harness,
        pytest.raises(ConfigurationError, match=r"outside the years 1 to 9999.*filter such rows"),
    ):
        harness.process([Event("ann", early, [])])


def nested(kind, depth=5_000):
    """Return a list or a tuple in another, and so on."""
    value = kind()
    for _ in range(depth):
        value = kind([value])
    return value


class EmitsNested(KeyedProcessFunction):
    def process_element(self, row, ctx):
        yield row[0], nested(list)


class DeclaresNested(KeyedProcessFunction):
    def open(self, context):
        declared = int
        for _ in range(5_000):
            declared = list[declared]
        context.get_state(ValueStateDescriptor("s", declared))

    def process_element(self, row, ctx):
        return []


@pytest.mark.parametrize("row", [(nested(tuple),), ("a", nested(list))], ids=["key", "column"])
def test_a_row_that_is_nested_too_deeply_is_refused(row):
    with (
        FunctionHarness(Count(), lambda row: row[0]) as harness,
        pytest.raises(ConfigurationError, match="a row is nested too deeply"),
    ):
        harness.process([row])


def test_a_type_that_is_nested_too_deeply_is_refused():
    with (
        FunctionHarness(DeclaresNested(), "user") as harness,
        pytest.raises(ConfigurationError, match=r"state 's' of .*: its type is nested too deeply"),
    ):
        harness.process([Row("a")])


def test_without_a_schema_an_emitted_row_may_be_nested_deeply():
    with FunctionHarness(EmitsNested(), "user") as harness:
        assert len(harness.process([Row("a")])) == 1
