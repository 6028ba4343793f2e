"""The five incidents of the how-to "on call", each found with the tools that the page names."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from forebay_cli.main import main
from forebay_console import Access, StateDirectory, application
from forebay_state_api.settings import resolve_settings
from forebay_state_api.storage import open_storage

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
SHOWN = {
    "hot-key": r"key groups with most rows, in subtask \d: \d+ \(9\d %\)",
    "slow-storage": r"O{9}.*V{9}",
    "slow-writes": r"W{9}",
    "compaction-behind": r"\n +10 .*W{9}(.*\n)+.*compactions: 2 pending",
    "leaking-timers": r" 2\d\d kB ",
    "growing-state": r"\+[\d.]+ .B/h",
}
"""Incident → the rest of `forebay top`, as on the page."""
IN_CONSOLE = {
    "hot-key": ("/groups", r"Hottest key groups .* \d+ [01] 3\d,\d{3} "),
    "slow-storage": ("/versions/3", r"commit check [3-9]\d\d ms"),
    "slow-writes": ("/versions/3", r"commit files (\d{3} ms|\d.* s) "),
    "compaction-behind": ("/compaction", r"Pending 2 submitted, no result yet"),
    "leaking-timers": ("/versions/5", r"timers added \d,\d{3} .* timers fired 0 "),
    "growing-state": ("/", r" kB \+\d[\d.]* .B/h "),
}
"""Incident → the page of the console that shows it, and its numbers there."""


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
    assert re.search(SHOWN[incident], printed)


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


def explained(state, batches, *more):
    """Return what `forebay explain` prints of each batch."""
    return [forebay("explain", "--state-dir", state, "--batch", at, *more) for at in batches]


@pytest.mark.long
def test_explain_chooses_a_batch_of_the_hot_key(directory):
    printed = forebay("explain", "--state-dir", directory("hot-key"))
    assert re.search(r"Batch [234] took", printed)


def test_explain_names_the_hot_key(directory):
    """In one of the micro-batches; the machine may have held another one up elsewhere."""
    printed = explained(directory("hot-key"), (2, 3, 4))
    named = r"3\d,\d{3} of its 3\d,\d{3} rows were in key group \d+"
    assert any(re.search(named, one) and "split the hot key" in one for one in printed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("incident", "slow"),
    [
        # At least the time of one slow request.
        ("slow-storage", r"Of this, (3[5-9]|[4-9]\d)\d ms .* is the phase (open|commit_check):"),
        ("slow-writes", r"is the phase commit_files: .* writing [\d,]+ bytes took that long: the"),
    ],
)
def test_explain_sends_whoever_has_slow_storage_to_the_doctor(directory, incident, slow):
    printed = explained(directory(incident), range(3))
    advice = "forebay doctor probes the store"
    assert any(re.search(slow, one) and advice in one for one in printed)


@pytest.mark.long
def test_explain_names_the_compaction_in_a_commit(directory):
    printed = forebay("explain", "--state-dir", directory("compaction-behind"))
    named = r"Batch 10 took .* is the phase commit_files: .* the commit itself compacted for \d"
    assert re.search(named, printed)
    assert "What changes it: more CPU for the executors" in printed


@pytest.mark.long
def test_a_commit_has_to_compact_after_ten(directory):
    state = directory("compaction-behind")
    found = (json.loads(one) for one in explained(state, range(14), "--json"))
    stalled = [one["numbers"]["figures"]["compaction_stalled_seconds"] for one in found]
    assert [batch for batch, seconds in enumerate(stalled) if seconds] == [10]


@pytest.mark.long
@pytest.mark.parametrize("incident", ["leaking-timers", "growing-state"])
def test_explain_does_not_find_what_many_batches_add_up_to(directory, incident):
    for printed in explained(directory(incident), range(5)):
        assert "The likely cause: " in printed
        assert not re.search(r"ctx\.timers|time to live", printed)


def console(state, path):
    """Return the text of a page of the console; ``path`` is that below the operator's, or /."""
    watched = StateDirectory(open_storage(state), resolve_settings({}), ttl_s=60, operators_s=60)
    site = application(watched, Access())

    async def get():
        how = {"transport": httpx.ASGITransport(site), "base_url": "http://127.0.0.1"}
        async with httpx.AsyncClient(**how) as client:
            return await client.get(path if path == "/" else f"/operators/orders/incident{path}")

    answer = asyncio.run(get())
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


@pytest.mark.long
@pytest.mark.parametrize("incident", IN_CONSOLE)
def test_the_console_shows_the_symptom_and_its_numbers(directory, incident):
    path, numbers = IN_CONSOLE[incident]
    assert re.search(numbers, console(directory(incident), path))
    timeline = console(directory(incident), "")
    found = symptoms(directory(incident))
    assert all(f"{name}: {text}. Try: " in timeline for name, text in found.items())
    assert {name for name, _ in FOUND.values() if f"{name}:" in timeline} == set(found)


@pytest.mark.long
@pytest.mark.parametrize("incident", IN_CONSOLE)
def test_the_console_explains_each_version_as_the_command_does(directory, incident):
    (printed,) = explained(directory(incident), [2])
    _, paragraph = printed.strip().split("\n")
    page = console(directory(incident), "/versions/3")
    assert " ".join(paragraph.replace("`", "").split()) in page


@pytest.mark.parametrize("incident", FOUND)
def test_the_page_walks_through_it(incident):
    name, _ = FOUND[incident]
    assert f"### {name}" in PAGE
    assert f"incidents.py {incident} " in PAGE
    assert f"(on-call-{incident}.svg)" in PAGE
    picture = (HOW_TO / f"on-call-{incident}.svg").read_text(encoding="utf-8")
    assert name.replace(" ", "&#160;") in picture
    assert "url(" not in picture.replace("url(#", ""), "nothing is loaded from the network"
