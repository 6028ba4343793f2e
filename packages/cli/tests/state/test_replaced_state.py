"""State that is exported, edited and imported again, and the query that goes on from it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow.dataset import Scanner

from forebay_cli.main import main
from forebay_engine.stored.restore import default_options
from forebay_engine.versions.format.checkpoint import Checkpoint
from forebay_engine.versions.format.keyed_by import KeyColumn, KeyedBy
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import FencedError, StateMigrationError, StorageError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.obstore import LocalStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.importing import open_next, replace_state
from forebay_state_processor.reading import open_state
from forebay_testing.clock import ManualClock
from forebay_testing.job import KeyedJob


class Visit(NamedTuple):
    city: str
    at: datetime


STATES = (
    ValueStateDescriptor("total", int),
    ListStateDescriptor("seen", Decimal),
    MapStateDescriptor("by day", str, Visit),
    ValueStateDescriptor("last", tuple[int, str], ttl=StateTtlConfig(timedelta(hours=1))),
)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
KEYS = ("a", "b", "c", "d")


class Keep(KeyedProcessFunction):
    """Adds to every state, and registers one timer per key."""

    def open(self, context):
        self.total, self.seen, self.by_day, self.last = (context._declare(one) for one in STATES)

    def process_element(self, row, ctx):
        key, amount = row
        self.total.update((self.total.value() or 0) + amount)
        self.seen.add(Decimal(amount))
        self.by_day.put("monday", Visit(key, NOON))
        self.last.update((amount, key))
        ctx.timers.replace_processing_time(ctx.timers.processing_time + timedelta(hours=5))
        yield key, self.total.value(), [*self.seen.get()], dict(self.by_day.items())

    def on_timer(self, at, ctx):
        yield ctx.current_key, "fired"


@pytest.fixture(params=["heap", pytest.param("lsm", marks=pytest.mark.slow), "shelf"])
def query(request, tmp_path, shelf_backend):
    """A query on each of our backends, and on one of a third party.

    By default lsm is in ``test_import_round_trip.py`` of state-processor, and with rows that change
    in ``tests/spark/test_replaced_state.py``.
    """
    return Query(plugins().backend(request.param), tmp_path)


class Query:
    """A stream whose checkpoint is on disk as Spark's is, which stops after each batch."""

    def __init__(self, backend, folder):
        self.folder, self.clock = folder, ManualClock()
        self.checkpoint = folder / "checkpoint"
        self.state_dir = str(folder / "state")
        storage = open_storage(self.state_dir)
        self.job = KeyedJob(
            backend,
            storage,
            options=default_options(backend),
            parallelism=2,
            max_parallelism=8,
            key_type=str,
            clock=self.clock,
        )
        for one in ("offsets", "commits"):
            (self.checkpoint / one).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id":"query"}')

    def run(self, *rows):
        job, batch = self.job, self.job.batch_id
        times = {} if job.checkpoint is None else dict(job.checkpoint.times_ms)
        times[batch] = self.clock.now_us // 1_000
        job.checkpoint = Checkpoint(location="file:/checkpoint", times_ms=times)
        offsets = f'v1\n{{"batchTimestampMs":{times[batch]}}}\n{{}}'
        (self.checkpoint / "offsets" / str(batch)).write_text(offsets)
        found = job.run(Keep(), list(rows))
        (self.checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self.clock.advance(timedelta(seconds=10))
        return found

    def command(self, *arguments, fails=False):
        options = ["--state-dir", self.state_dir, "--json"]
        found = CliRunner().invoke(main, ["state", *arguments[:1], *options, *arguments[1:]])
        assert bool(found.exit_code) == fails, found.output
        return found.output if fails else json.loads(found.stdout)

    def exported(self, state):
        path = str(self.folder / f"{state}.parquet")
        checkpoint = str(self.checkpoint)
        self.command("export", path, "--state", state, "--checkpoint", checkpoint, "--overwrite")
        return path, pq.read_table(path)

    def imported(self, *arguments, fails=False):
        return self.command("import", *arguments, "--replace", str(self.checkpoint), fails=fails)


def by_key(row):
    return row.key


def batch(amount):
    return [(key, amount) for key in KEYS]


@pytest.mark.long
def test_states_go_out_and_come_back_as_they_were(query):
    query.run(*batch(1))
    query.run(*batch(2))
    paths = [f"{one.name}={query.exported(one.name)[0]}" for one in STATES]
    with open_state(query.state_dir, query="query", uid="operator", provisional=True) as before:
        content = {name: sorted(before.scan(name), key=by_key) for name in before.states}
        timers = sorted(before.timers(), key=by_key)
    done = query.imported(*paths)
    assert done["rows"] == {one.name: 4 for one in STATES}
    with open_state(query.state_dir, query="query", uid="operator") as after:
        assert after.run == done["run"]
        for name, rows in content.items():
            assert sorted(after.scan(name), key=by_key) == rows
        assert sorted(after.timers(), key=by_key) == timers


@pytest.mark.long
def test_a_query_goes_on_from_an_edited_state(query):
    query.run(*batch(1))
    path, table = query.exported("total")
    edited = table.filter(pa.compute.field("key") != "b").to_pydict()
    edited["value"] = [100 for _ in edited["value"]]
    pq.write_table(pa.table(edited, schema=table.schema), path)
    query.imported(f"total={path}")
    query.job.restart()
    found = {row[0]: row[1:3] for row in query.run(*batch(1))}
    both = [Decimal(1), Decimal(1)]
    assert found == {"a": (101, both), "b": (1, both), "c": (101, both), "d": (101, both)}


@pytest.mark.long
def test_a_removed_key_leaves_nothing_and_its_timer_does_not_fire(query):
    query.run(*batch(1))
    assert query.imported("--remove-key", "b")["removed_keys"] == ["b"]
    query.job.restart()
    query.clock.advance(timedelta(hours=6))
    assert sorted(row[0] for row in query.run()) == ["a", "c", "d"]
    query.job.restart()
    (row,) = query.run(("b", 5))
    assert row[:3] == ("b", 5, [Decimal(5)])


@pytest.mark.long
def test_what_is_stored_of_a_removed_key_is_found_in_every_copy(query):
    query.run(*batch(1))
    query.run(*batch(2))
    done = query.imported("--remove-key", "b")
    assert done["version"] == 2

    def found(version, run=None):
        """Search a version as docs/how-to/mend-state.md does."""
        at = {"query": "query", "uid": "operator", "version": version, "run": run}
        with open_state(query.state_dir, **at, show_expired=True) as snapshot:
            whole = (snapshot.table(), snapshot.timer_table())
            of_key = {"filter": pc.field("key") == "b"}
            rows, timers = (Scanner.from_batches(one, **of_key).to_table() for one in whole)
        return rows["total"].to_pylist(), len(timers)

    assert found(1) == ([1], 1)
    assert found(2, done["replaced"]) == ([3], 1)
    assert found(2) == found(2, done["run"]) == ([], 0)


@pytest.mark.long
def test_edited_timers_are_all_that_there_are(query):
    query.run(*batch(1))
    path = str(query.folder / "timers.parquet")
    query.command("export", path, "--timers", "--provisional")
    table = pq.read_table(path)
    assert sorted(table["key"].to_pylist()) == [*KEYS]
    sooner = pa.array([query.clock.now + timedelta(hours=1)] * 2, pa.timestamp("us", "UTC"))
    kept = table.filter(pa.compute.field("key").isin(["b", "c"]))
    at = kept.column_names.index("time")
    pq.write_table(kept.set_column(at, "time", sooner), path)
    assert query.imported("--timers", path)["timers"] == 2
    query.job.restart()
    query.run(("b", 1))  # replaces the timer of its key
    query.clock.advance(timedelta(hours=2))
    assert query.run() == [("c", "fired")]
    query.clock.advance(timedelta(hours=4))
    assert query.run() == [("b", "fired")]


@pytest.mark.long
def test_a_batch_that_spark_did_not_commit_runs_again_on_the_copy(query):
    query.run(*batch(1))
    query.run(*batch(1))
    (query.checkpoint / "commits" / "1").unlink()
    query.imported("--remove-key", "a")
    query.job.restart(batch_id=1)
    assert {row[0]: row[1] for row in query.run(*batch(1))} == {"a": 1, "b": 2, "c": 2, "d": 2}


@pytest.mark.long
def test_what_such_a_batch_wrote_is_neither_exported_nor_counted_twice(query):
    query.run(*batch(1))
    query.run(*batch(1))
    (query.checkpoint / "commits" / "1").unlink()
    path, table = query.exported("total")
    assert set(table["value"].to_pylist()) == {1}
    where = {"query": "query", "uid": "operator", "checkpoint": str(query.checkpoint)}
    with open_next(query.state_dir, **where) as snapshot:
        assert snapshot.to_arrow("total").read_all().equals(table)
    query.imported(f"total={path}")
    query.job.restart(batch_id=1)
    assert {row[0]: row[1] for row in query.run(*batch(1))} == dict.fromkeys(KEYS, 2)


@pytest.mark.parametrize("option", ["--provisional", "--version=1"])
def test_a_checkpoint_names_the_version_to_export(query, option):
    query.run(*batch(1))
    path, checkpoint = str(query.folder / "total.parquet"), str(query.checkpoint)
    said = query.command("export", path, "--checkpoint", checkpoint, option, fails=True)
    assert "leave --version and --provisional out" in said


def test_a_query_that_was_not_stopped_is_fenced(query):
    query.run(*batch(1))
    query.imported("--remove-key", "a")
    with pytest.raises(FencedError, match="belongs to a newer run"):
        query.run(*batch(1))


@pytest.mark.long
def test_from_python_a_request_that_fails_leaves_the_old_copy(query, monkeypatch):
    query.run(*batch(1))
    put, left = LocalStorage.put, [3]

    def fails_now_and_then(self, name, data):
        left[0] -= 1
        if not left[0]:
            raise StorageError("the disk is full")
        return put(self, name, data)

    how = {"query": "query", "uid": "operator", "checkpoint": str(query.checkpoint), "tables": {}}
    monkeypatch.setattr(LocalStorage, "put", fails_now_and_then)
    with pytest.raises(StorageError, match="the disk is full"):
        replace_state(query.state_dir, without_keys=["a"], **how)
    query.job.restart()
    assert {row[0]: row[1] for row in query.run(*batch(1))} == dict.fromkeys(KEYS, 2)
    replace_state(query.state_dir, without_keys=["a"], **how)
    query.job.restart()
    assert {row[0]: row[1] for row in query.run(*batch(1))}["a"] == 1


def test_a_dry_run_writes_nothing(query):
    query.run(*batch(1))
    before = sorted(query.folder.glob("state/**/*"))
    assert (
        query.command(
            "import", "--remove-key", "a", "--dry-run", "--replace", str(query.checkpoint)
        )["run"]
        is None
    )
    assert [one for one in sorted(query.folder.glob("state/**/*")) if one not in before] == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda t: t.set_column(2, "value", [["x"] * 4]),
            "of state 'total', row 1: state",
        ),
        (lambda t: t.drop_columns("value"), "it needs key, value"),
        (lambda t: t.append_column("colour", [["red"] * 4]), "it needs key, value"),
        (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "row 5: the key"),
        (lambda t: t.set_column(2, "value", [pa.nulls(4, pa.int64())]), "row 1: state 'total'"),
    ],
    ids=["another type", "a column is missing", "a column too many", "a key twice", "null"],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_written(query, edit, said):
    query.run(*batch(1))
    path, table = query.exported("total")
    at = table.column_names.index("value")
    table = table.select([*[n for n in table.column_names if n != "value"][:2], "value"])
    assert at
    pq.write_table(edit(table), path)
    before = sorted(query.folder.glob("state/**/*"))
    assert said in query.imported(f"total={path}", fails=True)
    assert sorted(query.folder.glob("state/**/*")) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to import"),
        (("=total.parquet",), "not of the form STATE=FILE"),
        (("total",), "a table is a .parquet or an .arrow file"),
        (("total=a.parquet", "--savepoint", "s"), "--savepoint is for a new operator"),
        (("total=nothing.parquet",), "there is no file"),
        (("total=s3://bucket/a.parquet",), "s3://bucket/a.parquet is a URL, and a table is a file"),
        (("total=nothing.csv",), "a table is a .parquet or an .arrow file"),
        (("--remove-key", "zed"), "holds the key 'zed'"),
    ],
)
def test_bad_arguments(query, arguments, said):
    query.run(*batch(1))
    assert said in query.imported(*arguments, fails=True)


def test_another_folder_than_a_checkpoint(query):
    query.run(*batch(1))
    query.checkpoint = query.folder
    assert "is not the checkpoint of a stream: metadata" in query.imported(
        "--remove-key", "a", fails=True
    )


def test_the_copy_is_kept_under_the_same_key_columns(query):
    query.job.keyed_by = KeyedBy([[KeyColumn("user", "string")]])
    query.run(*batch(1))
    replace_state(
        query.state_dir,
        query="query",
        uid="operator",
        checkpoint=str(query.checkpoint),
        tables={},
        without_keys=["a"],
    )
    query.job.restart()
    query.job.keyed_by = KeyedBy([[KeyColumn("account", "string")]])
    with pytest.raises(StateMigrationError, match=r"key_alias=\{'account': 'user'\}"):
        query.run(*batch(1))
