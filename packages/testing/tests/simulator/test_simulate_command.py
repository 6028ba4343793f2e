"""`forebay simulate` plays seeds, and repeats a failing one by its decisions."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from forebay_testing.simulate_command import simulate

from .protocol_faults import FAULTS

pytestmark = pytest.mark.long


def run(*arguments):
    return CliRunner().invoke(simulate, arguments)


def test_a_seed():
    done = run("--seed", "1", "--steps", "100")
    assert done.exit_code == 0, done.output
    assert "1 seed(s) from 1" in done.output
    assert done.output == run("--seed", "1", "--steps", "100").output


def test_seeds_for_some_time():
    done = run("--seed", "7", "--steps", "50", "--minutes", "0.005", "--json")
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert found["seeds"] >= 1
    assert found["failure"] is None


def test_a_failing_seed_is_shown_shrunk_and_repeated(monkeypatch):
    FAULTS["nobody_looks"](monkeypatch)
    done = run("--seed", "0", "--steps", "60")
    assert done.exit_code == 1
    assert "breaks a promise: the look for newer runs comes before the data" in done.output
    decisions = done.output.rpartition("--decisions")[2].strip()
    again = run("--seed", "0", "--steps", "60", "--decisions", decisions, "--json")
    assert json.loads(again.output)["failure"]["kind"].startswith("the look")
    assert again.exit_code == 1


def test_decisions_that_nobody_printed():
    assert run("--seed", "0", "--decisions", "x").exit_code == 2
    assert run("--seed", "0", "--decisions", "1", "--minutes", "1").exit_code == 2
