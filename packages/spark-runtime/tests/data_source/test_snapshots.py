"""The data source without Spark: options, versions, keys and key groups, types, pins."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql.datasource", reason="pyspark 3.5 has no Python data sources")

from pyspark.sql.types import LongType, StructField, StructType

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.choosing.pins import list_pins
from forebay_spark_runtime.arrow.spark_types import arrow_schema, fitted
from forebay_spark_runtime.data_source import snapshot_reader
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, VersionGoneError
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import open_state
from forebay_state_processor.reading import version_choice as choosing
from forebay_testing import CountingStorage, KeyedJob, ManualClock
from pyspark_forebay import DefaultSource

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Visit(NamedTuple):
    at: datetime
    took: timedelta
    price: Decimal
    opens: time | None


N = ValueStateDescriptor("n", int)
SEEN = ListStateDescriptor("seen", str)
VISITS = MapStateDescriptor("visits", str, Visit)
LAST = ValueStateDescriptor("last", float, ttl=StateTtlConfig(timedelta(hours=1), cleanup=()))
VISIT = Visit(NOON, timedelta(seconds=3), Decimal("1.50"), time(9, 30))
KEYS = [f"user {number}" for number in range(20)]
EVERY = sorted((key, at) for at, key in enumerate(KEYS))


@pytest.fixture
def make_job(tmp_path):
    """Make a job whose state directory is ``tmp_path``."""

    def make(*descriptors, **given):
        given = {"key_type": str, "parallelism": 2, "max_parallelism": 8} | given
        storage = open_storage(str(tmp_path))
        return KeyedJob(HeapBackend, storage, descriptors=descriptors, **given)

    return make


@pytest.fixture
def job(make_job):
    """A job with 20 keys; its second version is final, its third one is not."""
    job = make_job(N, SEEN, VISITS, LAST)
    job.scripts([(key, [("n.update", at)]) for at, key in enumerate(KEYS)])
    job.do(KEYS[0], ("seen.add", "x"), ("visits.put", "home", VISIT), ("last.update", 0.5))
    job.do(KEYS[1], ("n.update", 1_000))
    return job


class Frame:
    """Does with a source what Spark does: sends it on, plans scans, reads partitions."""

    def __init__(self, options):
        source = DefaultSource(options)
        self.schema = source.schema()
        self._source = pickle.dumps(source)

    def partitions(self):
        reader = pickle.loads(self._source).reader(self.schema)
        return [(pickle.dumps(reader), part) for part in reader.partitions()]

    def rows(self, *columns):
        found = []
        for reader, part in self.partitions():
            for batch in pickle.loads(reader).read(part):
                assert arrow_schema(self.schema).equals(batch.schema)
                found += [tuple(row[name] for name in columns) for row in batch.to_pylist()]
        return sorted(found, key=str)


@pytest.fixture
def read(tmp_path):
    def read(**options):
        given = {"query": "query", "uid": "operator", "path": str(tmp_path)} | options
        return Frame(given)

    return read


def test_the_table_of_an_operator(job, read):
    frame = read()
    assert frame.schema.simpleString() == (
        "struct<key:string,namespace:string,key_group:int,last:double,last written:timestamp,"
        "last expires:timestamp,n:bigint,seen:array<string>,visits:map<string,struct<at:timestamp,"
        "took:interval day to second,price:string,opens:string>>>"
    )
    assert frame.rows("key", "n") == sorted(EVERY, key=str)
    row = next(one for one in frame.rows("key", "seen", "last", "visits") if one[1])
    visit = {"at": NOON, "took": VISIT.took, "price": "1.50", "opens": "09:30:00.000000"}
    assert row == (KEYS[0], ["x"], 0.5, [("home", visit)])
    (times,) = [
        row[1:] for row in frame.rows("key", "last written", "last expires") if row[0] == KEYS[0]
    ]
    assert times[1] == times[0] + timedelta(hours=1)


class Alarms(KeyedProcessFunction):
    def process_element(self, row, ctx):
        ctx.timers.register_processing_time(NOON + timedelta(seconds=row[1]))

    def on_timer(self, at, ctx):
        pass


def test_timers_are_rows(make_job, read):
    make_job(N, clock=ManualClock(NOON)).run(Alarms(), [(key, at + 1) for key, at in EVERY])
    frame = read(timers="true", provisional="true")
    assert frame.schema.simpleString() == (
        "struct<key:string,namespace:string,key_group:int,domain:string,time:timestamp>"
    )
    expected = [(key, "processing_time", NOON + timedelta(seconds=at + 1)) for key, at in EVERY]
    assert frame.rows("key", "domain", "time") == sorted(expected, key=str)
    first = read(timers="true", provisional="true", keyGroups="0-3").rows("key")
    second = read(timers="true", provisional="true", keyGroups="4-7").rows("key")
    assert first
    assert second
    assert sorted(first + second) == [(key,) for key in sorted(KEYS)]


def test_the_schema_says_which_version_the_rows_show(job, read):
    final, newest = read(state="n"), read(state="n", provisional="true")
    assert [frame.schema[0].metadata for frame in (final, newest)] == [
        {"forebay": {"version": 2, "run": job.run_key, "final": True}},
        {"forebay": {"version": 3, "run": job.run_key, "final": False}},
    ]


def test_a_task_reads_several_subtasks_that_have_little(make_job, read, tmp_path, monkeypatch):
    job = make_job(N, parallelism=4)
    job.scripts([(key, [("n.update", at)]) for at, key in enumerate(KEYS)])
    frame = read(state="n", provisional="true")

    def ranges():
        return [(part.groups.start, part.groups.end) for _, part in frame.partitions()]

    assert ranges() == [(0, 7)]
    assert frame.rows("key", "value") == sorted(EVERY, key=str)
    opened = open_state(str(tmp_path), query="query", uid="operator", provisional=True)
    with opened as snapshot:
        two_subtasks = int(4 * snapshot.bytes_per_group) + 1
    monkeypatch.setattr(snapshot_reader, "TASK_BYTES", two_subtasks)
    assert ranges() == [(0, 3), (4, 7)]
    assert frame.rows("key", "value") == sorted(EVERY, key=str)
    monkeypatch.setattr(snapshot_reader, "TASK_BYTES", 1)
    assert ranges() == [(0, 1), (2, 3), (4, 5), (6, 7)]
    monkeypatch.undo()
    frame = read(state="n", provisional="true", keyGroups="0-2,4,5")
    assert ranges() == [(0, 2), (4, 5)]


def test_a_flattened_state(job, read):
    flat = read(state="visits", flat="true")
    assert flat.rows("key", "user_key") == [(KEYS[0], "home")]


def test_all_actions_of_a_dataframe_read_the_version_that_load_chose(job, read):
    df = read(state="n", keys=f'["{KEYS[1]}"]')
    assert df.rows("value") == [(1,)]
    job.do(KEYS[1], ("n.update", 2_000))
    assert df.rows("value") == [(1,)]
    assert read(state="n", keys=f'["{KEYS[1]}"]').rows("value") == [(1_000,)]


def test_versions_and_what_is_final(job, read):
    def version(**options):
        return read(state="n", keys=f'["{KEYS[1]}"]', **options).rows("value")

    assert version(version="1") == version() == [(1,)]
    assert version(provisional="true") == [(1_000,)]
    run = job._run.key
    assert version(version=f"3@{run}", provisional="true") == [(1_000,)]
    with pytest.raises(ConfigurationError, match="no final version 3; the newest complete"):
        version(version="3")


@pytest.mark.long
def test_keys_and_key_groups(job, read):
    keys = f'["{KEYS[3]}", "nobody", "{KEYS[7]}"]'
    assert read(keys=keys).rows("key", "n") == [(KEYS[3], 3), (KEYS[7], 7)]
    assert read(keys=keys, namespace="null", state="n").rows("key", "value") == [
        *[(KEYS[3], 3), (KEYS[7], 7)]
    ]
    found = [read(keyGroups=groups).rows("key", "n") for groups in ("0-2", "3,4-7")]
    assert all(found)
    assert sorted(found[0] + found[1], key=str) == EVERY
    assert read(keys='["nobody"]').rows("n") == []


def test_keys_of_several_columns(make_job, read):
    job = make_job(N, key_type=tuple[str, date])
    key = ("ann", date(2024, 5, 1))
    job.do(key, ("n.update", 1))
    job.do(key)
    df = read(keys='[["ann", "2024-05-01"]]')
    assert df.rows("key_1", "key_2", "n") == [(*key, 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sate": "n"}, r"no option 'sate'; did you mean 'state'\? Its options"),
        ({"unheard of": "n"}, r"no option 'unheard of'\. Its options"),
        ({"state": "m"}, "has no state 'm'; its states"),
        ({"uid": ""}, "'uid' is missing; queries in .*'query' .*operator"),
        ({"query": "another"}, "nothing is stored of query 'another'"),
        ({"keys": "[7]"}, "has keys of type"),
        ({"keyGroups": "a-b"}, "write numbers and ranges"),
        ({"keys": "[]", "keyGroups": "0"}, "not both"),
        ({"flat": "true"}, "'flat' is for one state"),
        ({"timers": "true", "state": "n", "keys": "[]"}, "leave out state, keys"),
        ({"lease": "soon"}, "lease"),
        ({"lease": "4000d"}, "lease is a timedelta of 1 second to 3650 days"),
        ({"lease": "9999999d"}, "lease = .*up to 36500d"),
        ({"stateDir": "/elsewhere"}, "name one state directory"),
        ({"startingVersion": "3"}, "has no option startingVersion"),
    ],
)
def test_bad_options(job, read, options, message):
    with pytest.raises(ConfigurationError, match=message):
        read(**options)


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "directory", [f"s3://user:{SECRET}@bucket/state", f"s3://bucket/state?sig={SECRET}"]
)
@pytest.mark.parametrize("option", ["path", "stateDir"])
def test_secrets_are_in_no_error(read, option, directory):
    with pytest.raises(ConfigurationError, match=r"password|signature|both were given") as caught:
        read(**{option: directory})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("what", [{}, {"changes": "true", "state": "n"}])
def test_secrets_are_in_no_repr(job, tmp_path, monkeypatch, what):
    monkeypatch.setattr(choosing, "open_storage", lambda url, _: open_storage(url))
    setting = "spark.forebay.storage.secret-access-key"
    options = {"query": "query", "uid": "operator", "path": str(tmp_path), setting: SECRET, **what}
    source = DefaultSource(options)
    schema = source.schema()
    reader = source.streamReader(schema) if what else source.reader(schema)
    parts = [] if what else [*reader.partitions()]
    shown = [source, source._opened, reader, *vars(reader).values(), *parts]
    assert SECRET not in "".join(map(repr, shown))
    assert source._opened is not None


def test_a_schema_of_the_users_own_is_refused(job, tmp_path):
    source = DefaultSource({"query": "query", "uid": "operator", "stateDir": str(tmp_path)})
    with pytest.raises(ConfigurationError, match=r"leave .schema\(\) out"):
        source.reader(StructType([StructField("n", LongType())]))


def test_columns_that_spark_takes_for_one(make_job, read):
    job = make_job(N, ValueStateDescriptor("N", int), ValueStateDescriptor("KEY", int))
    job.do("ann", ("n.update", 1), ("N.update", 2), ("KEY.update", 3))
    job.do("ann")
    with pytest.raises(
        ConfigurationError, match="two columns whose names differ only in case, 'N'"
    ):
        read()
    assert read(state="N").rows("value") == [(2,)]
    assert read(state="KEY").rows("value") == [(3,)]


def test_a_state_that_is_named_like_the_key(make_job, read):
    job = make_job(N, ValueStateDescriptor("KEY", int))
    job.do("ann", ("n.update", 1), ("KEY.update", 3))
    job.do("ann")
    assert read().rows("key", "KEY value", "n") == [("ann", 3, 1)]


def test_a_pin_that_has_expired(job, read):
    frame = read(state="n", lease="30 min")
    (pin,) = list_pins(job.storage)
    assert pin.lease == timedelta(minutes=30)
    job.storage.delete([pin.name])
    assert len(frame.rows("key")) == len(KEYS), "the version is still there"
    planned = frame.partitions()
    job.storage.delete([info.name for info in job.storage.list("versions")])
    with pytest.raises(VersionGoneError, match=r"the janitor deleted it\. .* its pin expired"):
        frame.partitions()
    with pytest.raises(VersionGoneError, match=r"the janitor deleted it\. .* its pin expired"):
        [*pickle.loads(planned[0][0]).read(planned[0][1])]


def test_a_pin_of_which_a_quarter_has_passed_is_renewed(job, read, tmp_path):
    frame = read(state="n", lease="30 min")
    frame.partitions()
    (pin,) = list_pins(job.storage)
    (stored,) = tmp_path.rglob(f"pins/{pin.name.removeprefix('pins/')}")
    passed = (datetime.now(UTC) - timedelta(minutes=8)).timestamp()
    os.utime(stored, (passed, passed))
    frame.partitions()
    assert sorted(one.renewal for one in list_pins(job.storage)) == [
        pin.renewal,
        pin.renewal + 1,
    ]


def test_tasks_leave_no_pins_of_their_own(job, read):
    read(state="n").rows("key")
    assert len(list_pins(job.storage)) == 1


def test_what_cannot_be_read_leaves_no_pin(job, read):
    for options in ({"state": "m"}, {"keys": "[7]"}):
        with pytest.raises(ConfigurationError):
            read(**options)
    assert not list_pins(job.storage)


def test_only_the_files_of_the_chosen_key_groups_are_opened(make_job, read, monkeypatch):
    job = make_job(N, parallelism=4)
    job.scripts([(key, [("n.update", at)]) for at, key in enumerate(KEYS)])
    job.do(KEYS[0])
    opened = []

    def counting(directory, options):
        opened.append(CountingStorage(open_storage(directory, options)))
        return opened[-1]

    def files_read(kind):
        gets = {name for one in opened for what, name in one.requests if what.startswith("get")}
        return len([name for name in gets if kind in name])

    monkeypatch.setattr(choosing, "open_storage", counting)
    (group,) = {group for _, group in read(keys=f'["{KEYS[5]}"]').rows("key", "key_group")}
    for chosen in ({"keys": f'["{KEYS[5]}"]'}, {"keyGroups": str(group)}):
        planned = read(state="n", **chosen).partitions()
        opened.clear()
        for reader, part in planned:
            assert [*pickle.loads(reader).read(part)]
        assert (files_read("/manifest-"), files_read("/data/")) == (1, 1)


def test_a_column_that_no_longer_fits_the_schema():
    batch = pa.RecordBatch.from_pydict({"n": ["seven"]})
    with pytest.raises(ConfigurationError, match="column 'n' is of type string in the state and"):
        fitted(batch, pa.schema({"n": pa.int64()}))
    with pytest.raises(ConfigurationError, match="the state has no column 'm'"):
        fitted(batch, pa.schema({"m": pa.int64()}))


BROKEN = """
import importlib.abc, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("forebay", "pyarrow", "attrs", "attr")):
            raise ImportError("broken on purpose: " + name)

sys.meta_path.insert(0, Broken())
import pyspark_forebay
assert pyspark_forebay.DefaultSource.name() == "forebay"
assert not [name for name in sys.modules if name.startswith("forebay")]
try:
    pyspark_forebay.DefaultSource({}).schema()
except ImportError as error:
    assert "broken on purpose: forebay" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.long
def test_the_module_that_spark_imports_cannot_fail():
    subprocess.run([sys.executable, "-c", BROKEN], check=True, timeout=100)


ANOTHER = """
from pyspark.sql.datasource import DataSource

class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "another"
"""
LOOK_UP = """
import io
from pyspark.serializers import SpecialLengths
from pyspark.sql.worker import lookup_data_sources as look_up

found = io.BytesIO()
if hasattr(look_up, "_main"):  # pyspark 4.3 and newer
    look_up._main(None, found)
else:  # nothing is read that a JVM sends, but the end
    for step in ("check_python_version", "setup_spark_files", "setup_broadcasts"):
        setattr(look_up, step, lambda _: None)
    look_up.main(io.BytesIO(SpecialLengths.END_OF_STREAM.to_bytes(4, "big", signed=True)), found)
assert b"another" in found.getvalue() and b"pyspark_forebay" in found.getvalue(), found.getvalue()
"""


@pytest.mark.long
def test_spark_finds_other_sources_beside_a_broken_installation(tmp_path):
    (tmp_path / "pyspark_another.py").write_text(ANOTHER)
    script = BROKEN.replace('("forebay", "pyarrow", "attrs", "attr")', '("forebay", "attr")')
    command = [sys.executable, "-c", script + LOOK_UP]
    subprocess.run(command, check=True, timeout=100, env=os.environ | {"PYTHONPATH": str(tmp_path)})
