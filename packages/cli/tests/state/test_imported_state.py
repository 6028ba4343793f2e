"""Tables that become the first version of an operator, and the job that begins with it."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_lsm.backend import LsmBackend
from forebay_cli.main import main
from forebay_engine.stored.restore import default_options
from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing import savepoints
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import LocalStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing import first_version, import_state
from forebay_state_processor.reading import open_state
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob


class Level(Enum):
    LOW = 1
    HIGH = 2


class Visit(NamedTuple):
    city: str
    level: Level


STATES = (
    ValueStateDescriptor("total", int),
    ListStateDescriptor("seen", Decimal),
    MapStateDescriptor("by day", str, Visit),
    ValueStateDescriptor("last", tuple[int, str], ttl=StateTtlConfig(timedelta(hours=1))),
)
NAME = {"query": "orders", "uid": "totals"}


class Keep(KeyedProcessFunction):
    """Emits all states of a key and adds to them; a timer emits its key."""

    def open(self, context):
        self.total, self.seen, self.by_day, self.last = (context._declare(one) for one in STATES)

    def process_element(self, row, ctx):
        key, amount = row
        content = self.total.value(), [*self.seen.get()], dict(self.by_day.items())
        yield key, *content, self.last.value()
        self.total.update((self.total.value() or 0) + amount)
        self.seen.add(Decimal(amount))
        self.by_day.put("monday", Visit(key, Level.HIGH))
        self.last.update((amount, key))
        ctx.timers.replace_processing_time(ctx.timers.processing_time + timedelta(hours=5))

    def on_timer(self, at, ctx):
        yield ctx.current_key, "fired"


@pytest.fixture(params=["heap", pytest.param("lsm", marks=pytest.mark.slow), "shelf"])
def directory(request, tmp_path, shelf_backend):
    """A directory for each of our backends, and for one of a third party.

    By default lsm is in ``packages/state-processor/tests/reading/test_import_round_trip.py``.
    """
    return Directory(plugins().backend(request.param), tmp_path)


@pytest.fixture
def heap(tmp_path):
    """A directory for what does not depend on the backend."""
    return Directory(HeapBackend, tmp_path)


class Directory:
    """A state directory, and jobs in it."""

    def __init__(self, backend, folder):
        self.backend, self.folder = backend, folder
        self.state_dir = str(folder / "state")
        self.clock = ManualClock(datetime.now(UTC).replace(microsecond=0))
        self.conf = {"spark.forebay.state.backend": backend.name}

    def job(self, query="orders", **how):
        return KeyedJob(
            self.backend,
            open_storage(self.state_dir),
            **NAME | {"query": query},
            parallelism=2,
            max_parallelism=16,
            key_type=str,
            clock=self.clock,
            options=default_options(self.backend),
            **how,
        )

    def imported(self, tables, *, query="orders", **how):
        types = {} if "like" in how else {"function": Keep, "key": "string", "max_parallelism": 16}
        named = NAME | {"query": query, "tables": tables, "conf": self.conf}
        return import_state(self.state_dir, **named, **types | how)

    def files(self):
        return sorted(self.folder.glob("state/**/*"))

    def opened(self, query="orders", **how):
        return open_state(self.state_dir, **NAME | {"query": query}, show_expired=True, **how)


def totals(**values):
    return {"total": pa.table({"key": list(values), "value": list(values.values())})}


def content(snapshot):
    states = {
        name: sorted(snapshot.scan(name), key=lambda row: row.key) for name in snapshot.states
    }
    return states, sorted(snapshot.timers(), key=lambda timer: timer.key)


@pytest.mark.long
def test_a_job_begins_with_tables_of_its_states(directory):
    visits = pa.array(
        [[("friday", {"city": "Rome", "level": "LOW"})]],
        pa.map_(pa.string(), pa.struct({"city": pa.string(), "level": pa.string()})),
    )
    hour_ago = directory.clock.now - timedelta(minutes=59)
    tables = {
        **totals(a=7, b=8),
        "seen": pa.table({"key": ["a"], "value": [["1.50", "2"]]}),
        "by day": pa.table({"key": ["a"], "value": visits}),
        "last": pa.table({"key": ["a"], "value": [{"_1": 5, "_2": "a"}], "written": [hour_ago]}),
    }
    due = pa.table({"key": ["b"], "domain": ["processing_time"], "time": [directory.clock.now]})
    done = directory.imported(tables, timers=due)
    assert done.rows == {"total": 2, "seen": 1, "by day": 1, "last": 1}
    assert done.timers == 1
    job = directory.job()
    found = sorted(job.run(Keep(), [("a", 1), ("z", 1)]), key=repr)
    visit = {"friday": Visit("Rome", Level.LOW)}
    assert found == [
        ("a", 7, [Decimal("1.50"), Decimal(2)], visit, (5, "a")),
        ("b", "fired"),
        ("z", None, [], {}, None),
    ]
    directory.clock.advance(timedelta(minutes=2))
    assert job.run(Keep(), [("b", 1)]) == [("b", 8, [], {}, None)]


def filled(directory, query="old"):
    """Run a job, and return a snapshot of what it left."""
    job = directory.job(query)
    job.run(Keep(), [(key, at) for at, key in enumerate("abcdefghij")])
    directory.clock.advance(timedelta(minutes=10))
    job.run(Keep(), [("a", 20)])
    return directory.opened(query, provisional=True)


@pytest.mark.long
@pytest.mark.parametrize("form", ["whole", "states"])
def test_an_operator_goes_out_and_comes_in_under_another_name(directory, form):
    with filled(directory) as old:
        tables = {name: old.to_arrow(name) for name in old.states}
        done = directory.imported(
            old.table() if form == "whole" else tables, timers=old.timer_table(), like=old
        )
        assert done.rows == {"total": 10, "seen": 10, "by day": 10, "last": 10}
        with directory.opened() as new:
            assert (new.version, new.run, new.final) == (1, done.run, True)
            assert content(new) == content(old)
            assert {name: info.ttl for name, info in new.states.items()} == {
                name: info.ttl for name, info in old.states.items()
            }
    assert directory.job().run(Keep(), [("a", 1)])[0][1] == 20


def test_a_state_that_is_null_in_the_table_of_the_operator_has_no_content(directory):
    table = pa.table({"key": ["a", "b"], "total": [1, None], "seen": [None, ["2"]]})
    assert directory.imported(table).rows == {"total": 1, "seen": 1}
    found = sorted(row[:3] for row in directory.job().run(Keep(), [("a", 1), ("b", 1)]))
    assert found == [("a", 1, []), ("b", None, [Decimal(2)])]


def test_states_whose_columns_have_other_names_come_in_again(directory):
    ttl = StateTtlConfig(timedelta(hours=1))
    names = ("key", "total", "total expires")
    states = [ValueStateDescriptor(name, str, ttl=ttl) for name in names]
    job = directory.job("old", descriptors=states)
    job.do("k", *((f"{name}.update", name) for name in names))
    directory.clock.advance(timedelta(minutes=30))
    job.do("k", ("total.update", "later"))
    with directory.opened("old", provisional=True) as old:
        table = pa.table(old)
        assert directory.imported(table, like=old).rows == dict.fromkeys(names, 1)
        with directory.opened() as new:
            assert content(new) == content(old)
            assert pa.table(new).sort_by("key").equals(table.sort_by("key"))


def test_a_savepoint_holds_it_for_other_queries(directory):
    directory.imported(totals(a=5), query="seed", savepoint="2026-11")
    job = directory.job("new", restore=RestoreFrom("seed", savepoint="2026-11"))
    assert job.run(Keep(), [("a", 1)])[0][1] == 5


@pytest.mark.long
def test_a_job_with_another_backend_converts_it(heap):
    heap.imported(totals(a=5, b=6))
    heap.backend = LsmBackend
    job = heap.job()
    assert job.run(Keep(), [("a", 1)])[0][1] == 5
    assert sorted(row[:2] for row in job.run(Keep(), [("a", 1), ("b", 1)])) == [("a", 6), ("b", 6)]


@pytest.mark.long
def test_several_parts_are_written_one_by_one(directory, monkeypatch):
    monkeypatch.setattr(first_version, "ROWS_OF_PART", 10)
    table = totals(**{str(n): n for n in range(100)})["total"]
    directory.imported({"total": ds.dataset(table)})
    with directory.opened() as snapshot:
        assert len(snapshot.manifests) == 10
        assert {row.key: row.value for row in snapshot.scan("total")} == {
            str(n): n for n in range(100)
        }
    rows = [(str(n), 1) for n in range(100)]
    assert sorted(row[1] for row in directory.job().run(Keep(), rows)) == [*range(100)]


BEFORE_YEAR_1 = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=12)))
"""In UTC, for which Python has no time."""
BAD_TABLES = {
    "a value of another type": (
        {"total": pa.table({"key": ["a"], "value": ["x"]})},
        "of state 'total', row 1: state 'total'",
    ),
    "a key of another type": (
        {"total": pa.table({"key": [b"a"], "value": [1]})},
        "row 1: a key of operator 'totals'",
    ),
    "a null key": (
        {"total": pa.table({"key": ["a", None], "value": [1, 2]})},
        "row 2: a key of operator 'totals'",
    ),
    "a null value": (
        {"total": pa.table({"key": ["a", "b"], "value": [1, None]})},
        "row 2: state 'total'",
    ),
    "a key twice": (
        {"total": pa.table({"key": ["a", "b", "a"], "value": [1, 2, 3]})},
        "row 3: the key 'a' comes twice",
    ),
    "a key twice in a namespace": (
        {"total": pa.table({"key": ["a"] * 3, "namespace": [None, "1", "1"], "value": [1, 2, 3]})},
        "row 3: the key 'a' with namespace 1 comes twice",
    ),
    "a map with a user key twice": (
        {"seen": pa.table({"key": ["a"], "value": [[]]})},
        "row 1: the value is empty",
    ),
    "an unknown state": (
        {"totals": totals(a=1)["total"]},
        "no state 'totals'; its states: 'total'",
    ),
    "no state at all": (pa.table({"key": ["a"]}), "none of them is a state"),
    "an unknown column": (
        pa.table({"key": ["a"], "total": [1], "colour": ["red"]}),
        "it needs key, total",
    ),
    "expiry without a TTL": (
        {"total": pa.table({"key": ["a"], "value": [1], "expires": [None]})},
        "may have namespace, key_group, each once",
    ),
    "expiry of no state": (
        pa.table({"key": ["a"], "last": [{"_1": 1, "_2": "a"}], "expires": [None]}),
        "may have namespace, last written, key_group, last expires, each once",
    ),
    "no table": ({}, "nothing to import"),
    "no Arrow": ({"total": [("a", 1)]}, "a table is a pyarrow.Table"),
    "a time before the year 1": (
        {
            "last": pa.table(
                {"key": ["a"], "value": [{"_1": 1, "_2": "a"}], "written": [BEFORE_YEAR_1]}
            )
        },
        "row 1: a time is in the years 1 to 9999 in UTC",
    ),
    "a namespace that is an object": (
        pa.table({"key": ["a"], "total": [1], "namespace": ["{}"]}),
        "row 1: a namespace is a value that cannot change",
    ),
    "a namespace that is nested too deeply": (
        pa.table({"key": ["a"], "total": [1], "namespace": ["[" * 5_000]}),
        "row 1: it is nested too deeply",
    ),
    "a time that is a number": (
        {"last": pa.table({"key": ["a"], "value": [{"_1": 1, "_2": "a"}], "written": [5]})},
        "row 1: a time is a timestamp, not 5",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(heap, case):
    table, said = BAD_TABLES[case]
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        heap.imported(table)
    assert heap.files() == []


BAD_TIMERS = {
    "another domain": ({"domain": ["noon"]}, "the domain is event_time or processing_time"),
    "no time": ({"time": pa.nulls(1, pa.timestamp("us"))}, "a time is a timestamp, not None"),
    "a time before the year 1": (
        {"time": [BEFORE_YEAR_1]},
        "row 1: a time is in the years 1 to 9999 in UTC",
    ),
    "another key": ({"key": [5]}, "row 1: a key of operator 'totals'"),
}


@pytest.mark.parametrize("case", BAD_TIMERS)
def test_timers_that_do_not_fit_are_refused(heap, case):
    edit, said = BAD_TIMERS[case]
    right = {"key": ["a"], "domain": ["event_time"], "time": [heap.clock.now]}
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        heap.imported(totals(a=1), timers=pa.table(right | edit))
    twice = pa.table({name: values * 2 for name, values in right.items()})
    with pytest.raises(ConfigurationError, match=r"row 2: the timer at .* comes twice"):
        heap.imported(totals(a=1), timers=twice)


class Untimed(KeyedProcessFunction):
    def open(self, context):
        self.total = context.get_state(STATES[0])

    def process_element(self, row, ctx):
        yield self.total.value()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"function": None, "key": None}, "name one of them"),
        ({"key": None}, "pass both, or neither"),
        ({"function": Untimed}, "its function has no on_timer"),
        ({"savepoint": "fork a/b"}, "names of this form are reserved for forks"),
        ({"max_parallelism": 40_000}, "max_parallelism is 1 … 32768, not 40000"),
        ({"max_parallelism": 0}, "max_parallelism is 1 … 32768, not 0"),
        ({"savepoint": 5}, "the name of the savepoint is a string, not 5"),
    ],
)
def test_bad_arguments(heap, how, said):
    timers = pa.table({"key": ["a"], "domain": ["event_time"], "time": [heap.clock.now]})
    with pytest.raises(ConfigurationError, match=said):
        heap.imported(totals(a=1), timers=timers, **how)
    assert heap.files() == []


OFFSETS = struct.pack("<3i", 0, 16, 17)


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        (b"key", b"\x94ey"),
        (b"the key of a row", b"\x94he key of a row"),
        (OFFSETS, struct.pack("<3i", 0, 60, 17)),
    ],
    ids=["a column's name", "text", "offsets"],
)
def test_a_damaged_file_is_refused(heap, part, damaged):
    """Arrow takes these from a file as they are."""
    table = pa.table({"key": ["the key of a row", "b"], "value": [1, 2]})
    file = heap.folder / "damaged.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = file.read_bytes()
    assert part in data
    file.write_bytes(data.replace(part, damaged))
    with pytest.raises(ConfigurationError, match=r"cannot be read: |name is no text"):
        heap.imported({"total": ds.dataset(file, format="arrow")})
    assert heap.files() == []


def test_a_function_that_does_not_declare_what_was_imported_is_refused(directory):
    directory.imported(totals(a=1))
    with pytest.raises(ConfigurationError, match="has state already"):
        directory.imported(totals(a=1))
    with pytest.raises(Exception, match="does not declare the stored states 'by day'"):
        directory.job().run(Untimed(), [("a", 1)])


@pytest.mark.parametrize("is_killed", [False, True], ids=["failed", "killed"])
@pytest.mark.parametrize("request_number", [1, 4, 5])
def test_a_request_that_fails_leaves_no_version(directory, request_number, monkeypatch, is_killed):
    """A killed import does not delete what it has put, either."""
    put, left = LocalStorage.put, [request_number]

    def fails_once(self, name, data):
        left[0] -= 1
        if not left[0]:
            raise StorageError("the disk is full")
        return put(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "put", fails_once)
        patch.setattr(LocalStorage, "put_if_absent", fails_once)
        if is_killed:
            patch.setattr(LocalStorage, "delete", lambda *_: None)
        with pytest.raises(StorageError, match="the disk is full"):
            directory.imported(totals(a=1), savepoint="seed")
    directory.imported(totals(a=2), savepoint="seed")
    assert directory.job().run(Keep(), [("a", 1)])[0][1] == 2


def command(directory, *arguments, fails=False):
    settings = [f"--conf={key}={value}" for key, value in directory.conf.items()]
    options = ["--state-dir", directory.state_dir, "--json", *settings]
    found = CliRunner().invoke(main, ["state", *arguments[:1], *options, *arguments[1:]])
    assert bool(found.exit_code) == fails, found.output
    return found.output if fails else json.loads(found.stdout)


@pytest.mark.long
def test_the_command_makes_an_operator_of_what_it_exported(directory, monkeypatch):
    monkeypatch.chdir(directory.folder)
    filled(directory).close()
    command(directory, "export", "all.parquet", "--provisional", "--show-expired")
    command(directory, "export", "timers.arrow", "--timers", "--provisional")
    command(directory, "export", "parts", "--format=arrow", "--rows-per-file=4", "--provisional")
    new = ["--query", "new", "--uid", "totals"]
    types = ["--function", f"{__name__}:Keep", "--key", "string"]
    tried = command(directory, "import", "all.parquet", *new, *types, "--dry-run")
    assert (tried["run"], tried["rows"]["total"]) == (None, 10)
    assert command(directory, "ls")[0]["query"] == "old"
    files = ["all.parquet", "--timers", "timers.arrow"]
    done = command(directory, "import", *files, *new, "--like", "old", "--savepoint", "first")
    assert (done["savepoint"], done["timers"]) == ("first", 10)
    with directory.opened("old", provisional=True) as old, directory.opened("new") as found:
        assert content(found) == content(old)
    parts = ["parts", "--query", "other", "--uid", "sums"]
    done = command(directory, "import", *parts, "--like", "old", "--like-uid", "totals")
    assert done["rows"]["seen"] == 10


KEEPS_TOTALS = """
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

class Keep(KeyedProcessFunction):
    def open(self, context):
        context.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row, ctx):
        yield row
"""


@pytest.mark.long
def test_the_program_imports_a_file(heap):
    pq.write_table(totals(a=1, b=2)["total"], heap.folder / "total.parquet")
    (heap.folder / "keeping.py").write_text(KEEPS_TOTALS)
    program = [str(Path(sys.executable).with_name("forebay")), "state", "import"]
    where = ["--state-dir", heap.state_dir, "--query=orders", "--uid=totals"]
    types = ["--function=keeping:Keep", "--key=string", "--conf=spark.forebay.state.backend=heap"]
    asked = [*program, "total=total.parquet", *where, *types, "--json"]
    said = subprocess.run(asked, check=True, cwd=heap.folder, timeout=100, stdout=subprocess.PIPE)
    done = json.loads(said.stdout)
    assert (done["version"], done["rows"]) == (1, {"total": 2})
    with heap.opened() as found:
        assert found.run == done["run"]
        assert found.get_many("total", ["a", "b"]) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("total=t.parquet", "--query", "q"), "with --query and --uid"),
        (("total=t.parquet", "--query=q", "--uid=u"), "name one of them"),
        (("t.parquet", "t.parquet", "--query=q", "--uid=u"), "is for the same table"),
        (
            ("total=t.parquet", "total=t.parquet", "--query=q", "--uid=u"),
            "an earlier file is for the same table",
        ),
        (("total=t.parquet", "--remove-key=a"), "--remove-key needs --replace"),
        (("total=t.parquet", "--query=q", "--uid=u", "--like-uid=v"), "--like-uid needs --like"),
        (("bad.parquet", "--query=q", "--uid=u"), "bad.parquet is not a parquet file"),
        (("mixed", "--query=q", "--uid=u"), "or a folder of such files"),
    ],
)
def test_bad_arguments_of_the_command(heap, arguments, said, monkeypatch):
    monkeypatch.chdir(heap.folder)
    pq.write_table(totals(a=1)["total"], "t.parquet")
    (heap.folder / "bad.parquet").write_bytes(b"nothing")
    (heap.folder / "mixed").mkdir()
    (heap.folder / "mixed" / "a.parquet").touch()
    (heap.folder / "mixed" / "b.csv").touch()
    assert said in command(heap, "import", *arguments, fails=True)


def test_a_savepoint_that_fails_takes_the_version_back(heap, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(savepoints, "put_lasting", Mock(side_effect=StorageError("the disk is full")))
        with pytest.raises(StorageError, match="the disk is full"):
            heap.imported(totals(a=1), savepoint="seed")
    heap.imported(totals(a=2), savepoint="seed")
    assert heap.job().run(Keep(), [("a", 1)])[0][1] == 2


def test_rows_that_do_not_fit_on_the_local_disk(heap, monkeypatch):
    monkeypatch.setattr(
        pa.ipc.RecordBatchFileWriter, "write_batch", Mock(side_effect=OSError("full"))
    )
    with pytest.raises(ConfigurationError, match="Set TMPDIR to another folder"):
        heap.imported(totals(a=1))
    assert heap.files() == []


KILLED = f"""
import os, signal, sys
import pyarrow as pa
from forebay_state_processor.importing import import_state
from forebay_state_api.storage.obstore import LocalStorage
{KEEPS_TOTALS}
def killed_before(put):
    def changed(self, name, data):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return put(self, name, data)
    return changed

left = [int(sys.argv[2])]
LocalStorage.put = killed_before(LocalStorage.put)
LocalStorage.put_if_absent = killed_before(LocalStorage.put_if_absent)
table = dict(total=pa.table(dict(key=["a"], value=[100])))
names = dict(query="orders", uid="totals", tables=table, max_parallelism=16)
import_state(sys.argv[1], **names, function=Keep, key="string")
"""


@pytest.mark.slow
@pytest.mark.parametrize("request_number", range(1, 6))
def test_a_process_that_is_killed_leaves_no_version(heap, request_number):
    asked = [sys.executable, "-c", KILLED, heap.state_dir, str(request_number)]
    ended = subprocess.run(asked, check=False, timeout=100)
    assert ended.returncode == -signal.SIGKILL
    if request_number % 2:
        heap.imported(totals(a=2))
    assert heap.job().run(Keep(), [("a", 1)])[0][1] == (2 if request_number % 2 else None)
