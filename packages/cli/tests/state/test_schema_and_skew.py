"""``forebay state schema`` and ``skew``: what is declared, and how evenly it is spread."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_state_api import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.keys import key_group_of
from forebay_testing import FunctionHarness


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


def test_a_backend_that_does_not_know_sizes(run, monkeypatch, backend_class):
    monkeypatch.setattr(backend_class, "stored_bytes", StateBackend.stored_bytes)
    _, error = run("schema", *OPERATOR, "--sizes", status=2)
    assert f"the backend '{backend_class.name}' does not report the size of each state" in error
