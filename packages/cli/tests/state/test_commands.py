"""``forebay state``: its commands, as someone on call types them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from functools import cache

import attrs
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.main import main
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import key_group_of
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import START as START_OF_FEED
from forebay_state_processor.reading import ChangeFeed, difference
from forebay_state_processor.reading.bounded_passes import held_in_passes
from forebay_state_processor.reading.difference import Difference
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing import FunctionHarness, KeyedJob, ManualClock

START = datetime(2026, 1, 1, tzinfo=UTC)


@attrs.frozen
class Account:
    owner: str
    cents: int


class Counting(KeyedProcessFunction, CheckpointedFunction):
    def initialize_state(self, context):
        self.seen = context.operator_state_store.get_list_state(ListStateDescriptor("seen", int))

    def snapshot_state(self, context):
        self.seen.update([1])

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int))

    def process_element(self, row, ctx):
        self.n.update(1)
        return []


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Returns the directory of a job and the job, which is run once for each backend."""

    @cache
    def stored(backend_class):
        directory = tmp_path_factory.mktemp("stored")
        job = KeyedJob(
            backend_class,
            open_storage(str(directory)),
            descriptors=(
                ValueStateDescriptor("account", Account),
                ListStateDescriptor("seen", int),
                MapStateDescriptor("cards", str, float),
                ValueStateDescriptor("last", str, ttl=StateTtlConfig(timedelta(hours=1))),
            ),
            key_type=tuple[str, int],
            parallelism=2,
            clock=ManualClock(START),
        )
        job.scripts(
            [
                (("ann", 1), [("account.update", Account("ann", 150)), ("seen.add", 3)]),
                (("bob, jr", 2), [("account.update", Account("bob", 20)), ("cards.put", "x", 1.5)]),
            ]
        )
        job.scripts(
            [
                (("ann", 1), [("account.update", Account("ann", 99)), ("seen.add", 4)]),
                (("ann", 1), [("last.update", "now"), ("namespace", "w"), ("seen.add", 7)]),
            ]
        )
        job.do(("cid", 3), ("seen.add", 1))
        return directory, job

    return stored


@pytest.fixture
def job(stored, backend_class, tmp_path):
    """The job; ``tmp_path`` is a copy of its state directory."""
    directory, job = stored(backend_class)
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    return job


@pytest.fixture
def run(job, tmp_path):
    """Run a command; return stdout and stderr."""

    def run(*arguments, status=0):
        asked = ["state", *map(str, arguments), "--state-dir", str(tmp_path)]
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == status, (result.output, result.exception)
        return result.stdout, result.stderr

    return run


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_ls(run, job, tmp_path):
    (one,) = json.loads(run("ls", "--json")[0])
    assert (one["query"], one["uid"]) == ("query", "operator")
    assert (one["oldest"], one["newest"], one["final"]) == (1, 3, 2)
    assert (one["parallelism"], one["run"], one["pins"]) == (2, job.run_key, 0)
    assert one["bytes"] > 0
    header, row = run("ls")[0].splitlines()
    assert header.split()[:4] == ["query", "uid", "versions", "final"]
    assert row.split()[:4] == ["query", "operator", "1..3", "2"]


def test_get(run):
    found = json.loads(run("get", "ann,1", "--json")[0])
    assert (found["version"], found["final"], found["key"]) == (2, True, ["ann", 1])
    assert found["states"] == {
        "account": {"value": {"owner": "ann", "cents": 99}},
        "seen": {"value": [3, 4]},
        "last": {"value": "now", "written": START.isoformat()},
    }
    out, err = run("get", "ann,1", "--state", "account")
    assert out.splitlines()[1].split(maxsplit=2)[2] == '{"owner": "ann", "cents": 99}'
    assert err.startswith("version 2 (final), batch of 2026-01-01 00:00:00 UTC, run ")


def test_get_from_elsewhere(run, job):
    assert "150" in run("get", "ann,1", "--version", 1)[0]
    assert "150" in run("get", "ann,1", "--version", f"1@{job.run_key}")[0]
    assert run("get", "ann,1", "--namespace", "w")[0].split()[-1] == "[7]"
    out, err = run("get", "cid,3", "--provisional")
    assert "[1]" in out
    assert "version 3 (provisional: a replay" in err


def test_a_key_with_a_comma_is_quoted_as_in_csv(run):
    assert "1.5" in run("get", '"bob, jr",2')[0]


@pytest.mark.long
def test_nothing_under_a_key(run):
    assert run("get", "zoe,1", status=1)[1].splitlines()[-1] == (
        "nothing is stored under the key ('zoe', 1) in the default namespace"
    )
    of_seen = ("get", "cid,3", "--namespace", "w", "--state", "seen")
    assert run(*of_seen, status=1)[1].splitlines()[-1] == (
        "nothing of seen is stored under the key ('cid', 3) in the namespace 'w'"
    )


@pytest.mark.parametrize("namespace", ["NaN", "{}", '[[1], {"a": 2}]', "[" * 5_000])
@pytest.mark.parametrize("command", ["get", "history", "diff"])
def test_a_namespace_that_is_none(run, command, namespace):
    arguments = ("ann,1",) if command != "diff" else ("--from", "1", "--key", "ann,1")
    error = run(command, *arguments, "--namespace", namespace, "--provisional", status=2)[1]
    assert "is no namespace in JSON" in error.splitlines()[-1]


@pytest.mark.parametrize("text", ["ann", "ann,x", "ann,1,2"])
def test_a_key_that_is_none_names_the_type(run, text):
    error = run("get", text, status=2)[1]
    assert "is not a key of type tuple[str, int]" in error
    assert "as in ann,5" in error


@pytest.mark.long
def test_scan(run):
    rows = lines(run("scan", "--json")[0])
    assert len(rows) == 3
    (ann,) = [row for row in rows if row["key_1"] == "ann" and row["namespace"] is None]
    assert ann["account"] == {"owner": "ann", "cents": 99}
    assert ann["last written"] == START.isoformat()
    assert ann["last expires"] == (START + timedelta(hours=1)).isoformat()
    (bob,) = [row for row in rows if row["account"] and row["account"]["cents"] < 50]
    assert bob["cards"] == {"x": 1.5}
    out, err = run("scan", "--state", "seen", "--flat", "--columns", "key_1,value", "--limit", 2)
    assert len(out.splitlines()) == 3
    assert out.split()[:2] == ["key_1", "value"]
    assert "there are more rows than 2" in err
    assert len(lines(run("scan", "--state", "seen", "--json", "--limit", 1)[0])) == 1


def test_an_unknown_column_is_named(run):
    error = run("scan", "--state", "account", "--columns", "key_1,valeu", status=2)[1]
    assert "there is no column 'valeu'; columns: key_1, key_2, " in error


@pytest.mark.long
def test_key_groups_are_scanned_alone(run):
    parts = [lines(run("scan", "--json", "--key-groups", f"{n}..{n}")[0]) for n in range(8)]
    assert sum(map(len, parts)) == 3
    assert all(row["key_group"] == n for n, rows in enumerate(parts) for row in rows)
    assert "the operator has the key groups 0..7" in run("scan", "--key-groups", "8", status=2)[1]
    assert "is not a range such as 0..15" in run("scan", "--key-groups", "x", status=2)[1]


@pytest.mark.long
def test_diff(run, job):
    rows = lines(run("diff", "--from", 1, "--to", 2, "--json")[0])
    assert {(row["state"], row["operation"]) for row in rows} == {
        ("account", "put"),
        ("last", "put"),
        ("seen", "appended"),
    }
    (account,) = [row for row in rows if row["state"] == "account"]
    assert (account["key"], account["old"]["cents"], account["value"]["cents"]) == (
        ["ann", 1],
        150,
        99,
    )
    one = run("diff", "--from", 1, "--key", "ann,1", "--state", "seen", "--json")[0]
    assert [row["value"] for row in lines(one)] == [[4]]
    back = run("diff", "--from", 2, "--to", 0, "--state", "account", "--json")[0]
    assert [row["operation"] for row in lines(back)] == ["removed", "removed"]
    assert "there are more changes than 1" in run("diff", "--from", 0, "--limit", 1)[1]


@pytest.mark.long
def test_diff_of_some_key_groups(run, job):
    every = lines(run("diff", "--from", 0, "--json")[0])
    assert len(every) > 1
    parts = [lines(run("diff", "--from", 0, "--key-groups", n, "--json")[0]) for n in range(8)]
    assert sum(map(len, parts)) == len(every)
    assert max(map(len, parts)) < len(every)
    assert (
        "the operator has the key groups 0..7"
        in run("diff", "--from", 0, "--key-groups", "0..8", status=2)[1]
    )
    both = ("--key", "ann,1", "--key-groups", "0")
    assert "one of --key and --key-groups" in run("diff", "--from", 0, *both, status=2)[1]


@pytest.mark.long
def test_diff_in_little_memory(run, job, monkeypatch):
    asked = ("diff", "--from", 1, "--to", 2, "--json")
    passes = []

    def counted(groups, limit, hold):
        for one in held_in_passes(groups, limit, hold):
            passes.append(limit)
            yield one

    monkeypatch.setattr(difference, "held_in_passes", counted)
    at_once = sorted(run(*asked)[0].splitlines())
    assert {*passes} == {difference.HELD_BYTES}
    default = len(passes)
    passes.clear()
    assert sorted(run(*asked, "--held-bytes", "1k")[0].splitlines()) == at_once
    assert {*passes} == {1024}
    assert len(passes) > default
    for size in ("0", "much"):
        error = run(*asked, "--held-bytes", size, status=2)[1]
        assert f"--held-bytes = '{size}': expected a size such as 64k" in error


@pytest.mark.long
def test_diff_says_which_versions_are_final(run, job):
    at = job.run_key
    out, error = run("diff", "--from", 0, "--to", 2, "--json")
    assert error == f"from version 0 (empty) to version 2@{at} (final)\n"
    assert {(row["version"], row["run"], row["final"]) for row in lines(out)} == {(2, at, True)}
    for asked in (("--provisional",), ("--to", f"3@{at}")):
        out, error = run("diff", "--from", 2, *asked, "--json")
        assert error == (
            f"from version 2@{at} (final) to version 3@{at} (provisional: a replay of its batch "
            "may replace it)\n"
        )
        assert [(row["version"], row["final"]) for row in lines(out)] == [(3, False)]
    assert run("diff", "--from", 1)[0].split()[:7] == [
        *("state", "key", "namespace", "operation", "user_key", "old", "value")
    ]


def test_diff_prints_json_as_it_finds_it(run, job, monkeypatch):
    def rows_until_it_fails(self, state, **given):
        yield from read(self, state, **given)
        raise ConfigurationError("gone")

    read = Difference.rows
    monkeypatch.setattr(Difference, "rows", rows_until_it_fails)
    out, error = run("diff", "--from", 1, "--state", "last", "--json", status=2)
    assert [row["state"] for row in lines(out)] == ["last"]
    assert "gone" in error


def test_timers_are_scanned_and_compared(make_job, tmp_path):
    class Alarm(KeyedProcessFunction):
        def process_element(self, row, ctx):
            ctx.timers.register_processing_time(START + timedelta(hours=1))

        def on_timer(self, at, ctx):
            pass

    make_job(clock=ManualClock(START), key_type=str).run(Alarm(), [("a",)])
    asked = ["state", "scan", "--provisional", "--timers", "--json"]
    result = CliRunner().invoke(main, [*asked, "--state-dir", str(tmp_path)])
    (row,) = lines(result.stdout)
    assert (row["key"], row["domain"]) == ("a", "processing_time")
    asked = ["state", "diff", "--from", "0", "--provisional", "--timers", "--json"]
    result = CliRunner().invoke(main, [*asked, "--state-dir", str(tmp_path)])
    (row,) = lines(result.stdout)
    assert (row["key"], row["operation"]) == ("a", "put")
    assert (row["state"], row["user_key"]) == (
        "timers (processing_time)",
        "2026-01-01T01:00:00+00:00",
    )


@pytest.mark.long
def test_history(run, job):
    rows = lines(run("history", "ann,1", "--json")[0])
    assert [(row["version"], row["account"]["cents"], row["seen"]) for row in rows] == [
        (1, 150, [3]),
        (2, 99, [3, 4]),
    ]
    assert [row["run"] for row in rows] == [job.run_key] * 2
    rows = lines(run("history", "bob, jr" + ",2", "--json", status=2)[0])
    assert not rows
    of_bob = ("history", '"bob, jr",2', "--json")
    assert len(lines(run(*of_bob)[0])) == 1
    assert len(lines(run(*of_bob, "--all")[0])) == 2


def test_history_says_which_versions_are_final(run):
    asked = ("history", "cid,3", "--all", "--json")
    out, error = run(*asked)
    assert [(row["version"], row["final"]) for row in lines(out)] == [(1, True), (2, True)]
    assert error == "2 stored version(s), final\n"
    out, error = run(*asked, "--provisional")
    finals = [(row["version"], row["final"]) for row in lines(out)]
    assert finals == [(1, True), (2, True), (3, False)]
    assert error == (
        "3 stored version(s), the newest provisional: a replay of its batch may replace it\n"
    )


@pytest.mark.long
@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_export(run, tmp_path, ending):
    target = tmp_path / f"out.{ending}"
    out, _ = run("export", target, "--state", "account")
    assert out == f"2 rows in {target}\n"
    read = {
        "parquet": lambda: pq.read_table(target).to_pylist(),
        "arrow": lambda: pa.ipc.open_file(target).read_all().to_pylist(),
        "csv": lambda: pa.csv.read_csv(target).to_pylist(),
        "jsonl": lambda: lines(target.read_text()),
    }
    rows = read[ending]()
    assert {row["key_1"] for row in rows} == {"ann", "bob, jr"}
    value = {row["key_1"]: row["value"] for row in rows}["ann"]
    assert (json.loads(value) if ending == "csv" else value) == {"owner": "ann", "cents": 99}
    assert "exists: pass --overwrite" in run("export", target, status=2)[1]
    columns = "key_1,namespace,last,last expires"
    run("export", target, "--overwrite", "--columns", columns)
    rows = read[ending]()
    assert ",".join(rows[0]) == columns
    assert len(rows) == 3  # ann in two namespaces
    (at,) = [row["last expires"] for row in rows if row["last"]]
    at = at if isinstance(at, datetime) else datetime.fromisoformat(at)
    assert at == START + timedelta(hours=1)
    assert not [*tmp_path.glob(".forebay-export-*")]


@pytest.mark.long
def test_export_to_storage_and_in_parts(run, tmp_path):
    target = f"memory://{tmp_path.name}/copies/rows.parquet"
    report = json.loads(run("export", target, "--rows-per-file", 2, "--json")[0])
    names = [f"{target}/part-{number:05d}.parquet" for number in (0, 1)]
    assert (report["rows"], report["files"], report["version"]) == (3, names, 2)
    storage = open_storage(target)
    parts = [pq.read_table(pa.BufferReader(storage.get(one.name))) for one in storage.list()]
    assert [part.num_rows for part in parts] == [2, 1]
    run("export", target)
    assert "exists: pass --overwrite" in run("export", target, status=2)[1]
    run("export", tmp_path / "folder", "--format", "csv", "--rows-per-file", 2)
    assert len([*(tmp_path / "folder").iterdir()]) == 2


def test_an_export_names_its_faults(run, tmp_path):
    assert "the format of" in run("export", tmp_path / "out.txt", status=2)[1]
    assert "there is no directory" in run("export", tmp_path / "no" / "out.csv", status=2)[1]
    assert "--flat needs --state" in run("export", tmp_path / "out.csv", "--flat", status=2)[1]
    os.mkfifo(tmp_path / "pipe.csv")
    refused = run("export", tmp_path / "pipe.csv", "--overwrite", status=2)[1]
    assert "pipe.csv is no file" in refused
    assert (tmp_path / "pipe.csv").is_fifo()


def test_the_operator_must_be_named_where_there_are_several(run, make_job, tmp_path):
    other = make_job(ValueStateDescriptor("n", int), uid="other", key_type=str)
    other.do("a", ("n.update", 1))
    error = run("get", "a", status=2)[1]
    assert "--query query --uid operator; --query query --uid other" in error
    assert "1" in run("get", "a", "--uid", "other", "--provisional")[0]


OPERATOR = ("--query", "query", "--uid", "operator")


@pytest.mark.long
def test_skew_counts_keys_once(run):
    plain = json.loads(run("skew", *OPERATOR, "--count-keys", "--json")[0])
    assert sum(one["keys"] for one in plain["subtasks"]) == 2
    assert sum(one["keys"] for one in plain["key_groups"]) == 2
    assert len(plain["key_groups"]) == 8
    shares, whole = (
        sum(one["bytes"] for one in plain[part]) for part in ("key_groups", "subtasks")
    )
    assert shares == pytest.approx(whole, abs=8), "each is rounded"
    assert whole > 0
    out, _ = run("skew", *OPERATOR, "--count-keys", "--all-groups")
    assert out.splitlines()[-8].split()[0].isdigit()


def test_skew_shows_what_is_known_of_key_groups(make_job, tmp_path):
    job = make_job(ValueStateDescriptor("n", int), key_type=str, parallelism=2)
    groups = {key: key_group_of(key, job.max_parallelism) for key in ("ann", "bob", "cid")}
    for key in groups:
        job.do(key, ("n.update", 1))

    def shown(*options):
        asked = ["state", "skew", "--provisional", "--state-dir", str(tmp_path), *options]
        return CliRunner().invoke(main, asked, catch_exceptions=False).stdout

    assert json.loads(shown("--json"))["bytes_are_equal_parts"]
    said, head, *rows = shown().split("\n\n")[1].splitlines()
    assert said.startswith("files hold all key groups of a subtask: bytes are equal parts")
    assert head.endswith("rows of the batch")
    assert [(row.split("\t")[0], row.split("\t")[-1]) for row in rows] == [
        (str(groups["cid"]), "1")
    ]
    counted = shown("--count-keys").split("\n\n")[1].splitlines()[2:]
    assert {int(row.split("\t")[0]) for row in counted} == {*groups.values()}


@pytest.mark.long
@pytest.mark.parametrize("command", ["skew", "schema"])
def test_schema_and_skew_show_final_versions_unless_asked(run, job, command):
    def shown(*asked):
        plain = json.loads(run(command, *OPERATOR, *asked, "--json")[0])
        text = run(command, *OPERATOR, *asked)[0].splitlines()[0]
        which = "final" if plain["final"] else "provisional: a replay of its batch may replace it"
        assert text.startswith(f"version {plain['version']} ({which}), run {plain['run']}, ")
        assert plain["run"] == job.run_key
        return plain["version"], plain["final"]

    assert shown() == (2, True)
    assert shown("--version", 1) == (1, True)
    assert shown("--provisional") == shown("--version", f"3@{job.run_key}") == (3, False)
    _, error = run(command, *OPERATOR, "--version", 3, status=2)
    assert "no final version 3; the newest complete one is 3" in error
    assert "(--provisional) shows it before" in error


@pytest.mark.parametrize("command", ["skew", "schema"])
def test_schema_and_skew_of_an_operator_without_a_final_version(run, make_job, command):
    make_job(ValueStateDescriptor("n", int), uid="new", key_type=str).do("a", ("n.update", 1))
    of_new = (command, "--query", "query", "--uid", "new")
    _, error = run(*of_new, status=2)
    assert "no final version; the newest complete one is 1" in error
    assert "(--provisional) shows it before" in error
    assert run(*of_new, "--provisional")[0].startswith("version 1 (provisional: ")


def test_schema_with_the_size_of_each_state(run):
    asked = ("schema", *OPERATOR, "--sizes")
    found = {one["name"]: one["bytes"] for one in json.loads(run(*asked, "--json")[0])["states"]}
    assert found.keys() == {"account", "seen", "cards", "last"}
    assert all(size > 10 for size in found.values())
    header, *rows = run(*asked)[0].splitlines()[1:]
    assert header.split()[-1] == "bytes"
    assert {row.split()[0]: int(row.split()[-1].replace(",", "")) for row in rows} == found


def test_sizes_beside_operator_state(backend_class, tmp_path):
    where = {"state_dir": str(tmp_path), "query": "q", "uid": "u", "backend": backend_class.name}
    with FunctionHarness(Counting(), lambda row: row[0], key_type=str, **where) as harness:
        harness.process([("a",)])
    asked = ["state", "schema", "--sizes", "--provisional", "--state-dir", str(tmp_path)]
    states = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)["states"]
    found = {one["name"]: one["bytes"] for one in states}
    assert found.keys() == {"n", "seen"}
    assert found["n"] > 0
    assert found["seen"] is None
    shown = CliRunner().invoke(main, asked).stdout.splitlines()
    assert [line.split("\t")[-1] for line in shown if line.startswith("seen")] == ["-"]


COMMANDS_OF_ONE = {
    "get": ("state", "get", "a"),
    "scan": ("state", "scan"),
    "history": ("state", "history", "a"),
    "diff": ("state", "diff", "--from", "0"),
    "schema": ("state", "schema"),
    "skew": ("state", "skew"),
    "recover": ("recover",),
    "explain": ("explain",),
}


@pytest.mark.parametrize("command", COMMANDS_OF_ONE)
def test_the_only_operator_need_not_be_named(command, make_job, tmp_path):
    job = make_job(ValueStateDescriptor("n", int), query="clicks", uid="visits", key_type=str)
    for _ in range(3):
        job.do("a", ("n.update", 1))

    def run(*options):
        asked = [*COMMANDS_OF_ONE[command], "--state-dir", str(tmp_path), *options]
        return CliRunner().invoke(main, asked)

    found = run()
    assert found.exit_code == 0 or "were not measured" in found.stderr, found.output
    for options in (("--uid", "vists"), ("--query", "clicks", "--uid", "vists")):
        wrong = run(*options)
        assert wrong.exit_code == 2
        assert "'clicks'" in wrong.stderr
        assert "did you mean 'visits'?" in wrong.stderr
    assert "did you mean 'clicks'?" in run("--query", "clickz").stderr
    make_job(ValueStateDescriptor("n", int), query="clicks", uid="other", key_type=str).do(
        "a", ("n.update", 1)
    )
    assert "--query clicks --uid other; --query clicks --uid visits" in run().stderr


def test_maps_whose_keys_are_tuples(make_job, tmp_path):
    job = make_job(
        MapStateDescriptor("m", tuple[int, str], int),
        SortedMapStateDescriptor("s", tuple[int, str], dict[str, int]),
        ValueStateDescriptor("v", dict[str, dict[str, int]]),
        key_type=str,
    )
    job.do(
        "a", ("m.put", (1, "x"), 2), ("s.put", (1, "x"), {"y": 3}), ("v.update", {"p": {"q": 4}})
    )
    whole = {
        "m": [[{"_1": 1, "_2": "x"}, 2]],
        "s": [[{"_1": 1, "_2": "x"}, {"y": 3}]],
        "v": {"p": {"q": 4}},
    }

    def run(*arguments):
        asked = ["state", *arguments, "--provisional", "--state-dir", str(tmp_path)]
        result = CliRunner().invoke(main, asked, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    (row,) = lines(run("scan", "--json"))
    assert {name: row[name] for name in whole} == whole
    assert json.dumps(whole["s"]) in run("scan", "--state", "s")
    run("export", str(tmp_path / "rows.jsonl"))
    (row,) = lines((tmp_path / "rows.jsonl").read_text())
    assert {name: row[name] for name in whole} == whole
    run("export", str(tmp_path / "rows.csv"))
    (row,) = pyarrow.csv.read_csv(tmp_path / "rows.csv").to_pylist()
    assert {name: json.loads(row[name]) for name in whole} == whole


def test_a_backend_that_does_not_know_sizes(run, monkeypatch, backend_class):
    monkeypatch.setattr(backend_class, "stored_bytes", StateBackend.stored_bytes)
    _, error = run("schema", *OPERATOR, "--sizes", status=2)
    assert f"the backend '{backend_class.name}' does not know the bytes of each state" in error


@pytest.mark.parametrize(
    ("key_type", "key", "text"),
    [
        (int, 5, "5"),
        (str, "5", "5"),
        (bool, True, "true"),
        (bytes, b"\x01\xff", "0x01ff"),
        (date, date(2026, 1, 2), "2026-01-02"),
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00"),
        (datetime, datetime(2026, 1, 2, 3), "2026-01-02T03:00"),  # noqa: DTZ001
        (datetime, datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T04:00+01:00"),
        (float, 2.5, "2.5"),
        (None, "text", "text"),
        (None, 7, "7"),
    ],
)
@pytest.mark.parametrize("backend_class", [HeapBackend])
def test_keys_are_written_as_they_look(make_job, tmp_path, key_type, key, text):
    make_job(ValueStateDescriptor("n", int), key_type=key_type).do(key, ("n.update", 42))
    asked = ["state", "get", text, "--provisional", "--state-dir", str(tmp_path)]
    result = CliRunner().invoke(main, asked)
    assert "42" in result.stdout, result.output


def test_lazy_commands_have_the_help_of_their_commands():
    def pairs(group):
        for lazy in group:
            loaded = lazy.load() if hasattr(lazy, "load") else lazy
            yield lazy, loaded
            if hasattr(loaded, "commands"):
                yield from pairs(loaded.commands.values())

    for lazy, loaded in pairs(plugins().commands().values()):
        assert lazy.get_short_help_str(1_000) == loaded.get_short_help_str(1_000)
        assert lazy.name == loaded.name


HEAVY = ("grpc", "ray", "pyspark", "hypothesis", "forebay_compaction_ray.client")


def imported(code):
    """Return the modules that a program has imported at its end."""
    report = f"import sys\ntry:\n    {code}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=100, check=False
    )
    return set(done.stderr.split())


@pytest.mark.long
def test_help_imports_little():
    modules = imported("from forebay_cli.main import main; main(['--help'])")
    assert "forebay_cli.installed" in modules
    heavy = {*HEAVY, "pyarrow", "numpy", "rich.console", "forebay_engine.execution.engine"}
    assert not sorted(modules & heavy)


@pytest.mark.long
def test_get_imports_what_it_needs(job, tmp_path, backend_class):
    asked = ["state", "get", "ann,1", "--json", "--state-dir", str(tmp_path)]
    modules = imported(f"from forebay_cli.main import main; main({asked})")
    assert "forebay_state_processor.reading.snapshot" in modules
    writing = {
        f"forebay_engine.versions.{name}"
        for name in ("operator", "cleaning.janitor", "choosing.forks")
    }
    others = {
        f"forebay_state_processor.{name}" for name in ("reading.difference", "observing.watching")
    }
    heavy = {*HEAVY, *writing, *others, "rich.console", "forebay_engine.execution.engine"}
    if backend_class is HeapBackend:
        heavy.add("pyarrow")
    assert not sorted(modules & heavy)


SECRET = "hunter2hunter2"
WITH_SECRET = f"spark.forebay.storage.secret-access-key={SECRET}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "ann,1"),
        ("ls",),
        ("export", f"s3://user:{SECRET}@bucket/out.txt?sig={SECRET}"),
        ("export", "out.csv", "--checkpoint", f"memory://none?sig={SECRET}"),
        ("import", "--remove-key", "ann,1", "--replace", f"memory://none?sig={SECRET}"),
        ("import", f"account=s3://user:{SECRET}@bucket/in.parquet", "--replace", "none"),
        ("import", f"account=s3://bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", f"s3://bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", f"https://user:a={SECRET}@host/in.parquet", "--replace", "none"),
        ("import", f"account=s3:/bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", "--timers", f"s3://bucket/in.parquet?a={SECRET}", "--replace", "none"),
    ],
)
def test_secrets_are_not_printed(job, tmp_path, arguments):
    asked = ["state", *arguments, "--state-dir", str(tmp_path), "--conf", WITH_SECRET]
    result = CliRunner().invoke(main, asked)
    assert SECRET not in result.output
    assert SECRET not in repr(result.exception)


def test_a_url_with_a_secret_is_not_printed():
    url = f"memory://empty/folder?sig={SECRET}"
    for arguments in (["ls"], ["get", "a"]):
        result = CliRunner().invoke(main, ["state", *arguments, "--state-dir", url])
        assert SECRET not in result.output


def test_secrets_are_in_no_repr(job, tmp_path):
    settings = reader_settings(dict([WITH_SECRET.split("=")]))
    assert settings["storage.secret-access-key"] == SECRET
    where = {"query": "query", "uid": "operator", "settings": settings}
    source = OperatorSource.with_settings(open_storage(str(tmp_path)), **where)
    feed = ChangeFeed(source)
    with snapshot_of(source, source.choose()) as snapshot:
        shown = [source, feed, snapshot, snapshot.opened, settings]
        with feed.between(START_OF_FEED, feed.newest()) as difference:
            assert SECRET not in "".join(map(repr, [*shown, difference]))
