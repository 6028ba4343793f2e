"""``forebay state``: `ls`, `get` and `scan`, as someone on call types them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pyarrow.csv
import pyarrow.ipc
import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.main import main
from forebay_state_api import (
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)

from .stored_job import START, lines


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


def test_the_operator_must_be_named_where_there_are_several(run, make_job, tmp_path):
    other = make_job(ValueStateDescriptor("n", int), uid="other", key_type=str)
    other.do("a", ("n.update", 1))
    error = run("get", "a", status=2)[1]
    assert "--query query --uid operator; --query query --uid other" in error
    assert "1" in run("get", "a", "--uid", "other", "--provisional")[0]


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
