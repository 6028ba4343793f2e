"""The five incidents of the how-to "on call", each found with the tools that the page names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from forebay_state_api.commands.main import main

from .incidents import INCIDENTS, ORDINARY, RemindOnly, Window, leaking_timers, ordinary

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
PAGE = (HOW_TO / "on-call.md").read_text(encoding="utf-8")

FOUND = {
    "hot-key": ("One key is hot", r"key group \d+ had 3\d,\d{3} of the 40,000 rows of batch 4"),
    "slow-storage": (
        "Storage is slow",
        r"before a manifest is written takes \d{3} ms each time$",
    ),
    "slow-writes": (
        "Storage is slow",
        r"^a commit takes [\d,]{3,5} ms to write its \d{1,2},\d{3} bytes$",
    ),
    "compaction-behind": (
        "Compaction is behind",
        r"in up to 10 runs in the last 10 versions, and 2 compactions",
    ),
    "leaking-timers": (
        "Timers leak",
        r"1\d,\d{3} timers were added and 0 fired in the last 5 versions, [34]\.\d new ones",
    ),
    "growing-state": ("State grows", "never shrank; without a time to live: rows"),
}
"""Incident → the symptom that `forebay top` shows, and its numbers."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a function that provokes an incident once, and returns its state directory."""
    made = {}

    def of(incident):
        if incident not in made:
            made[incident] = tmp_path_factory.mktemp(incident)
            INCIDENTS[incident](made[incident])
        return made[incident]

    return of


def forebay(*arguments):
    """Run a command, and return its output."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def symptoms(state):
    (found,) = json.loads(forebay("top", "--state-dir", state, "--once", "--json"))
    return {one["name"]: one["text"] for one in found["symptoms"]}


@pytest.mark.long
@pytest.mark.parametrize("incident", FOUND)
def test_top_shows_the_symptom_and_no_other(directory, incident):
    name, numbers = FOUND[incident]
    found = symptoms(directory(incident))
    assert set(found) == {name}
    assert re.search(numbers, found[name])
    printed = forebay("top", "--state-dir", directory(incident), "--once")
    assert f"! {name}: " in printed


def test_a_calm_job_has_no_symptoms(directory):
    assert symptoms(directory("calm")) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "backend"),
    [
        *((function, "heap") for function in ORDINARY),
        (Window, "lsm"),
        *(
            pytest.param(one, "lsm", marks=pytest.mark.slow)
            for one in ORDINARY
            if one is not Window
        ),
    ],
)
def test_windows_sessions_and_expiry_have_no_symptoms(function, backend, tmp_path):
    """By default all on the heap; the engine counts timers alike on every backend."""
    ordinary(function, tmp_path, backend)
    assert symptoms(tmp_path) == {}


@pytest.mark.long
@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_timers_of_a_function_without_state_leak_too(backend, tmp_path):
    leaking_timers(tmp_path, RemindOnly, backend)
    found = symptoms(tmp_path)
    assert set(found) == {"Timers leak"}
    assert re.search(FOUND["leaking-timers"][1], found["Timers leak"])


def test_explain_chooses_a_batch_of_the_hot_key(directory):
    printed = forebay("explain", "--state-dir", directory("hot-key"))
    assert re.search(r"Batch [234] took", printed)


def test_explain_names_the_hot_key(directory):
    """In one of the micro-batches; the machine may have held another one up elsewhere."""
    printed = [
        forebay("explain", "--state-dir", directory("hot-key"), "--batch", batch)
        for batch in (2, 3, 4)
    ]
    named = r"3\d,\d{3} of its 3\d,\d{3} rows were in key group \d+"
    assert any(re.search(named, one) and "split the hot key" in one for one in printed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("incident", "slow"),
    [
        # At least the time of one slow list.
        ("slow-storage", r"Of this, (3[5-9]|[4-9]\d)\d ms .* is the phase (open|commit_check):"),
        ("slow-writes", r"is the phase commit_files: .* writing [\d,]+ bytes took that long: the"),
    ],
)
def test_explain_sends_whoever_has_slow_storage_to_the_doctor(directory, incident, slow):
    printed = [
        forebay("explain", "--state-dir", directory(incident), "--batch", batch)
        for batch in range(3)
    ]
    advice = "forebay doctor probes the store"
    assert any(re.search(slow, one) and advice in one for one in printed)


@pytest.mark.parametrize("incident", FOUND)
def test_the_page_walks_through_it(incident):
    name, _ = FOUND[incident]
    assert f"### {name}" in PAGE
    assert f"incidents.py {incident} " in PAGE
    assert f"(on-call-{incident}.svg)" in PAGE
    picture = (HOW_TO / f"on-call-{incident}.svg").read_text(encoding="utf-8")
    assert name.replace(" ", "&#160;") in picture
    assert "url(" not in picture.replace("url(#", ""), "nothing is loaded from the network"
