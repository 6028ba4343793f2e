"""The harness runs functions on a backend that compacts, as Spark's workers would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

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
    ValueStateDescriptor,
)
from forebay_state_api.errors import (
    ConfigurationError,
    FunctionError,
    StateAccessError,
    StateMigrationError,
    UnknownPluginError,
)

from .harness_functions import COUNT, Count, Row


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
