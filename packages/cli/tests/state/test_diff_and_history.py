"""``forebay state diff`` and ``history``: what changed from version to version."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_state_api import (
    KeyedProcessFunction,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading import difference
from forebay_state_processor.reading.bounded_passes import held_in_passes
from forebay_state_processor.reading.difference import Difference
from forebay_testing import ManualClock

from .stored_job import START, lines


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
